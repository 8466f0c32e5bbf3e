from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models.cache import FileStore, SharedStore, open_store
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer
from freshstack_dagster_tests.language_models.support import (
    answer,
    assert_right_or_error,
    judge,
    make_models,
    make_role,
)


def test_the_first_writer_wins_and_nobody_sees_half_an_entry(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    key = "ab" * 32
    values = [bytes([65 + number]) * 200_000 for number in range(8)]

    def work(number: int) -> bool:
        store.put(key, values[number], replace=bool(number % 2))
        return store.get(key) in values

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    first = store.get(key)
    store.put(key, b"later")
    assert store.get(key) == first
    store.put(key, b"later", replace=True)
    assert store.get(key) == b"later"
    assert store.get("cd" * 32) is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f"{key}.json"]


def test_what_a_power_cut_leaves_is_no_reply(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("ab" * 32, b"")
    assert store.get("ab" * 32) is None
    store.put("ab" * 32, b"again")
    assert store.get("ab" * 32) == b"again"


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "ab").write_text("a file where a folder should be")
    with pytest.raises(ModelError, match=r"the reply cannot be cached: .*run again"):
        FileStore(tmp_path).put("ab" * 32, b"x")


def test_machines_share_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "bucket"
    for prefix in range(256):
        # An object store has no folders to make.
        (shared / "replies" / f"{prefix:02x}").mkdir(parents=True)
    bucket = SubTreeFileSystem(str(shared), LocalFileSystem())
    monkeypatch.setattr(
        "freshstack_dagster.language_models.client.open_store",
        lambda folder, url: SharedStore(FileStore(folder), bucket, "replies/"),
    )
    with MisbehavingServer(answer) as server:
        judge(make_models(tmp_path / "here").role("judge", make_role(server)), range(5))
        there = make_models(tmp_path / "there")
        assert assert_right_or_error(judge(there.role("judge", make_role(server)), range(5))) == 5
        assert len(server.served) == 5
        assert there.summary()["cached"] == 5


def test_an_address_that_is_no_object_store_is_refused(tmp_path: Path) -> None:
    for url in ("/some/folder", "file:///some/folder", "nonsense://user:secret@host/x"):
        with pytest.raises(ModelError, match="FRESHSTACK_REPLIES") as caught:
            open_store(tmp_path, url)
        assert "secret" not in str(caught.value)
