"""BM25 on a whole small test collection with published values (Anserini: MAP 0.3123, P@30 0.1942).

On the 3,204 documents our analysis gives Anserini's own index statistics, 14,363 unique and 320,968 total terms, and
MAP 0.3129, P@30 0.1929. What differs is Lucene's one-byte document length: with lengths rounded as Lucene rounds them,
the same scores give MAP 0.3124 and P@30 0.1942.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.retrieval import retrieve
from freshstack_dagster.retrieval.analysis import ENGLISH
from freshstack_dagster.settings import Pooling, Retriever, Topic
from freshstack_dagster_tests.retrieval import cacm

TOPIC = Topic(
    name="cacm",
    title="CACM",
    repositories=({"name": "cacm/cacm"},),  # type: ignore[arg-type]
    retrievers=(Retriever(name="bm25", kind="bm25"),),
    pooling=Pooling(run_depth=1000),
)


def measure(folder: Path, cache: Path, topic: Topic = TOPIC, retriever: str = "bm25") -> dict[str, float]:
    """MAP and P@30 over all topics with qrels."""
    import pytrec_eval

    chunks = cacm.documents(folder / "cacm.tar.gz")
    if chunks.height != cacm.DOCUMENTS:
        pytest.skip(f"the archive holds {chunks.height} of CACM's {cacm.DOCUMENTS} documents; MAP needs them all")
    runs = retrieve(cacm.queries(folder / "topics.cacm.txt"), chunks, topic, cache=cache)
    judged = cacm.qrels(folder / "qrels.cacm.txt")
    runs = runs.filter((pl.col("retriever") == retriever) & pl.col("question_id").is_in(list(judged)))
    run = {q[0]: dict(zip(g["doc_id"], g["score"], strict=True)) for q, g in runs.group_by("question_id")}
    scores = pytrec_eval.RelevanceEvaluator(judged, {"map", "P_30"}).evaluate(run)
    return {name: sum(s[name] for s in scores.values()) / len(judged) for name in ("map", "P_30")}


def test_the_analysis_gives_anserinis_index_statistics(shared: Path) -> None:
    chunks = cacm.documents(shared / "data" / "cacm" / "cacm.tar.gz")
    if chunks.height != cacm.DOCUMENTS:
        pytest.skip(f"the archive holds {chunks.height} of CACM's {cacm.DOCUMENTS} documents")
    terms = [term for text in chunks["text"] for term in ENGLISH.terms(text)]
    assert (len(set(terms)), len(terms)) == (14_363, 320_968)


def test_cacm_equals_anserini(shared: Path, tmp_path: Path) -> None:
    scores = measure(shared / "data" / "cacm", tmp_path)
    assert scores["map"] == pytest.approx(0.3123, abs=0.01)
    assert scores["P_30"] == pytest.approx(0.1942, abs=0.01)
