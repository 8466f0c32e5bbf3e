"""What every kind of retriever shares: the corpus, where it may keep things, and one small interface."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from freshstack_dagster.errors import FreshstackError, SchemaError
from freshstack_dagster.retrieval.topk import Ranking
from freshstack_dagster.settings import Retriever

Progress = Callable[[str, int, int], None]
# Folders of the cache that hold an index a corpus, as opposed to what is kept by content.
INDEXES = ("bm25", "lsa", "multi_vector")


@dataclass(frozen=True)
class Corpus:
    """The chunks of a snapshot in the order of their doc_id, so that the lower row wins a tie.

    The text alone is indexed, without the path, as in the published collections; so equal texts have equal hashes,
    index terms and embeddings in every file, repository and month.
    """

    doc_ids: list[str]
    content_hashes: list[str]
    texts: list[str]

    @classmethod
    def of(cls, chunks: pl.DataFrame) -> Corpus:
        """From columns doc_id, content_hash and text. Raises SchemaError on missing columns or a repeated doc_id."""
        missing = [name for name in ("doc_id", "content_hash", "text") if name not in chunks.columns]
        if missing:
            raise SchemaError(f"chunks lack columns {missing}; retrieval needs doc_id, content_hash and text")
        chunks = chunks.select("doc_id", "content_hash", "text").sort("doc_id")
        repeated = chunks.filter(pl.col("doc_id") == pl.col("doc_id").shift(1))["doc_id"].to_list()
        if repeated:
            raise SchemaError(f"chunks repeat doc_id {', '.join(repeated[:3])}; every chunk needs an id of its own")
        return cls(chunks["doc_id"].to_list(), chunks["content_hash"].to_list(), chunks["text"].to_list())

    def __len__(self) -> int:
        return len(self.doc_ids)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the content hashes in order: equal for equal texts in equal order, whatever their ids."""
        digest = hashlib.sha256()
        for content_hash in self.content_hashes:
            digest.update(content_hash.encode())
            digest.update(b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class Workspace:
    """Where a retriever keeps what it can use again, whom it tells how far it is, and where its counts go."""

    cache: Path
    progress: Progress | None = None
    report: dict[str, Any] = field(default_factory=dict)

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress: what is being done, how much of how much."""
        if self.progress is not None:
            self.progress(stage, done, total)


class Retrieval(Protocol):
    """A retriever opened on a corpus."""

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        """For each query the rows of the corpus it finds, at most `depth`, by score descending, then row ascending.

        A query in which there is nothing to search for finds nothing.
        """
        ...


class Opener(Protocol):
    """Opens a retriever on a corpus: the one function that a kind's module, or a plug-in, provides."""

    def __call__(self, retriever: Retriever, corpus: Corpus, workspace: Workspace) -> Retrieval:
        """Build or load what searching needs."""
        ...


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when the block ends well, so that a cache entry is whole or absent."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}")
    stale = temporary.with_name(f"{temporary.name}.stale")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        # Either nothing is there, or an unreadable entry, or one that another process finished meanwhile.
        while not _placed(temporary, folder):
            with suppress(FileNotFoundError):
                os.replace(folder, stale)
            shutil.rmtree(stale, ignore_errors=True)
    except OSError as error:
        raise FreshstackError(f"{folder}: the cache cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def used(folder: Path) -> None:
    """Note that a cache entry was used now, so that `prune` knows which are not."""
    with suppress(OSError):
        os.utime(folder)


def prune(cache: Path, days: float, *, now: float | None = None) -> dict[str, int]:
    """Delete the indexes under `cache` that no run used for `days` days; returns bytes freed by entry, sorted by name.

    Indexes (BM25, LSA, multi-vector) are made again when they are missed. Embeddings and reranker's scores, which cost
    money or hours, are never deleted here. Leftovers of killed runs, hidden folders of that age, go too. `now` is in
    seconds since 1970. Raises FreshstackError if an entry cannot be deleted.
    """
    oldest = (time.time() if now is None else now) - days * 86_400
    freed: dict[str, int] = {}
    for kind in INDEXES:
        for entry in sorted(path for path in (cache / kind).glob("*") if path.is_dir()):
            if entry.stat().st_mtime >= oldest:
                continue
            size = sum(file.stat().st_size for file in entry.rglob("*") if file.is_file())
            # Out of sight first: a run that looks for the entry finds it whole or not at all.
            hidden = entry if entry.name.startswith(".") else entry.with_name(f".{entry.name}.pruned")
            try:
                os.replace(entry, hidden)
                shutil.rmtree(hidden)
            except OSError as error:
                raise FreshstackError(f"{entry}: cannot be deleted ({error.strerror or error})") from error
            freed[f"{kind}/{entry.name}"] = size
    return freed


def _placed(temporary: Path, folder: Path) -> bool:
    """Move `temporary` to `folder` unless something is there."""
    try:
        os.replace(temporary, folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True
