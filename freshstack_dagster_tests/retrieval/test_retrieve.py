from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from freshstack_dagster.errors import FreshstackError, SchemaError, SettingsError
from freshstack_dagster.retrieval import Corpus, Ranking, Workspace, lexical, lsa, prune, retrieve
from freshstack_dagster.retrieval import retrieve as retrieve_function
from freshstack_dagster.settings import Retriever
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.retrieval import made

TEXTS = {
    "docs/router.md_0_90": "The Angular router navigates between views. Use RouterLink and provideRouter.",
    "docs/forms.md_0_80": "Reactive forms use FormControl and FormGroup to validate what users type.",
    "src/router.ts_0_99": "export function provideRouter(routes: Routes) { return makeEnvironmentProviders(routes) }",
    "src/forms.ts_0_99": "export class FormControl extends AbstractControl { setValue(value) { this.value = value } }",
    "src/engine.cpp_0_60": "C++ engine with snake_case_names and templates",
    "src/engine.cs_0_60": "C# engine with PascalCaseNames and generics",
    "src/copy.ts_0_99": "export class FormControl extends AbstractControl { setValue(value) { this.value = value } }",
}


def found(runs: pl.DataFrame, retriever: str, question: str = "1", variant: str = "question") -> list[str]:
    return runs.filter(retriever=retriever, question_id=question, variant=variant)["doc_id"].to_list()


def test_every_variant_meets_every_retriever_and_their_fusion(tmp_path: Path) -> None:
    queries = made.queries(
        {
            "1": "How do I provide the router?",
            ("1", "sub_questions"): "What is a route?\nWhat does provideRouter return?",
            "2": "validate forms",
        }
    )
    report: dict[str, Any] = {}
    runs = retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path, report=report)
    assert runs.equals(TABLES["runs"].conform(runs))
    assert set(runs["retriever"]) == {"bm25", "bm25_code", "lsa", "fusion"}
    assert set(runs.select("question_id", "variant").rows()) == {
        ("1", "question"),
        ("1", "sub_questions"),
        ("2", "question"),
    }
    assert set(found(runs, "bm25_code")[:2]) == {"src/router.ts_0_99", "docs/router.md_0_90"}
    assert report["bm25"]["documents"] == 7
    assert report["bm25"]["queries"] == 3


def test_code_aware_terms_find_what_the_default_loses(tmp_path: Path) -> None:
    queries = made.queries({"1": "C++ engine", "2": "C# engine", "3": "case names"})
    runs = retrieve(queries, made.chunks(TEXTS), made.topic("bm25", "bm25_code"), cache=tmp_path)
    assert found(runs, "bm25_code", "1")[0] == "src/engine.cpp_0_60"
    assert found(runs, "bm25_code", "2")[0] == "src/engine.cs_0_60"
    assert found(runs, "bm25", "3") == []
    assert set(found(runs, "bm25_code", "3")) == {"src/engine.cpp_0_60", "src/engine.cs_0_60"}


@pytest.mark.parametrize("text", ["", "  \n", "the of and", "?!", "zzzzz"])
def test_a_query_without_tokens_retrieves_nothing(text: str, tmp_path: Path) -> None:
    report: dict[str, Any] = {}
    runs = retrieve(made.queries({"1": text}), made.chunks(TEXTS), made.topic(), cache=tmp_path, report=report)
    assert runs.height == 0
    assert report["bm25"]["queries_without_results"] == 1


def test_documents_without_a_term_of_the_query_are_not_retrieved(tmp_path: Path) -> None:
    runs = retrieve(made.queries({"1": "generics"}), made.chunks(TEXTS), made.topic("bm25"), cache=tmp_path)
    assert found(runs, "bm25") == ["src/engine.cs_0_60"]


def test_equal_texts_tie_in_doc_id_order_also_at_the_cut(tmp_path: Path) -> None:
    chunks = made.chunks({f"d{i:02}": "same words" for i in range(30)})
    topic = made.topic(pooling={"run_depth": 10})
    expected = [f"d{i:02}" for i in range(10)]
    for frame in (chunks, chunks.reverse()):
        runs = retrieve(made.queries({"1": "words"}), frame, topic, cache=tmp_path)
        assert found(runs, "bm25") == expected
        assert found(runs, "fusion") == expected


def test_scores_are_lucenes_bm25(tmp_path: Path) -> None:
    chunks = made.chunks({"a": "cat cat dog", "b": "dog", "c": "bird bird"})
    runs = retrieve(made.queries({"1": "cats dog dog"}), chunks, made.topic("bm25"), cache=tmp_path)
    k1, b, mean = 0.9, 0.4, 2.0

    def weight(tf: int, df: int, length: int) -> float:
        return float(np.log(1 + (3 - df + 0.5) / (df + 0.5))) * tf / (tf + k1 * (1 - b + b * length / mean))

    scores = dict(runs.filter(retriever="bm25").select("doc_id", "score").iter_rows())
    assert scores == {
        "a": pytest.approx(weight(2, 1, 3) + 2 * weight(1, 2, 3), rel=1e-6),
        "b": pytest.approx(2 * weight(1, 2, 1), rel=1e-6),
    }


def test_an_index_is_loaded_for_the_same_content_and_built_for_other(tmp_path: Path) -> None:
    queries = made.queries({"1": "router forms"})
    first: dict[str, Any] = {}
    runs = retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path, report=first)
    second: dict[str, Any] = {}
    again = retrieve(queries, made.chunks(TEXTS).reverse(), made.topic(), cache=tmp_path, report=second)
    assert runs.equals(again)
    assert [first[name]["index"] for name in first] == ["indexed"] * 3
    assert [second[name]["index"] for name in second] == ["loaded"] * 3
    other: dict[str, Any] = {}
    changed = {**TEXTS, "docs/new.md_0_9": "router router"}
    retrieve(queries, made.chunks(changed), made.topic(), cache=tmp_path, report=other)
    assert [other[name]["index"] for name in other] == ["indexed"] * 3


def test_a_broken_cache_entry_is_built_again(tmp_path: Path) -> None:
    queries = made.queries({"1": "router forms"})
    runs = retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path)
    for file in tmp_path.rglob("*.*"):
        if file.is_file():
            os.truncate(file, 3)
    report: dict[str, Any] = {}
    again = retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path, report=report)
    assert again.equals(runs)
    assert [report[name]["index"] for name in report] == ["indexed"] * 3
    assert not list(tmp_path.rglob(".*"))


def test_indexes_that_no_run_used_are_pruned_and_made_again(tmp_path: Path) -> None:
    queries, days = made.queries({"1": "router forms"}), 86_400
    runs = retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path)
    other = made.chunks({**TEXTS, "docs/new.md_0_9": "router router"})
    retrieve(queries, other, made.topic(), cache=tmp_path)
    (tmp_path / "embeddings" / "m").mkdir(parents=True)
    entries = sorted(path for kind in ("bm25", "lsa") for path in (tmp_path / kind).iterdir())
    assert len(entries) == 6
    for path in [*entries, tmp_path / "embeddings" / "m"]:
        os.utime(path, (1_000 * days, 1_000 * days))
    assert prune(tmp_path, 30, now=1_020 * days) == {}
    # Used again, the indexes of the first corpus are young; those of the other are not.
    retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path)
    freed = prune(tmp_path, 30, now=1_031 * days)
    assert len(freed) == 3
    assert all(size > 0 for size in freed.values())
    assert (tmp_path / "embeddings" / "m").is_dir()
    report: dict[str, Any] = {}
    assert retrieve(queries, made.chunks(TEXTS), made.topic(), cache=tmp_path, report=report).equals(runs)
    assert [report[name]["index"] for name in report] == ["loaded"] * 3
    retrieve(queries, other, made.topic(), cache=tmp_path, report=report)
    assert [report[name]["index"] for name in report] == ["indexed"] * 3
    assert not list(tmp_path.rglob(".*"))


def test_no_chunks_or_no_queries_give_no_runs(tmp_path: Path) -> None:
    empty = TABLES["runs"].empty()
    assert retrieve(made.queries({"1": "x"}), made.chunks({}), made.topic(), cache=tmp_path).equals(empty)
    assert retrieve(made.queries({}), made.chunks(TEXTS), made.topic(), cache=tmp_path).equals(empty)


def test_a_corpus_without_a_single_term_retrieves_nothing(tmp_path: Path) -> None:
    runs = retrieve(made.queries({"1": "x"}), made.chunks({"a": "!!", "b": ""}), made.topic(), cache=tmp_path)
    assert runs.height == 0


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    queries, chunks = made.queries({"1": "x"}), made.chunks({"a": "x"})
    with pytest.raises(SchemaError, match="repeat doc_id a"):
        retrieve(queries, pl.concat([chunks, chunks]), made.topic(), cache=tmp_path)
    with pytest.raises(SchemaError, match="question 1 has variant question twice"):
        retrieve(pl.concat([queries, queries]), chunks, made.topic(), cache=tmp_path)
    with pytest.raises(SchemaError, match="text"):
        retrieve(queries.drop("text"), chunks, made.topic(), cache=tmp_path)
    with pytest.raises(SchemaError, match="content_hash"):
        retrieve(queries, chunks.drop("content_hash"), made.topic(), cache=tmp_path)
    with pytest.raises(SettingsError, match="unknown options"):
        retrieve(queries, chunks, made.topic({"kind": "bm25", "options": {"k": 1}}), cache=tmp_path)


def test_progress_tells_stage_and_counts(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    retrieve(
        made.queries({"1": "router"}),
        made.chunks(TEXTS),
        made.topic("bm25"),
        cache=tmp_path,
        progress=lambda *step: told.append(step),
    )
    assert told == [("bm25: tokenising", 7, 7), ("bm25: searching", 1, 1)]


def corpus(texts: dict[str, str]) -> Corpus:
    return Corpus.of(made.chunks(texts))


def many_documents(count: int) -> dict[str, str]:
    random = np.random.default_rng(7)
    words = [f"word{i}" for i in range(400)]
    return {f"d{i:04}": " ".join(random.choice(words[i % 20 * 20 : i % 20 * 20 + 40], 30)) for i in range(count)}


def test_lsa_is_the_same_every_time_and_finds_by_company(tmp_path: Path) -> None:
    documents = corpus(many_documents(600))
    fitted = [
        lsa.fit(documents, Workspace(tmp_path), dimensions=16, vocabulary=300, sample=500, seed=13) for _ in range(2)
    ]
    assert np.array_equal(fitted[0].axes, fitted[1].axes)
    assert np.array_equal(fitted[0].documents, fitted[1].documents)
    assert len(fitted[0].terms) == 300
    largest = np.abs(fitted[0].axes).argmax(axis=0)
    assert (fitted[0].axes[largest, np.arange(fitted[0].axes.shape[1])] > 0).all()
    [ranking] = fitted[0].search([documents.texts[5]], 10)
    assert ranking.rows[0] == 5
    # Documents of one group share their words: the group, every twentieth, comes first.
    assert sum(row % 20 == 5 for row in ranking.rows.tolist()) >= 8


def test_lsa_finds_a_document_that_shares_no_word_with_the_query(tmp_path: Path) -> None:
    texts = {f"d{i}": t for i, t in enumerate(["car engine", "automobile engine", "car wheel", "automobile wheel"] * 3)}
    texts["x"] = "banana fruit"
    texts["y"] = "banana peel fruit"
    model = lsa.fit(corpus(texts), Workspace(tmp_path), dimensions=2, vocabulary=100, sample=100, seed=1)
    [ranking] = model.search(["car"], 12)
    found_ids = {corpus(texts).doc_ids[row] for row in ranking.rows}
    assert "d1" in found_ids
    assert not found_ids & {"x", "y"}


def test_unknown_lsa_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="dims"):
        lsa.open_lsa(Retriever(name="lsa", kind="lsa", options={"dims": 3}), corpus(TEXTS), Workspace(tmp_path))


def test_bm25_parameters_are_options(tmp_path: Path) -> None:
    documents = corpus({"a": "cat dog dog", "b": "cat"})
    flat = lexical.open_bm25(
        Retriever(name="flat", kind="bm25", options={"b": 0.0}), documents, Workspace(tmp_path)
    ).search(["cat"], 2)[0]
    assert flat.scores[0] == flat.scores[1]


class FromTheShelf:
    """A retriever as a plug-in would bring it."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        rows = np.arange(min(depth, len(self.corpus)))
        return [Ranking(rows, 1.0 / (1 + rows)) for _ in queries]


class _Point:
    name = "shelf"

    def __init__(self, kind: type = FromTheShelf) -> None:
        self.kind = kind

    def load(self) -> Any:
        return lambda retriever, corpus, workspace: self.kind(corpus)


def test_a_plug_in_is_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[retrieve_function.__module__]
    monkeypatch.setattr(module, "entry_points", lambda group: [_Point()])
    topic = made.topic({"kind": "plugin", "name": "mine", "model": "shelf"})
    runs = retrieve(made.queries({"1": "x"}), made.chunks(TEXTS), topic, cache=tmp_path)
    assert found(runs, "mine") == sorted(TEXTS)
    with pytest.raises(SettingsError, match=r"no entry point other in group freshstack_dagster\.retrievers; .* shelf"):
        retrieve(
            made.queries({"1": "x"}),
            made.chunks(TEXTS),
            made.topic({"kind": "plugin", "name": "other"}),
            cache=tmp_path,
        )


class Careless(FromTheShelf):
    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        return [Ranking(np.array([2, 0, 0, 1]), np.array([1.0, 1.0, 0.5, 3.0])) for _ in queries]


class Broken(FromTheShelf):
    def search(self, queries: Sequence[str], depth: int) -> list[Ranking]:
        return [Ranking(np.array([len(self.corpus)]), np.array([1.0])) for _ in queries]


def test_what_a_plug_in_returns_is_brought_to_the_one_order_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[retrieve_function.__module__]
    topic = made.topic({"kind": "plugin", "name": "shelf"})
    chunks = made.chunks({"a": "x", "b": "x", "c": "x"})
    monkeypatch.setattr(module, "entry_points", lambda group: [_Point(Careless)])
    runs = retrieve(made.queries({"1": "x"}), chunks, topic, cache=tmp_path)
    assert runs.filter(retriever="shelf").select("doc_id", "rank").rows() == [("b", 1), ("a", 2), ("c", 3)]
    monkeypatch.setattr(module, "entry_points", lambda group: [_Point(Broken)])
    with pytest.raises(FreshstackError, match="retriever shelf returned rows outside 0 to 2"):
        retrieve(made.queries({"1": "x"}), chunks, topic, cache=tmp_path)


SHELF = """
import numpy as np
from freshstack_dagster.retrieval import Ranking

class ByLength:
    def __init__(self, corpus):
        self.lengths = np.array([len(text) for text in corpus.texts], dtype=float)

    def search(self, queries, depth):
        order = np.argsort(-self.lengths, kind="stable")[:depth]
        return [Ranking(order, self.lengths[order]) for _ in queries]

def open_by_length(retriever, corpus, workspace):
    workspace.report["longest"] = max(map(len, corpus.texts)) * retriever.options.get("factor", 1)
    return ByLength(corpus)
"""


def install(site: Path, entry: str) -> None:
    """Lay out what pip leaves of a distribution `shelf`: its module, and its metadata with an entry point."""
    site.mkdir()
    (site / "shelf_retriever.py").write_text(SHELF)
    described = site / "shelf_retriever-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-retriever\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[freshstack_dagster.retrievers]\nby_length = {entry}\n")


def test_an_installed_distribution_is_a_retriever_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "shelf_retriever:open_by_length")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "shelf_retriever", raising=False)
    topic = made.topic("bm25", {"kind": "plugin", "name": "long", "model": "by_length", "options": {"factor": 2}})
    report: dict[str, Any] = {}
    runs = retrieve(made.queries({"1": "C++ engine"}), made.chunks(TEXTS), topic, cache=tmp_path, report=report)
    assert set(runs["retriever"]) == {"bm25", "long", "fusion"}
    lengths = sorted(TEXTS, key=lambda doc_id: (-len(TEXTS[doc_id]), doc_id))
    assert found(runs, "long") == lengths
    assert report["long"]["longest"] == 2 * len(TEXTS[lengths[0]])
    assert set(found(runs, "fusion")) == set(TEXTS)


def test_a_distribution_that_cannot_be_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "shelf_retriever:nothing_here")
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "shelf_retriever", raising=False)
    topic = made.topic({"kind": "plugin", "name": "by_length"})
    with pytest.raises(SettingsError, match=r"entry point by_length cannot be loaded: .*nothing_here"):
        retrieve(made.queries({"1": "x"}), made.chunks(TEXTS), topic, cache=tmp_path)
