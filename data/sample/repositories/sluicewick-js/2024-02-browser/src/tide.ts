/** Run something at an interval without drifting, and never twice at once. */
export function tide(
  interval: number,
  task: (tick: number) => Promise<void>,
  { signal, immediate = false }: { signal?: AbortSignal; immediate?: boolean } = {},
): Promise<void> {
  const begun = Date.now();
  return new Promise((resolve, reject) => {
    let tick = immediate ? 0 : 1;
    const next = () => {
      if (signal?.aborted) return resolve();
      const wait = Math.max(0, begun + tick * interval - Date.now());
      const timer = setTimeout(async () => {
        try {
          await task(tick);
        } catch (error) {
          return reject(error);
        }
        // ticks that passed during the task are left out
        tick = Math.max(tick + 1, Math.ceil((Date.now() - begun) / interval));
        next();
      }, wait);
      signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
    };
    next();
  });
}
