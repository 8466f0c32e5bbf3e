import { SpillLimitError, SluicewickError } from "./errors.js";
import { attempt, type Reach, type ReachOptions } from "./reach.js";
import { Weir } from "./weir.js";

export interface FlowOptions {
  /** Called with each record that failed for good. Without it the record goes to `console.warn`. */
  onSpill?: (spill: Spill) => void | Promise<void>;
  /** Failed records after which the flow rejects with `SpillLimitError`. 1,000 unless told. */
  spillLimit?: number;
  /** Milliseconds that records under way get when the flow is stopped. 10,000 unless told. */
  drainTimeout?: number;
  /** Stops the flow from outside. */
  signal?: AbortSignal;
}

export interface Spill {
  record: unknown;
  reach: string;
  error: unknown;
  at: Date;
}

export interface FlowReport {
  name: string;
  seen: number;
  written: number;
  spilled: number;
  milliseconds: number;
  stopped: boolean;
}

/** Start a flow. Names may hold letters, digits, `-` and `_`. */
export function createFlow<T = any>(name: string, options: FlowOptions = {}): Flow<T, T> {
  return new Flow<T, T>(name, [], options);
}

/**
 * A chain of reaches. Flows are immutable: `reach` returns a new flow, so a common beginning can be shared. Unlike the
 * Python library, one flow may be run any number of times, also at the same time.
 */
export class Flow<In, Out> {
  constructor(
    readonly name: string,
    private readonly reaches: ReadonlyArray<Reach<any, any>>,
    private readonly options: FlowOptions,
  ) {
    if (!/^[\w-]+$/.test(name)) {
      throw new SluicewickError("E_FLOW_NAME", `flow name "${name}" may hold letters, digits, "-" and "_" only`);
    }
  }

  /** A flow with one reach more. */
  reach<Next>(name: string, work: Reach<Out, Next>["work"], options: ReachOptions = {}): Flow<In, Next> {
    if (this.reaches.some((other) => other.name === name)) {
      throw new SluicewickError("E_REACH_NAME", `flow "${this.name}" has a reach "${name}" already`);
    }
    return new Flow<In, Next>(this.name, [...this.reaches, { name, work, options }], this.options);
  }

  /** Run over a source and throw the results away; for flows whose last reach writes. */
  async run(source: AsyncIterable<In> | Iterable<In>): Promise<FlowReport> {
    const report = this.report();
    for await (const _ of this.results(source, report)) {
      // the last reach has done the work
    }
    return report;
  }

  /** Run over a source and yield the results. Breaking out of the loop stops the flow. */
  async *stream(source: AsyncIterable<In> | Iterable<In>): AsyncGenerator<Out> {
    yield* this.results(source, this.report());
  }

  private report(): FlowReport {
    return { name: this.name, seen: 0, written: 0, spilled: 0, milliseconds: 0, stopped: false };
  }

  private async *results(source: AsyncIterable<In> | Iterable<In>, report: FlowReport): AsyncGenerator<Out> {
    if (this.reaches.length === 0) throw new SluicewickError("E_EMPTY_FLOW", `flow "${this.name}" has no reach`);
    const begun = performance.now();
    const stop = new AbortController();
    const outer = this.options.signal;
    outer?.addEventListener("abort", () => stop.abort(outer.reason), { once: true });
    const weirs = this.reaches.map((reach) => new Weir<any>(reach.name, reach.options.weir));
    const outlet = new Weir<Out>("outlet");
    let failure: unknown;

    const feeding = (async () => {
      try {
        for await (const record of source) {
          if (stop.signal.aborted) break;
          report.seen++;
          await weirs[0]!.put(record);
        }
      } catch (error) {
        failure = error;
        stop.abort(error);
      } finally {
        weirs[0]!.close();
      }
    })();

    const working = this.reaches.map(async (reach, number) => {
      const next = weirs[number + 1] ?? outlet;
      const lanes = Array.from({ length: reach.options.lanes ?? 1 }, async () => {
        for (;;) {
          const { done, value } = await weirs[number]!.take();
          if (done) return;
          try {
            for (const result of await attempt(reach, value, stop.signal)) await next.put(result);
          } catch (error) {
            report.spilled++;
            await this.spill({ record: value, reach: reach.name, error, at: new Date() });
            if (report.spilled > (this.options.spillLimit ?? 1_000)) {
              failure = new SpillLimitError(report.spilled, error);
              stop.abort(failure);
            }
          }
        }
      });
      await Promise.all(lanes);
      next.close();
    });

    try {
      for (;;) {
        const { done, value } = await outlet.take();
        if (done) break;
        report.written++;
        yield value;
      }
    } finally {
      stop.abort();
      const deadline = new Promise((resolve) => setTimeout(resolve, this.options.drainTimeout ?? 10_000));
      await Promise.race([Promise.all([feeding, ...working]), deadline]);
      report.milliseconds = performance.now() - begun;
      report.stopped = outer?.aborted ?? false;
    }
    if (failure) throw failure;
  }

  private async spill(spill: Spill): Promise<void> {
    if (this.options.onSpill) await this.options.onSpill(spill);
    else console.warn(`${this.name}: record failed in ${spill.reach}`, spill.error);
  }
}
