"""For each nugget and each pooled chunk: does the chunk support the nugget?"""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models, role_settings, unfinished
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _judging(topic: Topic) -> Any:
    judging = topic.judging.model_dump(mode="json", exclude={"verdict", "annotated_share"})
    return role_settings(topic.roles.judge), judging


@table_assets(
    "judgments",
    group="judgments",
    rooms=["judging", "language_models"],
    reads=["chunks", "questions", "nuggets", "pools"],
    settings=_judging,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def judge_pools(stage: Stage) -> Built:
    """Three-valued: supported, unsupported, or error, which is unjudged in every measure.

    A verdict on the same nugget and the same text by the same judge is carried over from another snapshot, not paid
    for again. A blocking check fails when errors pass the share that the topic allows.
    """
    from freshstack_dagster.judging.support import error_share, judge_support

    topic = stage.topic
    earlier = stage.read_all("judgments")
    # Verdicts of this very snapshot are kept first of all: a changed pool then pays for its new pairs only.
    own: list[tuple[str | None, pl.DataFrame]] = [(None, earlier.pop(stage.month))] if stage.month in earlier else []
    with open_models(stage) as models:
        judgments = judge_support(
            stage.read_questions(),
            stage.read("nuggets"),
            stage.read("pools"),
            stage.scan("chunks").select("doc_id", "content_hash", "text"),
            models,
            topic.roles.judge,
            topic.judging,
            earlier=[*own, *earlier.items()],
            progress=partial(stage.progress(), "judging calls"),
        )
    verdicts = judgments.group_by("judge_kind", "judge", "verdict").len("pairs").sort("judge", "verdict")
    supported = judgments.filter(pl.col("verdict") == "supported")
    facts = {
        "verdicts": verdicts.to_dicts(),
        "error share": round(error_share(judgments), 4),
        "carried over": judgments["carried_from"].count(),
        "supported": supported.height,
        "supported with the quote found in the chunk": supported.filter(pl.col("quote_found")).height,
        **cost_panel(models),
    }
    return Built({"judgments": judgments}, facts, unfinished(models))
