"""The heuristic on the sample, where the truth is known. The floors lie a little under what it reaches."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.corpus.build import build_corpus, resolve_commits
from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.nuggets import write_nuggets
from freshstack_dagster.judging.support import judge_support
from freshstack_dagster.judging.truth import (
    Agreement,
    documents_against_truth,
    facts_as_nuggets,
    load_truth,
    support_against_truth,
    true_support,
)
from freshstack_dagster.language_models import Models
from freshstack_dagster.settings import Budget, Judging, ModelRole, load_topic, snapshot_end
from freshstack_dagster.stackexchange import read_dump

PROJECT = Path(__file__).resolve().parents[2]
SNAPSHOTS = ("2024-10", "2025-10")


@pytest.fixture(scope="module")
def truth():
    return load_truth(PROJECT / "data" / "sample" / "truth.yaml")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """The chunks of the sample's snapshots."""
    topic = load_topic(PROJECT / "data" / "topics" / "sample.yaml")
    folder = tmp_path_factory.mktemp("sample")
    return {
        snapshot: build_corpus(
            topic, resolve_commits(topic, snapshot, folder / "mirrors"), folder / "mirrors", folder / "cache", workers=1
        ).chunks
        for snapshot in SNAPSHOTS
    }


@pytest.fixture(scope="module")
def questions(truth):
    known = [str(question["question_id"]) for question in truth["questions"]]
    dump = read_dump(PROJECT / "data" / "sample" / "Posts.xml", index=False)
    return dump.filter(pl.col("question_id").is_in(known))


def judged(nuggets, questions, chunks, tmp_path):
    """Every nugget of every question against every chunk of the corpus."""
    pools = questions.select("question_id").join(chunks.select("doc_id"), how="cross")
    models = Models(cache=tmp_path / "cache", budget=Budget())
    return judge_support(questions, nuggets, pools, chunks, models, ModelRole(), Judging())


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
def test_precision_and_recall_of_the_heuristic_judge(truth, corpora, questions, snapshot, tmp_path):
    of_snapshot = questions.filter(pl.col("asked_at") < snapshot_end(snapshot))
    nuggets = facts_as_nuggets(truth).join(of_snapshot, on="question_id", how="semi")
    judgments = judged(nuggets, of_snapshot, corpora[snapshot], tmp_path)
    figures = support_against_truth(judgments, true_support(truth, snapshot, corpora[snapshot]))
    assert figures.errors == 0
    assert figures.unjudged == 0
    assert figures.found + figures.missed >= 150
    assert figures.precision >= 0.72, figures.figures()
    assert figures.recall >= 0.8, figures.figures()


def test_precision_and_recall_of_the_whole_heuristic(truth, corpora, questions, tmp_path):
    """With nuggets of the heuristic's own: are the chunks that it calls supporting those that are?"""
    nuggets, _ = write_nuggets(questions, Models(cache=tmp_path / "cache", budget=Budget()), ModelRole())
    judgments = judged(nuggets, questions, corpora["2025-10"], tmp_path)
    figures = documents_against_truth(judgments, true_support(truth, "2025-10", corpora["2025-10"]))
    assert 2 <= nuggets.height / questions.height <= 4
    assert figures.precision >= 0.65, figures.figures()
    assert figures.recall >= 0.6, figures.figures()


def test_the_question_whose_facts_vanish_loses_its_support(truth, corpora, questions, tmp_path):
    vanished = questions.filter(question_id=str(truth["vanished"]))
    nuggets, _ = write_nuggets(vanished, Models(cache=tmp_path / "cache", budget=Budget()), ModelRole())
    before, after = (
        judged(nuggets, vanished, corpora[snapshot], tmp_path).filter(verdict="supported")["nugget_id"].n_unique()
        for snapshot in SNAPSHOTS
    )
    assert before > 0
    assert after == 0


def test_passages_must_stand_where_the_truth_says(corpora):
    def truth_with(anchor: str):
        passage = {"repository": "sluicewick", "path": "docs/quickstart.md", "anchor": anchor}
        return {"questions": [{"question_id": 1, "facts": [{"fact": "f", "2024-10": [passage]}]}]}

    found = true_support(truth_with("Install with `pip install sluicewick`"), "2024-10", corpora["2024-10"])
    assert found.rows()[0][:2] == ("1", "1_0")
    with pytest.raises(EvaluationError, match=r"0 chunks of sluicewick/docs/quickstart\.md hold 'not there'"):
        true_support(truth_with("not there"), "2024-10", corpora["2024-10"])
    assert true_support(truth_with("x"), "2025-10", corpora["2025-10"]).height == 0


def test_figures_are_counted_right():
    pairs = {"a": "supported", "b": "supported", "c": "unsupported", "d": "unsupported", "e": "error"}
    judgments = pl.DataFrame(
        [{"question_id": "q", "nugget_id": "q_0", "doc_id": doc, "verdict": verdict} for doc, verdict in pairs.items()]
    )
    true = pl.DataFrame(
        [{"question_id": "q", "nugget_id": "q_0", "doc_id": doc} for doc in ("a", "c", "e", "z")]
        + [{"question_id": "other", "nugget_id": "other_0", "doc_id": "a"}]
    )
    figures = support_against_truth(judgments, true)
    assert figures == Agreement(judged=4, errors=1, found=1, missed=1, invented=1, unjudged=1)
    assert (figures.precision, figures.recall, figures.f1) == (0.5, 0.5, 0.5)
    assert documents_against_truth(judgments, true) == figures
    assert Agreement(0, 0, 0, 0, 0, 0).figures()["f1"] is None


def test_a_truth_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.yaml").write_text("questions: [")
    (tmp_path / "empty.yaml").write_text("posts: 3")
    for name in ("missing.yaml", "broken.yaml", "empty.yaml"):
        with pytest.raises(EvaluationError, match=name):
            load_truth(tmp_path / name)
