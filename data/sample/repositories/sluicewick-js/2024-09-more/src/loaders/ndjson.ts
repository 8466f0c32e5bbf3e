export interface NdjsonOptions {
  /** `"throw"` (default) or `"skip"` for lines that are not JSON; skipped ones are handed to `onBadLine`. */
  badLines?: "throw" | "skip";
  onBadLine?: (line: string, number: number) => void;
}

/** Parse lines of JSON. Takes lines, not chunks: read with `fromReadable(stream, { lines: true })`. */
export async function* ndjson(lines: AsyncIterable<string>, options: NdjsonOptions = {}): AsyncGenerator<any> {
  let number = 0;
  for await (const line of lines) {
    number++;
    if (line.trim() === "") continue;
    try {
      yield JSON.parse(line);
    } catch (error) {
      if (options.badLines !== "skip") throw new SyntaxError(`line ${number}: ${(error as Error).message}`);
      options.onBadLine?.(line, number);
    }
  }
}
