import type { Flow } from "./flow.js";

export interface LineOptions {
  /** Split text at line ends, or write one JSON value a line. False unless told. */
  lines?: boolean;
}

/** A source of a Node readable or a web ReadableStream. Reads only when the flow has room. */
export async function* fromReadable(stream: AsyncIterable<any>, options: LineOptions = {}): AsyncGenerator<any> {
  if (!options.lines) {
    yield* stream;
    return;
  }
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of stream) {
    const lines = (rest + (typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true }))).split(/\r?\n/);
    rest = lines.pop() ?? "";
    yield* lines;
  }
  if (rest) yield rest;
}

/** Send the results of a flow to a writable, waiting for `drain`. */
export function toWritable(flow: Flow<any, any>, stream: NodeJS.WritableStream, options: LineOptions = {}) {
  return {
    async from(source: AsyncIterable<any>): Promise<number> {
      let count = 0;
      for await (const record of flow.stream(source)) {
        const text = options.lines ? JSON.stringify(record) + "\n" : record;
        if (!stream.write(text)) await new Promise((resolve) => stream.once("drain", resolve));
        count++;
      }
      return count;
    },
  };
}
