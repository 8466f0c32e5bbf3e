import { DROP } from "./reach.js";

/**
 * Collect records into arrays: `batch(100)` is a reach for one lane. What is left at the end of the flow stays in the
 * batch; call `rest()` on it after `run` has resolved, or put `batch` into the source instead.
 */
export function batch<T>(size: number) {
  let held: T[] = [];
  const work = (record: T): { records: T[] } | typeof DROP => {
    held.push(record);
    if (held.length < size) return DROP;
    const records = held;
    held = [];
    return { records };
  };
  return Object.assign(work, { rest: () => held.splice(0) });
}
