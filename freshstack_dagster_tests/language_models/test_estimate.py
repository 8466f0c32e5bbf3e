from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from freshstack_dagster.corpus.tokens import count_tokens
from freshstack_dagster.judging.nuggets import nugget_requests, write_nuggets
from freshstack_dagster.language_models import Request, run
from freshstack_dagster.language_models.estimate import estimate, expected_reply
from freshstack_dagster.settings import ModelRole
from freshstack_dagster.stackexchange import read_dump
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt
from freshstack_dagster_tests.language_models.support import SCHEMA, answer, make_models, make_role, read


def requests() -> list[Request]:
    """Requests of very different length."""
    return [
        Request(
            f"r{number}",
            "support",
            "Judge.",
            f"request {number}: " + "def reach(weir):\n    return weir.flow * 3.25  # m³/s\n" * (1 + number * 7 % 23),
            SCHEMA,
            "v1",
            {"documents": [""], "nuggets": [""] * 3},
        )
        for number in range(40)
    ]


@pytest.mark.parametrize("batch", [False, True])
def test_after_a_pilot_the_estimate_is_within_ten_percent_of_the_bill(batch: bool, tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        role = make_role(server, batch=batch)
        models = make_models(tmp_path)
        first = estimate(models, "judge", role, requests())
        assert (first.requests, first.cached, first.calls, first.calibrated_on) == (40, 0, 40, 0)
        assert first.dollars is not None and first.batch_dollars == pytest.approx(first.dollars / 2)
        caller = models.role("judge", role)
        run(caller.call(request, read) for request in requests()[:4])
        pilot = server.billed(0.25, 2, 0.5)
        found = estimate(models, "judge", role, requests())
        assert (found.cached, found.calls, found.calibrated_on) == (4, 36, 4)
        run(caller.call(request, read) for request in requests())
        billed = server.billed(0.25, 2, 0.5) - pilot
        told = found.batch_dollars if batch else found.dollars
        assert told == pytest.approx(billed, rel=0.1)
        assert found.most_dollars is not None and found.most_dollars > billed
        done = estimate(models, "judge", role, requests())
        assert (done.calls, done.dollars) == (0, 0)
        refreshed = estimate(make_models(tmp_path), "judge", role.model_copy(update={"cache": "refresh"}), requests())
        assert (refreshed.cached, refreshed.calls) == (40, 40)


def test_the_sample_is_estimated_within_ten_percent_of_the_bill(tmp_path: Path, project: Path) -> None:
    questions = read_dump(project / "data/sample/Posts.xml", ["sluicewick", "sluicewick-js"], index=False)

    pilot_questions = questions.gather_every(4)

    def write(prompt: Prompt) -> dict[str, Any]:
        facts = [line for line in prompt.user.split("<answer>")[-1].splitlines() if len(line) > 30][:6]
        return {"summary": "What the answer says, in two sentences.", "nuggets": facts or ["It says nothing."]}

    def tokens_in(prompt: Prompt) -> int:
        return count_tokens(prompt.system) + count_tokens(prompt.user) + count_tokens(json.dumps(prompt.schema)) + 12

    with MisbehavingServer(write, input_tokens=tokens_in, output_tokens=lambda _, text: count_tokens(text)) as server:
        models, role = make_models(tmp_path), make_role(server)
        asked = nugget_requests(questions, models, role)
        before = estimate(models, "nuggets", role, asked)
        write_nuggets(pilot_questions, models, role)
        pilot = server.billed(0.25, 2)
        told = estimate(models, "nuggets", role, asked)
        write_nuggets(questions, models, role)
        assert told.calls == len(asked) - pilot_questions.height == len(server.served) - pilot_questions.height
        assert told.dollars == pytest.approx(server.billed(0.25, 2) - pilot, rel=0.1)
        # Tokens in are known without a pilot.
        assert before.input_tokens == pytest.approx(sum(one.input_tokens for one in server.served), rel=0.1)


def test_an_estimate_calls_nobody_and_needs_no_key(tmp_path: Path) -> None:
    models = make_models(tmp_path)
    unknown = estimate(models, "a", make_role(None, "compatible", base_url="http://127.0.0.1:9/v1"), requests())
    assert (unknown.calls, unknown.dollars, unknown.most_dollars) == (40, None, None)
    assert unknown.input_tokens > 1000
    free = estimate(models, "b", ModelRole(), requests())
    assert (free.model, free.calls, free.dollars) == ("heuristic", 0, 0.0)
    # The same question twice is one call.
    assert estimate(models, "c", make_role(None), requests()[:2] * 2).calls == 2


def test_a_usual_reply_grows_with_what_is_asked_for() -> None:
    small = Request("a", "support", "", "", {}, "v", {"documents": [""], "nuggets": [""]})
    large = Request("a", "support", "", "", {}, "v", {"documents": [""] * 20, "nuggets": [""] * 5})
    assert expected_reply(small) < 100 < 1500 < expected_reply(large) < 8192
    one = "Call `open_weir()` before `send()`."
    more = (
        f"{one} Set `lanes=8` in `flow.toml`, or the first lane takes all. Raise `Weir.capacity` to 512 in version 2."
    )
    short, long = (
        Request("a", "nuggets", "", "", {}, "v", {"title": "It blocks", "body": "Why?", "answer": answer})
        for answer in (one, more)
    )
    assert 50 < expected_reply(short) < expected_reply(long) - 30 < 200
