from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from freshstack_dagster.errors import ModelError, SchemaError, SettingsError
from freshstack_dagster.retrieval import fuse, rerank
from freshstack_dagster.retrieval import retrieve as retrieve_runs
from freshstack_dagster.settings import Topic
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.retrieval import made
from freshstack_dagster_tests.retrieval.service import Service

TEXTS = {name: f"{name} " + "x" * length for name, length in zip("abcdef", (3, 9, 1, 7, 5, 5), strict=True)}
QUERIES = made.queries({"q": "which is longest?", ("q", "answer"): "the longest"})
RUNS = made.runs(
    {
        ("q", "question", "r1"): [("a", 6.0), ("b", 5.0), ("c", 4.0), ("d", 3.0), ("e", 2.0), ("f", 1.0)],
        ("q", "question", "r2"): [("c", 2.0), ("d", 1.0)],
        ("q", "answer", "r1"): [("a", 1.0)],
    }
)


def topic(**reranker: Any) -> Topic:
    return made.topic("bm25", rerankers=[{"name": "rr", "model": "m", **reranker}])


class FakeCrossEncoder:
    """Scores a passage by its length; reads 8 words."""

    max_length = 8

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str]] = []

    def tokenizer(self, queries: list[str], passages: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * len(f"{q} {p}".split()) for q, p in zip(queries, passages, strict=True)]}

    def predict(self, pairs: Sequence[tuple[str, str]], **_: Any) -> np.ndarray:
        self.pairs.extend(pairs)
        return np.array([len(passage) for _, passage in pairs], np.float32)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeCrossEncoder:
    fake = FakeCrossEncoder()
    original = rerank.CrossEncoderModel.__init__
    monkeypatch.setattr(rerank.CrossEncoderModel, "__init__", lambda self, reranker: original(self, reranker, fake))
    return fake


def test_the_top_of_every_run_of_the_question_is_reordered(model: FakeCrossEncoder, tmp_path: Path) -> None:
    runs = pl.concat([RUNS, fuse(RUNS)])
    report: dict[str, Any] = {}
    setting = topic(kind="cross_encoder", depth=4)
    again = rerank.rerank(runs, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path, report=report)
    assert again.equals(TABLES["runs"].conform(again))
    assert set(again.select("variant", "retriever").rows()) == {
        ("question", "r1+rr"),
        ("question", "r2+rr"),
        ("question", "fusion+rr"),
    }
    assert again.filter(retriever="r1+rr").select("doc_id", "rank").rows() == [("b", 1), ("d", 2), ("a", 3), ("c", 4)]
    assert again.filter(retriever="r2+rr")["doc_id"].to_list() == ["d", "c"]
    # A pair that several runs share is scored once.
    assert len(model.pairs) == len(set(model.pairs)) == 4
    assert report["rr"] == {
        "kind": "cross_encoder", "model": "m", "lists": 3, "pairs": 10, "scored": 4, "truncated": 0
    }  # fmt: skip


def test_scores_are_remembered(model: FakeCrossEncoder, tmp_path: Path) -> None:
    setting = topic(kind="cross_encoder")
    first = rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)
    asked = len(model.pairs)
    assert rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path).equals(first)
    assert len(model.pairs) == asked == 6


def test_ties_go_by_doc_id_and_other_variants_and_retrievers_can_be_chosen(
    model: FakeCrossEncoder, tmp_path: Path
) -> None:
    setting = topic(kind="cross_encoder", options={"retrievers": ["r1"], "variants": ["question", "answer"]})
    runs = rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)
    assert runs.filter(variant="question")["doc_id"].to_list() == ["b", "d", "e", "f", "a", "c"]
    assert set(runs["variant"]) == {"question", "answer"}
    with pytest.raises(SettingsError, match="r9"):
        setting = topic(kind="cross_encoder", options={"retrievers": ["r9"]})
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)


def test_long_pairs_are_counted(model: FakeCrossEncoder, tmp_path: Path) -> None:
    report: dict[str, Any] = {}
    chunks = made.chunks({**TEXTS, "a": "word " * 30})
    rerank.rerank(RUNS, QUERIES, chunks, topic(kind="cross_encoder"), cache=tmp_path, report=report)
    assert report["rr"]["truncated"] == 1


def test_a_document_or_query_that_is_not_there_is_named(model: FakeCrossEncoder, tmp_path: Path) -> None:
    setting = topic(kind="cross_encoder")
    with pytest.raises(SchemaError, match="document f"):
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS).head(5), setting, cache=tmp_path)
    with pytest.raises(SchemaError, match="question q has no query of variant question"):
        rerank.rerank(RUNS, QUERIES.tail(1).filter(variant="answer"), made.chunks(TEXTS), setting, cache=tmp_path)


@pytest.mark.parametrize(("provider", "key"), [("cohere", "results"), ("voyage", "data")])
def test_rerank_services(provider: str, key: str, tmp_path: Path) -> None:
    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        scores = [{"index": n, "relevance_score": len(text) / 10} for n, text in enumerate(body["documents"])]
        return {key: sorted(scores, key=lambda item: -item["relevance_score"])}

    with Service(answer) as service:
        setting = topic(kind="api", base_url=service.url, options={"provider": provider})
        runs = rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)
    assert runs.filter(retriever="r1+rr")["doc_id"].to_list() == ["b", "d", "e", "f", "a", "c"]
    assert [path for path, _, _ in service.requests] == ["/v1/rerank"]


@pytest.mark.parametrize(
    "results",
    [
        None,
        [],
        [{"index": 0, "relevance_score": 1}] * 6,
        [{"index": n} for n in range(6)],
        [{"index": n, "relevance_score": 1} for n in range(5)],
    ],
)
def test_a_service_that_leaves_a_passage_out_is_an_error(results: Any, tmp_path: Path) -> None:
    with Service(lambda path, body: {"results": results}) as service, pytest.raises(ModelError, match="each of 6"):
        setting = topic(kind="api", base_url=service.url)
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)


def chat(order: Any) -> Any:
    """An OpenAI chat endpoint that orders passages by `order(texts) -> numbers`."""

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        user = body["messages"][-1]["content"].split("Passages:\n\n")[1].rsplit("\n\nGive", 1)[0]
        passages = [part.split("]\n", 1)[1] for part in user.split("\n\n")]
        content = json.dumps({"ranking": order(passages)})
        message = {"role": "assistant", "content": content}
        return {
            "id": "1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }  # fmt: skip

    return answer


def longest_first(passages: list[str]) -> list[int]:
    return sorted(range(1, len(passages) + 1), key=lambda number: -len(passages[number - 1]))


def test_a_language_model_orders_in_windows_and_its_replies_are_kept(tmp_path: Path) -> None:
    texts = {f"d{n:02}": "x" * (n + 1) for n in range(25)}
    documents = made.runs({("q", "question", "r1"): [(name, -float(place)) for place, name in enumerate(texts)]})
    with Service(chat(longest_first)) as service:
        setting = topic(kind="llm", base_url=service.url, options={"window": 10, "step": 5})
        runs = rerank.rerank(documents, QUERIES, made.chunks(texts), setting, cache=tmp_path)
        calls = len(service.requests)
        assert rerank.rerank(documents, QUERIES, made.chunks(texts), setting, cache=tmp_path).equals(runs)
    # Windows climb from the bottom: what belongs to the top gets there, five places a window.
    assert runs["doc_id"].to_list()[:5] == ["d24", "d23", "d22", "d21", "d20"]
    assert sorted(runs["doc_id"]) == sorted(texts)
    assert calls == len(service.requests) == 4


@pytest.mark.parametrize("wrong", [[1, 2], [1, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7]])
def test_an_order_that_is_no_permutation_is_an_error(wrong: list[int], tmp_path: Path) -> None:
    with Service(chat(lambda passages: wrong)) as service, pytest.raises(ModelError, match="each of 1 to 6 once"):
        setting = topic(kind="llm", base_url=service.url, options={"attempts": 2})
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), setting, cache=tmp_path)
    assert len(service.requests) == 2


@pytest.mark.parametrize(("count", "expected"), [(0, []), (1, []), (7, [(0, 7)]), (25, [(5, 25), (0, 15)])])
def test_windows_cover_every_place(count: int, expected: list[tuple[int, int]]) -> None:
    assert list(rerank._windows(count, 20, 10)) == expected


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown options"):
        rerank.rerank(RUNS, QUERIES, made.chunks(TEXTS), topic(kind="api", options={"windows": 1}), cache=tmp_path)


def test_reranked_runs_enter_neither_fusion_nor_pool(model: FakeCrossEncoder, tmp_path: Path) -> None:
    chunks = made.chunks(TEXTS)
    setting = topic(kind="cross_encoder")
    runs = retrieve_runs(made.queries({"q": "a b"}), chunks, setting, cache=tmp_path)
    again = rerank.rerank(runs, made.queries({"q": "a b"}), chunks, setting, cache=tmp_path)
    assert fuse(pl.concat([runs, again])).equals(runs.filter(retriever="fusion"))
