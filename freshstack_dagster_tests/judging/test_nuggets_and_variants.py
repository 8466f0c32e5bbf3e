"""Nuggets and query variants: a row or a reason for every question, and no error that is silent."""

from __future__ import annotations

import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.judging import heuristic
from freshstack_dagster.judging.nuggets import nugget_requests, question_of, write_nuggets
from freshstack_dagster.judging.prompts import load_prompt
from freshstack_dagster.judging.variants import variant_requests, write_variants
from freshstack_dagster.settings import VARIANTS, ModelRole, Roles
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.judging.fakes import LLM, FakeModels, failure, nuggets, questions

QUESTIONS = questions(q="Call `open()` before `send_all()`.", r="Set `limit` to 5_000 in `app.toml`.")
ROLES = Roles(nuggets=LLM, sub_questions=LLM, closed_book_answer=LLM)


@pytest.mark.parametrize("nugget_id", ["123_0", "1234_0", "so_12_0"])
def test_the_question_of_a_nugget_is_all_before_the_last_underscore(nugget_id):
    assert question_of(nugget_id) == {"123_0": "123", "1234_0": "1234", "so_12_0": "so_12"}[nugget_id]


def test_nuggets_are_numbered_in_order_and_name_their_prompt():
    models = FakeModels(lambda request: {"summary": "s", "nuggets": ["one", "two"]})
    written, outcomes = write_nuggets(QUESTIONS, models, LLM)
    assert TABLES["nuggets"].conform(written).select("nugget_id", "text").rows() == [
        ("q_0", "one"),
        ("q_1", "two"),
        ("r_0", "one"),
        ("r_1", "two"),
    ]
    assert set(written["prompt"]) == {load_prompt("nuggets").version}
    assert set(written["model"]) == {"openai:fake"}
    assert written["reply"].null_count() == 0
    assert TABLES["variant_outcomes"].conform(outcomes)["outcome"].to_list() == ["ok", "ok"]
    assert "Call `open()` before" in models.log[0].user
    assert "How do I q?" in models.log[0].user


def test_a_question_without_nuggets_has_an_error_and_no_row():
    def answer(request):
        return failure("refusal") if request.question_id == "q" else {"summary": "s", "nuggets": []}

    written, outcomes = write_nuggets(QUESTIONS, FakeModels(answer), LLM)
    assert written.height == 0
    assert outcomes.select("question_id", "outcome", "detail").rows() == [
        ("q", "error", "refusal: told to fail as refusal"),
        ("r", "error", "malformed: nuggets is empty"),
    ]


def test_every_variant_has_its_setting_text_and_writer():
    def answer(request):
        if request.task == "closed_book_answer":
            return {"answer": "try\nthis"}
        return {"reasoning": "", "sub_questions": ["what is\nthis?", "why?"]}

    own = nuggets({"q": ["first", "second"]})
    written, outcomes = write_variants(QUESTIONS, own, FakeModels(answer), ROLES, VARIANTS)
    rows = {(row["question_id"], row["variant"]): row for row in TABLES["query_variants"].conform(written).to_dicts()}
    assert rows["q", "question"]["text"].startswith("How do I q?\n\nI tried.")
    assert rows["q", "answer"]["text"] == "Call `open()` before `send_all()`."
    assert rows["q", "nuggets"]["text"] == "first\nsecond"
    assert rows["q", "sub_questions"]["text"] == "what is this?\nwhy?"
    assert rows["q", "closed_book_answer"]["text"] == "try\nthis"
    assert ("r", "nuggets") not in rows
    assert {row["setting"] for key, row in rows.items() if key[1] in ("answer", "nuggets")} == {"oracle"}
    assert rows["q", "question"]["model"] == "source"
    assert rows["q", "nuggets"]["model"] == "openai:fake"
    assert sorted(set(outcomes["role"])) == ["closed_book_answer", "sub_questions"]
    assert set(TABLES["variant_outcomes"].conform(outcomes)["outcome"]) == {"ok"}


def test_models_of_inference_variants_do_not_see_the_answer():
    models = FakeModels(lambda request: failure("refusal"))
    write_variants(QUESTIONS, nuggets({}), models, ROLES, ["sub_questions", "closed_book_answer"])
    assert len(models.log) == 4
    assert not any("send_all" in request.system + request.user for request in models.log)


def test_the_heuristic_skips_the_closed_book_answer_and_says_why(heuristic_models):
    written, outcomes = write_variants(QUESTIONS, nuggets({}), heuristic_models, Roles(), VARIANTS)
    assert "closed_book_answer" not in set(written["variant"])
    skipped = outcomes.filter(role="closed_book_answer")
    assert skipped["outcome"].to_list() == ["skipped", "skipped"]
    assert skipped["detail"].to_list() == [heuristic.SKIPPED["closed_book_answer"]] * 2
    assert set(written.filter(variant="sub_questions")["prompt"]) == {heuristic.VERSION}


def test_failures_of_a_role_are_told_and_unknown_variants_refused():
    models = FakeModels(lambda request: failure("budget"))
    written, outcomes = write_variants(QUESTIONS, nuggets({}), models, ROLES, ["sub_questions"])
    assert written.height == 0
    assert set(outcomes["outcome"]) == {"error"}
    with pytest.raises(SettingsError, match="unknown query variant anser"):
        write_variants(QUESTIONS, nuggets({}), models, ROLES, ["anser"])


def test_heuristic_nuggets_name_the_heuristic(heuristic_models):
    written, outcomes = write_nuggets(QUESTIONS, heuristic_models, ModelRole())
    assert set(written["model"]) == {"heuristic"}
    assert set(written["prompt"]) == {heuristic.VERSION}
    assert set(outcomes["outcome"]) == {"ok"}


def test_what_will_be_asked_can_be_known_before():
    models = FakeModels(lambda request: failure("refusal"))
    planned = [
        *nugget_requests(QUESTIONS, models, LLM),
        *variant_requests(QUESTIONS, models, ROLES, VARIANTS)["sub_questions"],
    ]
    assert models.log == []
    write_nuggets(QUESTIONS, models, LLM)
    write_variants(QUESTIONS, nuggets({}), models, ROLES, ["sub_questions"])
    assert planned == models.log
