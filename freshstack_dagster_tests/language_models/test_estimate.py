from __future__ import annotations

from pathlib import Path

import pytest

from freshstack_dagster.language_models import Request, run
from freshstack_dagster.language_models.estimate import estimate, expected_reply
from freshstack_dagster.settings import ModelRole
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer
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
    assert expected_reply(Request("a", "nuggets", "", "", {}, "v")) > 200
