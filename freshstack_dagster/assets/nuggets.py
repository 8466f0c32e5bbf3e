"""Atomic facts of each answer, and the texts used to retrieve for each question."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models, role_settings, unfinished
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _nugget_role(topic: Topic) -> Any:
    source = topic.questions
    published = source is not None and source.nuggets == "published"
    return str(source.path) if source and published else role_settings(topic.roles.nuggets)


def _collection_file(stage: Stage) -> Any:
    source = stage.topic.questions
    if source is None or source.nuggets != "published" or source.path is None or not source.path.is_file():
        return None
    status = source.path.stat()
    return status.st_size, status.st_mtime_ns


def _variant_roles(topic: Topic) -> Any:
    roles = topic.roles
    return (
        role_settings(roles.sub_questions),
        role_settings(roles.closed_book_answer),
        topic.pooling.variants,
    )


def _published(stage: Stage) -> Built:
    """The collection's own nuggets, of the questions that the topic kept."""
    from freshstack_dagster.stackexchange.collection import PUBLISHED
    from freshstack_dagster.stackexchange.sources import published_nuggets

    questions = stage.read("questions").select("question_id")
    nuggets = published_nuggets(stage.topic).nuggets.join(questions, on="question_id", how="semi")
    found = pl.col("question_id").is_in(nuggets["question_id"].implode())
    outcomes = questions.select(
        "question_id",
        role=pl.lit("nuggets"),
        outcome=pl.when(found).then(pl.lit("ok")).otherwise(pl.lit("skipped")),
        detail=pl.when(found).then(None).otherwise(pl.lit("the collection has no nugget of this question")),
        model=pl.lit(PUBLISHED),
    )
    facts = {"written by": [PUBLISHED], "nuggets": nuggets.height, "outcomes": _outcomes(outcomes)}
    return Built({"nuggets": nuggets, "nugget_outcomes": outcomes}, facts)


def _outcomes(outcomes: pl.DataFrame) -> list[dict[str, Any]]:
    return outcomes.group_by("role", "outcome", "detail").len("questions").sort("role", "outcome", "detail").to_dicts()


@table_assets(
    "nuggets",
    "nugget_outcomes",
    group="nuggets",
    rooms=["judging", "language_models", "stackexchange"],
    reads=["questions"],
    settings=_nugget_role,
    external=_collection_file,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def write_nuggets(stage: Stage) -> Built:
    """Written from question and answer; only new or changed questions cost a call, because replies are cached.

    Or taken from the published collection that the questions come from, where the topic says `nuggets: published`.
    """
    if stage.topic.questions is not None and stage.topic.questions.nuggets == "published":
        return _published(stage)
    from freshstack_dagster.judging.nuggets import write_nuggets as write

    with open_models(stage) as models:
        nuggets, outcomes = write(stage.read("questions"), models, stage.topic.roles.nuggets)
    facts = {
        "written by": sorted(nuggets["model"].unique()),
        "nuggets a question": round(nuggets.height / max(1, nuggets["question_id"].n_unique()), 2),
        "outcomes": _outcomes(outcomes),
        **cost_panel(models),
    }
    return Built({"nuggets": nuggets, "nugget_outcomes": outcomes}, facts, unfinished(models))


@table_assets(
    "query_variants",
    "variant_outcomes",
    group="nuggets",
    rooms=["judging", "language_models"],
    reads=["questions", "nuggets"],
    settings=_variant_roles,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def write_query_variants(stage: Stage) -> Built:
    """Two variants know the question only (inference), two know the answer (oracle), and the question itself."""
    from freshstack_dagster.judging.variants import write_variants

    topic = stage.topic
    with open_models(stage) as models:
        variants, outcomes = write_variants(
            stage.read("questions"), stage.read("nuggets"), models, topic.roles, topic.pooling.variants
        )
    facts = {
        "variants": variants.group_by("setting", "variant", "model").len("texts").sort("setting", "variant").to_dicts(),
        "outcomes": _outcomes(outcomes),
        **cost_panel(models),
    }
    return Built({"query_variants": variants, "variant_outcomes": outcomes}, facts, unfinished(models))
