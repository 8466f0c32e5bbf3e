import assert from "node:assert/strict";
import { test } from "node:test";
import { Weir } from "../src/weir.js";

test("shedOldest calls onShed", async () => {
  const shed: unknown[] = [];
  const weir = new Weir<number>("w", { capacity: 1, policy: "shedOldest", onShed: (record) => shed.push(record) });
  await weir.put(1);
  await weir.put(2);
  assert.deepEqual(shed, [1]);
});

test("capacity must be whole", () => {
  assert.throws(() => new Weir("w", { capacity: 0.5 }), RangeError);
});
