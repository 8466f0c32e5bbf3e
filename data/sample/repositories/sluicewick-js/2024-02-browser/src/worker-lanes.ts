/**
 * Lanes in worker threads, for reaches that compute.
 *
 * The work must live in a module of its own, named by URL, because functions cannot be sent to a worker. Records are
 * copied with the structured clone algorithm: functions and class instances lose their methods, and a record with a
 * function in it throws `DataCloneError`. `transfer` names ArrayBuffers that are moved instead of copied.
 */
export interface WorkerLaneOptions {
  /** Worker threads. One less than `navigator.hardwareConcurrency` unless told, and at least one. */
  lanes?: number;
  /** Records sent to a worker at once. 16 unless told; larger batches copy more cheaply and stop more slowly. */
  batch?: number;
  transfer?: (record: any) => ArrayBuffer[];
}

interface Pending {
  resolve: (value: any) => void;
  reject: (error: unknown) => void;
}

export function workerReach(module: URL, options: WorkerLaneOptions = {}) {
  const cores = globalThis.navigator?.hardwareConcurrency ?? 2;
  const lanes = options.lanes ?? Math.max(1, cores - 1);
  const workers: Worker[] = [];
  const pending = new Map<number, Pending>();
  let number = 0;

  function worker(): Worker {
    if (workers.length < lanes) {
      const made = new Worker(module, { type: "module" });
      made.onmessage = ({ data }) => {
        const waiting = pending.get(data.number);
        pending.delete(data.number);
        if (data.error) waiting?.reject(Object.assign(new Error(data.error.message), { name: data.error.name }));
        else waiting?.resolve(data.result);
      };
      workers.push(made);
      return made;
    }
    return workers[number % lanes]!;
  }

  return (record: any): Promise<any> =>
    new Promise((resolve, reject) => {
      number++;
      pending.set(number, { resolve, reject });
      worker().postMessage({ number, record }, options.transfer?.(record) ?? []);
    });
}

/** Call this in the worker's module: `serveReach((record) => ...)`. */
export function serveReach(work: (record: any) => any): void {
  globalThis.onmessage = async ({ data }: MessageEvent) => {
    try {
      postMessage({ number: data.number, result: await work(data.record) });
    } catch (error: any) {
      postMessage({ number: data.number, error: { name: error.name, message: error.message } });
    }
  };
}
