import { createReadStream } from "node:fs";
import { createFlow, fromReadable } from "@sluicewick/core";

const flow = createFlow("people").reach("split", (line) => {
  const [name, age] = line.split(";");
  return { name, age: Number(age) };
});

for await (const person of flow.stream(fromReadable(createReadStream("people.csv"), { lines: true }))) {
  console.log(person);
}
