"""Atomic facts of each answer, and the texts used to retrieve for each question."""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _nugget_role(topic: Topic) -> Any:
    return topic.roles.nuggets.model_dump(mode="json")


def _variant_roles(topic: Topic) -> Any:
    roles = topic.roles
    return (
        roles.sub_questions.model_dump(mode="json"),
        roles.closed_book_answer.model_dump(mode="json"),
        topic.pooling.variants,
    )


def _outcomes(outcomes: pl.DataFrame) -> list[dict[str, Any]]:
    return outcomes.group_by("role", "outcome", "detail").len("questions").sort("role", "outcome", "detail").to_dicts()


@table_assets(
    "nuggets",
    "nugget_outcomes",
    group="nuggets",
    rooms=["judging", "language_models"],
    reads=["questions"],
    settings=_nugget_role,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def write_nuggets(stage: Stage) -> Built:
    """Written from question and answer; only new or changed questions cost a call, because replies are cached."""
    from freshstack_dagster.judging.nuggets import write_nuggets as write

    with open_models(stage) as models:
        nuggets, outcomes = write(stage.read("questions"), models, stage.topic.roles.nuggets)
    facts = {
        "written by": sorted(nuggets["model"].unique()),
        "nuggets a question": round(nuggets.height / max(1, nuggets["question_id"].n_unique()), 2),
        "outcomes": _outcomes(outcomes),
        **cost_panel(models),
    }
    return Built({"nuggets": nuggets, "nugget_outcomes": outcomes}, facts)


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
    return Built({"query_variants": variants, "variant_outcomes": outcomes}, facts)
