"""How fast lineage is and how it grows: seconds and peak memory for corpora of several sizes made from real chunks.

    python -m freshstack_dagster_tests.benchmarks.lineage BASELINE LATER [--sizes 6250 12500 25000 50000]

Two Parquet files with the columns of `chunks`, of the same repositories at two months (several pairs may be given).
Larger corpora hold them several times over, each copy in repositories of its own and with words of its own, so that
copies are related to themselves alone, as other repositories would be. Each size runs in a process of its own; clocks
lie on a busy machine, so processor seconds stand beside them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from pathlib import Path

import polars as pl

COLUMNS = ["doc_id", "repository", "path", "start_byte", "content_hash", "text"]


def copies(files: list[Path], chunks: int) -> pl.DataFrame:
    """About `chunks` chunks: the real ones over and over, every copy with its own repositories and words."""
    real = pl.concat([pl.read_parquet(file, columns=COLUMNS) for file in files])
    parts, rows = [], 0
    for number in range(-(-chunks // real.height)):
        tag = "" if number == 0 else f"x{number}"
        copy = real.with_columns(
            pl.col("text").str.replace_all(r"([A-Za-z_]{4,})", "${1}" + tag),
            pl.col("repository") + tag,
            pl.format("{}{}/{}", "repository", pl.lit(tag), pl.col("doc_id").str.splitn("/", 2).struct[1]).alias(
                "doc_id"
            ),
            pl.col("content_hash") + tag,
        )
        parts.append(copy.head(chunks - rows))
        rows += parts[-1].height
    return pl.concat(parts)


def measure(baseline: list[Path], later: list[Path], chunks: int) -> None:
    """Print one line: chunks, seconds, processor seconds, peak memory, outcomes."""
    from freshstack_dagster.drift.lineage import follow

    old, new = copies(baseline, chunks), copies(later, chunks)
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    found = follow(old, new)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    outcomes = ", ".join(f"{name} {count}" for name, count in sorted(found["outcome"].value_counts().iter_rows()))
    megabytes = sum(int(frame["text"].str.len_bytes().sum()) for frame in (old, new)) / 1e6
    print(
        f"{old.height:>7,} x {new.height:>7,} chunks ({megabytes:,.0f} MB): {seconds:6.1f} s, {processor:6.1f} CPU s, "
        f"peak {after.ru_maxrss / 1e6:.2f} GB (before {before.ru_maxrss / 1e6:.2f}); {outcomes}",
        flush=True,
    )


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="BASELINE LATER")
    parser.add_argument("--sizes", type=int, nargs="+", default=[6_250, 12_500, 25_000, 50_000])
    arguments = parser.parse_args()
    if len(arguments.files) % 2:
        parser.error("give a baseline and a later file for each repository")
    spawn = multiprocessing.get_context("spawn")
    for size in arguments.sizes:
        process = spawn.Process(target=measure, args=(arguments.files[::2], arguments.files[1::2], size))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(process.exitcode)


if __name__ == "__main__":
    main()
