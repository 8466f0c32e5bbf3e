from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freshstack_dagster.errors import BudgetError, ModelError
from freshstack_dagster.language_models.batch import read_open
from freshstack_dagster.settings import Budget
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer
from freshstack_dagster_tests.language_models.support import (
    answer,
    assert_right_or_error,
    judge,
    make_models,
    make_role,
)

PROVIDERS = ["openai", "responses", "anthropic"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_request_of_a_batch_ends_as_ok_error_or_missing(provider: str, tmp_path: Path) -> None:
    faults = {1: "missing", 3: "error", 5: "expired", 6: "length", 7: "refusal"}
    first: list[str] = []

    def fault(number: int, custom_id: str) -> str | None:
        first.append(custom_id)
        return faults.get(number) if len(first) <= 10 else None

    with MisbehavingServer(answer, batch_fault=fault) as server:
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", make_role(server, provider, batch=True)), range(10))
        assert assert_right_or_error(outcomes) == 6
        kinds = [outcome.kind for outcome in outcomes]
        # The refusal is asked for again, in a second batch.
        assert kinds == ["ok", "missing", "ok", "transport", "ok", "missing", "length", "ok", "ok", "ok"]
        assert len(server.batches) == 2
        rows = models.calls()
        assert rows["batch"].all()
        assert rows["dollars"].sum() == pytest.approx(
            server.billed(0.25, 2, 0.5) if provider != "anthropic" else server.billed(1, 5, 0.5)
        )
        assert models.spending.spent_by_run() == pytest.approx(rows["dollars"].sum())
        assert read_open(tmp_path / "batches") == []
        # A second run asks for those only that got nothing.
        served = len(server.served)
        again = judge(make_models(tmp_path).role("judge", make_role(server, provider, batch=True)), range(10))
        assert [outcome.kind for outcome in again] == [*["ok"] * 6, "length", *["ok"] * 3]
        assert len(server.served) == served + 3


def test_a_batch_with_an_error_file_only(tmp_path: Path) -> None:
    with MisbehavingServer(answer, batch_fault=lambda _number, _id: "error") as server:
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", make_role(server, batch=True)), range(3))
        assert [outcome.kind for outcome in outcomes] == ["transport"] * 3
        assert models.spending.spent_by_run() == 0


def test_batch_and_single_calls_share_the_cache(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        judge(make_models(tmp_path).role("judge", make_role(server, batch=True)), range(4))
        models = make_models(tmp_path)
        assert_right_or_error(judge(models.role("judge", make_role(server)), range(4)))
        assert len(server.served) == 4
        assert models.summary()["cached"] == 4


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_run_that_stops_waiting_leaves_the_batch_to_the_next(provider: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, polls_until_done=6) as server:
        role = make_role(server, provider, batch=True)
        with pytest.raises(ModelError, match="run again to collect it"):
            judge(make_models(tmp_path, batch_wait_seconds=0.05).role("judge", role), range(3))
        (left,) = read_open(tmp_path / "batches")
        assert len(left.items) == 3
        # The next run asks for some of it and for more: all of the old batch is kept.
        models = make_models(tmp_path)
        assert assert_right_or_error(judge(models.role("judge", role), [0, 1, 2, 3])[:3]) == 3
        assert len(server.batches) == 2
        assert read_open(tmp_path / "batches") == []
        assert models.spending.spent_by_run() > 0
        assert models.spending.spent_in_month() == pytest.approx(models.calls()["dollars"].sum())


def _left_open(server: MisbehavingServer, provider: str, cache: Path, **changes: object) -> None:
    """Leave a batch of three behind, its file of state changed as a kill at the wrong moment would leave it."""
    with pytest.raises(ModelError):
        models = make_models(cache, Budget(per_run=1), batch_wait_seconds=0.03)
        judge(models.role("judge", make_role(server, provider, batch=True)), range(3))
    (path,) = (cache / "batches").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_batch_whose_id_was_not_noted_is_found_again(provider: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, polls_until_done=6) as server:
        _left_open(server, provider, tmp_path, batch=None)
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", make_role(server, provider, batch=True)), range(3))
        assert assert_right_or_error(outcomes) == 3
        assert len(server.batches) == 1
        assert models.spending.spent_in_month() == pytest.approx(models.calls()["dollars"].sum())


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_batch_that_was_noted_but_never_sent_is_sent(provider: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, polls_until_done=6) as server:
        _left_open(server, provider, tmp_path, batch=None, tag="another")
        server.batches.clear()
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", make_role(server, provider, batch=True)), range(3))
        assert assert_right_or_error(outcomes) == 3
        assert len(server.batches) == 1
        assert models.spending.spent_in_month() == pytest.approx(models.calls()["dollars"].sum())
        assert read_open(tmp_path / "batches") == []


def test_a_batch_that_the_provider_lost_is_named(tmp_path: Path) -> None:
    with MisbehavingServer(answer, polls_until_done=6) as server:
        _left_open(server, "openai", tmp_path)
        server.batches.clear()
        with pytest.raises(ModelError, match=r"HTTP 404.*the batch stands in .*\.json: delete it to send anew"):
            judge(make_models(tmp_path).role("judge", make_role(server, batch=True)), range(3))


def test_replies_of_an_old_batch_are_kept_though_nobody_asks_for_them(tmp_path: Path) -> None:
    with MisbehavingServer(answer, polls_until_done=6) as server:
        role = make_role(server, batch=True)
        with pytest.raises(ModelError):
            judge(make_models(tmp_path, batch_wait_seconds=0.05).role("judge", role), range(3))
        judge(make_models(tmp_path).role("judge", role), [0])
        judge(make_models(tmp_path).role("judge", role), range(3))
        assert len(server.batches) == 1
        assert len(server.served) == 3


def test_a_batch_that_fails_whole_stops_the_run_and_costs_nothing(tmp_path: Path) -> None:
    with MisbehavingServer(answer, batch_fault=lambda _number, _id: "batch_failed") as server:
        models = make_models(tmp_path, Budget(per_run=1))
        with pytest.raises(ModelError, match="failed: invalid: bad line 1"):
            judge(models.role("judge", make_role(server, batch=True)), range(3))
        assert models.spending.spent_by_run() == 0
        assert read_open(tmp_path / "batches") == []


def test_a_batch_stays_below_the_cap_and_goes_on_with_what_is_left(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        # One call may cost $0.0082 in a batch and costs $0.0001.
        models = make_models(tmp_path, Budget(per_run=0.02))
        outcomes = judge(models.role("judge", make_role(server, batch=True)), range(7))
        assert assert_right_or_error(outcomes) == 7
        assert len(server.batches) == 4
        assert server.billed(0.25, 2, 0.5) <= 0.02


def test_a_batch_over_the_cap_is_refused(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        models = make_models(tmp_path, Budget(per_run=0.001))
        with pytest.raises(BudgetError, match=r"raise budget\.per_run"):
            judge(models.role("judge", make_role(server, batch=True)), range(2))
        assert server.batches == {}


def test_no_batch_api(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server, pytest.raises(ModelError, match="has no batch API; set batch: false"):
        judge(make_models(tmp_path).role("judge", make_role(server, "compatible", batch=True)), range(2))


SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from freshstack_dagster_tests.language_models import support
from freshstack_dagster.settings import Budget
url, provider, cache, count = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
server = SimpleNamespace(url=url, openai_url=url + "/v1")
models = support.make_models(cache, Budget(per_month=5))
role = support.make_role(server, provider, batch=True)
outcomes = support.judge(models.role("judge", role), range(count))
assert support.assert_right_or_error(outcomes) == count
"""


@pytest.mark.slow
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("moment", ["sending", "waiting"])
def test_a_killed_run_sends_no_batch_twice(provider: str, moment: str, tmp_path: Path, project: Path) -> None:
    hold = moment == "sending"
    with MisbehavingServer(answer, polls_until_done=10_000) as server:
        server.hold_batches = hold
        command = [sys.executable, "-c", SCRIPT, server.url, provider, str(tmp_path), "20"]
        victim = subprocess.Popen(command, cwd=project)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (
            server.batches if hold else any(batch.polls for batch in server.batches.values())
        ):
            time.sleep(0.005)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        server.hold_batches = False
        server.polls_until_done = 2
        subprocess.run(command, cwd=project, check=True, timeout=60)
        assert len(server.batches) == 1
        assert len(server.served) == 20
        models = make_models(tmp_path)
        price = (0.25, 2) if provider != "anthropic" else (1, 5)
        assert models.spending.spent_in_month() == pytest.approx(server.billed(*price, 0.5))


@pytest.mark.slow
def test_money_set_aside_for_a_batch_that_was_never_sent_is_given_back(tmp_path: Path, project: Path) -> None:
    with MisbehavingServer(answer) as server:
        script = SCRIPT.replace("Budget(per_month=5))", "Budget(per_month=5), batch_gather_seconds=60)")
        command = [sys.executable, "-c", script, server.url, "openai", str(tmp_path), "20"]
        victim = subprocess.Popen(command, cwd=project)
        models = make_models(tmp_path, Budget(per_month=5))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and models.spending.spent_in_month() < 20 * 0.008:
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert models.spending.spent_in_month() > 0.1
        judge(models.role("judge", make_role(server, batch=True)), range(1))
        assert models.spending.spent_in_month() == pytest.approx(server.billed(0.25, 2, 0.5))
