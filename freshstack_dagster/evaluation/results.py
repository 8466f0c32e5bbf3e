"""Systems scored on a collection: FreshStack's Table 4 (how to pool) and Figure 3 (how to retrieve)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation.measures import DEFAULT, Missing, Qrels, score_runs
from freshstack_dagster.settings import SETTING_OF_VARIANT
from freshstack_dagster.tables import TABLES

ALL = "all"
"""Stands in question_id for the mean over the questions."""

QUESTION = "question"


def pooling_results(
    runs: pl.DataFrame,
    qrels: pl.DataFrame,
    judgments: pl.DataFrame,
    query_variants: pl.DataFrame,
    measures: Sequence[str] = DEFAULT,
) -> pl.DataFrame:
    """Score every query variant and retriever, as the table `pooling_results` (FreshStack, Table 4).

    Inputs are the tables of those names. A question whose query retrieved nothing scores 0. A question for which a
    variant has no text (its model failed, or the variant was skipped) has no row there, and a variant that lacks one
    has no mean either: no mean is over fewer questions. `incomplete_variants` tells which.

    Raises EvaluationError for rankings that cannot be scored.
    """
    if not qrels.height:
        return TABLES["pooling_results"].empty()
    scores = score_runs(_prepared(qrels, judgments), runs, measures, by=("variant", "retriever"), missing="zero")
    written = query_variants.select("question_id", "variant").unique()
    scores = scores.join(written, on=["question_id", "variant"], how="semi", maintain_order="left")
    lacking = incomplete_variants(query_variants, qrels)
    complete = scores.filter(~pl.col("variant").is_in(list(lacking)))
    means = _means(complete, ["variant", "retriever", "measure"])
    return (
        pl.concat([means, scores], how="diagonal")
        .with_columns(
            setting=pl.col("variant").replace_strict(SETTING_OF_VARIANT, default="inference"),
            judge_kind=pl.lit(_judge_kind(qrels)),
        )
        .pipe(TABLES["pooling_results"].conform)
    )


def incomplete_variants(query_variants: pl.DataFrame, qrels: pl.DataFrame) -> dict[str, list[str]]:
    """Variants without a text for some kept questions, with those questions' ids, sorted."""
    kept = set(qrels["question_id"].unique())
    lacking = {
        str(variant): sorted(kept - set(rows["question_id"]))
        for (variant,), rows in query_variants.sort("variant").group_by(["variant"], maintain_order=True)
    }
    return {variant: ids for variant, ids in lacking.items() if ids}


def retrieval_results(
    runs: pl.DataFrame,
    qrels: pl.DataFrame,
    judgments: pl.DataFrame,
    submitted: Mapping[str, pl.DataFrame] | None = None,
    measures: Sequence[str] = DEFAULT,
    *,
    missing: Missing = "error",
) -> pl.DataFrame:
    """Score systems that know the question alone, as the table `retrieval_results` (FreshStack, Figure 3).

    `runs`, `qrels` and `judgments` are the tables of those names; of `runs` only the variant `question` counts, each
    retriever (fusion and rerankers among them) being a system. `submitted` holds further runs (question_id, doc_id,
    score) by name. A question for which a retriever found nothing scores 0; one that a submitted run lacks is an error,
    or scored 0 if `missing` is `zero`.

    Raises EvaluationError for rankings that cannot be scored, for kept questions that no run has, submitted ones
    included, and for a submitted run under the name of a retriever.
    """
    if not qrels.height:
        return TABLES["retrieval_results"].empty()
    prepared = _prepared(qrels, judgments)
    own = runs.filter(pl.col("variant") == QUESTION).rename({"retriever": "system"})
    parts = []
    if own.height:
        _refuse_unranked([runs, *(submitted or {}).values()], qrels)
        parts.append(score_runs(prepared, own, measures, by=("system",), missing="zero"))
    names = set(own["system"].unique())
    for name, run in sorted((submitted or {}).items()):
        if name in names:
            raise EvaluationError(f"submitted run {name} bears the name of a retriever; give it another")
        try:
            scores = score_runs(prepared, run, measures, missing=missing)
        except EvaluationError as error:
            raise EvaluationError(f"submitted run {name}: {error}") from error
        parts.append(scores.select(pl.lit(name).alias("system"), pl.all()))
    if not parts:
        return TABLES["retrieval_results"].empty()
    scores = pl.concat(parts)
    return (
        pl.concat([_means(scores, ["system", "measure"]), scores], how="diagonal")
        .with_columns(judge_kind=pl.lit(_judge_kind(qrels)))
        .pipe(TABLES["retrieval_results"].conform)
    )


def _prepared(qrels: pl.DataFrame, judgments: pl.DataFrame) -> Qrels:
    """Qrels, with what was judged besides, and where a verdict is missing: an error, or judges that are split."""
    settled = pl.col("verdict").is_in(["supported", "unsupported"])
    judged, unjudged = (judgments.filter(rows).select("question_id", "doc_id").unique() for rows in (settled, ~settled))
    return Qrels(qrels, judged, unjudged)


def _means(scores: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    return scores.group_by(by, maintain_order=True).agg(
        pl.lit(ALL).alias("question_id").first(), pl.col("value", "lower", "upper", "holes").mean()
    )


def _judge_kind(qrels: pl.DataFrame) -> str:
    """The kinds of judge behind the qrels; several are joined by `+`, so that a mixture is seen."""
    kinds = qrels["judge_kind"].str.split("+").explode().unique().sort()
    return "+".join(kinds)


def _refuse_unranked(rankings: Sequence[pl.DataFrame], qrels: pl.DataFrame) -> None:
    """A kept question was pooled, so some ranking found something for it; if none did, runs are of another day."""
    ranked = pl.concat([ranking.select("question_id") for ranking in rankings])
    lost = qrels.join(ranked, on="question_id", how="anti")["question_id"].unique().sort().to_list()
    if lost:
        raise EvaluationError(
            f"no run ranks anything for {len(lost)} questions of the qrels, such as {', '.join(lost[:5])}; "
            "build runs again"
        )
