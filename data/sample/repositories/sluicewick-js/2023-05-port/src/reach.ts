import type { WeirOptions } from "./weir.js";

/** Returned by a reach to leave a record out. */
export const DROP: unique symbol = Symbol("sluicewick.drop");

export interface ReachOptions {
  /** Records worked on at once. 1 unless told. Lanes are concurrent promises, not threads; see worker-lanes. */
  lanes?: number;
  /** Whether records leave in the order they came. True unless told. */
  ordered?: boolean;
  /** Repeats of a failing record. 3 unless told. */
  retries?: number;
  /** Milliseconds before the first repeat, doubled each time. 250 unless told. */
  retryWait?: number;
  /** Which errors are worth a repeat. Unless told: network errors (`TypeError` of fetch) and `error.retryable`. */
  retryIf?: (error: unknown) => boolean;
  /** Milliseconds after which one attempt is aborted. No limit unless told. */
  timeout?: number;
  weir?: WeirOptions;
}

export interface Reach<In, Out> {
  name: string;
  work: (record: In, context: ReachContext) => Promise<Out | Out[] | typeof DROP> | Out | Out[] | typeof DROP;
  options: ReachOptions;
}

export interface ReachContext {
  /** Aborted when the flow is stopped or the attempt times out. Pass it to fetch. */
  signal: AbortSignal;
  attempt: number;
}

export async function attempt<In, Out>(reach: Reach<In, Out>, record: In, stop: AbortSignal): Promise<Out[]> {
  const retries = reach.options.retries ?? 3;
  for (let turn = 0; ; turn++) {
    const limit = reach.options.timeout ? AbortSignal.timeout(reach.options.timeout) : undefined;
    const signal = limit ? AbortSignal.any([stop, limit]) : stop;
    try {
      const result = await reach.work(record, { signal, attempt: turn + 1 });
      if (result === undefined) {
        throw new TypeError(`reach "${reach.name}" returned undefined; return the record, an array, or DROP`);
      }
      if (result === DROP) return [];
      return Array.isArray(result) ? result : [result as Out];
    } catch (error) {
      if (turn >= retries || stop.aborted || !(reach.options.retryIf ?? retryable)(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, (reach.options.retryWait ?? 250) * 2 ** turn));
    }
  }
}

function retryable(error: unknown): boolean {
  return (error instanceof TypeError && error.message.includes("fetch")) || (error as any)?.retryable === true;
}
