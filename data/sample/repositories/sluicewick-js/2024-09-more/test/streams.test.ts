import assert from "node:assert/strict";
import { Readable } from "node:stream";
import { test } from "node:test";
import { fromReadable } from "../src/streams.js";

test("a line that is cut in the middle of a character", async () => {
  const bytes = Buffer.from("ø\nå\n");
  const lines: string[] = [];
  const chunks = [bytes.subarray(0, 1), bytes.subarray(1)];
  for await (const line of fromReadable(Readable.from(chunks), { lines: true })) lines.push(line);
  assert.deepEqual(lines, ["ø", "å"]);
});
