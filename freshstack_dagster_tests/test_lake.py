from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import polars as pl
import pytest

from freshstack_dagster.errors import LakeError, SchemaError
from freshstack_dagster.lake import Lake, connect, fingerprint
from freshstack_dagster.tables import TABLES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test with a lake runs on a directory and in a bucket."""
    if "lake" in metafunc.fixturenames:
        metafunc.parametrize("lake", ["directory", "bucket"], indirect=True)


def _ledger(*posts: str) -> pl.DataFrame:
    return pl.DataFrame({"post_id": posts, "reason": ["closed"] * len(posts), "detail": [None] * len(posts)})


def _parts(lake: Lake) -> list[str]:
    return [name for name in lake.storage.find(lake.folder("question_ledger", "t")) if name.endswith(".parquet")]


def test_rows_come_back_in_the_tables_order(lake: Lake):
    lake.write("question_ledger", _ledger("2", "1"), topic="t")
    assert lake.read("question_ledger", "t")["post_id"].to_list() == ["1", "2"]


def test_equal_content_rewrites_nothing(lake: Lake):
    first = lake.write("question_ledger", _ledger("1", "2"), topic="t", inputs="a")
    second = lake.write("question_ledger", _ledger("2", "1"), topic="t", inputs="b")
    assert second.files == first.files
    assert second.inputs == "b"
    assert lake.storage.exists(f"{lake.folder('question_ledger', 't')}/{first.files[0]}")


def test_superseded_files_stay_for_the_grace_period_and_go_after(lake: Lake):
    patient, hasty = Lake(f"{lake.root}/a"), Lake(f"{lake.root}/b", grace_seconds=-1.0)
    for lake, left in ((patient, 3), (hasty, 1)):
        for post in ("1", "2", "3"):
            lake.write("question_ledger", _ledger(post), topic="t")
        lake.write("question_ledger", _ledger("3"), topic="t")
        assert len(_parts(lake)) == left
        assert lake.read("question_ledger", "t")["post_id"].to_list() == ["3"]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (pl.DataFrame({"post_id": ["1"]}), "missing columns"),
        (_ledger("1").with_columns(extra=pl.lit(1)), "unknown columns"),
        (_ledger("1", "1"), "repeated key"),
        (_ledger("1").with_columns(reason=pl.lit(None, pl.String)), "nulls"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_the_table_stands(lake: Lake, frame: pl.DataFrame, words: str):
    lake.write("question_ledger", _ledger("9"), topic="t")
    with pytest.raises(SchemaError, match=words):
        lake.write("question_ledger", frame, topic="t")
    assert lake.read("question_ledger", "t")["post_id"].to_list() == ["9"]


def test_a_type_that_does_not_fit_names_the_table(lake: Lake):
    frame = pl.DataFrame([{**dict.fromkeys(TABLES["runs"].columns, "x"), "rank": "first", "score": 1.0}])
    with pytest.raises(SchemaError, match="table runs"):
        lake.write("runs", frame, topic="t", snapshot="2024-10")


def test_partitions_and_their_errors(lake: Lake):
    lake.write("pools", TABLES["pools"].empty(), topic="t", snapshot="2025-10")
    lake.write("pools", TABLES["pools"].empty(), topic="t", snapshot="2024-10")
    assert lake.snapshots("pools", "t") == ["2024-10", "2025-10"]
    with pytest.raises(LakeError, match="no partition u 2024-10"):
        lake.read("pools", "u", "2024-10")
    with pytest.raises(LakeError, match="no table pool;"):
        lake.read("pool", "t")
    with pytest.raises(LakeError, match="partitioned by topic and snapshot"):
        lake.read("pools", "t")


def test_every_table_has_a_view_also_before_it_has_rows(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.refresh_catalogue()
    assert lake.catalogue is not None
    with connect(lake.catalogue) as connection:
        for name, table in TABLES.items():
            columns = [row[0] for row in connection.execute(f"describe {name}").fetchall()]
            assert columns == [*table.by, *table.columns]
            assert connection.execute(f"select count(*) from {name}").fetchall() == [(int(name == "question_ledger"),)]


def test_an_unbuilt_catalogue_says_so(tmp_path: Path):
    with pytest.raises(LakeError, match="no catalogue yet"):
        connect(tmp_path / "none.duckdb")


def test_readers_never_see_an_error_while_runs_write(lake: Lake):
    """A process reads through the catalogue while two threads rewrite two partitions."""
    assert lake.catalogue is not None
    rewrites, reads = (25, 150) if "://" not in lake.root else (5, 15)
    for topic in ("a", "b"):
        lake.write("question_ledger", _ledger("0", "1"), topic=topic)
    lake.refresh_catalogue()

    def rewrite(topic: str) -> None:
        for i in range(rewrites):
            lake.write("question_ledger", _ledger(str(i), str(i + 1)), topic=topic)
            lake.refresh_catalogue()

    reader = (
        "import sys; from pathlib import Path; from freshstack_dagster.lake import connect\n"
        "for i in range(int(sys.argv[2])):\n"
        "    with connect(Path(sys.argv[1])) as c:\n"
        "        assert c.execute('select count(*) from question_ledger').fetchall() == [(4,)]\n"
        "print('read')"
    )
    process = subprocess.Popen([sys.executable, "-c", reader, str(lake.catalogue), str(reads)], stdout=subprocess.PIPE)
    writers = [threading.Thread(target=rewrite, args=(topic,)) for topic in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    output, _ = process.communicate(timeout=120)
    assert output == b"read\n"


def _call(call: str) -> pl.DataFrame:
    calls = TABLES["model_calls"]
    row = dict.fromkeys(calls.columns) | {
        "role": "judge",
        "model": "openai:m",
        "seconds": 1.0,
        "cached": False,
        "batch": False,
        "called_at": None,
    }
    frame = pl.DataFrame([{**row, "call_id": call}], schema=calls.schema)
    return frame.with_columns(called_at=pl.lit("2026-01-01T00:00:00Z").str.to_datetime(time_zone="UTC"))


def test_appending_keeps_every_part(lake: Lake):
    for call in ("1", "2"):
        lake.append("model_calls", _call(call), topic="t")
    assert sorted(lake.read("model_calls", "t")["call_id"]) == ["1", "2"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_lake_is_one_clear_line(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(LakeError, match="cannot be written"):
        Lake(tmp_path / "lake").write("question_ledger", _ledger("1"), topic="t")


def test_a_lake_that_is_a_file_is_one_clear_line(tmp_path: Path):
    (tmp_path / "lake").write_text("")
    with pytest.raises(LakeError, match="cannot be written"):
        Lake(tmp_path / "lake").write("question_ledger", _ledger("1"), topic="t")


def test_a_broken_pointer_says_what_to_do(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.storage.create(f"{lake.folder('question_ledger', 't')}/_current.json", lambda file: file.write(b"{"))
    with pytest.raises(LakeError, match="build the partition again"):
        lake.read("question_ledger", "t")


def test_the_catalogue_holds_views_only(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.refresh_catalogue()
    with duckdb.connect(str(lake.catalogue), read_only=True) as connection:
        kinds = connection.execute("select distinct table_type from information_schema.tables").fetchall()
    assert kinds == [("VIEW",)]


def test_a_catalogue_that_a_killed_writer_left_behind_is_made_up_for(lake: Lake):
    assert lake.catalogue is not None
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.ensure_catalogue()
    before = lake.catalogue.stat().st_ino
    lake.ensure_catalogue()
    assert lake.catalogue.stat().st_ino == before
    lake.write("question_ledger", _ledger("1", "2"), topic="t")
    lake.ensure_catalogue()
    with connect(lake.catalogue) as connection:
        assert connection.execute("select count(*) from question_ledger").fetchone() == (2,)


def test_a_commit_of_another_machine_during_a_rebuild_is_made_up_for(lake: Lake, tmp_path: Path):
    """The other's commit is older than this catalogue, which read the pointers before it."""
    assert lake.catalogue is not None
    other = Lake(lake.root, tmp_path / "other.duckdb")
    pointer = other.write("question_ledger", _ledger("1"), topic="t")
    lake.refresh_catalogue()
    pointer = other.write("question_ledger", _ledger("1", "2"), topic="t")
    later = pointer.written_at + 60
    os.utime(lake.catalogue, (later, later))
    lake.ensure_catalogue([pointer])
    with connect(lake.catalogue) as connection:
        assert connection.execute("select count(*) from question_ledger").fetchone() == (2,)


def test_what_does_not_fit_is_refused_and_never_rounded():
    rows = TABLES["co_occurring_tags"]
    good = pl.DataFrame({"tag": ["a"], "questions": [2.0], "share": [0.5]})
    assert rows.conform(good)["questions"].to_list() == [2]
    with pytest.raises(SchemaError, match="column questions holds numbers that are not whole"):
        rows.conform(good.with_columns(questions=pl.lit(2.7)))
    with pytest.raises(SchemaError, match="column share holds NaN; what is not known is null"):
        rows.conform(good.with_columns(share=pl.lit(float("nan"))))


def test_a_broken_pointer_is_mended_by_building_again(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t")
    name = f"{lake.folder('question_ledger', 't')}/_current.json"
    found = lake.storage.read(name)
    assert found is not None
    lake.storage.replace(name, b"{", found[1])
    with pytest.raises(LakeError, match="build the partition again"):
        lake.read("question_ledger", "t")
    lake.write("question_ledger", _ledger("1", "2"), topic="t")
    assert lake.read("question_ledger", "t").height == 2


def test_a_doubted_partition_keeps_its_rows_but_not_its_inputs(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t", inputs="f")
    lake.doubt("question_ledger", "t")
    pointer = lake.current("question_ledger", "t")
    assert pointer is not None and pointer.inputs == ""
    assert lake.read("question_ledger", "t").height == 1


def test_a_folder_that_is_no_partition_is_left_alone(lake: Lake):
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.storage.create("question_ledger/notes/_current.json", lambda file: file.write(b"{}"))
    assert [str(partition) for partition in lake.partitions("question_ledger")] == ["t"]


def test_a_forgotten_topic_leaves_the_others(lake: Lake):
    assert lake.catalogue is not None
    for topic in ("t", "u"):
        lake.write("question_ledger", _ledger("1"), topic=topic)
        lake.write("model_calls", TABLES["model_calls"].empty(), topic=topic)
    lake.refresh_catalogue()
    assert lake.forget("t") == 2
    assert lake.topics() == {"u"}
    assert lake.forget("t") == 0
    left = lake.storage.find("question_ledger/topic=t")
    assert not [name for name in left if name.endswith(".parquet")]
    with connect(lake.catalogue) as connection:
        assert connection.execute("select topic from question_ledger").fetchall() == [("u",)]
    lake.write("question_ledger", _ledger("1", "2"), topic="t")
    assert lake.read("question_ledger", "t").height == 2


def test_a_catalogue_that_cannot_be_read_is_made_anew(lake: Lake):
    assert lake.catalogue is not None
    lake.write("question_ledger", _ledger("1"), topic="t")
    lake.catalogue.write_bytes(b"half of a file")
    lake.ensure_catalogue()
    with connect(lake.catalogue) as connection:
        assert connection.execute("select count(*) from question_ledger").fetchone() == (1,)


def test_fingerprints_do_not_depend_on_the_order_of_keys():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(1, 2) != fingerprint(2, 1)


def test_what_a_killed_writer_left_goes_after_the_grace_period(lake: Lake):
    folder = lake.folder("question_ledger", "t")
    two_hours_ago, now = (time.time_ns() - 7200 * 10**9, time.time_ns())
    for written in (two_hours_ago, now):
        lake.storage.create(f"{folder}/{written:x}-0a0b0c0d.parquet", lambda file: file.write(b"half"))
        lake.storage.create(f"{folder}/.{written:x}-0a0b0c0d._current.json", lambda file: file.write(b"{"))
    lake.write("question_ledger", _ledger("1"), topic="t")
    left = {name.rsplit("/", 1)[1] for name in lake.storage.find(folder)}
    assert not {name for name in left if f"{two_hours_ago:x}" in name}
    assert len({name for name in left if f"{now:x}" in name}) == 2


def test_a_question_in_sql_sees_one_topic_at_once(lake: Lake):
    for topic in ("t", "u"):
        lake.write("question_ledger", _ledger("1", "2"), topic=topic)
    sql = "select count(*) as n from question_ledger where topic = $topic"
    assert lake.ask(sql, topic="t")["n"].to_list() == [2]
    assert lake.ask("select count(*) as n from question_ledger", topic="t")["n"].to_list() == [2]
    lake.write("question_ledger", _ledger("1"), topic="t")
    assert lake.ask(sql, topic="t")["n"].to_list() == [1]
    assert lake.ask("select * from pools where snapshot = $snapshot", topic="t", snapshot="2024-10").is_empty()


def test_writers_at_once_lose_nothing(lake: Lake):
    """Threads append to one partition; in a bucket only the conditional put keeps their parts apart."""

    def add(first: int) -> None:
        for call in range(first, first + 6):
            lake.append("model_calls", _call(str(call)), topic="t")

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(lake.read("model_calls", "t")["call_id"])) == 18


def test_the_lake_is_probed(lake: Lake):
    lake.probe()
    assert lake.storage.find("") == [] or {".lock"} == set(lake.storage.find(""))


def test_a_url_of_another_kind_is_refused():
    with pytest.raises(LakeError, match="a lake is a directory or one of s3://"):
        Lake("ftp://host/lake")


def test_a_bucket_that_is_not_there_is_one_clear_line(object_store: str):
    lake = Lake(f"{object_store.rsplit('/', 1)[0]}-elsewhere/lake")
    for do in (lambda: lake.write("question_ledger", _ledger("1"), topic="t"), lambda: lake.partitions("chunks")):
        with pytest.raises(LakeError) as caught:
            do()
        assert "\n" not in str(caught.value)
        assert "testing" not in str(caught.value)
