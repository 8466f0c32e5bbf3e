"""Query variants: the texts used to retrieve for a question (FreshStack, section 3.4).

`question`, `sub_questions` and `closed_book_answer` know the question only; `answer` and `nuggets` know the answer and
serve as an oracle when candidates are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.judging.nuggets import ask, question_text, requests_for, role_outcomes, version_of
from freshstack_dagster.judging.prompts import load_prompt
from freshstack_dagster.judging.replies import read_closed_book_answer, read_sub_questions
from freshstack_dagster.language_models import Models, Request
from freshstack_dagster.settings import SETTING_OF_VARIANT, VARIANTS, ModelRole, Roles
from freshstack_dagster.tables import TABLES

_ROLES = ("sub_questions", "closed_book_answer")
SOURCE = "source"
"""Stands as the model of texts that nobody wrote for retrieval: the question and its answer."""


def write_variants(
    questions: pl.DataFrame, nuggets: pl.DataFrame, models: Models, roles: Roles, variants: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write the query variants of each question.

    `questions` and `nuggets` are the tables of those names, `variants` the wanted ones. Returns the tables
    `query_variants` (in the order of `variants`, then of the questions; several queries stand a line each) and
    `variant_outcomes` for the model roles among the variants. A text that could not be had has no row in the first and
    its reason in the second; a question without nuggets has no row of the variant `nuggets` (its reason stands with the
    role that writes them). Raises SettingsError on an unknown variant, BudgetError or ModelError where the client stops
    the run.
    """
    if unknown := [variant for variant in variants if variant not in VARIANTS]:
        raise SettingsError(f"unknown query variant {unknown[0]}; there are {', '.join(VARIANTS)}")
    rows: list[dict[str, Any]] = []
    outcomes: list[pl.DataFrame] = [TABLES["variant_outcomes"].empty()]
    for variant in dict.fromkeys(variants):
        if variant == "question":
            rows += [_row(row["question_id"], variant, question_text(row)) for row in questions.to_dicts()]
        elif variant == "answer":
            rows += [_row(row["question_id"], variant, row["answer_text"]) for row in questions.to_dicts()]
        elif variant == "nuggets":
            rows += _nugget_rows(questions, nuggets)
        else:
            written, told = _ask_role(variant, questions, models, getattr(roles, variant))
            rows += written
            outcomes.append(told)
    return pl.DataFrame(rows, schema=TABLES["query_variants"].schema), pl.concat(outcomes)


def variant_requests(
    questions: pl.DataFrame, models: Models, roles: Roles, variants: Sequence[str]
) -> dict[str, list[Request]]:
    """What `write_variants` would ask, by role, without asking: for an estimate of its price."""
    return {
        variant: requests_for(
            variant,
            questions,
            models.role(variant, getattr(roles, variant)),
            load_prompt(variant, getattr(roles, variant).prompt),
        )
        for variant in dict.fromkeys(variants)
        if variant in _ROLES
    }


def _ask_role(
    variant: str, questions: pl.DataFrame, models: Models, role: ModelRole
) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    caller, prompt = models.role(variant, role), load_prompt(variant, role.prompt)
    read: Callable[[Any], Any] = read_sub_questions if variant == "sub_questions" else read_closed_book_answer
    found = ask(variant, questions, caller, prompt, read)
    version = version_of(caller, prompt)
    rows = [
        _row(question_id, variant, _lines(outcome.value), caller.model, version, outcome.reply)
        for question_id, outcome in found.items()
        if outcome.value is not None
    ]
    return rows, role_outcomes(variant, found, caller.model)


def _nugget_rows(questions: pl.DataFrame, nuggets: pl.DataFrame) -> list[dict[str, Any]]:
    ordered = nuggets.sort("question_id", "position")
    texts: dict[str, list[dict[str, Any]]] = {}
    for row in ordered.to_dicts():
        texts.setdefault(row["question_id"], []).append(row)
    rows = []
    for question_id in questions["question_id"]:
        if own := texts.get(question_id):
            text = _lines([row["text"] for row in own])
            rows.append(_row(question_id, "nuggets", text, own[0]["model"], own[0]["prompt"], own[0]["reply"]))
    return rows


def _row(
    question_id: str,
    variant: str,
    text: str,
    model: str = SOURCE,
    prompt: str | None = None,
    reply: str | None = None,
) -> dict[str, Any]:
    return {
        "question_id": question_id,
        "variant": variant,
        "setting": SETTING_OF_VARIANT[variant],
        "text": text,
        "model": model,
        "prompt": prompt,
        "reply": reply,
    }


def _lines(texts: str | Sequence[str]) -> str:
    """One text as it is, several a line each: a line break inside one would make two queries of it."""
    return texts if isinstance(texts, str) else "\n".join(" ".join(text.split()) for text in texts)
