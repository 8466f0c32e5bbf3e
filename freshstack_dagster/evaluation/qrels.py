"""From judgments to qrels: which verdicts count, and which questions make the benchmark (FreshStack, section 4)."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation.runs import check_qrels
from freshstack_dagster.judging.annotation import current_verdicts
from freshstack_dagster.tables import TABLES

MAJORITY = "majority"


def build_qrels(
    judgments: pl.DataFrame,
    nuggets: pl.DataFrame,
    questions: pl.DataFrame,
    *,
    judge: str | None = None,
    doc_ids: Collection[str] | pl.Series | None = None,
    keep_partial: bool = False,
    unretrieved: Collection[str] = (),
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn verdicts into the tables `qrels` and `question_outcomes`.

    `judgments` and `nuggets` are the tables of those names, `questions` the questions of the snapshot (question_id).
    Where judgments come from several judges, `judge` names the one that counts, or is `majority`: a pair is supported
    or not as more than half of its judges say, and unjudged when they are split. `doc_ids`, where given, are the
    snapshot's chunks. `unretrieved` are questions for which no retriever found anything: their pool is empty, and no
    chunk supports them.

    An error is unjudged: it makes no row, and it never decides a question. A nugget is supported if a chunk supports
    it, unsupported if every one of its verdicts says so, and otherwise open. A question's outcome is

    - `kept`: every nugget is supported (with `keep_partial`: at least one is);
    - `partial_support`: some are, and some are unsupported;
    - `no_support`: all its nuggets are unsupported, or nothing was retrieved for it;
    - `not_judged`: it has no nuggets, or open ones leave undecided which of these it is.

    Both filters of section 4 apply: only kept questions have rows in `qrels`. `keep_partial` leaves the second one out,
    for topics too small to lose questions to it; measures then rest on the nuggets that have support.

    Raises EvaluationError if several judges gave a verdict on one pair and none is named, if a named judge judged
    nothing, if judgments name nuggets that `nuggets` lacks or that read otherwise there (where it has a column `text`),
    or qrels a document that `doc_ids` lacks.
    """
    asked = questions.select("question_id").unique()
    verdicts = judgments.join(asked, on="question_id", how="semi")
    _refuse_unknown_nuggets(verdicts, nuggets)
    pairs = _pairs(_of_judge(verdicts, judge))
    of_asked = nuggets.join(asked, on="question_id", how="semi")
    outcomes = _outcomes(pairs, of_asked, asked, keep_partial, frozenset(unretrieved))
    kept = outcomes.filter(pl.col("outcome") == "kept")
    qrels = (
        pairs.filter(pl.col("relevance").is_not_null())
        .join(kept, on="question_id", how="semi")
        .select("question_id", "nugget_id", "doc_id", "relevance", "judge_kind")
        .pipe(TABLES["qrels"].conform)
    )
    if doc_ids is not None:
        check_qrels(qrels, doc_ids)
    return qrels, outcomes


def _of_judge(verdicts: pl.DataFrame, judge: str | None) -> pl.DataFrame:
    judges = verdicts["judge"].unique().sort().to_list()
    one_each = len(judges) <= 1 or verdicts.select("nugget_id", "doc_id").is_unique().all()
    if judge == MAJORITY or (judge is None and one_each):
        return verdicts
    if judge is None:
        raise EvaluationError(f"judgments come from {', '.join(judges)}; name the judge that counts, or `{MAJORITY}`")
    if judges and judge not in judges:
        raise EvaluationError(f"judge {judge!r} judged nothing here; judgments come from {', '.join(judges)}")
    return verdicts.filter(pl.col("judge") == judge)


def _pairs(verdicts: pl.DataFrame) -> pl.DataFrame:
    """One row a nugget and document: relevance 1, 0, or null where errors or a split leave it open."""
    supported = (pl.col("verdict") == "supported").sum()
    unsupported = (pl.col("verdict") == "unsupported").sum()
    # A verdict that is neither counts as none: only these two words may become relevance.
    return verdicts.group_by("question_id", "nugget_id", "doc_id").agg(
        relevance=pl.when(supported > unsupported).then(1).when(supported < unsupported).then(0),
        judge_kind=pl.col("judge_kind").unique().sort().str.join("+"),
    )


def _outcomes(
    pairs: pl.DataFrame, nuggets: pl.DataFrame, asked: pl.DataFrame, keep_partial: bool, unretrieved: frozenset[str]
) -> pl.DataFrame:
    by_nugget = pairs.group_by("nugget_id").agg(
        supported=(pl.col("relevance") == 1).any(),
        unsupported=(pl.col("relevance") == 0).all() & pl.col("relevance").is_not_null().all(),
    )
    by_question = (
        nuggets.join(by_nugget, on="nugget_id", how="left")
        .with_columns(pl.col("supported", "unsupported").fill_null(False))
        .group_by("question_id")
        .agg(nuggets=pl.len(), supported_nuggets=pl.col("supported").sum(), unsupported=pl.col("unsupported").sum())
    )
    relevant = (
        pairs.filter(pl.col("relevance") == 1)
        .group_by("question_id")
        .agg(relevant_docs=pl.col("doc_id").n_unique().cast(pl.Int64()))
    )
    counted = (
        asked.join(by_question, on="question_id", how="left")
        .join(relevant, on="question_id", how="left")
        .with_columns(pl.col("nuggets", "supported_nuggets", "unsupported", "relevant_docs").fill_null(0))
    )
    some, all_of = pl.col("supported_nuggets"), pl.col("nuggets")
    return counted.select(
        "question_id",
        "nuggets",
        "supported_nuggets",
        "relevant_docs",
        outcome=pl.when(all_of == 0)
        .then(pl.lit("not_judged"))
        .when((some == all_of) | ((some > 0) & keep_partial))
        .then(pl.lit("kept"))
        .when((pl.col("unsupported") == all_of) | pl.col("question_id").is_in(list(unretrieved)))
        .then(pl.lit("no_support"))
        .when((some > 0) & (pl.col("unsupported") > 0))
        .then(pl.lit("partial_support"))
        .otherwise(pl.lit("not_judged")),
    ).pipe(TABLES["question_outcomes"].conform)


def _refuse_unknown_nuggets(verdicts: pl.DataFrame, nuggets: pl.DataFrame) -> None:
    if "text" in nuggets.columns:
        reworded = verdicts.join(current_verdicts(verdicts, nuggets), on=["nugget_id", "nugget_hash"], how="anti")
        ids = reworded.join(nuggets, on="nugget_id", how="semi")["nugget_id"].unique().sort().to_list()
        if ids:
            raise EvaluationError(
                f"judgments are of other words than {len(ids)} nuggets now have, such as {', '.join(ids[:5])}; "
                "build judgments again"
            )
    unknown = verdicts.join(nuggets, on=["question_id", "nugget_id"], how="anti")["nugget_id"].unique().sort().to_list()
    if unknown:
        raise EvaluationError(
            f"judgments name {len(unknown)} nuggets that the table nuggets lacks, such as {', '.join(unknown[:5])}; "
            "build judgments again"
        )
