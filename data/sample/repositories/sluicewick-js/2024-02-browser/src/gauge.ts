/** Counters of a flow, for a status page or a metrics library. */
export interface GaugeSnapshot {
  flow: string;
  reach: string;
  inFlight: number;
  waiting: number;
  processed: number;
  spilled: number;
}

/** Calls `listener` every `interval` milliseconds (1,000 unless told) until the signal is aborted. */
export function watch(
  read: () => GaugeSnapshot[],
  listener: (snapshots: GaugeSnapshot[]) => void,
  { interval = 1_000, signal }: { interval?: number; signal?: AbortSignal } = {},
): void {
  const timer = setInterval(() => listener(read()), interval);
  (timer as any).unref?.();
  signal?.addEventListener("abort", () => clearInterval(timer), { once: true });
}
