import { useEffect, useRef, useState } from "react";
import type { Flow } from "@sluicewick/core";

export interface FlowState<T> {
  status: "idle" | "running" | "done" | "failed";
  results: T[];
  error?: unknown;
}

/**
 * Run a flow when its source changes, and stop it when the component goes.
 *
 * The source is compared by identity: an array written in the component's body is a new one at each render and starts
 * the flow again and again. Memoise it. At most `keep` results are held (1,000 unless told), the oldest go first.
 * Results are handed to React at most every `throttle` milliseconds (100 unless told).
 */
export function useFlow<In, Out>(
  flow: Flow<In, Out>,
  source: Iterable<In> | AsyncIterable<In> | null,
  { keep = 1_000, throttle = 100 }: { keep?: number; throttle?: number } = {},
): FlowState<Out> {
  const [state, setState] = useState<FlowState<Out>>({ status: "idle", results: [] });
  const buffer = useRef<Out[]>([]);

  useEffect(() => {
    if (source === null) return;
    let live = true;
    buffer.current = [];
    setState({ status: "running", results: [] });
    const timer = setInterval(() => live && setState((old) => ({ ...old, results: buffer.current.slice(-keep) })), throttle);
    (async () => {
      try {
        for await (const result of flow.stream(source)) {
          if (!live) return;
          buffer.current.push(result);
          if (buffer.current.length > keep * 2) buffer.current = buffer.current.slice(-keep);
        }
        if (live) setState({ status: "done", results: buffer.current.slice(-keep) });
      } catch (error) {
        if (live) setState({ status: "failed", results: buffer.current.slice(-keep), error });
      } finally {
        clearInterval(timer);
      }
    })();
    return () => {
      live = false;
      clearInterval(timer);
    };
  }, [flow, source, keep, throttle]);

  return state;
}
