"""Exact top-k over a memory map, against a plain NumPy product: seconds, peak memory, and whether they agree.

    python -m freshstack_dagster_tests.benchmarks.topk [--rows 120000] [--dimensions 1024 4096] [--queries 700]

The plain product holds all passages in float32 and all scores; each contender runs in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from freshstack_dagster.retrieval.topk import Ranking, search

DEPTH = 100


def make(path: Path, rows: int, dimensions: int) -> None:
    """Unit vectors in float16, one in a hundred a copy of another, written in blocks."""
    matrix = np.lib.format.open_memmap(path, "w+", np.float16, (rows, dimensions))
    random = np.random.default_rng(13)
    for start in range(0, rows, 4096):
        block = random.standard_normal((min(4096, rows - start), dimensions), dtype=np.float32)
        matrix[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    copies = random.choice(rows, rows // 100, replace=False)
    matrix[copies] = matrix[random.choice(rows, len(copies))]
    matrix.flush()


def queries(count: int, dimensions: int) -> np.ndarray:
    """Unit vectors."""
    vectors = np.random.default_rng(7).standard_normal((count, dimensions), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ours(path: Path, asked: np.ndarray) -> list[Ranking]:
    """Blocks over the memory map."""
    return search(asked, np.load(path, mmap_mode="r"), DEPTH)


def plain(path: Path, asked: np.ndarray) -> list[Ranking]:
    """Everything in memory, one product, argpartition, sort."""
    scores = asked @ np.load(path).astype(np.float32).T
    best = np.argpartition(scores, -DEPTH, axis=1)[:, -DEPTH:]
    rankings = []
    for query, rows in enumerate(best):
        order = rows[np.lexsort((rows, -scores[query, rows]))]
        rankings.append(Ranking(order, scores[query, order].astype(np.float64)))
    return rankings


def exact(path: Path, query: np.ndarray) -> np.ndarray:
    """One query's top by float64 products."""
    matrix = np.load(path, mmap_mode="r")
    wide = query.astype(np.float64)
    scores = np.concatenate(
        [(matrix[s : s + 4096].astype(np.float64) * wide).sum(axis=1) for s in range(0, len(matrix), 4096)]
    )
    return np.lexsort((np.arange(len(scores)), -scores))[:DEPTH]


def contend(name: str, path: Path, asked: np.ndarray, pipe: multiprocessing.connection.Connection) -> None:
    """Run one contender and send seconds, peak megabytes above the start, and its rows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    rankings = {"ours": ours, "plain": plain}[name](path, asked)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    pipe.send((seconds, peak, [ranking.rows for ranking in rankings]))


def measure(name: str, path: Path, asked: np.ndarray) -> tuple[float, float, list[np.ndarray]]:
    """Run a contender in a new process."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs = context.Pipe()
    process = context.Process(target=contend, args=(name, path, asked, theirs))
    process.start()
    result = ours_end.recv()
    process.join()
    return result


def main() -> None:
    """Print a line a size and contender."""
    parser = argparse.ArgumentParser(description="Exact top-k against a plain NumPy product.")
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--queries", type=int, default=700)
    arguments = parser.parse_args()
    for dimensions in arguments.dimensions:
        asked = queries(arguments.queries, dimensions)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "passages.npy"
            make(path, arguments.rows, dimensions)
            print(f"{arguments.rows:,} × {dimensions:,}, {arguments.queries} queries, top {DEPTH}")
            rows = {}
            for name in ("ours", "plain"):
                seconds, peak, rows[name] = measure(name, path, asked)
                print(f"  {name:6} {seconds:7.2f} s  {peak:8,.0f} MB more at the peak", flush=True)
            checked = range(0, len(asked), max(1, len(asked) // 5))
            for name, found in rows.items():
                equal = sum(bool((found[query] == exact(path, asked[query])).all()) for query in checked)
                print(f"  {name:6} equals the float64 ranking in {equal} of {len(checked)} queries")


if __name__ == "__main__":
    main()
