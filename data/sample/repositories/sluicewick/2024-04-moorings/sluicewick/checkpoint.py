"""Checkpoints: where a flow remembers how far it came."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from sluicewick.errors import MooringMismatch


class Mooring:
    """Base of all moorings.

    A checkpoint is taken every ``every`` records or ``seconds`` seconds, whichever comes first (500 and 15 unless
    told), after the outlets have flushed. It holds the loader's position and the flow's fingerprint. When the
    fingerprint differs at the next start, ``MooringMismatch`` is raised; ``allow_drift=True`` goes on from the stored
    position all the same, and ``rebase()`` writes the new fingerprint over the old one.

    Delivery is *at least once*: what was written after the last checkpoint is written again after a crash.
    """

    def __init__(self, *, every: int = 500, seconds: float = 15.0, allow_drift: bool = False) -> None:
        self.every, self.seconds, self.allow_drift = every, seconds, allow_drift
        self._last = time.monotonic()

    def read(self, flow: str) -> dict[str, Any] | None:
        raise NotImplementedError

    def store(self, flow: str, checkpoint: dict[str, Any]) -> None:
        raise NotImplementedError

    def due(self, records: int) -> bool:
        return records >= self.every or time.monotonic() - self._last >= self.seconds

    def resume(self, flow: str, fingerprint: str) -> Any:
        """The position to go on from, or None for a fresh start."""
        checkpoint = self.read(flow)
        if checkpoint is None:
            return None
        if checkpoint["fingerprint"] != fingerprint and not self.allow_drift:
            raise MooringMismatch(
                f"flow {flow!r} had reaches {checkpoint['fingerprint']}, now {fingerprint}; "
                "call rebase() or pass allow_drift=True"
            )
        return checkpoint["position"]

    def save(self, flow: str, fingerprint: str, position: Any) -> None:
        self.store(flow, {"fingerprint": fingerprint, "position": position})
        self._last = time.monotonic()

    def rebase(self, flow: str, fingerprint: str) -> None:
        """Accept the flow's new reaches and keep the position."""
        checkpoint = self.read(flow)
        if checkpoint is not None:
            self.store(flow, {**checkpoint, "fingerprint": fingerprint})


class FileMooring(Mooring):
    """One small JSON file a flow, written beside its place and renamed. Not for network file systems."""

    def __init__(self, folder: str | Path = ".sluicewick/moorings", **settings: Any) -> None:
        super().__init__(**settings)
        self.folder = Path(folder)

    def read(self, flow: str) -> dict[str, Any] | None:
        path = self.folder / f"{flow}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def store(self, flow: str, checkpoint: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{flow}.part"
        part.write_text(json.dumps(checkpoint))
        os.replace(part, self.folder / f"{flow}.json")


class SqliteMooring(Mooring):
    """All flows in one SQLite file, in WAL mode, with a busy timeout of 5 seconds.

    Several processes may share the file as long as each runs a flow of its own name. Every ``compact_every``
    checkpoints (2,000 unless told) the write-ahead log is truncated.
    """

    def __init__(self, path: str | Path = ".sluicewick/moorings.db", *, compact_every: int = 2_000, **settings: Any):
        super().__init__(**settings)
        self.compact_every, self._stored = compact_every, 0
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS mooring (flow TEXT PRIMARY KEY, checkpoint TEXT)")

    def read(self, flow: str) -> dict[str, Any] | None:
        row = self._database.execute("SELECT checkpoint FROM mooring WHERE flow = ?", (flow,)).fetchone()
        return json.loads(row[0]) if row else None

    def store(self, flow: str, checkpoint: dict[str, Any]) -> None:
        self._database.execute("INSERT OR REPLACE INTO mooring VALUES (?, ?)", (flow, json.dumps(checkpoint)))
        self._stored += 1
        if self._stored % self.compact_every == 0:
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class RedisMooring(Mooring):
    """Checkpoints in Redis under ``sluicewick:mooring:<flow>``. Needs the extra ``sluicewick[redis]``.

    A lease of ``lease`` seconds (60 unless told) keeps a second process from running the same flow: it raises
    ``RuntimeError: flow 'x' is moored by another process``. The lease is renewed with each checkpoint.
    """

    def __init__(self, url: str, *, lease: int = 60, **settings: Any) -> None:
        super().__init__(**settings)
        import redis

        self.lease = lease
        self._client = redis.Redis.from_url(url)

    def read(self, flow: str) -> dict[str, Any] | None:
        if not self._client.set(f"sluicewick:lease:{flow}", os.getpid(), nx=True, ex=self.lease):
            raise RuntimeError(f"flow {flow!r} is moored by another process")
        stored = self._client.get(f"sluicewick:mooring:{flow}")
        return json.loads(stored) if stored else None

    def store(self, flow: str, checkpoint: dict[str, Any]) -> None:
        self._client.set(f"sluicewick:mooring:{flow}", json.dumps(checkpoint))
        self._client.expire(f"sluicewick:lease:{flow}", self.lease)
