"""Whether the judge can be trusted: annotators on a sample of the pool, agreement, and what people have to settle."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic

NO_ANNOTATORS = "none; name models in roles.annotators of the topic file to hold the judge against them"


def _annotators(topic: Topic) -> Any:
    return (
        {name: role.model_dump(mode="json") for name, role in topic.roles.annotators.items()},
        topic.judging.model_dump(mode="json", exclude={"verdict"}),
        str(topic.asked_before),
    )


def counted_judgments(stage: Stage, snapshot: str | None = None) -> pl.DataFrame:
    """The verdicts that make the benchmark: the judge's, or the majority's where the topic asks for it."""
    from freshstack_dagster.judging.annotation import verdicts_that_count

    judgments, judging = stage.read("judgments", snapshot), stage.topic.judging
    return (
        judgments
        if judging.verdict == "judge"
        else verdicts_that_count(judgments, stage.read("annotations", snapshot), judging)
    )


@table_assets(
    "annotations",
    group="calibration",
    rooms=["judging", "language_models"],
    reads=["chunks", "questions", "nuggets", "pools"],
    settings=_annotators,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def annotate_pools(stage: Stage) -> Built:
    """Each annotator of the topic judges a sample of the pool, or all of it, exactly as the judge does.

    Verdicts are carried over between snapshots as the judge's are. Without annotators the table is empty.
    """
    from freshstack_dagster.judging.annotation import annotate
    from freshstack_dagster.judging.support import error_share
    from freshstack_dagster.tables import TABLES

    topic = stage.topic
    if not topic.roles.annotators:
        return Built({"annotations": TABLES["annotations"].empty()}, {"annotators": NO_ANNOTATORS})
    earlier = stage.read_all("annotations")
    own: list[tuple[str | None, pl.DataFrame]] = [(None, earlier.pop(stage.month))] if stage.month in earlier else []
    with open_models(stage) as models:
        annotations = annotate(
            stage.read_questions(),
            stage.read("nuggets"),
            stage.read("pools"),
            stage.scan("chunks").select("doc_id", "content_hash", "text"),
            models,
            topic.roles.annotators,
            topic.judging,
            earlier=[*own, *earlier.items()],
            progress=partial(stage.progress(), "annotating calls"),
        )
    verdicts = annotations.group_by("judge_kind", "judge", "verdict").len("pairs").sort("judge", "verdict")
    facts = {
        "annotators": sorted(topic.roles.annotators),
        "share of the pool": topic.judging.annotated_share,
        "verdicts": verdicts.to_dicts(),
        "error share": round(error_share(annotations), 4),
        "carried over": annotations["carried_from"].count(),
        **cost_panel(models),
    }
    return Built({"annotations": annotations}, facts)


@table_assets(
    "agreement",
    "disagreements",
    group="calibration",
    rooms=["judging"],
    reads=["judgments", "annotations", "questions", "nuggets", "chunks"],
)
def compare_judges(stage: Stage) -> Built:
    """Each two judges by Cohen's kappa, all together by Fleiss', with intervals and base rates; and where they part."""
    from freshstack_dagster.judging.annotation import compare_judges as compare
    from freshstack_dagster.judging.annotation import list_disagreements

    judgments, annotations = stage.read("judgments"), stage.read("annotations")
    agreement = compare(judgments, annotations)
    divided = list_disagreements(
        judgments, annotations, stage.read("questions"), stage.read("nuggets"), stage.scan("chunks")
    )
    facts: dict[str, Any] = {"annotators": NO_ANNOTATORS}
    if annotations.height:
        columns = ["judge_a", "judge_b", "pairs", "agreement", "kappa", "kappa_low", "kappa_high", "base_rate"]
        facts = {
            "agreement": agreement.select(columns).to_dicts(),
            "pairs on which judges part": divided.height,
            "to settle first": divided.select("question", "nugget", "chunk", "supported", "unsupported")
            .head(5)
            .with_columns(pl.col("supported", "unsupported").list.join(", "))
            .to_dicts(),
        }
    return Built({"agreement": agreement, "disagreements": divided}, facts)
