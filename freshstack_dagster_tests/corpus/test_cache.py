from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.corpus.cache import CUTS, ENTRIES, CutCache, frame_of_cuts, frame_of_entries
from freshstack_dagster.corpus.workers import Cuts
from freshstack_dagster.errors import CorpusError


def cuts(text: str = "text", *, head: int = 5, low: int = 0, high: int = 9, seconds: float | None = None) -> Cuts:
    columns = ([0], [4], [0], [4], [1], [1], [11], ["hash"], [text])
    return Cuts("chunked", "utf-8", "markdown", "", head, low, high, columns, seconds)


def wanted(*rows: tuple[str, str, str, int]) -> pl.DataFrame:
    filled = [("made", path, blob, key, head) for path, blob, key, head in rows]
    return pl.DataFrame(filled, schema=["repository", "path", "blob", "language_key", "head"], orient="row")


def put(cache: CutCache, *results: tuple[str, str, Cuts]) -> None:
    cache.write(frame_of_entries(results), frame_of_cuts([one for _, _, one in results]))


@pytest.fixture
def cache(tmp_path: Path) -> CutCache:
    return CutCache(tmp_path, "1+0.25.2", 2048)


def test_an_empty_cache_finds_nothing(cache: CutCache) -> None:
    assert cache.lookup(wanted(("a.md", "x", "markdown", 3)), 20).is_empty()


def test_an_entry_serves_its_blob_language_and_heads(cache: CutCache) -> None:
    put(cache, ("x", "markdown", cuts("one", low=3, high=9)), ("y", "", cuts("two")))
    rows = wanted(
        ("least.md", "x", "markdown", 3),
        ("most.md", "x", "markdown", 9),
        ("short.md", "x", "markdown", 2),
        ("long.md", "x", "markdown", 10),
        ("x.txt", "x", "text", 5),
        ("LICENSE", "y", "", 4),
    )
    found = cache.lookup(rows, 20)
    assert found["path"].to_list() == ["least.md", "most.md", "LICENSE"]
    assert found["outcome"].to_list() == ["chunked"] * 3
    (shard,) = found["shard"].unique()
    read = cache.read(shard, found["entry"].unique())
    assert read.schema == CUTS
    assert read["text"].to_list() == ["one", "two"]
    assert read["tokens"].to_list() == [6, 6]  # without the head


def test_shards_of_several_runs_are_one_cache(cache: CutCache) -> None:
    put(cache, ("x", "", cuts(low=0, high=4)))
    put(cache, ("x", "", cuts(low=5, high=9)), ("x", "", cuts(low=5, high=9)))
    put(cache, ("x", "", cuts(low=5, high=9)))
    found = cache.lookup(wanted(("a", "x", "", 2), ("b", "x", "", 7)), 20)
    assert found["path"].sort().to_list() == ["a", "b"]
    assert found.filter(pl.col("path") == "b").height == 1


def test_what_was_given_up_for_time_is_tried_again_with_more_of_it(cache: CutCache) -> None:
    put(cache, ("slow", "", cuts(seconds=20)), ("crash", "", cuts(seconds=float("inf"))), ("fine", "", cuts()))
    rows = wanted(("slow", "slow", "", 1), ("crash", "crash", "", 1), ("fine", "fine", "", 1))
    assert set(cache.lookup(rows, 20)["path"]) == {"slow", "crash", "fine"}
    assert set(cache.lookup(rows, 21)["path"]) == {"crash", "fine"}


def test_failures_are_not_kept(cache: CutCache) -> None:
    failed = Cuts("failed", None, None, "", 0, 0, 99, tuple([] for _ in range(9)))
    put(cache, ("x", "", failed), ("y", "", cuts()))
    assert cache.lookup(wanted(("a", "x", "", 1), ("b", "y", "", 1)), 20)["path"].to_list() == ["b"]


def test_versions_and_limits_do_not_meet(tmp_path: Path) -> None:
    put(CutCache(tmp_path, "1", 2048), ("x", "", cuts()))
    for other in (CutCache(tmp_path, "2", 2048), CutCache(tmp_path, "1", 512), CutCache(tmp_path, "../1", 2048)):
        assert other.folder.parent == tmp_path / "chunks"
        assert other.lookup(wanted(("a", "x", "", 1)), 20).is_empty()


def test_half_a_shard_and_a_broken_one_are_no_entries(cache: CutCache, caplog: pytest.LogCaptureFixture) -> None:
    put(cache, ("x", "", cuts()))
    put(cache, ("y", "", cuts()))
    first, second = sorted(cache.folder.glob("*.entries.parquet"))
    first.write_bytes(b"PAR1")
    second.with_name(second.name.replace("entries", "cuts")).unlink()
    assert cache.lookup(wanted(("a", "x", "", 1), ("b", "y", "", 1)), 20).is_empty()
    assert str(first) in caplog.text


def test_a_broken_file_of_cuts_is_named(cache: CutCache) -> None:
    put(cache, ("x", "", cuts()))
    (broken,) = cache.folder.glob("*.cuts.parquet")
    broken.write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match=f"{broken.name}.*delete it"):
        cache.read(str(broken), pl.Series([0]))


def test_frames_have_their_schemas_when_empty() -> None:
    assert frame_of_entries([]).schema == ENTRIES
    assert frame_of_cuts([]).schema == CUTS
