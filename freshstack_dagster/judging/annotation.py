"""Annotators beside the judge: which part of the pool they see, how far all agree, and whose verdict counts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import polars as pl

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.judging.agreement import disagreements, fleiss_agreement, majority_verdict, pairwise_agreement
from freshstack_dagster.judging.support import judge_support, nugget_hash
from freshstack_dagster.judging.verdicts import HUMAN
from freshstack_dagster.language_models import Models
from freshstack_dagster.settings import Judging, ModelRole
from freshstack_dagster.tables import TABLES

ALL = "all"
"""Stands for the judges' names where all are compared together."""


def annotator_name(name: str) -> str:
    """The role of an annotator in the record of calls."""
    return f"annotator:{name}"


def sample_pools(pools: pl.DataFrame, chunks: pl.LazyFrame | pl.DataFrame, judging: Judging) -> pl.DataFrame:
    """The part of the table `pools` that annotators see: `annotated_share` of it, by `seed`.

    `chunks` needs doc_id and content_hash. Whether a chunk is in the sample hangs on the seed, the question and the
    text alone: a pool that grows keeps its sample, and a text that stands in the next snapshot is in that sample too,
    so that its verdict is carried over. The share of a question's pool is met on average, not exactly.
    """
    if judging.annotated_share >= 1:
        return pools
    hashes = chunks.lazy().select("doc_id", "content_hash").collect()
    placed = pools.join(hashes, on="doc_id", how="left")

    def drawn(row: Mapping[str, str]) -> bool:
        text = f"{judging.seed}\n{row['question_id']}\n{row['content_hash']}"
        digest = hashlib.sha256(text.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < judging.annotated_share

    kept = [drawn(row) for row in placed.select("question_id", "content_hash").iter_rows(named=True)]
    return pools.filter(pl.Series(kept, dtype=pl.Boolean()))


def annotate(
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    pools: pl.DataFrame,
    chunks: pl.LazyFrame | pl.DataFrame,
    models: Models,
    annotators: Mapping[str, ModelRole],
    judging: Judging,
    *,
    earlier: Sequence[tuple[str | None, pl.DataFrame]] = (),
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Let each annotator judge the sample of the pools, as `judge_support` does it; the table `annotations`.

    `earlier` are annotations of this (None) and other snapshots, which are carried over as judgments are. Without
    annotators the table is empty.
    """
    sample = sample_pools(pools, chunks, judging)
    frames = [
        judge_support(
            questions,
            nuggets,
            sample,
            chunks,
            models,
            role,
            judging,
            judge_name=annotator_name(name),
            earlier=earlier,
            progress=progress,
        )
        for name, role in sorted(annotators.items())
    ]
    return TABLES["annotations"].conform(pl.concat([TABLES["annotations"].empty(), *frames]))


def compare_judges(judgments: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """The table `agreement`: each two judges (Cohen's kappa), and all together where there are more than two (Fleiss').

    Only pairs of nugget and chunk that some annotator was asked about count. Without annotations the table is empty.
    """
    both = _of_sample(judgments, annotations)
    if both is None:
        return TABLES["agreement"].empty()
    pairs = pairwise_agreement(both).select(
        pl.lit("cohen").alias("statistic"),
        "judge_a",
        "judge_b",
        pl.concat_list("judge_kind_a", "judge_kind_b").list.unique().list.sort().list.join("+").alias("judge_kinds"),
        pl.lit(2).alias("judges"),
        *("pairs", "left_out", "agreement", "agreement_low", "agreement_high", "kappa", "kappa_low", "kappa_high"),
        ((pl.col("base_rate_a") + pl.col("base_rate_b")) / 2).alias("base_rate"),
        "base_rate_a",
        "base_rate_b",
    )
    together = fleiss_agreement(both).select(
        pl.lit("fleiss").alias("statistic"),
        pl.lit(ALL).alias("judge_a"),
        pl.lit(ALL).alias("judge_b"),
        pl.lit("+".join(sorted(both["judge_kind"].unique()))).alias("judge_kinds"),
        pl.all(),
        pl.lit(None, dtype=pl.Float64()).alias("base_rate_a"),
        pl.lit(None, dtype=pl.Float64()).alias("base_rate_b"),
    )
    several = together.filter(pl.col("judges") > 1)
    columns = list(TABLES["agreement"].columns)
    schema = TABLES["agreement"].schema
    frames = [frame.select(pl.col(name).cast(schema[name]) for name in columns) for frame in (pairs, several)]
    return TABLES["agreement"].conform(pl.concat(frames))


def list_disagreements(
    judgments: pl.DataFrame,
    annotations: pl.DataFrame,
    questions: pl.DataFrame,
    nuggets: pl.DataFrame,
    chunks: pl.LazyFrame,
) -> pl.DataFrame:
    """The table `disagreements`: what people need to settle each, the most divided first.

    `chunks` needs doc_id, url and text.
    """
    both = _of_sample(judgments, annotations)
    if both is None:
        return TABLES["disagreements"].empty()
    divided = disagreements(both)
    texts = (
        chunks.select("doc_id", pl.col("url").alias("chunk"), "text")
        .join(divided.lazy().select("doc_id").unique(), on="doc_id", how="semi")
        .collect()
    )
    return (
        divided.join(questions.select("question_id", question="title"), on="question_id", how="left")
        .join(nuggets.select("nugget_id", nugget="text"), on="nugget_id", how="left")
        .join(texts, on="doc_id", how="left", maintain_order="left")
        .select(list(TABLES["disagreements"].columns))
        .pipe(TABLES["disagreements"].conform)
    )


def verdicts_that_count(judgments: pl.DataFrame, annotations: pl.DataFrame, judging: Judging) -> pl.DataFrame:
    """The judgments from which qrels are made: the judge's, or the majority's where the topic says so.

    A pair that no annotator was asked about keeps the judge's verdict; a tie is an error, which is unjudged. Where
    people gave a verdict, theirs counts, and that of most of them where there are several.
    Raises SettingsError if a majority is asked for and nobody annotated.
    """
    by_people = pl.col("judge_kind") == HUMAN
    people, models = annotations.filter(by_people), annotations.filter(~by_people)
    counted = judgments
    if judging.verdict == "majority":
        if judgments.height and not models.height:
            raise SettingsError("judging.verdict is majority, but there are no annotations; build annotations first")
        counted = majority_verdict(pl.concat([judgments, models]))
    alone = pl.len().over("nugget_id", "doc_id") == 1
    several = people.filter(~alone)
    settled = pl.concat([people.filter(alone), *([majority_verdict(several)] if several.height else [])])
    return pl.concat([counted.join(settled, on=["nugget_id", "doc_id"], how="anti"), settled])


def current_verdicts(verdicts: pl.DataFrame, nuggets: pl.DataFrame) -> pl.DataFrame:
    """The verdicts on nuggets as they read now: of a nugget that was reworded since, the old ones say nothing.

    `nuggets` needs nugget_id and text.
    """
    now = nuggets.select("nugget_id", pl.col("text").map_elements(nugget_hash, pl.String()).alias("nugget_hash"))
    return verdicts.join(now, on=["nugget_id", "nugget_hash"], how="semi")


def _of_sample(judgments: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame | None:
    """Judgments of the annotated pairs by everyone, or None without annotations."""
    if not annotations.height:
        return None
    asked = annotations.select("nugget_id", "doc_id").unique()
    return pl.concat([judgments.join(asked, on=["nugget_id", "doc_id"], how="semi"), annotations])
