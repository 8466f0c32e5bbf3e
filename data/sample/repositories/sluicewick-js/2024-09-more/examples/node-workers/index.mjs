import "web-worker";
import { createFlow } from "@sluicewick/core";
import { workerReach } from "@sluicewick/core/worker";

const hash = workerReach(new URL("./hash.worker.mjs", import.meta.url), { lanes: 2 });
const flow = createFlow("hashes").reach("hash", hash, { lanes: 2 });

for await (const digest of flow.stream(["a", "b", "c"])) console.log(digest);
process.exit(0); // workers keep the process alive
