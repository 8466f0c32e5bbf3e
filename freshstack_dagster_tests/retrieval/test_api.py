from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshstack_dagster.errors import ModelError, SettingsError
from freshstack_dagster.retrieval import api, http, retrieve
from freshstack_dagster.retrieval.http import Service as Client
from freshstack_dagster.settings import Retriever
from freshstack_dagster_tests.retrieval import made
from freshstack_dagster_tests.retrieval.service import Service

TEXTS = {"a": "apple", "b": "bread and butter", "c": "cider", "d": "apple"}
QUERIES = made.queries({"1": "apple", "2": "bread and butter"})


def vector(text: str) -> list[float]:
    counts = np.array([text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz "], float)
    return [float(value) for value in counts / np.linalg.norm(counts)]


def openai(path: str, body: dict[str, Any]) -> dict[str, Any]:
    data = [{"index": number, "embedding": vector(text)} for number, text in enumerate(body["input"])]
    return {"data": data[::-1], "usage": {"total_tokens": 3 * len(data)}}


def cohere(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "embeddings": {"float": [vector(text) for text in body["texts"]]},
        "meta": {"billed_units": {"input_tokens": 7}},
    }


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    original = Client.__init__

    def quick(self: Client, *args: Any, **settings: Any) -> None:
        original(self, *args, **{**settings, "sleep": waited.append})

    monkeypatch.setattr(Client, "__init__", quick)
    return waited


def run(service: Service, cache: Path, report: dict[str, Any] | None = None, **settings: Any) -> dict[str, list[str]]:
    retriever = {"name": "r", "kind": "api", "model": "m", "base_url": service.url, **settings}
    runs = retrieve(QUERIES, made.chunks(TEXTS), made.topic(retriever), cache=cache, report=report)
    return {q: runs.filter(retriever="r", question_id=q)["doc_id"].to_list() for q in ("1", "2")}


def test_an_openai_endpoint_is_asked_once_for_each_text(tmp_path: Path) -> None:
    report: dict[str, Any] = {}
    with Service(openai) as service:
        found = run(service, tmp_path, report)
        again = run(service, tmp_path)
    assert found["1"][:2] == ["a", "d"]
    assert found["2"][0] == "b"
    assert again == found
    assert [sorted(body["input"]) for _, body, _ in service.requests[:1]] == [["apple", "bread and butter", "cider"]]
    # The second run asks for its queries only.
    assert [len(body["input"]) for _, body, _ in service.requests] == [3, 2, 2]
    assert {path for path, _, _ in service.requests} == {"/v1/embeddings"}
    assert report["r"]["service_tokens"] == 9
    assert service.requests[0][2] is None


def test_voyage_and_cohere_are_told_what_a_query_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-key")
    with Service(openai) as service:
        run(service, tmp_path, options={"provider": "voyage"}, dimensions=16, api_key_env="MY_KEY")
    assert [body["input_type"] for _, body, _ in service.requests] == ["document", "query"]
    assert all(body["truncation"] is True and body["output_dimension"] == 16 for _, body, _ in service.requests)
    assert service.requests[0][2] == "Bearer secret-key"
    with Service(cohere) as service:
        found = run(service, tmp_path, options={"provider": "cohere"})
    assert [body["input_type"] for _, body, _ in service.requests] == ["search_document", "search_query"]
    assert {path for path, _, _ in service.requests} == {"/v1/embed"}
    assert found["2"][0] == "b"


def test_busy_services_are_waited_for(tmp_path: Path, no_waiting: list[float]) -> None:
    with Service(openai, faults=[(429, {"retry-after": "7"}), (503, {}), (529, {})]) as service:
        assert run(service, tmp_path)["2"][0] == "b"
    assert no_waiting == [7.0, 2.0, 4.0]


def test_a_refusal_is_an_error_at_once_and_names_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-key")
    with Service(openai, faults=[(401, {})]) as service, pytest.raises(ModelError) as caught:
        run(service, tmp_path, api_key_env="MY_KEY")
    assert len(service.requests) == 1
    assert "retriever r: " in str(caught.value)
    assert "401" in str(caught.value)
    assert "secret-key" not in str(caught.value)
    with Service(openai, faults=[(500, {})] * 20) as service, pytest.raises(ModelError, match="500"):
        run(service, tmp_path)
    assert len(service.requests) == http.ATTEMPTS


@pytest.mark.parametrize(
    "reply",
    [
        b"<html>",
        [1],
        {},
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0]}] * 3},
        {"data": [{"index": n, "embedding": [float(n)] * (n + 1)} for n in range(3)]},
        {"data": [{"index": n, "embedding": None} for n in range(3)]},
        {"data": [{"index": n, "embedding": ["NaN"]} for n in range(3)]},
    ],
)
def test_a_reply_that_does_not_answer_for_every_text_is_an_error(tmp_path: Path, reply: Any) -> None:
    with Service(lambda path, body: reply) as service, pytest.raises(ModelError, match="retriever r"):
        run(service, tmp_path)


def test_long_inputs_are_cut_and_counted(tmp_path: Path) -> None:
    texts = {"a": "apple " * 500, "b": "bread", "c": "größe 模型 " * 100}
    retriever = {"name": "r", "kind": "api", "model": "m", "max_length": 20}
    report: dict[str, Any] = {}
    with Service(openai) as service:
        topic = made.topic({**retriever, "base_url": service.url})
        retrieve(QUERIES, made.chunks(texts), topic, cache=tmp_path, report=report)
    assert report["r"]["truncated_passages"] == 2
    sent = service.requests[0][1]["input"]
    assert sorted(len(text.split()) for text in sent)[-1] <= 20


def test_requests_hold_what_a_provider_takes(tmp_path: Path) -> None:
    assert [len(batch) for batch in api._batches(["x"] * 200)] == [96, 96, 8]
    assert [len(batch) for batch in api._batches(["x" * 100_000] * 5)] == [2, 2, 1]


def test_missing_keys_and_unknown_settings_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOYAGE_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="VOYAGE_API_KEY holds no API key"):
        api.make_encoder(Retriever(name="r", kind="api", preset="voyage-large-2"))
    with pytest.raises(SettingsError, match="MY_KEY"):
        api.make_encoder(
            Retriever(name="r", kind="api", model="m", base_url="http://127.0.0.1:1", api_key_env="MY_KEY")
        )
    with pytest.raises(SettingsError, match="provider nobody"):
        api.make_encoder(
            Retriever(name="r", kind="api", model="m", base_url="http://127.0.0.1:1", options={"provider": "nobody"})
        )
    with pytest.raises(SettingsError, match="unknown options"):
        run(Service(openai), tmp_path, options={"providr": "openai"})
