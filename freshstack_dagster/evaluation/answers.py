"""Generated answers, scored by the nuggets they state: what FreshStack's section on answers calls nugget recall.

An answer is judged as a chunk is, by the same judge and prompt: `answer_documents` brings answers into the form that
`judging.support.judge_support` reads, `answer_results` turns its verdicts into scores. The score is the strict one of
the nugget methodology (Pradeep et al., "The Great Nugget Recall", arXiv 2504.15068): a nugget counts if the answer
states all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation.measures import Missing
from freshstack_dagster.evaluation.results import ALL

MEASURE = "nugget_recall"

RESULTS: Mapping[str, pl.DataType] = {
    "system": pl.String(),
    "question_id": pl.String(),
    "measure": pl.String(),
    "nuggets": pl.Int64(),
    "stated": pl.Int64(),
    "unjudged": pl.Int64(),
    "value": pl.Float64(),
    "lower": pl.Float64(),
    "upper": pl.Float64(),
    "judge_kind": pl.String(),
}


def answer_documents(answers: pl.DataFrame, nuggets: pl.DataFrame | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Answers (system, question_id, text) as chunks and pools for the judge; empty ones are left out.

    Returns `chunks` (doc_id, content_hash, text) and `pools` (question_id, doc_id). A doc_id is
    `{system}/{question_id}`. Raises EvaluationError if a system answers a question twice or a column is missing, and
    (where `nuggets` says what is to be answered) if a system leaves a question out: before anything is judged.
    """
    documents = _with_ids(answers)
    if nuggets is not None:
        _refuse_unanswered(_grid(documents, nuggets), documents)
    documents = documents.filter(_states_something())
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in documents["text"]]
    chunks = documents.select("doc_id", pl.Series("content_hash", hashes, dtype=pl.String()), "text")
    return chunks, documents.select("question_id", "doc_id")


def answer_results(
    answers: pl.DataFrame, judgments: pl.DataFrame, nuggets: pl.DataFrame, *, missing: Missing = "error"
) -> pl.DataFrame:
    """Score each system's answers by the share of nuggets that they state.

    `answers` are those given to `answer_documents`, `judgments` the verdicts on them, `nuggets` the nuggets
    (question_id, nugget_id) of the questions to be scored. Returns the columns of `RESULTS`, a row a system and
    question and one, `all`, for the mean over questions (its counts are sums), sorted.

    A nugget whose verdict is an error or is not there is unjudged: `value` and `lower` take it as not stated, `upper`
    as stated. An empty answer states nothing. A question that a system does not answer is an error, or scored 0 if
    `missing` is `zero`. Raises EvaluationError that names the system and the questions.
    """
    documents = _with_ids(answers)
    wanted = nuggets.select("question_id", "nugget_id").unique()
    grid = _grid(documents, wanted)
    if missing != "zero":
        _refuse_unanswered(grid, documents)
    verdicts = (
        judgments.filter(pl.col("verdict").is_in(["supported", "unsupported"]))
        .group_by("nugget_id", "doc_id")
        .agg((pl.col("verdict") == "supported").mean().alias("share"))
    )
    states_nothing = ~_states_something()
    rows = (
        grid.join(wanted, on="question_id")
        .join(documents, on=["system", "question_id"], how="left")
        .join(verdicts, on=["nugget_id", "doc_id"], how="left")
        # Judges that are split leave a nugget unjudged, as they leave a pair of the qrels.
        .with_columns(share=pl.when(pl.col("share") != 0.5).then("share"))
        .with_columns(share=pl.when(pl.col("text").is_null() | states_nothing).then(0.0).otherwise("share"))
    )
    scores = rows.group_by("system", "question_id").agg(
        nuggets=pl.len(), stated=(pl.col("share") > 0.5).sum(), unjudged=pl.col("share").is_null().sum()
    )
    scores = scores.with_columns(
        value=pl.col("stated") / pl.col("nuggets"),
        upper=(pl.col("stated") + pl.col("unjudged")) / pl.col("nuggets"),
    )
    means = scores.group_by("system").agg(
        pl.lit(ALL).alias("question_id").first(),
        pl.col("nuggets", "stated", "unjudged").sum(),
        pl.col("value", "upper").mean(),
    )
    kinds = "+".join(judgments["judge_kind"].unique().sort()) if judgments.height else "none"
    return (
        pl.concat([scores.select(means.columns), means])
        .with_columns(lower="value", measure=pl.lit(MEASURE), judge_kind=pl.lit(kinds))
        .select(pl.col(name).cast(dtype) for name, dtype in RESULTS.items())
        .sort("system", "question_id")
    )


def _with_ids(answers: pl.DataFrame) -> pl.DataFrame:
    columns = ("system", "question_id", "text")
    absent = [name for name in columns if name not in answers.columns]
    if absent:
        raise EvaluationError(f"answers: missing columns {', '.join(absent)}; found {', '.join(answers.columns)}")
    documents = answers.select(pl.col(columns).cast(pl.String()))
    repeated = documents.filter(pl.struct("system", "question_id").is_duplicated())
    if repeated.height:
        system, question = repeated.select("system", "question_id").row(0)
        raise EvaluationError(f"answers: system {system} answers question {question} twice")
    return documents.with_columns(doc_id=pl.format("{}/{}", "system", "question_id"))


def _grid(documents: pl.DataFrame, nuggets: pl.DataFrame) -> pl.DataFrame:
    """Every system and every question that has nuggets."""
    return documents.select("system").unique().join(nuggets.select("question_id").unique(), how="cross")


def _states_something() -> pl.Expr:
    return pl.col("text").fill_null("").str.strip_chars() != ""


def _refuse_unanswered(grid: pl.DataFrame, documents: pl.DataFrame) -> None:
    unanswered = grid.join(documents, on=["system", "question_id"], how="anti").sort("system", "question_id")
    if unanswered.height:
        system = unanswered["system"][0]
        ids = unanswered.filter(pl.col("system") == system)["question_id"].to_list()
        raise EvaluationError(
            f"system {system} has no answer to {len(ids)} questions, such as {', '.join(ids[:5])}; "
            "answer them; an empty answer says that the system has none"
        )
