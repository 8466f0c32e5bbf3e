import type { Spill } from "./flow.js";

/** Ready-made values for `onSpill`. */

/** Keep the last `size` spills in memory (500 unless told); `take()` empties the ring. */
export function ringSpill(size = 500) {
  const kept: Spill[] = [];
  return Object.assign(
    (spill: Spill) => {
      kept.push(spill);
      if (kept.length > size) kept.shift();
    },
    { take: () => kept.splice(0) },
  );
}

/** Append spills to a file as JSON lines. An Error becomes `{ name, message, stack }`; a bigint becomes text. */
export function fileSpill(path: string) {
  return async (spill: Spill): Promise<void> => {
    const { appendFile } = await import("node:fs/promises");
    await appendFile(path, JSON.stringify(spill, replacer) + "\n");
  };
}

function replacer(_key: string, value: unknown): unknown {
  if (value instanceof Error) return { name: value.name, message: value.message, stack: value.stack };
  return typeof value === "bigint" ? value.toString() : value;
}
