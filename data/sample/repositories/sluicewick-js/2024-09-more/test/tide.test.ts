import assert from "node:assert/strict";
import { test } from "node:test";
import { tide } from "../src/tide.js";

test("ticks that pass during a long task are left out", async () => {
  const ticks: number[] = [];
  const stop = new AbortController();
  await tide(
    10,
    async (tick) => {
      ticks.push(tick);
      await new Promise((resolve) => setTimeout(resolve, 25));
      if (ticks.length === 2) stop.abort();
    },
    { signal: stop.signal },
  );
  assert.ok(ticks[1]! >= ticks[0]! + 3);
});
