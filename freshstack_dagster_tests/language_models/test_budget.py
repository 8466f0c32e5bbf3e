from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from freshstack_dagster.errors import BudgetError, SettingsError
from freshstack_dagster.language_models.budget import Ledger, Spending
from freshstack_dagster.language_models.prices import Price, load_prices
from freshstack_dagster.language_models.tokens import estimate_request, estimate_tokens, upper_bound
from freshstack_dagster.settings import Budget
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt
from freshstack_dagster_tests.language_models.support import (
    answer,
    assert_right_or_error,
    judge,
    make_models,
    make_request,
    make_role,
)

# ── must show: one dollar, sixteen at once ────────────────────────────────────────────────────────────────────────────

DEAR = "models:\n  openai:gpt-5-mini: {input: 100, output: 400, cached_input: 50}\n"


def expensive(tmp_path: Path) -> Path:
    prices = tmp_path / "prices.yaml"
    prices.write_text(DEAR)
    return prices


@pytest.mark.parametrize("fault", [None, "reset", "reset_body", "http_500"])
def test_a_cap_of_one_dollar_is_never_passed_and_going_on_pays_the_rest_only(fault: str | None, tmp_path: Path) -> None:
    def schedule(number: int, _prompt: Prompt) -> str | None:
        return fault if number % 9 == 4 else None

    prices = expensive(tmp_path)
    with MisbehavingServer(answer, schedule=schedule, latency=0.01) as server:
        # About $0.06 a call, at most about $0.10.
        role = make_role(server, concurrency=16, max_output_tokens=200)
        budget = Budget(per_run=1, prices=prices)
        models = make_models(tmp_path / "cache", budget)
        with pytest.raises(BudgetError) as caught:
            judge(models.role("judge", role), range(60))
        message = str(caught.value)
        assert "of $1.00" in message
        assert "raise budget.per_run in the topic or run again" in message
        assert "\n" not in message
        first = server.billed(100, 400)
        # What was cut off counts in full, so lost answers leave some of the dollar unused.
        assert (0.7 if fault in (None, "http_500") else 0.3) < first <= 1
        assert models.spending.spent_by_run() <= 1
        paid = {one.prompt.user for one in server.served if one.answered_at}
        bill = [server.billed(100, 400)]
        for _ in range(12):
            again = make_models(tmp_path / "cache", budget)
            try:
                outcomes = judge(again.role("judge", role), range(60))
                break
            except BudgetError:
                bill.append(server.billed(100, 400))
                assert bill[-1] - bill[-2] <= 1
        assert assert_right_or_error(outcomes) == 60
        answered = [one.prompt.user for one in server.served if one.answered_at]
        assert len(answered) == len(set(answered)) == 60
        assert paid < set(answered)


def test_the_whole_dollar_is_used_although_the_upper_bound_is_far_off(tmp_path: Path) -> None:
    with MisbehavingServer(answer, latency=0.005) as server:
        # A call may cost $0.82 and costs $0.03: one after the other, near the cap.
        role = make_role(server, concurrency=16, max_output_tokens=2000)
        models = make_models(tmp_path / "cache", Budget(per_run=1, prices=expensive(tmp_path)))
        with pytest.raises(BudgetError):
            judge(models.role("judge", role), range(40))
        assert 1 - 0.85 <= server.billed(100, 400) <= 1
        assert len(server.served) >= 3


def test_the_month_is_shared_by_runs_and_roles(tmp_path: Path) -> None:
    budget = Budget(per_month=0.5, prices=expensive(tmp_path))
    with MisbehavingServer(answer) as server:
        role = make_role(server, max_output_tokens=200)
        for start in range(0, 40, 4):
            models = make_models(tmp_path / "cache", budget)
            try:
                judge(models.role(f"role{start}", role), range(start, start + 4))
            except BudgetError as error:
                assert "month 20" in str(error)
                assert "raise budget.per_month in the topic or run again next month" in str(error)
                break
        else:
            raise AssertionError("the cap of the month was never reached")
        assert 0.3 < server.billed(100, 400) <= 0.5


def test_a_run_in_several_parts_has_one_cap(tmp_path: Path) -> None:
    budget = Budget(per_run=0.3, prices=expensive(tmp_path))
    with MisbehavingServer(answer) as server:
        role = make_role(server, max_output_tokens=200)
        judge(make_models(tmp_path / "cache", budget, run="r1").role("judge", role), range(3))
        with pytest.raises(BudgetError, match="this run has spent"):
            judge(make_models(tmp_path / "cache", budget, run="r1").role("other", role), range(3, 9))
        judge(make_models(tmp_path / "cache", budget, run="r2").role("other", role), range(3, 6))


def test_an_unknown_price_with_a_cap_is_refused_and_without_one_is_no_number(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        role = make_role(server, "compatible")
        capped = make_models(tmp_path, Budget(per_run=1))
        with pytest.raises(BudgetError, match=r"price of compatible:qwen is unknown.*'compatible:qwen': \{input: 0"):
            judge(capped.role("judge", role), [0])
        assert server.served == []
        free = make_models(tmp_path)
        judge(free.role("judge", role), [0])
        assert free.summary()["dollars"] is None
        assert free.calls()["dollars"].to_list() == [None]


def test_what_timed_out_counts_in_full(tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule={0: "reset"}) as server:
        models = make_models(tmp_path / "cache", Budget(prices=expensive(tmp_path)))
        judge(models.role("judge", make_role(server, max_output_tokens=100)), [0])
        summary = models.summary()
        assert summary["unconfirmed_dollars"] > 0.04
        assert models.spending.spent_by_run() == pytest.approx(summary["dollars"] + summary["unconfirmed_dollars"])


@pytest.mark.parametrize("batch", [False, True])
def test_a_server_that_tells_no_tokens_does_not_pass_the_cap(batch: bool, tmp_path: Path) -> None:
    budget = Budget(per_run=0.05)
    with MisbehavingServer(answer, input_tokens=lambda _: 0, output_tokens=lambda *_: 0) as server:
        models = make_models(tmp_path, budget)
        with pytest.raises(BudgetError):
            judge(models.role("judge", make_role(server, batch=batch)), range(12))
        # $0.0165 a call at most, half of it in a batch.
        assert len(server.served) == (6 if batch else 3)
        assert models.summary()["dollars"] is None
        assert 0.04 < models.summary()["unconfirmed_dollars"] <= 0.05


def test_a_server_that_is_not_there_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("openai", "anthropic"):
        monkeypatch.setattr(f"freshstack_dagster.language_models.providers.{module}.TRANSPORT_RETRIES", 1)
    with MisbehavingServer(answer) as server:
        role = make_role(server)
    models = make_models(tmp_path, Budget(per_run=1))
    (outcome,) = judge(models.role("judge", role), [0])
    assert outcome.kind == "transport"
    assert models.spending.spent_by_run() == 0


# ── the ledger ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_processes_share_a_ledger(tmp_path: Path) -> None:
    async def spend(run: str) -> int:
        spending = Spending(tmp_path, Budget(per_month=1.0), run)
        for number in range(40):
            try:
                reservation = await spending.reserve(0.02, {})
            except BudgetError:
                return number
            spending.settle(reservation, 0.01)
        return 40

    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda run: asyncio.run(spend(run)), "abcd"))
    # 99 calls of a cent fit beside a reservation of two; each reservation is given back.
    assert 95 <= sum(counts) <= 100
    assert Spending(tmp_path, Budget(), "x").spent_in_month() == pytest.approx(sum(counts) * 0.01)


def test_a_line_that_a_killed_process_left_half_written_is_passed_over(tmp_path: Path) -> None:
    spending = Spending(tmp_path, Budget(), "r")
    reservation = spending.try_reserve(0.5, {})
    assert reservation is not None
    path = tmp_path / f"{reservation.month}.jsonl"
    with path.open("a") as file:
        file.write('{"id": "half')
    spending.settle(reservation, 0.25)
    spending.settle(reservation, 0.25)
    assert Spending(tmp_path, Budget(), "s").spent_in_month() == 0.25
    ledger = Ledger(tmp_path, reservation.month)
    assert ledger.refresh().spent_by("r") == 0.25
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1])["dollars"] == 0.25
    assert json.loads(lines[0])["pid"] == os.getpid()


# ── prices and tokens ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_price() -> None:
    price = Price(input=2, output=10, cached_input=0.5, batch_discount=0.5)
    assert price.dollars(1_000_000, 100_000) == pytest.approx(3)
    assert price.dollars(1_000_000, 100_000, 400_000) == pytest.approx(2.4)
    assert price.dollars(1_000_000, 100_000, batch=True) == pytest.approx(1.5)


def test_names_dates_patterns_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("models:\n  compatible:*: {input: 0, output: 0}\n  openai:gpt-5: {input: 9, output: 9}\n")
    bundled, mine = load_prices(), load_prices(path)
    assert bundled.of("openai:gpt-5-mini-2025-08-07") == bundled.of("openai:gpt-5-mini")
    assert bundled.of("anthropic:claude-haiku-4-5-20251001") == bundled.of("anthropic:claude-haiku-4-5")
    assert bundled.of("openai:gpt-5-mini-turbo") is None
    assert mine.of("compatible:qwen") == Price(0, 0, 0)
    assert mine.of("openai:gpt-5") == Price(9, 9, 9)
    assert mine.of("openai:gpt-5-mini") == bundled.of("openai:gpt-5-mini")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models: [1]", "expected `models:`"),
        ("models:\n  gpt-5: {input: 1, output: 1}", "name a model as provider:model"),
        ("models:\n  openai:x: {input: 1}", "needs input and output"),
        ("models:\n  openai:x: {input: 1, output: 1, inputs: 1}", "needs input and output"),
        ("models:\n  openai:x: {input: -1, output: 1}", "numbers from 0 on"),
        ("models:\n  openai:x: {input: a, output: 1}", "numbers from 0 on"),
        ("models:\n  openai:x: {input: 1, output: 1, batch_discount: 50}", "between 0 and 1"),
        ("models: {", "line 1, column 10: not valid YAML"),
    ],
)
def test_a_price_table_with_a_fault_is_named(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=why) as caught:
        load_prices(path)
    assert str(path) in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_prices(tmp_path / "none.yaml")


def test_tokens_are_estimated_and_bounded() -> None:
    assert estimate_tokens("") == 0
    text = "def flow(weir):\n    return weir.open()\n" * 20
    assert 0.2 < estimate_tokens(text) / len(text) < 0.45
    assert estimate_tokens(text, "anthropic:claude-haiku-4-5") > estimate_tokens(text, "openai:gpt-5")
    assert estimate_tokens("half a pair \ud83d") > 0
    request = make_request(1)
    assert estimate_request(request, schema=False) < estimate_request(request) < upper_bound(request)
