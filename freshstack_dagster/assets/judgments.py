"""For each nugget and each pooled chunk: does the chunk support the nugget?"""

from __future__ import annotations

from typing import Any

import polars as pl

from freshstack_dagster.assets.models import open_models
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _judging(topic: Topic) -> Any:
    annotators = {name: role.model_dump(mode="json") for name, role in topic.roles.annotators.items()}
    return topic.roles.judge.model_dump(mode="json"), annotators, topic.judging.model_dump(mode="json")


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
    for again. The asset fails its check when errors pass the topic's share.
    """
    from freshstack_dagster.judging.support import error_share, judge_support

    topic = stage.topic
    pools = stage.read("pools")
    chunks = stage.scan("chunks").select("doc_id", "path", "content_hash", "text")
    others = [
        (snapshot, frame) for snapshot, frame in stage.read_all("judgments").items() if snapshot != stage.snapshot
    ]
    judges = {"judge": topic.roles.judge, **topic.roles.annotators}
    with open_models(stage) as models:
        judgments = pl.concat(
            [
                judge_support(
                    stage.read_questions(),
                    stage.read("nuggets"),
                    pools,
                    chunks,
                    models,
                    role,
                    topic.judging,
                    judge_name=name,
                    earlier=others if topic.judging.carry_over else (),
                    progress=stage.progress,
                )
                for name, role in judges.items()
            ]
        )
    facts = {
        "verdicts": judgments.group_by("judge_kind", "judge", "verdict")
        .len("pairs")
        .sort("judge", "verdict")
        .to_dicts(),
        "error share": round(error_share(judgments), 4),
        "carried over": judgments["carried_from"].count(),
        "supported with a quote found": judgments.filter(
            (pl.col("verdict") == "supported") & pl.col("quote_found")
        ).height,
        "model calls": models.summary(),
    }
    return Built({"judgments": judgments}, facts)
