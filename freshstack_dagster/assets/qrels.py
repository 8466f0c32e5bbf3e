"""Judgments filtered to a benchmark."""

from __future__ import annotations

from freshstack_dagster.assets.calibration import counted_judgments
from freshstack_dagster.assets.tables import Built, Stage, table_assets


@table_assets(
    "qrels",
    "question_outcomes",
    group="qrels",
    rooms=["evaluation", "judging/agreement.py"],
    reads=["judgments", "annotations", "nuggets", "questions", "pools", "chunks"],
    settings=lambda topic: (str(topic.asked_before), topic.keep_partial, topic.judging.verdict),
)
def build_qrels(stage: Stage) -> Built:
    """Questions without support, or with a nugget without support, leave the benchmark and are counted.

    These are the two filters of FreshStack's section 4; a topic that sets `keep_partial` leaves the second one out.
    With `judging.verdict: majority` the verdict of most of judge and annotators counts, and a tie is unjudged.
    """
    from freshstack_dagster.evaluation.qrels import build_qrels as build

    questions = stage.read_questions()
    pooled = stage.scan("pools").select("question_id").unique().collect()
    unretrieved = questions.join(pooled, on="question_id", how="anti")["question_id"].to_list()
    qrels, outcomes = build(
        counted_judgments(stage),
        stage.read("nuggets"),
        questions,
        doc_ids=stage.scan("chunks").select("doc_id").collect()["doc_id"],
        keep_partial=stage.topic.keep_partial,
        unretrieved=unretrieved,
    )
    facts = {
        "questions, by outcome": outcomes.group_by("outcome").len("questions").sort("outcome").to_dicts(),
        "questions for which nothing was retrieved": ", ".join(sorted(unretrieved)) or "none",
        "relevant pairs": qrels.filter(qrels["relevance"] > 0).height,
        "verdict of": stage.topic.judging.verdict,
        "judge kind": ", ".join(sorted(qrels["judge_kind"].unique())),
    }
    return Built({"qrels": qrels, "question_outcomes": outcomes}, facts)
