"""Precision and recall of the heuristic on the bundled sample, over the pools that the pipeline makes.

    python -m freshstack_dagster_tests.benchmarks.heuristic_on_sample

Two figures for each snapshot. `judge`: the facts of the truth file as nuggets, pair by pair; this is the judge alone.
`whole`: nuggets of the heuristic's own, chunk by chunk; this is what a chunk's label in the sample's qrels is worth.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import polars as pl

from freshstack_dagster.corpus.build import build_corpus, resolve_commits
from freshstack_dagster.judging.nuggets import write_nuggets
from freshstack_dagster.judging.support import judge_support
from freshstack_dagster.judging.truth import (
    documents_against_truth,
    facts_as_nuggets,
    load_truth,
    support_against_truth,
    true_support,
)
from freshstack_dagster.judging.variants import write_variants
from freshstack_dagster.language_models import Models
from freshstack_dagster.retrieval.pools import build_pools
from freshstack_dagster.retrieval.retrieve import retrieve
from freshstack_dagster.settings import Budget, load_topic
from freshstack_dagster.stackexchange import read_dump

PROJECT = Path(__file__).resolve().parents[2]
ROW = "{:9} {:6} {:>10} {:>7} {:>6} {:>7} {:>9} {:>8}"


def main() -> None:
    """Print a line for each snapshot and figure."""
    topic = load_topic(PROJECT / "data" / "topics" / "sample.yaml")
    truth = load_truth(PROJECT / "data" / "sample" / "truth.yaml")
    known = [str(question["question_id"]) for question in truth["questions"]]
    every = read_dump(PROJECT / "data" / "sample" / "Posts.xml", index=False).filter(pl.col("question_id").is_in(known))
    print(ROW.format("snapshot", "what", "precision", "recall", "f1", "judged", "unjudged", "seconds"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for snapshot in truth["snapshots"]:
            questions = every.filter(pl.col("asked_at") < topic.asked_before_for(snapshot))
            commits = resolve_commits(topic, snapshot, folder / "mirrors")
            chunks = build_corpus(topic, commits, folder / "mirrors", folder / "cache", workers=1).chunks
            models = Models(cache=folder / "replies", budget=Budget(), snapshot=snapshot)
            nuggets, _ = write_nuggets(questions, models, topic.roles.nuggets)
            variants, _ = write_variants(questions, nuggets, models, topic.roles, topic.pooling.variants)
            runs = retrieve(variants, chunks, topic, cache=folder / "cache")
            pools = build_pools(runs, topic.pooling)
            true = true_support(truth, snapshot, chunks)
            facts = facts_as_nuggets(truth).join(questions, on="question_id", how="semi")
            for what, given, compare in (
                ("judge", facts, support_against_truth),
                ("whole", nuggets, documents_against_truth),
            ):
                started = time.monotonic()
                judgments = judge_support(questions, given, pools, chunks, models, topic.roles.judge, topic.judging)
                figures = compare(judgments, true)
                shares = [f"{share or 0:.3f}" for share in (figures.precision, figures.recall, figures.f1)]
                seconds = f"{time.monotonic() - started:.1f}"
                print(ROW.format(snapshot, what, *shares, figures.judged, figures.unjudged, seconds))


if __name__ == "__main__":
    main()
