/**
 * Let a function be called at most `count` times in `milliseconds`, by making callers wait their turn.
 *
 * The pace is kept for one process. Put `paced` around the work of a reach and give the reach as many lanes as requests
 * may be open at once.
 */
export function paced<In, Out>(work: (record: In) => Promise<Out>, count: number, milliseconds: number) {
  const calls: number[] = [];
  let turn: Promise<void> = Promise.resolve();
  return (record: In): Promise<Out> => {
    const mine = turn.then(async () => {
      if (calls.length >= count) {
        const wait = calls.shift()! + milliseconds - Date.now();
        if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      }
      calls.push(Date.now());
    });
    turn = mine;
    return mine.then(() => work(record));
  };
}
