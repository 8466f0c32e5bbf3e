from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.corpus.build import resolve_commits
from freshstack_dagster.drift.decomposition import (
    Collection,
    Condition,
    compare,
    judge_by_threshold,
    skipped,
    submitted_runs,
    summary,
    vary_chunker,
    vary_corpus,
    vary_judge,
    vary_pool,
)
from freshstack_dagster.judging.nuggets import write_nuggets
from freshstack_dagster.judging.support import judge_support
from freshstack_dagster.judging.variants import write_variants
from freshstack_dagster.language_models.client import Models
from freshstack_dagster.retrieval.pools import build_pools
from freshstack_dagster.retrieval.retrieve import retrieve
from freshstack_dagster.settings import ModelRole, Topic, load_topic
from freshstack_dagster.stackexchange.sources import load_questions
from freshstack_dagster.tables import TABLES

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture(scope="session")
def built(sample, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The sample at both months, from questions to verdicts, by the heuristic and the library alone."""
    root = tmp_path_factory.mktemp("built")
    topic = load_topic(DATA / "topics" / "sample.yaml")
    topic = topic.model_copy(update={"retrievers": topic.retrievers[:2]})
    models = Models(cache=root / "replies", budget=topic.budget, snapshot=None)
    questions = load_questions(topic, cache=root / "cache", progress=lambda line: None).questions
    nuggets, _ = write_nuggets(questions, models, topic.roles.nuggets)
    variants, _ = write_variants(questions, nuggets, models, topic.roles, topic.pooling.variants)
    months, asked = {}, {}
    for month, chunks in sample.items():
        asked[month] = questions.filter(pl.col("asked_at") < topic.asked_before_for(month))
        queries = variants.join(asked[month], on="question_id", how="semi")
        runs = retrieve(queries, chunks, topic, cache=root / "cache")
        pools = build_pools(runs, topic.pooling)
        judgments = judge_support(asked[month], nuggets, pools, chunks, models, topic.roles.judge, topic.judging)
        months[month] = Condition(runs, judgments)
    return {
        "topic": topic,
        "root": root,
        "models": models,
        "variants": variants,
        "months": months,
        "asked": asked,
        "collection": Collection(asked["2024-10"], nuggets),
        "texts": dict(sample["2024-10"].select("content_hash", "text").iter_rows()),
    }


def _of(frame: pl.DataFrame, measure: str = "alpha_ndcg@10") -> dict[str, dict]:
    return {row["variation"]: row for row in frame.filter(pl.col("measure") == measure).iter_rows(named=True)}


def test_a_condition_against_itself_has_no_effect(built):
    results = built["collection"].results(built["months"]["2024-10"])
    for row in compare("pool", "none", results, results).iter_rows(named=True):
        assert (row["difference"], row["largest_difference"]) == (0, 0)
        assert row["tau_b"] in (None, 1.0)
        assert row["questions"] == row["questions_before"] == row["questions_after"] > 0
        assert not row["measure"].startswith("judged@")


def test_the_heuristic_at_its_own_threshold_judges_as_it_did(built):
    judgments = built["months"]["2024-10"].judgments
    again = judge_by_threshold(judgments, built["collection"].nuggets, built["texts"], 0.0)
    key = ["nugget_id", "doc_id"]
    assert again.sort(key)["verdict"].to_list() == judgments.sort(key)["verdict"].to_list()
    strict = judge_by_threshold(judgments, built["collection"].nuggets, built["texts"], 0.1)
    lax = judge_by_threshold(judgments, built["collection"].nuggets, built["texts"], -0.1)
    counts = [(frame["verdict"] == "supported").sum() for frame in (strict, again, lax)]
    assert counts[0] < counts[1] < counts[2]


def test_a_stricter_judge_keeps_fewer_questions(built):
    found = vary_judge(
        built["collection"], built["months"]["2024-10"], TABLES["annotations"].empty(), built["texts"]
    ).pipe(_of)
    higher, lower = found["heuristic to a threshold higher by 0.1"], found["heuristic to a threshold lower by 0.1"]
    assert higher["questions_after"] < higher["questions_before"] < lower["questions_after"]
    assert higher["questions"] == higher["questions_after"]


def test_an_annotator_is_held_against_the_judge_on_what_both_judged(built):
    reference = built["months"]["2024-10"]
    part = reference.judgments.filter(
        pl.col("question_id").is_in(reference.judgments["question_id"].unique().sort()[:20].implode())
    )
    other = part.with_columns(judge=pl.lit("someone"), judge_kind=pl.lit("human"))
    found = vary_judge(built["collection"], reference, other, built["texts"])
    row = next(row for name, row in _of(found).items() if name.endswith("to someone"))
    assert row["difference"] == 0
    assert row["judge_kind"] == "heuristic + human"
    assert "of the pairs, judged by both" in row["detail"]


def test_smaller_pools_leave_fewer_verdicts_and_the_same_runs(built):
    found = vary_pool(built["collection"], built["months"]["2024-10"], built["topic"].pooling)
    rows = _of(found)
    assert set(rows) == {
        "depth 20 to 10",
        "all variants to those that do not know the answer",
        "all retrievers to all but bm25",
        "all retrievers to all but bm25_code",
    }
    for row in rows.values():
        assert 0 < int(row["detail"].split("%")[0]) < 100
        assert row["questions_after"] <= row["questions_before"]


def test_another_month_is_another_corpus_unless_another_judge_judged_it(built):
    months, asked = built["months"], built["asked"]
    rows = _of(vary_corpus(built["collection"], months, "2024-10", asked))
    assert rows["2024-10 to 2025-10"]["outcome"] == "measured"
    assert rows["2024-10 to 2025-10"]["questions"] <= rows["2024-10 to 2025-10"]["questions_before"]
    other = Condition(months["2025-10"].runs, months["2025-10"].judgments.with_columns(judge=pl.lit("someone")))
    mixed = vary_corpus(built["collection"], {**months, "2025-10": other}, "2024-10", asked).row(0, named=True)
    assert (mixed["outcome"], mixed["measure"], mixed["difference"]) == ("skipped", "all", None)
    assert "someone" in mixed["detail"]
    alone = vary_corpus(built["collection"], {"2024-10": months["2024-10"]}, "2024-10", asked).row(0, named=True)
    assert alone["detail"] == "no other snapshot is built yet"


def _chunker(built, topic: Topic, chunks: int = 160) -> pl.DataFrame:
    mirrors = built["root"] / "mirrors"
    return vary_chunker(
        built["collection"],
        built["months"]["2024-10"],
        topic,
        resolve_commits(topic, "2024-10", mirrors),
        built["variants"],
        chunks=chunks,
        mirrors=mirrors,
        cache=built["root"] / "cache",
        models=built["models"],
    )


def test_smaller_chunks_are_cut_retrieved_and_judged_anew(built):
    found = _chunker(built, built["topic"])
    assert set(_of(found)) == {"2048 to 1024 tokens a chunk", "2048 to 512 tokens a chunk"}
    for row in _of(found).values():
        before, after = (int(word) for word in row["detail"].replace(",", "").split() if word.isdigit())
        assert before < after
    assert {row["factor"] for row in summary(found, "alpha_ndcg@10")} == {"chunker"}


def test_what_would_cost_money_or_too_long_is_skipped_and_says_so(built):
    roles = built["topic"].roles.model_copy(update={"judge": ModelRole(provider="openai", model="some-model")})
    paid = _chunker(built, built["topic"].model_copy(update={"roles": roles})).row(0, named=True)
    assert paid["outcome"] == "skipped"
    assert "some-model, which costs money" in paid["detail"]
    large = _chunker(built, built["topic"], chunks=1_000_000).row(0, named=True)
    assert "1,000,000 chunks" in large["detail"]


def test_a_skipped_row_has_no_numbers():
    row = skipped("judge", "a to b", "because").row(0, named=True)
    assert {name for name, value in row.items() if value is not None} == {
        "factor", "variation", "measure", "outcome", "detail", "judge_kind",
    }  # fmt: skip


def test_without_a_retriever_its_reranked_run_is_no_retriever_either(built):
    runs = built["months"]["2024-10"].runs
    reranked = runs.filter(pl.col("retriever") == "bm25").with_columns(retriever=pl.lit("bm25+ce"))
    condition = replace(built["months"]["2024-10"], runs=pl.concat([runs, reranked]))
    plain = vary_pool(built["collection"], built["months"]["2024-10"], built["topic"].pooling)
    found = vary_pool(built["collection"], condition, built["topic"].pooling)
    assert {name: row["detail"] for name, row in _of(found).items()} == {
        name: row["detail"] for name, row in _of(plain).items()
    }


def test_submitted_runs_stay_in_smaller_pools(built):
    runs, pooling = built["months"]["2024-10"].runs, built["topic"].pooling
    question = runs["question_id"][0]
    far = runs.filter(pl.col("question_id") == question)["doc_id"].unique().sort()[-3:]
    submitted = pl.DataFrame({"question_id": question, "system": "mine", "doc_id": far, "score": [3.0, 2.0, 1.0]})
    again = submitted_runs(build_pools(runs, pooling, submitted), runs)
    assert again.select("question_id", "retriever", "doc_id", "rank").sort("rank").rows() == [
        (question, "mine", doc_id, rank) for rank, doc_id in enumerate(far, 1)
    ]
    assert (
        build_pools(runs, pooling, again)
        .select("doc_id", "rank")
        .equals(build_pools(runs, pooling, submitted).select("doc_id", "rank"))
    )
