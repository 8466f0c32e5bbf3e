import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Checkpoint, Mooring } from "./mooring.js";

/** Checkpoints as JSON files in a folder, `.sluicewick` unless told. Node only. */
export class FileMooring implements Mooring {
  constructor(private readonly folder = ".sluicewick") {}

  async read(flow: string): Promise<Checkpoint | undefined> {
    try {
      return JSON.parse(await readFile(join(this.folder, `${flow}.json`), "utf8"));
    } catch (error: any) {
      if (error.code === "ENOENT") return undefined;
      throw error;
    }
  }

  async store(flow: string, checkpoint: Checkpoint): Promise<void> {
    await mkdir(this.folder, { recursive: true });
    const part = join(this.folder, `.${flow}.part`);
    await writeFile(part, JSON.stringify(checkpoint));
    await rename(part, join(this.folder, `${flow}.json`));
  }
}
