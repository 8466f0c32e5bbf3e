from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models import Models, ReplyError, Request, run
from freshstack_dagster.language_models.limits import RateLimit
from freshstack_dagster.settings import Budget, ModelRole
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.language_models.misbehaving_server import (
    CONTENT_FAULTS,
    ENDINGS,
    GOOD_ODDITIES,
    TRANSPORT_FAULTS,
    MisbehavingServer,
    Prompt,
)
from freshstack_dagster_tests.language_models.support import (
    ENVIRON,
    answer,
    assert_right_or_error,
    judge,
    make_models,
    make_request,
    make_role,
    read,
)

FAULTS = [*TRANSPORT_FAULTS, *CONTENT_FAULTS, *GOOD_ODDITIES, *ENDINGS]
PROVIDERS = ["openai", "responses", "anthropic", "compatible"]


def once(faults: list[str]) -> Any:
    """A schedule: the first call of request n gets the n-th fault, every later one is answered."""
    seen: set[str] = set()

    def schedule(_number: int, prompt: Prompt) -> str | None:
        if prompt.user in seen:
            return None
        seen.add(prompt.user)
        number = int(prompt.user.split()[1].rstrip(":"))
        return faults[number] if number < len(faults) else None

    return schedule


def always(faults: list[str]) -> Any:
    """A schedule: every call of request n gets the n-th fault."""
    return lambda _number, prompt: faults[int(prompt.user.split()[1].rstrip(":"))]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_fault_ends_as_the_right_verdict_or_an_error_and_the_run_resumes(provider: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule=once(FAULTS), stall_seconds=4) as server:
        role = make_role(server, provider, timeout_seconds=1, concurrency=len(FAULTS))
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", role), range(len(FAULTS) + 2))
        assert_right_or_error(outcomes)
        kinds = {fault: outcome.kind for fault, outcome in zip(FAULTS, outcomes, strict=False)}
        # What was cut off is the caller's to halve; a filter decides the same again. Anthropic has no filter's ending.
        filtered = "ok" if provider == "anthropic" else "content_filter"
        assert kinds == {**dict.fromkeys(FAULTS, "ok"), "length": "length", "content_filter": filtered}
        summary = models.summary()
        assert summary["requests"] == summary["ok"] + sum(summary["errors"].values()) == len(FAULTS) + 2
        rows = models.calls()
        answered = [one for one in server.served if one.output_tokens]
        lost = [one for one in answered if one.fault == "reset_body"]
        assert rows["input_tokens"].sum() == sum(one.input_tokens for one in answered if one not in lost)
        assert summary["calls"] == rows.height

        # Resumed: every reply stands in the cache, bad ones too.
        served = len(server.served)
        again = make_models(tmp_path)
        assert judge(again.role("judge", role), range(len(FAULTS) + 2)) == outcomes
        assert len(server.served) == served
        assert again.summary()["dollars"] == 0
        assert again.summary()["cached"] == again.calls().height


@pytest.mark.parametrize("provider", PROVIDERS)
def test_faults_that_stay_are_errors_and_never_a_verdict(provider: str, tmp_path: Path) -> None:
    faults = [*CONTENT_FAULTS, *ENDINGS, "not_json_body", "no_choices", "http_400", "too_long"]
    with MisbehavingServer(answer, schedule=always(faults)) as server:
        models = make_models(tmp_path)
        outcomes = judge(models.role("judge", make_role(server, provider, attempts=2)), range(len(faults)))
        assert assert_right_or_error(outcomes) == 0
        kinds = {fault: outcome.kind for fault, outcome in zip(faults, outcomes, strict=True)}
        assert {kinds[fault] for fault in CONTENT_FAULTS} == {"malformed"}
        assert kinds["length"] == kinds["too_long"] == "length"
        assert kinds["refusal"] == "refusal"
        assert kinds["content_filter"] == ("refusal" if provider == "anthropic" else "content_filter")
        assert kinds["not_json_body"] == kinds["no_choices"] == kinds["http_400"] == "transport"
        asked = {fault: sum(one.fault == fault for one in server.served) for fault in faults}
        assert all(asked[fault] == 2 for fault in [*CONTENT_FAULTS, "refusal", "not_json_body", "no_choices"])
        assert all(asked[fault] == 1 for fault in ("length", "too_long", "http_400"))
        assert models.summary()["ok"] == 0

        # The next run asks again only for what got no reply; more attempts ask on from where the last run stopped.
        served = len(server.served)
        judge(make_models(tmp_path).role("judge", make_role(server, provider, attempts=2)), range(len(faults)))
        assert {one.fault for one in server.served[served:]} == {"not_json_body", "no_choices", "http_400", "too_long"}
        served = len(server.served)
        judge(make_models(tmp_path).role("judge", make_role(server, provider, attempts=3)), range(3))
        assert len(server.served) == served + 3


def test_retry_after_is_honoured(tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule={0: "http_429"}, retry_after="1.2") as server:
        judge(make_models(tmp_path).role("judge", make_role(server)), [0])
        first, second = server.served
        assert second.came_at - first.came_at >= 1.15


@pytest.mark.parametrize("fault", ["http_404", "http_403", "no_money"])
def test_what_cannot_get_better_stops_the_run(fault: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule=lambda *_: fault) as server:
        server.retry_after = "0.01"
        role = make_role(server, concurrency=2)
        with pytest.raises(ModelError, match="role judge, openai:gpt-5-mini"):
            judge(make_models(tmp_path).role("judge", role), range(40))
        # Those under way at the first refusal, and no more.
        assert len({one.prompt.user for one in server.served}) <= 4


def test_no_key_and_a_wrong_key(tmp_path: Path) -> None:
    with MisbehavingServer(answer, key="sk-another-key-000") as server:
        models = Models(cache=tmp_path, budget=Budget(), environ={})
        with pytest.raises(
            ModelError, match=r"no key for openai:gpt-5-mini; set the environment variable OPENAI_API_KEY"
        ):
            judge(models.role("judge", make_role(server)), [0])
        with pytest.raises(ModelError, match=r"no key for anthropic.*MY_OTHER_KEY"):
            judge(models.role("other", make_role(server, "anthropic", api_key_env="MY_OTHER_KEY")), [0])
        assert server.requests == []
        with pytest.raises(ModelError, match=r"refused \(HTTP 401\).*check the key"):
            judge(make_models(tmp_path).role("judge", make_role(server)), range(3))


def test_a_key_is_sent_only_where_it_was_named_for(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        models = make_models(tmp_path)
        judge(models.role("a", make_role(server, "compatible")), [0])
        judge(models.role("b", make_role(server, "compatible", api_key_env="MY_KEY")), [1])
        sent = [headers.get("authorization") for _, _, headers in server.requests]
        assert sent == ["Bearer none", f"Bearer {ENVIRON['MY_KEY']}"]


def test_what_is_sent(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        models = make_models(tmp_path)
        judge(models.role("a", make_role(server, options={"reasoning_effort": "low"})), [0])
        judge(models.role("b", make_role(server, "compatible", temperature=0, json_schema=False)), [0])
        judge(models.role("c", make_role(server, "anthropic", options={"output_config": {"effort": "low"}})), [0])
        judge(models.role("d", make_role(server, "anthropic", options={"structured_output": "tool"})), [0])
        judge(models.role("e", make_role(server, "responses", options={"text": {"verbosity": "low"}})), [0])
        first, second, third, fourth, fifth = (one.prompt.body for one in server.served)
        assert first["response_format"]["json_schema"]["strict"] is True
        assert first["response_format"]["json_schema"]["schema"]["additionalProperties"] is False
        assert first["reasoning_effort"] == "low"
        assert first["max_completion_tokens"] == 8192
        assert "temperature" not in first
        assert "response_format" not in second
        assert json.dumps(make_request(0).schema) in second["messages"][0]["content"]
        assert second["temperature"] == 0
        assert second["max_tokens"] == 8192
        assert third["output_config"]["effort"] == "low"
        assert third["output_config"]["format"]["type"] == "json_schema"
        assert fourth["tool_choice"] == {"type": "tool", "name": "reply"}
        assert "structured_output" not in fourth
        assert fifth["text"]["format"]["strict"] is True
        assert fifth["text"]["verbosity"] == "low"
        assert fifth["store"] is False
        assert "api" not in fifth


def test_equal_requests_at_once_are_one_call(tmp_path: Path) -> None:
    with MisbehavingServer(answer, latency=0.1) as server:
        models = make_models(tmp_path)
        assert assert_right_or_error(judge(models.role("judge", make_role(server)), [0, 0, 0])[:1]) == 1
        assert len(server.served) == 1
        assert models.summary()["cached"] == 2


def test_the_limit_of_concurrency_holds(tmp_path: Path) -> None:
    with MisbehavingServer(answer, latency=0.02) as server:
        judge(make_models(tmp_path).role("judge", make_role(server, concurrency=3)), range(20))
        assert server.most_in_flight == 3


def test_the_rate_limits_hold(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        # A tenth of a minute's worth may burst: 60 of these, then ten a second.
        judge(make_models(tmp_path).role("judge", make_role(server, requests_per_minute=600)), range(65))
        times = [one.came_at for one in server.served]
        assert times[-1] - times[0] >= 0.35


def test_a_bucket_of_tokens_lets_a_large_request_pass_on_credit() -> None:
    async def takes() -> float:
        limit = RateLimit(6000)
        started = time.monotonic()
        await limit.take(640)
        await limit.take(1)
        return time.monotonic() - started

    assert 0.35 <= asyncio.run(takes()) < 2


def test_cache_only_names_the_missing_key(tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule={1: "invalid_json"}) as server:
        judge(make_models(tmp_path).role("judge", make_role(server, concurrency=1)), range(2))
        frozen = Models(cache=tmp_path, budget=Budget(per_run=0), environ={}).role(
            "judge", make_role(server, cache="only")
        )
        assert assert_right_or_error(judge(frozen, range(2))) == 2
        with pytest.raises(ModelError, match=r"request q2\|2 has no reply in the cache \(key [0-9a-f]{64}\)"):
            judge(frozen, range(3))
        assert len(server.served) == 3


def test_replay_reads_what_another_provider_wrote(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        written = judge(make_models(tmp_path).role("judge", make_role(server)), range(2))
        served = len(server.served)
        role = ModelRole(provider="replay", model="openai:gpt-5-mini")
        replayed = Models(cache=tmp_path, budget=Budget(), environ={}).role("judge", role)
        assert (replayed.model, replayed.judge_kind) == ("openai:gpt-5-mini", "llm")
        assert judge(replayed, range(2)) == written
        assert len(server.served) == served
        with pytest.raises(ModelError, match="needs a model such as openai:gpt-5-mini"):
            make_models(tmp_path).role("judge", ModelRole(provider="replay", model="gpt-5-mini"))


def test_refresh_asks_again_once_in_a_run(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        judge(make_models(tmp_path).role("judge", make_role(server)), [0])
        models = make_models(tmp_path)
        caller = models.role("judge", make_role(server, cache="refresh"))
        judge(caller, [0, 0])
        judge(caller, [0])
        assert len(server.served) == 2


def test_anything_that_shapes_a_reply_is_in_the_key(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        changes: list[dict[str, Any]] = [
            {}, {"model": "gpt-5-nano"}, {"temperature": 0.5}, {"max_output_tokens": 99}, {"json_schema": False},
            {"options": {"seed": 1}},
        ]  # fmt: skip
        models = make_models(tmp_path)
        for number, change in enumerate(changes):
            judge(models.role(f"judge{number}", make_role(server, **change)), [0])
        assert len(server.served) == len(changes)
        # What does not shape it is not.
        for number, change in enumerate(({"timeout_seconds": 9}, {"concurrency": 2}, {"attempts": 5})):
            judge(models.role(f"same{number}", make_role(server, **change)), [0])
        assert len(server.served) == len(changes)


def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        judge(make_models(tmp_path).role("judge", make_role(server)), [0])
        (entry,) = (tmp_path / "replies").rglob("*.json")
        entry.write_text("{")
        with pytest.raises(ModelError, match=r"is damaged.*delete it"):
            judge(make_models(tmp_path).role("judge", make_role(server)), [0])


def test_a_reader_with_a_fault_of_its_own_is_not_taken_for_a_bad_reply(tmp_path: Path) -> None:
    def broken(_data: dict[str, Any]) -> int:
        return [][0]

    with MisbehavingServer(answer) as server:
        caller = make_models(tmp_path).role("judge", make_role(server))
        with pytest.raises(IndexError):
            run([caller.call(make_request(0), broken)])
        assert len(server.served) == 1


def test_calls_fit_their_table_and_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshstack_dagster.language_models.client._PROGRESS_SECONDS", 0)
    told: list[str] = []
    with MisbehavingServer(answer) as server:
        models = make_models(tmp_path, snapshot="2024-10", progress=told.append)
        judge(models.role("judge", make_role(server)), range(3))
        rows = models.calls()
        assert rows.schema == TABLES["model_calls"].schema
        assert rows["call_id"].n_unique() == 3
        assert set(rows["snapshot"]) == {"2024-10"}
        assert rows["dollars"].sum() == pytest.approx(server.billed(0.25, 2))
        assert told[-1].startswith("judge: 3 requests, 3 calls, 0 from the cache, 0 errors, $")
        assert make_models(tmp_path).calls().height == 0


def test_one_role_has_one_caller(tmp_path: Path) -> None:
    models = make_models(tmp_path)
    assert models.role("judge", ModelRole()) is models.role("judge", ModelRole())
    with pytest.raises(ModelError, match="two different settings"):
        models.role("judge", ModelRole(max_output_tokens=5))


# ── the heuristic provider ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule for the task `support` in place of the judging room's."""
    module = ModuleType("freshstack_dagster.judging.heuristic")
    verdicts = [{"fact": fact, "reason": "", "supported": False} for fact in range(3)]
    module.REPLIES = {"support": lambda inputs: {"verdicts": verdicts[: inputs.get("facts", 3)]}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "freshstack_dagster.judging.heuristic", module)


@pytest.mark.usefixtures("rules")
def test_the_heuristic_provider_needs_nothing_and_says_what_it_is(tmp_path: Path) -> None:
    models = Models(cache=tmp_path / "cache", budget=Budget(per_run=0), environ={})
    caller = models.role("judge", ModelRole())
    assert (caller.model, caller.judge_kind) == ("heuristic", "heuristic")
    first, second = judge(caller, [0, 1])
    assert first.kind == second.kind == "ok"
    assert first.reply is None
    skipped, short = run(
        [
            caller.call(Request("a", "closed_book_answer", "", "", {}, "v1"), read),
            caller.call(Request("b", "support", "", "", {}, "v1", {"facts": 2}), read),
        ]
    )
    assert (skipped.kind, short.kind) == ("skipped", "malformed")
    assert skipped.error == "a: the heuristic provider has no rule for closed_book_answer"
    assert models.calls().height == 0
    assert models.summary()["roles"]["judge"]["ok"] == 2
    assert not (tmp_path / "cache").exists()


# ── run ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _double(number: int) -> int:
    await asyncio.sleep(0.01 * (5 - number))
    if number < 0:
        raise ReplyError(str(number))
    return number * 2


def test_run_keeps_the_order_and_brings_all_to_an_end() -> None:
    assert run(_double(number) for number in range(5)) == [0, 2, 4, 6, 8]
    assert run([]) == []
    with pytest.raises(ReplyError, match="-1"):
        run(_double(number) for number in (1, -1, -2, 3))


def test_run_works_inside_a_running_loop() -> None:
    async def outer() -> list[int]:
        with pytest.raises(ReplyError):
            run([_double(-1)])
        return run(_double(number) for number in range(3))

    assert asyncio.run(outer()) == [0, 2, 4]


def test_models_outlive_an_event_loop(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        caller = make_models(tmp_path).role("judge", make_role(server))
        for number in range(3):
            assert assert_right_or_error(judge(caller, range(number, number + 1))[:0]) == 0
        assert len(server.served) == 3
