"""Whether the judge can be trusted: annotators on a sample of the pool, agreement, and what people have to settle."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models, role_settings, unfinished
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic

NO_ANNOTATORS = (
    "none; name models in roles.annotators of the topic file, or put verdicts of people into "
    "data/verdicts/<topic>/<snapshot>, to hold the judge against them"
)


def _annotators(topic: Topic) -> Any:
    return (
        {name: role_settings(role) for name, role in topic.roles.annotators.items()},
        topic.judging.model_dump(mode="json", exclude={"verdict"}),
        str(topic.asked_before),
    )


def counted_judgments(stage: Stage, snapshot: str | None = None) -> pl.DataFrame:
    """The verdicts that make the benchmark: people's where they gave one, else the judge's or the majority's."""
    from freshstack_dagster.judging.annotation import verdicts_that_count

    return verdicts_that_count(
        stage.read("judgments", snapshot), stage.read("annotations", snapshot), stage.topic.judging
    )


def _verdict_files(stage: Stage) -> Any:
    folder = stage.places.human_verdicts / stage.topic.name / stage.month
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.glob("*"))]


@table_assets(
    "annotations",
    group="calibration",
    rooms=["judging", "language_models"],
    reads=["chunks", "questions", "nuggets", "pools"],
    settings=_annotators,
    external=_verdict_files,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def annotate_pools(stage: Stage) -> Built:
    """Each annotator of the topic judges a sample of the pool, or all of it, exactly as the judge does.

    Verdicts are carried over between snapshots as the judge's are. Verdicts of people, in files in
    data/verdicts/<topic>/<snapshot>, stand beside them. Without either the table is empty.
    """
    from freshstack_dagster.judging.annotation import annotate
    from freshstack_dagster.judging.support import error_share
    from freshstack_dagster.judging.verdicts import read_verdicts

    topic = stage.topic
    nuggets, pools = stage.read("nuggets"), stage.read("pools")
    chunks = stage.scan("chunks").select("doc_id", "content_hash", "text")
    folder = stage.places.human_verdicts / topic.name / stage.month
    people, unsettled = read_verdicts(folder, nuggets, pools, chunks)
    if not topic.roles.annotators and not people.height:
        return Built({"annotations": people}, {"annotators": NO_ANNOTATORS})
    earlier = stage.read_all("annotations")
    own: list[tuple[str | None, pl.DataFrame]] = [(None, earlier.pop(stage.month))] if stage.month in earlier else []
    with open_models(stage) if topic.roles.annotators else nullcontext() as models:
        annotations = people
        if models is not None:
            asked = annotate(
                stage.read_questions(),
                nuggets,
                pools,
                chunks,
                models,
                topic.roles.annotators,
                topic.judging,
                earlier=[*own, *earlier.items()],
                progress=partial(stage.progress(), "annotating calls"),
            )
            annotations = pl.concat([asked, people])
    verdicts = annotations.group_by("judge_kind", "judge", "verdict").len("pairs").sort("judge", "verdict")
    facts = {
        "annotators": sorted(topic.roles.annotators),
        "share of the pool": topic.judging.annotated_share,
        "verdicts": verdicts.to_dicts(),
        "error share": round(error_share(annotations), 4),
        "carried over": annotations["carried_from"].count(),
        "people": sorted(people["judge"].unique()),
        "rows of people without a verdict": unsettled,
        **({} if models is None else cost_panel(models)),
    }
    return Built({"annotations": annotations}, facts, unfinished(models))


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
