"""Embeddings by content hash and model: immutable shards, appended to, read as one matrix.

A shard is two files of one name: the vectors (`.npy`, float16 or float32) and, written last, its index (`.parquet` with
content_hash, row and whether the input was cut). A shard without index does not exist, so a killed run leaves only
whole shards, and several runs may append at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from freshstack_dagster.errors import FreshstackError

_INDEX = {"content_hash": pl.String, "row": pl.Int64, "truncated": pl.Boolean}


class EmbeddingStore:
    """The embeddings of one model under one folder.

    `identity` is everything that makes a vector what it is: model, revision, prompt, length, dimensions, data type.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        text = json.dumps(dict(identity), sort_keys=True, ensure_ascii=False, indent=1, default=str)
        self.folder = folder / hashlib.sha256(text.encode()).hexdigest()[:32]
        self.dtype = np.dtype(identity.get("dtype", "float16"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            described = self.folder / "model.json"
            if not described.exists():
                temporary = described.with_name(f".{secrets.token_hex(4)}")
                temporary.write_text(text + "\n", encoding="utf-8")
                os.replace(temporary, described)
        except OSError as error:
            raise self._unwritable(error) from error
        self._place: dict[str, tuple[int, int]] = {}
        self._truncated: set[str] = set()
        self._shards: list[np.ndarray] = []
        self._read: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Read shards that were added since."""
        for index in sorted(self.folder.glob("*.parquet")):
            if index.name in self._read or index.name.startswith("."):
                continue
            try:
                vectors = np.load(index.with_suffix(".npy"), mmap_mode="r")
                rows = pl.read_parquet(index)
            except (OSError, ValueError, EOFError, pl.exceptions.PolarsError) as error:
                raise FreshstackError(
                    f"{index}: this shard of embeddings cannot be read ({str(error).splitlines()[0]}); "
                    "delete it and its .npy, and its texts are embedded again"
                ) from error
            self._read.add(index.name)
            for content_hash, row, truncated in rows.select("content_hash", "row", "truncated").iter_rows():
                self._place.setdefault(content_hash, (len(self._shards), row))
                if truncated:
                    self._truncated.add(content_hash)
            self._shards.append(vectors)

    def __contains__(self, content_hash: object) -> bool:
        return content_hash in self._place

    def __len__(self) -> int:
        return len(self._place)

    def missing(self, content_hashes: Sequence[str]) -> list[str]:
        """Hashes that have no embedding yet, each once, in the order given."""
        return [content_hash for content_hash in dict.fromkeys(content_hashes) if content_hash not in self._place]

    def truncated(self, content_hashes: Sequence[str]) -> int:
        """How many of these texts were cut before they were embedded, each hash counted once."""
        return len(self._truncated.intersection(content_hashes))

    def append(self, content_hashes: Sequence[str], vectors: np.ndarray, truncated: Sequence[bool]) -> None:
        """Add one shard. Raises FreshstackError if a vector is not finite, does not fit, or the disk refuses."""
        stored = np.ascontiguousarray(vectors, dtype=self.dtype)
        if stored.shape[:1] != (len(content_hashes),) or stored.ndim != 2:
            raise FreshstackError(f"{self.folder}: {len(content_hashes)} texts gave vectors of shape {stored.shape}")
        if self._shards and stored.shape[1] != self._shards[0].shape[1]:
            raise FreshstackError(
                f"{self.folder}: the model now gives {stored.shape[1]} dimensions, the stored embeddings have "
                f"{self._shards[0].shape[1]}; name the model's revision, or delete the folder"
            )
        if not np.isfinite(stored).all():
            bad = content_hashes[int(np.flatnonzero(~np.isfinite(stored).all(axis=1))[0])]
            raise FreshstackError(
                f"the embedding of text {bad} does not fit {self.dtype} (NaN or infinite); "
                "set the retriever's option dtype to float32, or look at the model"
            )
        name = f"{time.time_ns():x}-{secrets.token_hex(4)}"
        index = pl.DataFrame(
            {"content_hash": list(content_hashes), "row": range(len(stored)), "truncated": list(truncated)},
            schema=_INDEX,
        )
        try:
            with open(self.folder / f".{name}.npy", "wb") as file:
                np.save(file, stored)
                file.flush()
                os.fsync(file.fileno())
            os.replace(self.folder / f".{name}.npy", self.folder / f"{name}.npy")
            index.write_parquet(self.folder / f".{name}.parquet")
            os.replace(self.folder / f".{name}.parquet", self.folder / f"{name}.parquet")
        except OSError as error:
            raise self._unwritable(error) from error
        self.refresh()

    def rows(self, content_hashes: Sequence[str]) -> EmbeddingRows:
        """The embeddings of these texts in this order. Raises FreshstackError if one is missing."""
        if absent := self.missing(content_hashes):
            raise FreshstackError(f"{self.folder}: text {absent[0]} has no embedding; embed it first")
        places = np.array([self._place[content_hash] for content_hash in content_hashes], np.int64).reshape(-1, 2)
        return EmbeddingRows(self._shards, places[:, 0], places[:, 1])

    def _unwritable(self, error: OSError) -> FreshstackError:
        return FreshstackError(f"{self.folder}: embeddings cannot be written ({error.strerror or error})")


class EmbeddingRows:
    """A matrix whose rows lie in memory-mapped shards; a slice or an array of rows is gathered when asked for."""

    def __init__(self, shards: list[np.ndarray], shard: np.ndarray, row: np.ndarray) -> None:
        self._shards, self._shard, self._row = shards, shard, row
        self.shape: tuple[int, ...] = (len(row), shards[0].shape[1] if shards else 0)

    def __getitem__(self, rows: Any, /) -> np.ndarray:
        shard, row = self._shard[rows], self._row[rows]
        dtype = self._shards[0].dtype if self._shards else np.dtype(np.float32)
        gathered = np.empty((len(row), self.shape[1]), dtype)
        for number in np.unique(shard):
            at = np.flatnonzero(shard == number)
            gathered[at] = self._shards[number][row[at]]
        return gathered
