"""Speed of the corpus build on real repositories: from bare mirrors to chunks, and what the next month costs.

    python -m freshstack_dagster_tests.benchmarks.corpus MIRRORS --topics langchain laravel --months 2024-10 2024-11

`MIRRORS` is a folder of git repositories, `owner+name/repo` or `owner+name.git`; repositories of the topics that are
not there are left out, and named. Prints, for each month and again with everything cached: seconds, processor seconds
of this process and of its children, bytes chunked and cached. For later months also what was new, in two counts, and
the processor time against the first month's as a multiple of each; start-up and what a fully cached build costs (it
lists the trees and reads the cache) are taken off both months:

- *blobs*: bytes of the new blobs, of those of all files that were read. A notebook's pictures and a PDF's fonts count,
  though they cost next to nothing to chunk: a month that changes little but code looks dear by it.
- *text*: bytes of the new chunks, that is of what was tokenised and cut.

    ... --cache 100000

measures the cache alone: writing that many made-up blobs, looking all of them up and reading them back, against reading
the same texts from git and cutting them again.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import polars as pl

from freshstack_dagster.corpus.build import Corpus, build_corpus, resolve_commits
from freshstack_dagster.corpus.cache import CutCache, frame_of_cuts, frame_of_entries
from freshstack_dagster.corpus.git import read_blobs
from freshstack_dagster.corpus.workers import BATCH_BYTES, Cuts, Job, cut, cut_all
from freshstack_dagster.settings import Repository, Topic, find_root, load_topic

T = TypeVar("T")


def timed(what: Callable[[], T]) -> tuple[T, float, float]:
    """Result, wall seconds, and processor seconds of this process and its ended children."""
    started, used = time.perf_counter(), _processor_seconds()
    result = what()
    return result, time.perf_counter() - started, _processor_seconds() - used


def _processor_seconds() -> float:
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def local(topic: Topic, mirrors: Path) -> Topic:
    """The topic with its repositories read from `mirrors`, pins and all."""
    found: list[Repository] = []
    for repository in topic.repositories:
        stem = repository.name.replace("/", "+")
        for path in (mirrors / stem / "repo", mirrors / f"{stem}.git"):
            if path.exists():
                found.append(repository.model_copy(update={"path": path}))
                break
        else:
            print(f"  not there: {repository.name}")
    return topic.model_copy(update={"repositories": tuple(found)})


def start_up(workers: int) -> float:
    """Processor seconds that starting the workers costs, whatever they then do."""
    jobs = [Job(number, "a.md", b" " * BATCH_BYTES) for number in range(workers)]
    _, _, used = timed(lambda: list(cut_all(jobs, max_tokens=2048, seconds_per_file=20, workers=workers)))
    return used


def months(topic: Topic, snapshots: list[str], workers: int | None) -> None:
    cut("warm.py", b"x = 1\n", 2048)  # what is loaded once is not a month's cost
    with tempfile.TemporaryDirectory() as scratch:
        cache, none = Path(scratch) / "cache", Path(scratch) / "mirrors"
        first = 0.0
        known = pl.DataFrame(schema={"blob": pl.String()})
        for snapshot in snapshots:
            commits, wall, _ = timed(lambda month=snapshot: resolve_commits(topic, month, none))
            print(f"{topic.name} {snapshot}: resolved {commits.height} repositories in {wall:.2f} s")

            def build(commits: pl.DataFrame = commits) -> Corpus:
                return build_corpus(topic, commits, none, cache, workers=workers)

            corpus, wall, used = timed(build)
            report = corpus.report
            print(
                f"  build: {wall:.1f} s, {used:.1f} CPU s, {report['files']} files, {report['chunks']} chunks; chunked "
                f"{report['chunked_bytes'] / 1e6:.1f} MB in {report['workers']} workers, "
                f"cached {report['cached_bytes'] / 1e6:.1f} MB"
            )
            _, again, idle = timed(build)
            starting = start_up(report["workers"]) if report["workers"] else 0.0
            cost = used - idle - starting
            print(f"  again, all cached: {again:.1f} s, {idle:.1f} CPU s; starting the workers {starting:.1f} CPU s")
            texts = corpus.chunks.select("repository", "path", size=pl.col("text").str.len_bytes())
            texts = texts.join(corpus.files.select("repository", "path", "blob"), on=["repository", "path"])
            fresh = texts.join(known, on="blob", how="anti")["size"].sum() / max(1, texts["size"].sum())
            if first:
                blobs = report["chunked_bytes"] / max(1, report["chunked_bytes"] + report["cached_bytes"])
                share = cost / first
                print(
                    f"  new: {blobs:.1%} of the blobs' bytes, {fresh:.1%} of the text; cost {share:.1%} of the first "
                    f"month's: {share / max(blobs, 1e-9):.2f} times the blobs' share, {share / max(fresh, 1e-9):.2f} "
                    "times the text's"
                )
            first = first or cost
            known = corpus.files.select("blob").unique()
            size = sum(path.stat().st_size for path in cache.rglob("*.parquet"))
            print(f"  texts {texts['size'].sum() / 1e6:.1f} MB, cache {size / 1e6:.1f} MB, peak {_peak():.0f} MB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def texts_or_cuts(topic: Topic, snapshot: str) -> None:
    """Why texts are in the cache: reading them back against cutting them out of their blobs again."""
    with tempfile.TemporaryDirectory() as scratch:
        cache, none = Path(scratch) / "cache", Path(scratch) / "mirrors"
        commits = resolve_commits(topic, snapshot, none)
        corpus = build_corpus(topic, commits, none, cache)
        pieces = corpus.files.filter(pl.col("chunks") > 0).join(corpus.chunks, on=["repository", "path"])
        places = {repository.alias: repository.path for repository in topic.repositories}

        def cut_again() -> int:
            size = 0
            for (alias,), rows in pieces.group_by("repository", maintain_order=True):
                wanted = rows.group_by("blob", maintain_order=True).agg("encoding", "start_byte", "end_byte")
                place = places[str(alias)]
                assert place is not None
                blobs = read_blobs(place, wanted["blob"])
                for (_, encodings, starts, ends), (_, data) in zip(wanted.iter_rows(), blobs, strict=True):
                    for encoding, start, end in zip(encodings, starts, ends, strict=True):
                        size += len((data or b"")[start:end].decode(encoding, "replace"))
            return size

        def read_back() -> int:
            return sum(pl.read_parquet(path).height for path in cache.rglob("*.cuts.parquet"))

        for name, what in (("cut again from git", cut_again), ("read from the cache", read_back)):
            _, wall, used = timed(what)
            print(f"  {name}: {wall:.2f} s, {used:.2f} CPU s")
        shards = list(cache.rglob("*.cuts.parquet"))
        slim = Path(scratch) / "slim.parquet"
        pl.read_parquet(shards).drop("text").write_parquet(slim, compression="zstd")
        size = sum(path.stat().st_size for path in shards)
        print(f"  on disk with texts {size / 1e6:.1f} MB, without {slim.stat().st_size / 1e6:.1f} MB")


def cache_alone(blobs: int) -> None:
    scratch = Path(tempfile.mkdtemp())
    try:
        cache = CutCache(scratch, "benchmark", 2048)
        text = os.urandom(1500).hex()
        made = [
            (
                f"{n:040x}",
                "python",
                Cuts("chunked", "utf-8", "python", "", 9, 0, 99, tuple([[1]] * 7 + [["h"], [f"{n}{text}"]])),
            )
            for n in range(blobs)
        ]

        def write() -> None:
            for start in range(0, blobs, 2500):
                part = made[start : start + 2500]
                cache.write(frame_of_entries(part), frame_of_cuts([cuts for _, _, cuts in part]))

        wanted = pl.DataFrame(
            [("made", f"{n}.py", blob, key, 9) for n, (blob, key, _) in enumerate(made)],
            schema=["repository", "path", "blob", "language_key", "head"],
            orient="row",
        )
        print(f"{blobs} blobs: written in {timed(write)[1]:.2f} s")
        found, wall, used = timed(lambda: cache.lookup(wanted, 20))
        print(f"  looked up in {wall:.2f} s ({used:.2f} CPU s), {found.height} found")

        def read() -> int:
            return sum(cache.read(str(shard), rows["entry"]).height for (shard,), rows in found.group_by("shard"))

        rows, wall, used = timed(read)
        print(f"  read back in {wall:.2f} s ({used:.2f} CPU s), {rows} rows")
        few, wall, used = timed(lambda: cache.lookup(wanted.head(100), 20))
        print(f"  100 of them looked up in {wall:.2f} s ({used:.2f} CPU s), {few.height} found")
    finally:
        shutil.rmtree(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path, nargs="?", help="folder of git repositories")
    parser.add_argument("--topics", nargs="+", default=["langchain"])
    parser.add_argument("--months", nargs="+", default=["2024-10", "2024-11"])
    parser.add_argument("--only", nargs="+", help="aliases of the repositories to take")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--texts", action="store_true", help="compare the cache of texts with cutting again")
    parser.add_argument("--cache", type=int, metavar="BLOBS")
    arguments = parser.parse_args()
    if arguments.cache:
        cache_alone(arguments.cache)
    if arguments.mirrors:
        topics = [load_topic(find_root() / "data" / "topics" / f"{name}.yaml") for name in arguments.topics]
        together = tuple(repository for topic in topics for repository in topic.repositories)
        topic = local(topics[0].model_copy(update={"repositories": together}), arguments.mirrors)
        if arguments.only:
            kept = tuple(one for one in topic.repositories if one.alias in arguments.only)
            topic = topic.model_copy(update={"repositories": kept})
        if arguments.texts:
            texts_or_cuts(topic, arguments.months[0])
        else:
            months(topic, arguments.months, arguments.workers)


if __name__ == "__main__":
    main()
