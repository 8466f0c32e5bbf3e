/** Base of everything that the library throws on its own account. */
export class SluicewickError extends Error {
  readonly code: string;

  constructor(code: string, message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/** A record was put into a weir after the flow had ended. Code `E_WEIR_CLOSED`. */
export class WeirClosedError extends SluicewickError {
  constructor(name: string) {
    super("E_WEIR_CLOSED", `weir in front of "${name}" is closed`);
  }
}

/** More records failed than `spillLimit` allows. Code `E_SPILL_LIMIT`. */
export class SpillLimitError extends SluicewickError {
  constructor(count: number, cause: unknown) {
    super("E_SPILL_LIMIT", `${count} records failed`, { cause });
  }
}
