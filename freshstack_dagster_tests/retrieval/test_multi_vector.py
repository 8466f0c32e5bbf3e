from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.retrieval import retrieve
from freshstack_dagster_tests.retrieval import made

TEXTS = {"a": "red apples", "b": "green pears", "c": "red pears"}


class ColBERT:
    """Encodes a text as its set of words."""

    encoded: ClassVar[list[str]] = []

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def encode(self, texts: Sequence[str], *, is_query: bool, **_: Any) -> list[list[str]]:
        if not is_query:
            ColBERT.encoded.extend(texts)
        return [sorted(set(text.split())) for text in texts]


class PLAID:
    """Keeps documents in a file."""

    def __init__(self, index_folder: str, index_name: str, override: bool) -> None:
        self.file = Path(index_folder) / index_name

    def add_documents(self, documents_ids: list[str], documents_embeddings: list[list[str]]) -> None:
        self.file.write_text(json.dumps(dict(zip(documents_ids, documents_embeddings, strict=True))))


class Searcher:
    """Counts shared words, worst first, as no caller should rely on an order."""

    def __init__(self, index: PLAID) -> None:
        self.documents = json.loads(index.file.read_text())

    def retrieve(self, queries_embeddings: list[list[str]], k: int) -> list[list[dict[str, Any]]]:
        results = []
        for words in queries_embeddings:
            scored = [{"id": i, "score": len(set(words) & set(d))} for i, d in self.documents.items()]
            results.append(sorted(scored, key=lambda item: item["score"])[-k:])
        return results


@pytest.fixture
def pylate(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("pylate")
    module.models = SimpleNamespace(ColBERT=ColBERT)
    module.indexes = SimpleNamespace(PLAID=PLAID)
    module.retrieve = SimpleNamespace(ColBERT=Searcher)
    monkeypatch.setitem(sys.modules, "pylate", module)
    ColBERT.encoded.clear()


@pytest.mark.usefixtures("pylate")
def test_a_late_interaction_model_is_indexed_once(tmp_path: Path) -> None:
    topic = made.topic({"name": "colbert", "kind": "multi_vector", "preset": "gte-moderncolbert"})
    queries = made.queries({"1": "red pears", "2": "?"})
    for outcome in ("indexed", "loaded"):
        report: dict[str, Any] = {}
        runs = retrieve(queries, made.chunks(TEXTS), topic, cache=tmp_path, report=report)
        assert runs.filter(retriever="colbert").select("question_id", "doc_id", "score").rows() == [
            ("1", "c", 2.0),
            ("1", "a", 1.0),
            ("1", "b", 1.0),
        ]
        assert report["colbert"]["index"] == outcome
    assert sorted(ColBERT.encoded) == sorted(TEXTS.values())


def test_without_pylate_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pylate", None)
    topic = made.topic({"name": "colbert", "kind": "multi_vector", "preset": "gte-moderncolbert"})
    with pytest.raises(SettingsError, match="pip install pylate"):
        retrieve(made.queries({"1": "x"}), made.chunks(TEXTS), topic, cache=tmp_path)
