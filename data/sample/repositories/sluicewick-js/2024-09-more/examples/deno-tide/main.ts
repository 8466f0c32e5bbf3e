// deno run --allow-net main.ts
import { createFlow, tide } from "npm:@sluicewick/core";

await tide(60_000, async () => {
  const flow = createFlow("prices").reach("print", (price: { name: string }) => (console.log(price.name), price));
  await flow.run(await (await fetch("https://example.org/prices.json")).json());
});
