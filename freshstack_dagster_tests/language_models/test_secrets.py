from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models import run
from freshstack_dagster.language_models.scrub import Scrubber, public_url
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt
from freshstack_dagster_tests.language_models.support import (
    KEY,
    answer,
    judge,
    make_models,
    make_request,
    make_role,
    texts_below,
)


def leaky(prompt: Prompt) -> dict[str, Any]:
    """A server that tells the key in its reply."""
    right = answer(prompt)
    right["verdicts"][0]["reason"] = f"because of {KEY}"
    return right


@pytest.mark.parametrize("provider", ["openai", "anthropic", "compatible"])
@pytest.mark.parametrize("batch", [False, True])
def test_keys_never_appear(
    provider: str, batch: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if batch and provider == "compatible":
        pytest.skip("no batch API")
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("freshstack_dagster.language_models.client._PROGRESS_SECONDS", 0)
    told: list[str] = []
    seen: list[Any] = []
    faults = ["http_500", "http_400", "no_choices", None, "http_529", "empty"]
    with MisbehavingServer(
        leaky,
        schedule=lambda number, _prompt: faults[number] if number < len(faults) else None,
        batch_fault=lambda number, _id: faults[number] if number < 3 else None,
    ) as server:
        models = make_models(tmp_path, progress=told.append, batch_wait_seconds=5)
        caller = models.role("judge", make_role(server, provider, batch=batch, api_key_env="MY_KEY"))
        outcomes = run(caller.call(make_request(number), lambda data: data) for number in range(6))
        assert any(outcome.kind == "ok" for outcome in outcomes)
        server.key = "another"
        with pytest.raises(ModelError) as caught:
            judge(make_models(tmp_path).role("judge", make_role(server, provider, api_key_env="MY_KEY")), [77])
        seen = [outcomes, models.summary(), models.calls().to_dicts(), told, caplog.text]
        seen += ["".join(traceback.format_exception(caught.value)), repr(models.role), repr(models)]
    text = json.dumps(seen, default=str) + texts_below(tmp_path)
    assert "because of [secret]" in text
    assert KEY not in text
    assert KEY[8:] not in text


def test_what_looks_like_a_key_is_hidden_from_messages() -> None:
    scrubber = Scrubber(["hunter22"])
    assert scrubber.exact("say hunter22\nand sk-live-123456789") == "say [secret]\nand sk-live-123456789"
    for text in (
        "Incorrect API key provided: sk-ab***************wxyz.",
        "header Authorization: Bearer abcdef0123456789",
        "GET https://user:pass@host/v1?api_key=abcdef&x=1",
        "the key is hunter22",
    ):
        shown = scrubber.message(text)
        assert "[secret]" in shown
        for secret in ("wxyz", "abcdef", "user:pass", "hunter22"):
            assert secret not in shown
    assert scrubber.message("two\nlines") == "two lines"
    assert scrubber.message("task-1234567 of risk-analysis") == "task-1234567 of risk-analysis"


@pytest.mark.parametrize("url", ["http://me:secret-word@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?api_key=secret-word"])
def test_an_address_with_a_password_is_refused(url: str, tmp_path: Path) -> None:
    models = make_models(tmp_path)
    with pytest.raises(ModelError, match="carries a user, a password or parameters") as caught:
        judge(models.role("judge", make_role(None, "compatible", base_url=url)), [0])
    assert "secret-word" not in str(caught.value)


def test_an_address_without_what_is_secret() -> None:
    assert public_url("https://user:pass@host:8000/v1/?key=a") == "https://host:8000/v1"
    assert public_url("http://localhost:8000/v1/") == "http://localhost:8000/v1"
