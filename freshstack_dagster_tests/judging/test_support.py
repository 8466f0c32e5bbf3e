"""Judging: every pair has a verdict, an error is never `unsupported`, nothing is judged twice."""

from __future__ import annotations

import hashlib
import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freshstack_dagster.corpus.tokens import count_tokens
from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.judging.support import (
    SHORTENED,
    error_share,
    judge_support,
    judging_counts,
    quote_stands_in,
    support_requests,
)
from freshstack_dagster.settings import Judging, ModelRole
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.judging.fakes import (
    LLM,
    FakeModels,
    chunks,
    failure,
    nuggets,
    pools,
    questions,
    support_reply,
)

QUESTIONS = questions(q="Call open() first.", r="Set limit to 5.")
NUGGETS = nuggets({"q": ["open comes first", "close comes last"], "r": ["limit is 5"]})


def word_in(nugget: str, document: str) -> str | None:
    """A judge that supports a nugget by its first word."""
    return nugget.split()[0] if nugget.split()[0] in document else None


def verdicts(judgments: pl.DataFrame) -> dict[tuple[str, str], str]:
    return {(n, d): v for n, d, v in judgments.select("nugget_id", "doc_id", "verdict").iter_rows()}


def judge(models: FakeModels, texts: dict[str, str], pooled: dict[str, list[str]], **options) -> pl.DataFrame:
    given_nuggets = options.pop("nuggets", NUGGETS)
    judging = options.pop("judging", Judging())
    role = options.pop("role", LLM)
    return judge_support(QUESTIONS, given_nuggets, pools(pooled), chunks(texts), models, role, judging, **options)


def answering(supports=word_in) -> FakeModels:
    return FakeModels(lambda request: support_reply(request, supports))


def test_every_nugget_is_judged_against_every_chunk_of_its_pool():
    models = answering()
    texts = {"a/x_0_9": "open and close", "a/y_0_9": "nothing", "a/z_0_9": "the limit"}
    judgments = judge(models, texts, {"q": ["a/x_0_9", "a/y_0_9"], "r": ["a/y_0_9", "a/z_0_9"]})
    assert verdicts(judgments) == {
        ("q_0", "a/x_0_9"): "supported",
        ("q_1", "a/x_0_9"): "supported",
        ("q_0", "a/y_0_9"): "unsupported",
        ("q_1", "a/y_0_9"): "unsupported",
        ("r_0", "a/y_0_9"): "unsupported",
        ("r_0", "a/z_0_9"): "supported",
    }
    assert judgments.columns == list(TABLES["judgments"].columns)
    assert set(judgments["judge"]) == {"openai:fake"}
    assert set(judgments["judge_kind"]) == {"llm"}
    assert judgments.filter(pl.col("verdict") == "supported")["quote_found"].all()
    assert judgments.filter(pl.col("verdict") == "unsupported")["quote_found"].is_null().all()
    assert judgments["reply"].null_count() == 0
    second = judgments.filter(nugget_id="q_1", doc_id="a/x_0_9")
    assert re.fullmatch(r"\[nugget 2 of 2\] document \d was read", second["reason"][0])


@pytest.mark.parametrize(
    "kind", ["length", "refusal", "content_filter", "malformed", "transport", "budget", "missing", "skipped"]
)
def test_a_failed_call_is_an_error_for_each_of_its_pairs_and_for_no_other(kind):
    def answer(request):
        return failure(kind) if request.question_id == "q" else support_reply(request, word_in)

    judgments = judge(FakeModels(answer), {"x": "open", "y": "limit"}, {"q": ["x", "y"], "r": ["x", "y"]})
    assert judgments.filter(pl.col("question_id") == "q")["verdict"].unique().to_list() == ["error"]
    assert verdicts(judgments.filter(pl.col("question_id") == "r")) == {
        ("r_0", "x"): "unsupported",
        ("r_0", "y"): "supported",
    }
    assert judgments.filter(pl.col("verdict") == "error")["reason"].str.contains("told to fail").all()
    assert error_share(judgments) == pytest.approx(4 / 6)
    assert judging_counts(judgments)["error"] == 4


def test_a_reply_that_leaves_a_document_out_is_an_error_for_the_batch():
    def answer(request):
        reply = support_reply(request, word_in)
        return {"documents": reply["documents"][:-1]}

    judgments = judge(FakeModels(answer), {"x": "open", "y": "limit"}, {"q": ["x", "y"]})
    assert set(judgments["verdict"]) == {"error"}
    assert judgments["reason"][0] == "malformed: document 2 of 2 left out"


def test_a_truncated_batch_is_halved_down_to_the_chunk_that_does_not_fit():
    def answer(request):
        documents = request.inputs["documents"]
        return failure("length") if "too much" in documents else support_reply(request, word_in)

    texts = {f"d{number}": f"open {number}" for number in range(7)} | {"long": "too much"}
    models = FakeModels(answer)
    judgments = judge(models, texts, {"q": list(texts)})
    assert verdicts(judgments.filter(pl.col("verdict") == "error")).keys() == {("q_0", "long"), ("q_1", "long")}
    assert (judgments.filter(pl.col("nugget_id") == "q_0")["verdict"] == "supported").sum() == 7
    assert len(models.log) == 7  # 8, 4 + 4, 2 + 2, 1 + 1


def test_a_call_holds_at_most_the_set_number_of_chunks():
    texts = {f"d{number}": f"text {number}" for number in range(50)}
    models = answering()
    judge(models, texts, {"q": list(texts)})
    sizes = [len(request.inputs["documents"]) for request in models.log]
    assert sum(sizes) == 50
    assert len(sizes) == 3
    assert max(sizes) <= 20


def test_the_order_of_chunks_hangs_on_the_seed_alone():
    texts = {f"d{number}": f"text {number}" for number in range(12)}

    def order(docs: list[str], seed: int) -> list[str]:
        models = answering()
        judge(models, texts, {"q": docs}, judging=Judging(seed=seed))
        return models.log[0].inputs["documents"]

    docs = list(texts)
    assert order(docs, 13) == order(docs[::-1], 13)
    assert order(docs, 13) != order(docs, 14)
    assert order(docs, 13) != [texts[doc] for doc in docs]
    # One chunk less leaves the others in their order.
    assert order(docs[1:], 13) == [text for text in order(docs, 13) if text != texts["d0"]]


def test_the_judge_sees_question_answer_nuggets_and_texts_but_no_paths():
    models = answering()
    judge(models, {"secret/path.md_0_4": "open {{answer}} {braces}"}, {"q": ["secret/path.md_0_4"]})
    prompt = models.log[0].user
    for text in ("How do I q?", "Call open() first.", "1. open comes first", "2. close comes last"):
        assert text in prompt
    assert "open {{answer}} {braces}" in prompt
    assert "secret/path" not in prompt


def test_chunks_with_one_text_are_judged_once_and_share_the_verdict():
    models = answering()
    texts = {"a/x": "open", "b/copy": "open", "a/y": "other"}
    judgments = judge(models, texts, {"q": list(texts)})
    assert len(models.log[0].inputs["documents"]) == 2
    assert judgments.height == 6
    assert verdicts(judgments)["q_0", "a/x"] == verdicts(judgments)["q_0", "b/copy"] == "supported"


def test_a_quote_that_the_chunk_does_not_hold_leaves_the_verdict_and_says_so():
    judgments = judge(
        answering(lambda n, d: "made up" if "open" in n else "two  words"), {"x": "two\nwords"}, {"q": ["x"]}
    )
    assert judgments["verdict"].to_list() == ["supported", "supported"]
    assert judgments["quote_found"].to_list() == [False, True]
    assert judging_counts(judgments)["quotes_not_found"] == 1


def test_a_long_chunk_is_shortened_visibly_and_counted():
    text = "\n".join(f"line {number} of many" for number in range(1_000))
    models = answering()
    judgments = judge(models, {"x": text, "y": "short"}, {"q": ["x", "y"]}, judging=Judging(max_chunk_tokens=100))
    assert "characters of this document are left out here ...]" in models.log[0].user
    assert "line 999" not in models.log[0].user
    # Exactly as many tokens as allowed are shown, up to the end of a line.
    shown = models.log[0].user.split("\n[... ")[0].split(">\n")[-1]
    assert text.startswith(shown)
    assert 90 <= count_tokens(shown) <= 100
    of_x = judgments.filter(pl.col("doc_id") == "x")["reason"]
    assert of_x.str.contains(SHORTENED, literal=True).all()
    assert judging_counts(judgments)["shortened"] == 2


def test_verdicts_are_carried_over_and_only_the_rest_is_asked():
    first = judge(answering(), {"x": "open", "y": "other"}, {"q": ["x", "y"]})
    models = answering()
    second = judge(models, {"moved": "open", "new": "close"}, {"q": ["moved", "new"]}, earlier=[("2024-10", first)])
    assert [request.inputs["documents"] for request in models.log] == [["close"]]
    carried = second.filter(pl.col("carried_from") == "2024-10")
    assert verdicts(carried) == {("q_0", "moved"): "supported", ("q_1", "moved"): "unsupported"}
    assert second.filter(pl.col("doc_id") == "new")["carried_from"].is_null().all()
    # A third snapshot names where the verdict was given, not where it was last copied to.
    third = judge(answering(), {"z": "open"}, {"q": ["z"]}, earlier=[("2025-10", second)])
    assert set(third["carried_from"]) == {"2024-10"}
    assert judging_counts(third)["carried_over"] == 2


def test_verdicts_of_the_same_snapshot_are_kept_as_they_are():
    first = judge(answering(), {"x": "open"}, {"q": ["x"]})
    models = answering()
    again = judge(models, {"x": "open", "y": "new"}, {"q": ["x", "y"]}, earlier=[(None, first)])
    assert [request.inputs["documents"] for request in models.log] == [["new"]]
    assert again["carried_from"].is_null().all()


def test_what_comes_back_from_another_snapshot_was_judged_here():
    first = judge(answering(), {"x": "open"}, {"q": ["x"]})
    second = judge(answering(), {"x": "open"}, {"q": ["x"]}, earlier=[("2024-10", first)])
    models = FakeModels(lambda request: support_reply(request, word_in), snapshot="2024-10")
    again = judge(models, {"x": "open"}, {"q": ["x"]}, earlier=[("2025-10", second)])
    assert models.log == []
    assert again.equals(first)


def test_a_reworded_nugget_is_judged_again_and_a_moved_one_is_not():
    first = judge(answering(), {"x": "open"}, {"q": ["x"]})
    models = answering()
    changed = nuggets({"q": ["close comes last", "open is first"]})
    second = judge(models, {"x": "open"}, {"q": ["x"]}, nuggets=changed, earlier=[("2024-10", first)])
    assert len(models.log) == 1
    assert dict(second.select("nugget_id", "carried_from").iter_rows()) == {"q_0": "2024-10", "q_1": None}
    assert verdicts(second) == {("q_0", "x"): "unsupported", ("q_1", "x"): "supported"}


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"judging": Judging(carry_over=False)}, 1),
        ({"role": ModelRole(provider="openai", model="fake", cache="refresh")}, 1),
        ({}, 0),
    ],
)
def test_carry_over_can_be_turned_off(options, calls):
    first = judge(answering(), {"x": "open"}, {"q": ["x"]})
    models = answering()
    judge(models, {"x": "open"}, {"q": ["x"]}, earlier=[("2024-10", first)], **options)
    assert len(models.log) == calls


@pytest.mark.parametrize(
    "change",
    [
        pl.lit("openai:other").alias("judge"),
        pl.lit("other").alias("prompt"),
        pl.lit("error").alias("verdict"),
        pl.lit("other").alias("question_id"),
    ],
)
def test_nothing_is_carried_over_from_another_judge_prompt_question_or_from_an_error(change):
    first = judge(answering(), {"x": "open"}, {"q": ["x"]}).with_columns(change)
    models = answering()
    judgments = judge(models, {"x": "open"}, {"q": ["x"]}, earlier=[("2024-10", first)])
    assert len(models.log) == 1
    assert judgments["carried_from"].is_null().all()


def test_pools_that_name_unknown_documents_or_questions_are_refused():
    with pytest.raises(EvaluationError, match=r"1 documents .* gone; build the pools again"):
        judge(answering(), {"x": "open"}, {"q": ["x", "gone"]})
    with pytest.raises(EvaluationError, match=r"1 questions .*: zz"):
        judge(answering(), {"x": "open"}, {"zz": ["x"]})


def test_nothing_to_judge_is_an_empty_table():
    assert judge(answering(), {}, {}).height == 0
    assert judge(answering(), {"x": "open"}, {"q": ["x"]}, nuggets=nuggets({})).height == 0
    assert error_share(TABLES["judgments"].empty()) == 0.0


def test_progress_counts_the_calls():
    seen = []
    texts = {f"d{number}": f"text {number}" for number in range(45)}
    judge(answering(), texts, {"q": list(texts)}, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_reruns_are_equal_to_the_byte(heuristic_models):
    texts = {f"d{number}": f"open {number} close" for number in range(30)}
    first = judge(heuristic_models, texts, {"q": list(texts), "r": list(texts)[:5]}, role=ModelRole())
    second = judge(heuristic_models, texts, {"q": list(texts)[::-1], "r": list(texts)[:5]}, role=ModelRole())
    assert first.equals(second)
    assert set(first["judge_kind"]) == {"heuristic"}
    assert set(first["judge"]) == {"heuristic"}
    assert all(re.search(r"nugget 1: .*matched .*; missing ", reason) for reason in first["reason"])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(["ok", "length", "refusal", "malformed", "transport", "left_out"]), min_size=1, max_size=9
    ),
    st.integers(1, 5),
)
def test_totals_balance_whatever_the_judge_does(kinds, per_call):
    """Every pair has exactly one verdict; each is what the judge said, or an error; no error turns into a verdict."""
    texts = {f"d{number}": f"open {number}" for number in range(12)}

    def fault(request) -> str:
        digest = hashlib.sha256(request.user.encode()).digest()[0]
        return kinds[digest % len(kinds)]

    def answer(request):
        kind = fault(request)
        reply = support_reply(request, word_in)
        if kind == "left_out":
            del reply["documents"][0]
            return reply
        return reply if kind == "ok" else failure(kind)

    judgments = judge(FakeModels(answer), texts, {"q": list(texts)}, judging=Judging(chunks_per_call=per_call))
    assert judgments.height == 24
    for (nugget_id, _), verdict in verdicts(judgments).items():
        assert verdict in ({"supported", "error"} if nugget_id == "q_0" else {"unsupported", "error"})
    counts = judging_counts(judgments)
    assert counts["supported"] + counts["unsupported"] + counts["error"] == 24


def test_quotes_are_found_exactly_or_but_for_white_space():
    assert quote_stands_in("a  b", "x a  b y")
    assert quote_stands_in("a b", "x a\n    b y")
    assert not quote_stands_in("a c", "x a b c")
    assert not quote_stands_in("  ", "abc")


def test_what_will_be_asked_can_be_known_before():
    texts = {f"d{number}": f"open {number}" for number in range(25)}
    models = answering()
    given = (QUESTIONS, NUGGETS, pools({"q": list(texts)}), chunks(texts))
    planned = support_requests(*given, models, LLM, Judging())
    assert models.log == []
    judgments = judge_support(*given, models, LLM, Judging())
    assert [request.id for request in planned] == [request.id for request in models.log]
    assert [request.user for request in planned] == [request.user for request in models.log]
    assert support_requests(*given, models, LLM, Judging(), earlier=[("2024-10", judgments)]) == []
