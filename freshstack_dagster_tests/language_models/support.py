"""A small judging task for the tests of this room: facts to be answered for, by number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from freshstack_dagster.language_models import Caller, Models, Outcome, ReplyError, Request, run
from freshstack_dagster.settings import Budget, ModelRole
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt

KEY = "sk-test-0123456789abcdef"
ENVIRON = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "MY_KEY": KEY}
FACTS = 3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdicts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "fact": {"type": "integer"},
                    "reason": {"type": "string"},
                    "supported": {"type": "boolean"},
                },
                "required": ["fact", "reason", "supported"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["verdicts"],
    "additionalProperties": False,
}


def truth(number: int, fact: int) -> bool:
    """The right verdict of a fact of request `number`."""
    return (number * 7 + fact) % 3 == 0


def answer(prompt: Prompt) -> dict[str, Any]:
    """The server's right reply; reasons hold what breaks careless readers."""
    match = re.search(r"request (\d+)", prompt.user)
    assert match is not None
    number = int(match[1])
    return {
        "verdicts": [
            {"fact": fact, "reason": 'see `list[int]`: {"a": 1} 👍', "supported": truth(number, fact)}
            for fact in range(FACTS)
        ]
    }


def make_request(number: int, words: str = "") -> Request:
    """The n-th request; `words` end its prompt."""
    return Request(
        id=f"q{number}|{number}",
        task="support",
        system="Judge each fact.",
        user=f'request {number}: facts 0 to {FACTS - 1}, such as {{"verdicts": []}} {words}'.strip(),
        schema=SCHEMA,
        prompt="v1",
        inputs={"number": number},
        question_id=str(number),
    )


def read(data: dict[str, Any]) -> list[bool]:
    """Every fact once, none that was not asked for."""
    facts = [verdict["fact"] for verdict in data["verdicts"]]
    if sorted(facts) != list(range(FACTS)):
        raise ReplyError(f"asked for facts 0 to {FACTS - 1}, got {facts}")
    by_fact = {verdict["fact"]: verdict["supported"] for verdict in data["verdicts"]}
    return [by_fact[fact] for fact in range(FACTS)]


def make_role(server: MisbehavingServer | None, provider: str = "openai", **changes: Any) -> ModelRole:
    """A role that asks the server; `responses` is OpenAI's other protocol."""
    if provider == "responses":
        provider, changes = "openai", {**changes, "options": {"api": "responses", **changes.get("options", {})}}
    model = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-4-5", "compatible": "qwen"}.get(provider, "heuristic")
    url = None if server is None else server.url if provider == "anthropic" else server.openai_url
    values: dict[str, Any] = {"provider": provider, "model": model, "base_url": url, "timeout_seconds": 5, **changes}
    return ModelRole(**values)


def make_models(cache: Path, budget: Budget | None = None, **options: Any) -> Models:
    """Models with the tests' keys and short waits."""
    defaults = {"environ": ENVIRON, "batch_gather_seconds": 0.05, "batch_poll_seconds": 0.02}
    return Models(cache=cache, budget=budget or Budget(), **{**defaults, **options})


def judge(caller: Caller, numbers: Any, words: str = "") -> list[Outcome[list[bool]]]:
    """Ask for the numbered requests at once."""
    return run(caller.call(make_request(number, words), read) for number in numbers)


def assert_right_or_error(outcomes: list[Outcome[list[bool]]]) -> int:
    """Every outcome is the truth or an error; how many are right."""
    for number, outcome in enumerate(outcomes):
        if outcome.kind == "ok":
            assert outcome.value == [truth(number, fact) for fact in range(FACTS)]
            assert outcome.error is None
        else:
            assert outcome.value is None
            assert outcome.error
            assert "\n" not in outcome.error
    return sum(outcome.kind == "ok" for outcome in outcomes)


def texts_below(folder: Path) -> str:
    """Everything that was written below a folder."""
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.rglob("*")) if path.is_file()
    )


def user_texts(server: MisbehavingServer) -> list[str]:
    """The prompts that reached the server, in order."""
    return [json.dumps(one.prompt.user) for one in server.served]
