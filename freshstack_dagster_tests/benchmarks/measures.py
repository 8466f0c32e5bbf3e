"""How fast measures are: against the reference evaluator, and over ten million rows.

    python -m freshstack_dagster_tests.benchmarks.measures [--reference FOLDER]

FOLDER holds the package `freshstack` 0.0.6, from `pip install --no-deps --target FOLDER freshstack==0.0.6`; it needs
pyndeval and pytrec-eval-terrier beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from freshstack_dagster.evaluation import evaluate
from freshstack_dagster.evaluation.measures import DEFAULT, Qrels, score_runs

MEASURES = ("alpha_ndcg@10", "coverage@20", "recall@50")


@dataclass(frozen=True)
class Took:
    """Seconds by the clock, and of both processors: the second holds on a busy machine too."""

    clock: float
    processors: float

    def __str__(self) -> str:
        return f"{self.clock:8.3f} s ({self.processors:.3f} s of processors)"

    def faster(self, other: Took) -> str:
        """How many times less than `other`."""
        return f"{other.clock / self.clock:.0f} times faster ({other.processors / self.processors:.0f})"


def timed(what: Callable[[], Any], times: int = 3) -> tuple[Took, Any]:
    """The best of some calls, and what the last one returned."""
    took = []
    for _ in range(times):
        clock, processors = time.perf_counter(), time.process_time()
        result = what()
        took.append(Took(time.perf_counter() - clock, time.process_time() - processors))
    return min(took, key=lambda one: one.clock), result


def collection(questions: int, systems: int, depth: int, nuggets: int = 3) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Qrels as FreshStack's are in size (3 nuggets a question, 60 judged documents), and a run a system."""
    rng = np.random.default_rng(13)
    judged = 60
    question = np.repeat(np.arange(questions), judged * nuggets)
    document = np.tile(np.repeat(np.arange(judged), nuggets), questions)
    qrels = pl.DataFrame(
        {
            "question_id": question,
            "nugget": np.tile(np.arange(nuggets), questions * judged),
            "document": document,
            # Every nugget has support, as the filters see to; the reference divides by nuggets without it too.
            "relevance": ((rng.random(question.size) < 0.07) | (document < 1)).astype(np.int64),
        }
    ).select(
        pl.col("question_id").cast(pl.String()),
        nugget_id=pl.format("{}_{}", "question_id", "nugget"),
        doc_id=pl.format("repository/docs/guide/page_{}.md_{}_4096", "document", "question_id"),
        relevance="relevance",
    )
    size = systems * questions * depth
    ranked = np.argsort(rng.random((systems * questions, max(depth, judged * 2))), axis=1)[:, :depth]
    runs = pl.DataFrame(
        {
            "system": np.repeat(np.arange(systems), questions * depth),
            "question_id": np.tile(np.repeat(np.arange(questions), depth), systems),
            "document": ranked.ravel(),
            "score": rng.random(size),
        }
    ).select(
        pl.format("system_{}", "system").alias("system"),
        pl.col("question_id").cast(pl.String()),
        doc_id=pl.format("repository/docs/guide/page_{}.md_{}_4096", "document", "question_id"),
        score="score",
    )
    return qrels, runs


def against_reference(folder: Path) -> None:
    """200 questions × 15 systems at depth 50, the same figures from both."""
    sys.path.insert(0, str(folder))
    from freshstack.retrieval.evaluation import EvaluateRetrieval  # type: ignore[import-not-found]

    questions, systems, depth = 200, 15, 50
    qrels, runs = collection(questions, systems, depth)
    # Both start from what they are made for: dictionaries there, columns here.
    by_nugget: dict[str, dict[str, int]] = {}
    by_question: dict[str, dict[str, int]] = {}
    nuggets_of: dict[str, list[str]] = {}
    for question, nugget, document, relevance in qrels.rows():
        by_nugget.setdefault(nugget, {})[document] = relevance
        of_question = by_question.setdefault(question, {})
        of_question[document] = of_question.get(document, 0) + relevance
    for nugget in by_nugget:
        nuggets_of.setdefault(nugget.rpartition("_")[0], []).append(nugget)
    rankings: dict[str, dict[str, dict[str, float]]] = {}
    for system, question, document, score in runs.rows():
        rankings.setdefault(system, {}).setdefault(question, {})[document] = score
    evaluator = EvaluateRetrieval(k_values=[10, 20, 50])
    theirs_took, theirs = timed(
        lambda: {
            system: evaluator.evaluate(by_nugget, nuggets_of, by_question, ranking)
            for system, ranking in rankings.items()
        },
        times=1,
    )
    frames = {str(name): rows.drop("system") for (name,), rows in runs.group_by(["system"])}
    alone_took, _ = timed(lambda: [evaluate(qrels, run, MEASURES) for run in frames.values()])
    took, ours = timed(lambda: score_runs(Qrels(qrels), runs, MEASURES, by=["system"]))
    means = {
        (system, measure): value
        for system, measure, value in ours.group_by("system", "measure").agg(pl.col("value").mean()).rows()
    }
    worst = 0.0
    for system, (alpha, coverage, recall) in theirs.items():
        figures = (alpha["alpha-nDCG@10"], coverage["Coverage@20"], recall["Recall@50"])
        for measure, value in zip(MEASURES, figures, strict=True):
            worst = max(worst, abs(value - means[system, measure]))
    print(f"{questions} questions × {systems} systems at depth {depth}")
    print(f"  reference      {theirs_took}")
    print(f"  call a system  {alone_took}, {alone_took.faster(theirs_took)}")
    print(f"  one call       {took}, {took.faster(theirs_took)}")
    print(f"  largest difference  {worst:.1e} (the reference rounds to four digits)")


def ten_million_rows() -> None:
    """10,000 questions × 1,000 documents from columns."""
    qrels, runs = collection(10_000, 1, 1_000)
    run = runs.drop("system")
    three, _ = timed(lambda: evaluate(qrels, run, MEASURES))
    every, _ = timed(lambda: evaluate(qrels, run, DEFAULT))
    print(f"10,000 questions × 1,000 documents, {qrels.height:,} rows of qrels")
    print(f"  three measures {three}")
    print(f"  all {len(DEFAULT)}          {every}")


def main() -> None:
    """Run what was asked for and print the figures."""
    parser = argparse.ArgumentParser(description="How fast measures are.")
    parser.add_argument("--reference", type=Path, help="folder that holds the package freshstack")
    arguments = parser.parse_args()
    if arguments.reference:
        against_reference(arguments.reference)
    ten_million_rows()


if __name__ == "__main__":
    main()
