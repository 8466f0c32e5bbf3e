/** Split delimited text with quotes into rows; `csv({ delimiter: ";" })` is a reach that takes a line. */
export function csv({ delimiter = ",", header }: { delimiter?: string; header?: string[] } = {}) {
  let names = header;
  return (line: string): Record<string, string> | [] => {
    const cells = split(line, delimiter);
    if (!names) {
      names = cells;
      return [];
    }
    return Object.fromEntries(names.map((name, number) => [name, cells[number] ?? ""]));
  };
}

function split(line: string, delimiter: string): string[] {
  const cells: string[] = [];
  let cell = "";
  let quoted = false;
  for (let at = 0; at < line.length; at++) {
    const character = line[at]!;
    if (quoted && character === '"' && line[at + 1] === '"') {
      cell += '"';
      at++;
    } else if (character === '"') quoted = !quoted;
    else if (character === delimiter && !quoted) {
      cells.push(cell);
      cell = "";
    } else cell += character;
  }
  return [...cells, cell];
}
