import assert from "node:assert/strict";
import { test } from "node:test";
import { shape } from "../src/shape.js";

test("text with a unit is no number", () => {
  assert.throws(() => shape({ width: "number" })({ width: "12px" }), /expected number, got string/);
});
