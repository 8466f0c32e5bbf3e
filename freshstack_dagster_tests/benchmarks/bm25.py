"""How long BM25 and LSA take on a corpus: tokenise, index, load, search.

    python -m freshstack_dagster_tests.benchmarks.bm25 CHUNKS.parquet [--repeat 1] [--queries 200]

CHUNKS has columns doc_id, content_hash and text; `--repeat` enlarges it. The queries are the beginnings of chunks.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from freshstack_dagster.retrieval import Corpus, Workspace, open_retriever
from freshstack_dagster.retrieval.analysis import CODE, ENGLISH, Vocabulary
from freshstack_dagster.settings import Retriever


def main() -> None:
    """Print seconds by step."""
    parser = argparse.ArgumentParser(description="BM25 and LSA on a corpus.")
    parser.add_argument("chunks", type=Path)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--queries", type=int, default=200)
    arguments = parser.parse_args()
    frame = pl.read_parquet(arguments.chunks, columns=["doc_id", "content_hash", "text"])
    copies = [
        frame.with_columns(pl.col("doc_id") + f"#{n}", pl.col("content_hash") + f"#{n}")
        for n in range(arguments.repeat)
    ]
    corpus = Corpus.of(pl.concat(copies))
    size = sum(len(text) for text in corpus.texts) / 1e6
    print(f"{len(corpus):,} chunks, {size:,.0f} million characters")
    for analysis in (ENGLISH, CODE):
        start = time.perf_counter()
        terms = sum(map(len, Vocabulary(analysis).encode(corpus.texts)))
        seconds = time.perf_counter() - start
        print(f"  tokenise {analysis.name:8} {seconds:6.1f} s  {size / seconds:5.1f} MB/s  {terms:,} terms")
    asked = [text[:1500] for text in corpus.texts[:: max(1, len(corpus) // arguments.queries)]]
    for kind in ("bm25", "bm25_code", "lsa"):
        retriever = Retriever(name=kind, kind=kind)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                report: dict[str, Any] = {}
                retrieval = open_retriever(retriever, corpus, Workspace(Path(folder), report=report))
                print(f"  {kind:9} {report['index']:8} {report['index_seconds']:6.1f} s")
            start = time.perf_counter()
            retrieval.search(asked, 100)
            milliseconds = 1000 * (time.perf_counter() - start) / len(asked)
            print(f"  {kind:9} search   {milliseconds:6.1f} ms a query of 1,500 characters")


if __name__ == "__main__":
    main()
