"""Build the tables `commits`, `files` and `chunks` of a topic at a snapshot.

Every entry of every tree gets its row in `files`; each distinct blob that the cache does not know is chunked once, in
worker processes when there is enough to do; frames are put together by columns, never row by row.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from freshstack_dagster.corpus.cache import SHARD_BYTES, CutCache, frame_of_cuts, frame_of_entries, matches
from freshstack_dagster.corpus.git import (
    SUBMODULE,
    SYMLINK,
    TreeEntry,
    UnknownBranch,
    list_tree,
    read_blobs,
    resolve_snapshot,
)
from freshstack_dagster.corpus.languages import language_of
from freshstack_dagster.corpus.mirrors import ensure_commit, open_mirror
from freshstack_dagster.corpus.paths import path_filter
from freshstack_dagster.corpus.pdf import pdf_reader
from freshstack_dagster.corpus.workers import BATCH_BYTES, Cuts, Job, cut, cut_all
from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository, Topic, snapshot_end
from freshstack_dagster.tables import TABLES

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]

# Starting a worker takes about a second; below this much new text the process itself is faster. Small files only:
# in the process itself nothing can stop a grammar that loops.
IN_PROCESS_BYTES = 1_500_000
IN_PROCESS_FILE_BYTES = 50_000
# Files that are no text by intent or nature: `lost_languages` does not miss their chunks.
NOT_TEXT = ("binary", "excluded", "symlink", "submodule", "lfs_pointer", "empty")


@dataclass(frozen=True)
class Corpus:
    """A topic's corpus at a snapshot.

    `files` and `chunks` conform to their tables. `report` counts what was done: `files`, `chunks`, `bytes`,
    `chunked_blobs`, `chunked_bytes`, `cached_files`, `cached_bytes`, `seconds`, `workers`, and under `repositories`,
    by alias, `files`, `chunks`, `bytes`, `cached_files` and `outcomes`.
    """

    files: pl.DataFrame
    chunks: pl.DataFrame
    report: dict[str, Any] = field(default_factory=dict)


def resolve_commits(topic: Topic, snapshot: str, mirrors: Path, *, progress: Progress | None = None) -> pl.DataFrame:
    """The table `commits`: the commit of each of the topic's repositories that is a part of a snapshot.

    Mirrors are cloned or fetched as needed; `progress` is called before each with what is done, and repositories done
    and in all. Raises CorpusError naming the repository that cannot be resolved, or two that are one under two names.
    """
    _refuse_two_names(topic)
    rows: list[dict[str, Any]] = []
    by_commit: dict[str, str] = {}
    parts = [repository for repository in topic.repositories if repository.is_part_of(snapshot)]
    if not parts:
        raise CorpusError(
            f"topic {topic.name}, snapshot {snapshot}: no repository is a part of it yet; see their `since`"
        )
    for number, repository in enumerate(parts):
        (progress or _silent)(f"resolving {repository.name}", number, len(parts))
        pin = repository.pins.get(snapshot)
        mirror = open_mirror(repository, mirrors, fetch_until=None if pin else snapshot_end(snapshot))
        if pin:
            ensure_commit(repository, mirrors, mirror, pin)
        try:
            commit = resolve_snapshot(mirror, repository, snapshot)
        except UnknownBranch:  # made since the last fetch, perhaps
            mirror = open_mirror(repository, mirrors, fetch_until=datetime.now(UTC))
            commit = resolve_snapshot(mirror, repository, snapshot)
        if commit.commit in by_commit:
            raise CorpusError(
                f"topic {topic.name}, snapshot {snapshot}: {by_commit[commit.commit]} and {repository.name} are one "
                f"repository under two names, both at {commit.commit}; keep one and give it `formerly`"
            )
        by_commit[commit.commit] = repository.name
        rows.append(asdict(commit))
    return TABLES["commits"].conform(pl.DataFrame(rows, schema=TABLES["commits"].schema))


def _refuse_two_names(topic: Topic) -> None:
    owners: dict[str, str] = {}
    for repository in topic.repositories:
        for name in {repository.name.lower(), *(name.lower() for name in repository.formerly)}:
            if name in owners:
                raise CorpusError(
                    f"topic {topic.name}: {owners[name]} and {repository.name} are one repository under two names; "
                    "keep one and give it `formerly`"
                )
            owners[name] = repository.name


def build_corpus(
    topic: Topic,
    commits: pl.DataFrame,
    mirrors: Path,
    cache: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Chunk every file of the topic's repositories at `commits` (a frame as of `resolve_commits`).

    `mirrors` and `cache` are folders that any number of runs may share. `workers` is the number of processes, by
    default one a processor. `progress` is called with what is being done, and bytes done and in all.
    Raises CorpusError if a repository, commit or tree cannot be read; trouble with one file is a row of `files`.
    """
    started = time.monotonic()
    builder = _Builder(topic, mirrors, cache, workers or os.cpu_count() or 1, progress or _silent)
    places = {row["repository"]: row["commit"] for row in commits.iter_rows(named=True)}
    unknown = sorted(set(places) - {repository.alias for repository in topic.repositories})
    if unknown:
        raise CorpusError(f"topic {topic.name}: commits name repositories that the topic does not have: {unknown}")
    for repository in topic.repositories:
        if repository.alias in places:
            builder.list_files(repository, places[repository.alias])
    builder.chunk()
    files, chunks = builder.tables()
    return Corpus(files, chunks, builder.report(files, time.monotonic() - started))


def lost_languages(files: pl.DataFrame, share: float = 0.01) -> pl.DataFrame:
    """Extensions with more than `share` of a repository's text bytes that yield no chunk, for an asset check.

    From the table `files`; columns repository, extension, files, bytes, share, outcomes; largest share first. Text is
    what is not binary, excluded, empty, an LFS pointer, a symlink or a submodule. A file without an extension counts
    under its name. A healthy corpus gives no row.
    """
    name = pl.col("path").str.split("/").list.last().str.to_lowercase()
    extension = pl.coalesce(name.str.extract(r"[^.](\.[^.]+)$"), name)
    return (
        files.filter(~pl.col("outcome").is_in(NOT_TEXT))
        .with_columns(extension=extension, bytes=pl.col("bytes").fill_null(0))
        .group_by("repository", "extension")
        .agg(
            pl.len().cast(pl.Int64).alias("files"),
            pl.col("bytes").sum(),
            pl.col("chunks").sum(),
            pl.col("outcome").unique().sort().alias("outcomes"),
        )
        .with_columns(share=pl.col("bytes") / pl.col("bytes").sum().over("repository"))
        .filter((pl.col("share") > share) & (pl.col("chunks") == 0))
        .sort(["share", "repository", "extension"], descending=[True, False, False])
        .select("repository", "extension", "files", "bytes", "share", "outcomes")
    )


def chunk_url(repository: Repository, commit: str, path: str | bytes) -> str | None:
    """Page of a file at a commit, percent-encoded, for a repository on GitHub; None for any other."""
    page = _github_page(repository)
    return page and f"{page}/blob/{commit}/{quote(path)}"


def commit_url(repository: Repository, commit: str) -> str | None:
    """Page of a commit's tree for a repository on GitHub; None for any other."""
    page = _github_page(repository)
    return page and f"{page}/tree/{commit}"


def _github_page(repository: Repository) -> str | None:
    on_github = re.match(r"(?:https://|ssh://git@|git@)github\.com[/:]", repository.clone_url)
    if repository.path is not None or repository.history is not None or not on_github:
        return None
    return f"https://github.com/{quote(repository.name)}"


def _heading(name: str, path: str) -> str:
    """The path line of a document, as in the papers' corpora: it counts into its tokens, and so decides its cuts."""
    return f"{name}/{path}"


def _silent(what: str, done: int, total: int) -> None:
    pass


_LISTED = pl.Schema(
    {
        "repository": pl.String(),
        "path": pl.String(),
        "blob": pl.String(),
        "bytes": pl.Int64(),
        "outcome": pl.String(),
        "detail": pl.String(),
        "language": pl.String(),
        "language_key": pl.String(),
        "head": pl.Int64(),
        "url": pl.String(),
    }
)


class _Builder:
    """What is known about the files of one build, in frames."""

    def __init__(self, topic: Topic, mirrors: Path, cache: Path, workers: int, progress: Progress) -> None:
        from freshstack_dagster.corpus.chunk import CHUNKER_VERSION

        self.topic, self.mirrors, self.most_workers, self.progress = topic, mirrors, workers, progress
        self.cache = CutCache(cache, CHUNKER_VERSION, topic.max_tokens)
        self.places: dict[str, Path] = {}
        self.names = {repository.alias: repository.name for repository in topic.repositories}
        self.listed: list[pl.DataFrame] = []
        self.waiting = pl.DataFrame(schema=_LISTED)
        self.files: list[pl.DataFrame] = []
        self.chunks: list[pl.DataFrame] = []
        self.cached: list[pl.DataFrame] = []
        self.chunked_blobs = self.chunked_bytes = self.total = self.used_workers = 0

    def list_files(self, repository: Repository, commit: str) -> None:
        """List a repository's tree, and settle the files that need no reading."""
        from freshstack_dagster.corpus.chunk import head_tokens

        self.progress(f"listing {repository.alias}", 0, 0)
        mirror = open_mirror(repository, self.mirrors, fetch_until=None)
        ensure_commit(repository, self.mirrors, mirror, commit)
        self.places[repository.alias] = mirror
        paths = path_filter(repository)
        rows = []
        for entry in list_tree(mirror, commit):
            outcome, detail = self._without_reading(entry, paths.reason(entry.path))
            language = language_of(entry.path)
            head = head_tokens(_heading(repository.name, entry.path)) if outcome is None else None
            url = chunk_url(repository, commit, entry.raw_path)
            facts = (repository.alias, entry.path, entry.blob, entry.bytes, outcome, detail)
            rows.append((*facts, language, _language_key(entry.path, language), head, url))
        listed = pl.DataFrame(rows, schema=_LISTED, orient="row")
        settled = listed.filter(pl.col("outcome").is_not_null())
        self.files.append(_file_rows(settled.with_columns(encoding=pl.lit(None, pl.String), chunks=pl.lit(0))))
        self.listed.append(listed.filter(pl.col("outcome").is_null()))

    def _without_reading(self, entry: TreeEntry, excluded: str | None) -> tuple[str | None, str]:
        if entry.kind == SUBMODULE:
            return "submodule", f"commit {entry.blob} of another repository"
        if entry.mode == SYMLINK:
            return "symlink", ""
        if excluded is not None:
            return "excluded", excluded
        if entry.bytes is None:
            return "missing", "the repository does not have this blob"
        if entry.bytes > self.topic.max_file_bytes:
            return "too_large", f"over the topic's limit of {self.topic.max_file_bytes} bytes"
        return None, ""

    def chunk(self) -> None:
        """Settle every other file: from the cache, or by chunking its blob."""
        self.waiting = pl.concat([self.waiting, *self.listed])
        self.total = int(self.waiting["bytes"].sum())
        self._from_cache()
        # One path of each blob is chunked; another path's head may be too long or too short for the same cuts, and
        # goes into the next round.
        while self.waiting.height:
            self._chunk_blobs(self.waiting.unique(["blob", "language_key"], keep="first", maintain_order=True))
        self.progress("chunked", self.total, self.total)

    def _from_cache(self) -> None:
        waiting = self.waiting.drop("outcome", "detail", "language")
        found = self.cache.lookup(waiting, self.topic.seconds_per_file)
        for (shard,), rows in found.group_by("shard"):
            try:
                cuts = self.cache.read(str(shard), rows.filter(pl.col("chunks") > 0)["entry"])
            except CorpusError as error:  # a loss of time, not of the snapshot
                log.warning("%s", error)
                continue
            self.cached.append(rows.select("repository", "bytes"))
            self._settle(rows, cuts)

    def _chunk_blobs(self, files: pl.DataFrame) -> None:
        """Chunk each row's blob, and settle all waiting files that its cuts fit."""
        # The largest first, so that no worker is left alone with one at the end.
        files = files.sort(pl.col("bytes") > BATCH_BYTES, descending=True, maintain_order=True).with_row_index("number")
        missing: list[tuple[str, str]] = []
        batch: list[tuple[str, str, Cuts]] = []
        size = 0
        # Closed at once when something fails, so that no worker goes on for nobody.
        with contextlib.closing(self._results(files, self._read(files, missing))) as results:
            for job, cuts in results:
                row = files.row(job.number, named=True)
                batch.append((row["blob"], row["language_key"], cuts))
                size += len(job.data)
                self.chunked_blobs += 1
                self.chunked_bytes += len(job.data)
                if size > SHARD_BYTES:
                    self._keep(batch)
                    batch, size = [], 0
        self._keep(batch)
        self._settle_missing(missing)

    def _results(self, files: pl.DataFrame, jobs: Iterator[Job]) -> Generator[tuple[Job, Cuts]]:
        size = int(files["bytes"].sum())
        # A PDF's reader is a C library that meets files of any making: in a worker only.
        risky = (pl.col("bytes") > IN_PROCESS_FILE_BYTES) | pl.col("language_key").str.starts_with("pdf by pypdfium2")
        if size <= IN_PROCESS_BYTES and files.filter(risky).is_empty():
            return ((job, cut(job.path, job.data, self.topic.max_tokens)) for job in jobs)
        count = max(1, min(self.most_workers, -(-size // IN_PROCESS_BYTES)))
        self.used_workers = max(self.used_workers, count)
        seconds = self.topic.seconds_per_file
        return cut_all(jobs, max_tokens=self.topic.max_tokens, seconds_per_file=seconds, workers=count)

    def _read(self, files: pl.DataFrame, missing: list[tuple[str, str]]) -> Iterator[Job]:
        """Blobs from the mirrors; `missing` takes repository and blob of those that cannot be read."""
        for (alias,), rows in files.group_by("repository", maintain_order=True):
            blobs = read_blobs(self.places[str(alias)], rows["blob"])
            for number, path, (blob, data) in zip(rows["number"], rows["path"], blobs, strict=True):
                if data is None:
                    missing.append((str(alias), blob))
                else:
                    yield Job(number, _heading(self.names[str(alias)], path), data)

    def _keep(self, batch: list[tuple[str, str, Cuts]]) -> None:
        """Put new cuts into the cache, and settle all waiting files that they fit."""
        if not batch:
            return
        entries, cuts = frame_of_entries(batch), frame_of_cuts([cuts for _, _, cuts in batch])
        self.cache.write(entries, cuts)
        waiting = self.waiting.drop("outcome", "detail", "language")
        self._settle(matches(waiting, entries), cuts)
        self.progress("chunking", self.total - int(self.waiting["bytes"].sum()), self.total)

    def _settle(self, files: pl.DataFrame, cuts: pl.DataFrame) -> None:
        """Give files (with the facts of their entries) their rows in `files` and `chunks`."""
        self.files.append(_file_rows(files))
        self.chunks.append(_chunk_rows(files, cuts))
        self.waiting = self.waiting.join(files, on=["repository", "path"], how="anti")

    def _settle_missing(self, missing: list[tuple[str, str]]) -> None:
        gone = pl.DataFrame(missing, schema={"repository": pl.String(), "blob": pl.String()}, orient="row")
        files = self.waiting.join(gone.unique(), on=["repository", "blob"], how="semi").with_columns(
            outcome=pl.lit("missing"),
            detail=pl.lit("the blob cannot be read from the repository"),
            encoding=pl.lit(None, pl.String),
            chunks=pl.lit(0),
        )
        self.files.append(_file_rows(files))
        self.waiting = self.waiting.join(files, on=["repository", "path"], how="anti")

    def tables(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The tables `files` and `chunks`."""
        files = pl.concat([TABLES["files"].empty(), *self.files])
        chunks = pl.concat([TABLES["chunks"].empty(), *self.chunks])
        return TABLES["files"].conform(files), TABLES["chunks"].conform(chunks)

    def report(self, files: pl.DataFrame, seconds: float) -> dict[str, Any]:
        """What was done, for the asset's metadata; see `Corpus`."""
        cached = pl.concat([pl.DataFrame(schema={"repository": pl.String(), "bytes": pl.Int64()}), *self.cached])
        repositories = {}
        for (alias,), rows in files.group_by("repository", maintain_order=True):
            outcomes = rows["outcome"].value_counts().sort("outcome")
            repositories[str(alias)] = {
                "files": rows.height,
                "chunks": int(rows["chunks"].sum()),
                "bytes": int(rows["bytes"].sum()),
                "cached_files": cached.filter(pl.col("repository") == alias).height,
                "outcomes": dict(outcomes.iter_rows()),
            }
        return {
            "files": files.height,
            "chunks": int(files["chunks"].sum()),
            "bytes": int(files["bytes"].sum()),
            "chunked_blobs": self.chunked_blobs,
            "chunked_bytes": self.chunked_bytes,
            "cached_files": cached.height,
            "cached_bytes": int(cached["bytes"].sum()),
            "seconds": round(seconds, 3),
            "workers": self.used_workers,
            "repositories": repositories,
        }


def _language_key(path: str, language: str | None) -> str:
    """What the cuts of a blob hang on besides its bytes: the language by its name; for a PDF, its reader."""
    if path.lower().endswith(".pdf"):
        return f"pdf by {pdf_reader()}"
    return language or ""


def _file_rows(files: pl.DataFrame) -> pl.DataFrame:
    return files.select(pl.col(name).cast(dtype) for name, dtype in TABLES["files"].schema.items())


def _chunk_rows(files: pl.DataFrame, cuts: pl.DataFrame) -> pl.DataFrame:
    """Rows of `chunks` from files (with entry, head and url) and the cuts of their entries."""
    # Lines of the text that was taken out of a notebook or a PDF are not lines of the page.
    fragment = pl.format("#L{}-L{}", "start_line", "end_line")
    extracted = (pl.col("language_key") == "notebook") | pl.col("language_key").str.starts_with("pdf by")
    url = pl.when(extracted).then("url").otherwise(pl.col("url") + fragment)
    return (
        files.select("repository", "path", "entry", "head", "url", "language", "language_key")
        .join(cuts, on="entry")
        .with_columns(
            doc_id=pl.format("{}/{}_{}_{}", "repository", "path", "start_byte", "end_byte"),
            tokens=pl.col("tokens") + pl.col("head"),
            url=url,
        )
        .select(pl.col(name).cast(dtype) for name, dtype in TABLES["chunks"].schema.items())
    )
