"""From judgments to a benchmark and from rankings to figures: qrels, statistics, measures, significance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from freshstack_dagster.evaluation.measures import DEFAULT, Missing, Qrels, score_runs
from freshstack_dagster.evaluation.qrels import build_qrels
from freshstack_dagster.evaluation.results import pooling_results, retrieval_results
from freshstack_dagster.evaluation.runs import check_qrels, check_run, read_qrels, read_run, with_questions
from freshstack_dagster.evaluation.significance import compare_systems
from freshstack_dagster.evaluation.statistics import collection_statistics

__all__ = [
    "DEFAULT",
    "build_qrels",
    "check_qrels",
    "check_run",
    "collection_statistics",
    "compare_systems",
    "evaluate",
    "pooling_results",
    "read_qrels",
    "read_run",
    "retrieval_results",
]


def evaluate(
    qrels: pl.DataFrame | Path | str,
    run: pl.DataFrame | Path | str,
    measures: Sequence[str] = DEFAULT,
    *,
    missing: Missing = "error",
) -> pl.DataFrame:
    """Score a run against nugget qrels, per question and measure.

    `qrels` has columns question_id, nugget_id, doc_id and relevance (without question_id it is read from nugget_id,
    without nugget_id each question is one nugget); `run` has question_id, doc_id and score, higher first, ties by
    doc_id. Either may be a path: Parquet, TREC text, or TREC text gzipped. A row of the run without doc_id stands for
    an empty ranking, which scores 0. Questions that only the run has are left out.

    Returns question_id, measure, value, lower, upper (bounds with holes all wrong and all right) and holes (share of
    the retrieved documents down to the measure's depth that nobody judged for the question; null where nothing was
    retrieved), sorted by question, measures in the order given. The mean of `value` over questions is the run's score.

    Raises EvaluationError for what cannot be scored: an unknown measure, a document twice in a ranking, a question of
    the qrels that the run lacks (unless `missing` is `zero`, which scores it 0).
    """
    judged = read_qrels(qrels) if isinstance(qrels, Path | str) else with_questions(qrels)
    ranked = read_run(run) if isinstance(run, Path | str) else run
    return score_runs(_prepare(judged), ranked, measures, missing=missing)


_KEPT_ROWS = 200_000
_last: tuple[pl.DataFrame, Qrels] | None = None


def _prepare(qrels: pl.DataFrame) -> Qrels:
    """Prepared qrels; the last ones are kept, since one run after the other is scored on the same."""
    global _last
    kept = _last
    if kept is not None and kept[0].equals(qrels):
        return kept[1]
    prepared = Qrels(qrels)
    # A clone shares the columns and stays as it is should the caller change the frame.
    _last = (qrels.clone(), prepared) if qrels.height <= _KEPT_ROWS else None
    return prepared
