/** Give one source to several flows. The slowest sets the pace; `buffer` records (64 unless told) are held for it. */
export function tee<T>(source: AsyncIterable<T>, count: number, buffer = 64): AsyncGenerator<T>[] {
  const held: T[][] = Array.from({ length: count }, () => []);
  const reading = source[Symbol.asyncIterator]();
  let ended = false;

  async function* branch(number: number): AsyncGenerator<T> {
    for (;;) {
      const record = held[number]!.shift();
      if (record !== undefined) {
        yield record;
        continue;
      }
      if (ended) return;
      if (held.some((records) => records.length >= buffer)) {
        await new Promise((resolve) => setTimeout(resolve, 1));
        continue;
      }
      const { done, value } = await reading.next();
      if (done) ended = true;
      else for (const records of held) records.push(value);
    }
  }

  return held.map((_, number) => branch(number));
}
