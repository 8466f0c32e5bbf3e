from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from freshstack_dagster.errors import FreshstackError
from freshstack_dagster.retrieval.store import EmbeddingStore

MODEL = {"model": "m", "dtype": "float32"}


def vectors(*rows: float) -> np.ndarray:
    return np.array([[row, -row] for row in rows], np.float32)


def test_shards_are_appended_and_read_as_one_matrix(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, MODEL)
    store.append(["a", "b"], vectors(1, 2), [False, True])
    store.append(["c"], vectors(3), [False])
    again = EmbeddingStore(tmp_path, MODEL)
    assert again.missing(["c", "x", "a", "x"]) == ["x"]
    rows = again.rows(["c", "a", "c", "b"])
    assert rows.shape == (4, 2)
    assert rows[0:4].tolist() == vectors(3, 1, 3, 2).tolist()
    assert rows[np.array([2, 1])].tolist() == vectors(3, 1).tolist()
    assert again.truncated(["b", "b", "c"]) == 1


def test_another_model_prompt_or_length_has_its_own_place(tmp_path: Path) -> None:
    EmbeddingStore(tmp_path, MODEL).append(["a"], vectors(1), [False])
    assert EmbeddingStore(tmp_path, {**MODEL, "prompt": "passage: "}).missing(["a"]) == ["a"]
    assert EmbeddingStore(tmp_path, MODEL).missing(["a"]) == []


def test_a_shard_without_index_does_not_exist(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, MODEL)
    store.append(["a"], vectors(1), [False])
    store.append(["b"], vectors(2), [False])
    for index in sorted(store.folder.glob("*.parquet"))[1:]:
        index.unlink()
    assert EmbeddingStore(tmp_path, MODEL).missing(["a", "b"]) == ["b"]


def test_two_writers_may_append_the_same_text(tmp_path: Path) -> None:
    one, two = EmbeddingStore(tmp_path, MODEL), EmbeddingStore(tmp_path, MODEL)
    one.append(["a"], vectors(1), [False])
    two.append(["a", "b"], vectors(1, 2), [False, False])
    assert EmbeddingStore(tmp_path, MODEL).rows(["b", "a"])[0:2].tolist() == vectors(2, 1).tolist()


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, {**MODEL, "dtype": "float16"})
    with pytest.raises(FreshstackError, match="text b does not fit float16"), np.errstate(over="ignore"):
        store.append(["a", "b"], vectors(1, 1e6), [False, False])
    store.append(["a"], vectors(1), [False])
    with pytest.raises(FreshstackError, match="3 dimensions, the stored embeddings have 2"):
        store.append(["b"], np.ones((1, 3)), [False])
    with pytest.raises(FreshstackError, match="text z has no embedding"):
        store.rows(["a", "z"])


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, MODEL)
    store.append(["a"], vectors(1), [False])
    [shard] = store.folder.glob("*.npy")
    shard.write_bytes(b"no")
    with pytest.raises(FreshstackError, match="delete it"):
        EmbeddingStore(tmp_path, MODEL)
