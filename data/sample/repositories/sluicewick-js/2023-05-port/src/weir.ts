import { WeirClosedError } from "./errors.js";

export interface WeirOptions {
  /** Records held in front of a reach. 128 unless told; the Python library holds 256. */
  capacity?: number;
  /** `"wait"` (default) makes `put` wait; `"shedOldest"` and `"shedNewest"` drop a record and call `onShed`. */
  policy?: "wait" | "shedOldest" | "shedNewest";
  onShed?: (record: unknown) => void;
}

/** A bounded queue with promises on both ends. */
export class Weir<T> {
  readonly capacity: number;
  private readonly records: T[] = [];
  private readonly takers: Array<(record: IteratorResult<T>) => void> = [];
  private readonly putters: Array<() => void> = [];
  private closed = false;

  constructor(
    readonly name: string,
    private readonly options: WeirOptions = {},
  ) {
    this.capacity = options.capacity ?? 128;
    if (!Number.isInteger(this.capacity) || this.capacity < 1) {
      throw new RangeError(`weir capacity must be a whole number above zero, not ${this.capacity}`);
    }
  }

  /** Resolves when the record has a place. */
  async put(record: T): Promise<void> {
    if (this.closed) throw new WeirClosedError(this.name);
    const taker = this.takers.shift();
    if (taker) {
      taker({ done: false, value: record });
      return;
    }
    if (this.records.length >= this.capacity) {
      if (this.options.policy === "shedNewest") {
        this.options.onShed?.(record);
        return;
      }
      if (this.options.policy === "shedOldest") {
        this.options.onShed?.(this.records.shift());
      } else {
        await new Promise<void>((resolve) => this.putters.push(resolve));
      }
    }
    this.records.push(record);
  }

  /** The next record, or `{ done: true }` once the weir is closed and empty. */
  async take(): Promise<IteratorResult<T>> {
    if (this.records.length > 0) {
      const value = this.records.shift() as T;
      this.putters.shift()?.();
      return { done: false, value };
    }
    if (this.closed) return { done: true, value: undefined };
    return new Promise((resolve) => this.takers.push(resolve));
  }

  close(): void {
    this.closed = true;
    for (const taker of this.takers.splice(0)) taker({ done: true, value: undefined });
  }
}
