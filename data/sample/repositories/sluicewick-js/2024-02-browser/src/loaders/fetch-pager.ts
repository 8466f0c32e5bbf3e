export interface PagerOptions {
  /** Where a page holds its records. `"items"` unless told. */
  items?: string;
  /** The next page's address: a key, a function of the page, or `"link"` for the Link header. */
  next?: string | "link" | ((page: any) => string | undefined);
  init?: RequestInit;
  /** Milliseconds to wait in all for 429 and 503. 60,000 unless told. */
  patience?: number;
}

/** Yield the records of every page of a JSON interface. */
export async function* fetchPager(url: string, options: PagerOptions = {}): AsyncGenerator<any> {
  let next: string | undefined = url;
  while (next) {
    const reply: Response = await patient(next, options);
    const page = await reply.json();
    yield* page[options.items ?? "items"];
    next =
      options.next === "link"
        ? reply.headers.get("link")?.match(/<([^>]+)>;\s*rel="next"/)?.[1]
        : typeof options.next === "function"
          ? options.next(page)
          : page[options.next ?? "next"];
  }
}

async function patient(url: string, options: PagerOptions): Promise<Response> {
  let left = options.patience ?? 60_000;
  for (;;) {
    const reply = await fetch(url, options.init);
    if (reply.ok) return reply;
    const pause = Number(reply.headers.get("retry-after") ?? 1) * 1_000;
    if (![429, 503].includes(reply.status) || pause > left) throw new Error(`${url}: status ${reply.status}`);
    left -= pause;
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
