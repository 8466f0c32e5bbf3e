"""Nuggets: the atomic facts of each answer, against which chunks are judged (FreshStack, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import polars as pl

from freshstack_dagster.judging import heuristic
from freshstack_dagster.judging.prompts import Prompt, load_prompt
from freshstack_dagster.judging.replies import SCHEMAS, read_nuggets
from freshstack_dagster.language_models import Caller, Models, Outcome, Request, run
from freshstack_dagster.settings import ModelRole
from freshstack_dagster.tables import TABLES

T = TypeVar("T")


def write_nuggets(questions: pl.DataFrame, models: Models, role: ModelRole) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Write the nuggets of each answer.

    `questions` is the table of that name, or the part of it that is new or changed. Returns the tables `nuggets` (in
    the questions' order, positions from 0) and `nugget_outcomes`, which has a row for every question: a question for
    which no nugget could be had has the outcome `error` there and no row in `nuggets`. Raises BudgetError or ModelError
    where the client stops the run.
    """
    caller, prompt = models.role("nuggets", role), load_prompt("nuggets", role.prompt)
    outcomes = ask("nuggets", questions, caller, prompt, read_nuggets)
    version = version_of(caller, prompt)
    rows = [
        {
            "nugget_id": f"{question_id}_{position}",
            "question_id": question_id,
            "position": position,
            "text": text,
            "model": caller.model,
            "prompt": version,
            "reply": outcome.reply,
        }
        for question_id, outcome in outcomes.items()
        for position, text in enumerate(outcome.value or ())
    ]
    return pl.DataFrame(rows, schema=TABLES["nuggets"].schema), role_outcomes("nuggets", outcomes, caller.model)


def question_of(nugget_id: str) -> str:
    """The question of a nugget: its id without the position, which is what follows the last underscore."""
    return nugget_id.rsplit("_", 1)[0]


def question_text(question: Mapping[str, Any]) -> str:
    """The question as a model and a retriever see it: title, a blank line, body."""
    return f"{question['title']}\n\n{question['body_text']}".strip()


def nugget_requests(questions: pl.DataFrame, models: Models, role: ModelRole) -> list[Request]:
    """What `write_nuggets` would ask, without asking: for an estimate of its price."""
    return requests_for("nuggets", questions, models.role("nuggets", role), load_prompt("nuggets", role.prompt))


def ask(
    task: str, questions: pl.DataFrame, caller: Caller, prompt: Prompt, read: Callable[[Any], T]
) -> dict[str, Outcome[T]]:
    """Ask one request of a role for each question; the outcomes by question id, in the questions' order."""
    outcomes = run([caller.call(request, read) for request in requests_for(task, questions, caller, prompt)])
    return dict(zip(questions["question_id"], outcomes, strict=True))


def requests_for(task: str, questions: pl.DataFrame, caller: Caller, prompt: Prompt) -> list[Request]:
    """The request of a task for each question. Only the prompt of the nuggets may name the answer."""
    return [
        Request(
            id=f"{task}:{row['question_id']}",
            task=task,
            system=prompt.system,
            user=prompt.fill({"question": question_text(row), "answer": row["answer_text"]}),
            schema=SCHEMAS[task],
            prompt=version_of(caller, prompt),
            inputs={"title": row["title"], "body": row["body_text"], "answer": row["answer_text"]},
            question_id=row["question_id"],
        )
        for row in questions.to_dicts()
    ]


def version_of(caller: Caller, prompt: Prompt) -> str:
    """The version that stands with a row: of the prompt, or of the heuristic's rules where those answered."""
    return heuristic.VERSION if caller.judge_kind == "heuristic" else prompt.version


def role_outcomes(role: str, outcomes: Mapping[str, Outcome[Any]], model: str) -> pl.DataFrame:
    """What came of a role for every question (`nugget_outcomes`, `variant_outcomes`): ok, skipped or error, and why."""
    rows = [
        {
            "question_id": question_id,
            "role": role,
            "outcome": outcome.kind if outcome.kind in ("ok", "skipped") else "error",
            "detail": _detail(role, outcome),
            "model": model,
        }
        for question_id, outcome in outcomes.items()
    ]
    return pl.DataFrame(rows, schema=TABLES["nugget_outcomes"].schema)


def explain(outcome: Outcome[Any]) -> str:
    """Why an outcome holds no value, in one line: its kind and the client's words."""
    return " ".join(f"{outcome.kind}: {outcome.error or 'no reason given'}".split())


def _detail(role: str, outcome: Outcome[Any]) -> str | None:
    if outcome.kind == "ok":
        return None
    return heuristic.SKIPPED.get(role) if outcome.kind == "skipped" else explain(outcome)
