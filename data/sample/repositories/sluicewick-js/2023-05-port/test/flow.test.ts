import assert from "node:assert/strict";
import { test } from "node:test";
import { createFlow } from "../src/index.js";

test("spillLimit zero makes the first failure fatal", async () => {
  const flow = createFlow("f", { spillLimit: 0, onSpill: () => {} }).reach("boom", () => {
    throw new Error("boom");
  });
  await assert.rejects(flow.run([1]), { code: "E_SPILL_LIMIT" });
});
