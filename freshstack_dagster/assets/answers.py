"""What answers state without and with retrieval: a model's closed-book answers, and those of systems under test."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl

from freshstack_dagster.assets.models import cost_panel, open_models, role_settings, unfinished
from freshstack_dagster.assets.tables import Built, Stage, table_assets
from freshstack_dagster.settings import Topic


def _judging(topic: Topic) -> Any:
    return role_settings(topic.roles.judge), topic.judging.model_dump(
        mode="json", exclude={"verdict", "annotated_share"}
    )


def _answer_files(stage: Stage) -> Any:
    folder = stage.places.submitted_answers / stage.topic.name
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.glob("*"))]


def _judge(
    stage: Stage, table: str, chunks: pl.DataFrame, pools: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, Any], str | None]:
    """Verdicts of the topic's judge on answers, those known already kept, what they cost, and what got no answer."""
    from freshstack_dagster.judging.support import judge_support

    standing = stage.lake.current(table, stage.topic.name) is not None
    with open_models(stage) as models:
        judgments = judge_support(
            stage.read("questions"),
            stage.read("nuggets"),
            pools,
            chunks,
            models,
            stage.topic.roles.judge,
            stage.topic.judging,
            earlier=[(None, stage.read(table))] if standing else [],
            progress=partial(stage.progress(), "judging answers"),
        )
    verdicts = judgments.group_by("judge_kind", "judge", "verdict").len("nuggets").sort("judge", "verdict")
    return judgments, {"verdicts": verdicts.to_dicts(), **cost_panel(models)}, unfinished(models)


@table_assets(
    "closed_book_judgments",
    "contamination",
    group="answers",
    rooms=["evaluation", "judging", "language_models"],
    reads=["questions", "nuggets", "query_variants"],
    settings=_judging,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def probe_contamination(stage: Stage) -> Built:
    """A model that states an answer's nuggets from the question alone may have seen the answer in training.

    Closed-book answers that no model wrote are skipped and counted as such.
    """
    from freshstack_dagster.evaluation.contamination import closed_book_documents, contamination

    variants, nuggets = stage.read("query_variants"), stage.read("nuggets")
    judgments, facts, open_ = _judge(stage, "closed_book_judgments", *closed_book_documents(variants))
    course = contamination(variants, judgments, nuggets, stage.read("questions"))
    overall = course.filter(pl.col("asked") == "all")
    skipped = int(overall["skipped"].sum())
    told: dict[str, Any] = {"questions skipped: no closed-book answer by a model": skipped}
    if overall["questions"].sum():
        told["nuggets stated without retrieval"] = overall.drop("asked", "skipped").to_dicts()
    return Built({"closed_book_judgments": judgments, "contamination": course}, {**told, **facts}, open_)


@table_assets(
    "answer_judgments",
    "answer_results",
    group="answers",
    rooms=["evaluation", "judging", "language_models"],
    reads=["questions", "nuggets"],
    settings=_judging,
    external=_answer_files,
    kinds={"llm", "parquet"},
    pool="model_calls",
)
def score_answers(stage: Stage) -> Built:
    """Nugget recall of generated answers: files `data/answers/<topic>/<system>.jsonl`, judged as chunks are."""
    from freshstack_dagster.evaluation.answer_files import read_answers
    from freshstack_dagster.evaluation.answers import answer_documents, answer_results
    from freshstack_dagster.tables import TABLES

    folder = stage.places.submitted_answers / stage.topic.name
    nuggets = stage.read("nuggets")
    answers = read_answers(folder, stage.read("questions")["question_id"])
    if not answers.height:
        tables = {name: TABLES[name].empty() for name in ("answer_judgments", "answer_results")}
        return Built(tables, {"systems": f"none; put answers into {folder.relative_to(stage.places.root)}"})
    answered = answers.join(nuggets, on="question_id", how="semi")
    judgments, facts, open_ = _judge(stage, "answer_judgments", *answer_documents(answered, nuggets))
    results = answer_results(answered, judgments, nuggets)
    means = results.filter(pl.col("question_id") == "all").select("system", "nuggets", "stated", "unjudged", "value")
    facts = {
        "means": means.to_dicts(),
        "answers to questions without nuggets": answers.height - answered.height,
        **facts,
    }
    return Built({"answer_judgments": judgments, "answer_results": results}, facts, open_)
