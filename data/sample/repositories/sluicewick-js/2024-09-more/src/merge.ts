/** Read several sources at once and yield what comes first. One that rejects ends all of them. */
export async function* merge<T>(...sources: AsyncIterable<T>[]): AsyncGenerator<T> {
  const readers = sources.map((source) => source[Symbol.asyncIterator]());
  const waiting = new Map(readers.map((reader, number) => [number, next(reader, number)]));
  try {
    while (waiting.size > 0) {
      const { number, result } = await Promise.race(waiting.values());
      if (result.done) waiting.delete(number);
      else {
        waiting.set(number, next(readers[number]!, number));
        yield result.value;
      }
    }
  } finally {
    await Promise.allSettled(readers.map((reader) => reader.return?.()));
  }
}

async function next<T>(reader: AsyncIterator<T>, number: number) {
  return { number, result: await reader.next() };
}
