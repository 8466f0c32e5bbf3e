import type { Checkpoint, Mooring } from "./mooring.js";

/**
 * Checkpoints in IndexedDB, database `sluicewick`, store `moorings`. Browser only.
 *
 * Private windows of some browsers delete the database when the last tab is closed. Ask for
 * `navigator.storage.persist()` if checkpoints must survive pressure on disk space.
 */
export class IndexedDbMooring implements Mooring {
  private database?: Promise<IDBDatabase>;

  private open(): Promise<IDBDatabase> {
    this.database ??= new Promise((resolve, reject) => {
      const request = indexedDB.open("sluicewick", 1);
      request.onupgradeneeded = () => request.result.createObjectStore("moorings");
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
    return this.database;
  }

  async read(flow: string): Promise<Checkpoint | undefined> {
    const store = (await this.open()).transaction("moorings").objectStore("moorings");
    return settled(store.get(flow));
  }

  async store(flow: string, checkpoint: Checkpoint): Promise<void> {
    const store = (await this.open()).transaction("moorings", "readwrite").objectStore("moorings");
    await settled(store.put(checkpoint, flow));
  }
}

function settled<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
