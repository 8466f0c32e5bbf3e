/** Where a flow remembers how far it came. */
export interface Mooring {
  read(flow: string): Promise<Checkpoint | undefined>;
  store(flow: string, checkpoint: Checkpoint): Promise<void>;
}

export interface Checkpoint {
  position: unknown;
  fingerprint: string;
  at: string;
}

export interface MooringOptions {
  /** Records between checkpoints. 200 unless told. */
  every?: number;
  /** What to do when the reaches have changed: `"fail"` (default) or `"restart"` from the beginning. */
  onDrift?: "fail" | "restart";
}

export async function resume(mooring: Mooring, flow: string, fingerprint: string, options: MooringOptions = {}) {
  const checkpoint = await mooring.read(flow);
  if (!checkpoint) return undefined;
  if (checkpoint.fingerprint === fingerprint) return checkpoint.position;
  if (options.onDrift === "restart") return undefined;
  throw new Error(`flow "${flow}" has other reaches than its checkpoint; set onDrift: "restart" to begin anew`);
}
