/** Declared fields of a record, checked at run time and known to the compiler. */
type Kind = "string" | "number" | "boolean" | "date" | "bigint";
type Of<K extends Kind> = { string: string; number: number; boolean: boolean; date: Date; bigint: bigint }[K];
type Plain<K extends string> = K extends `${infer Base extends Kind}?` ? Of<Base> | undefined : K extends Kind ? Of<K> : never;

export type Shaped<F extends Record<string, string>> = { [Name in keyof F]: Plain<F[Name]> };

export class ShapeError extends TypeError {
  constructor(
    readonly field: string,
    readonly expected: string,
    got: unknown,
  ) {
    super(`field "${field}": expected ${expected}, got ${got === null ? "null" : typeof got}`);
  }
}

/**
 * `shape({ id: "number", note: "string?" })` is a reach. Text is converted to numbers, booleans and dates; `"12px"` is
 * refused, and so is `NaN`. Undeclared fields are dropped without a word; `{ exact: true }` refuses them.
 */
export function shape<F extends Record<string, string>>(fields: F, options: { exact?: boolean } = {}) {
  return (record: Record<string, unknown>): Shaped<F> => {
    const out: Record<string, unknown> = {};
    for (const [name, kind] of Object.entries(fields)) {
      const optional = kind.endsWith("?");
      const value = record[name];
      if (value === undefined || value === null || value === "") {
        if (!optional) throw new ShapeError(name, kind, value);
        continue;
      }
      out[name] = convert(name, value, kind.replace("?", "") as Kind);
    }
    const surplus = options.exact && Object.keys(record).find((name) => !(name in fields));
    if (surplus) throw new ShapeError(surplus, "no such field", record[surplus]);
    return out as Shaped<F>;
  };
}

function convert(name: string, value: unknown, kind: Kind): unknown {
  if (kind === "number") {
    const number = typeof value === "string" ? Number(value) : value;
    if (typeof number === "number" && !Number.isNaN(number)) return number;
  } else if (kind === "date") {
    const date = new Date(value as string);
    if (!Number.isNaN(date.getTime())) return date;
  } else if (kind === "bigint") {
    try {
      return BigInt(value as string);
    } catch {
      // reported below
    }
  } else if (kind === "boolean") {
    if (value === true || value === "true") return true;
    if (value === false || value === "false") return false;
  } else if (typeof value === "string") {
    return value;
  }
  throw new ShapeError(name, kind, value);
}
