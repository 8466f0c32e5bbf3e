from __future__ import annotations

import io
import json
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import QuestionFilter, html_to_text, load_dump, read_dump
from freshstack_dagster.stackexchange import dump as dump_module
from freshstack_dagster.stackexchange import index as index_module
from freshstack_dagster.stackexchange import scan as scan_module
from freshstack_dagster.stackexchange.index import build_index, find_index
from freshstack_dagster.stackexchange.row import split_tags
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.stackexchange.dumps import HEAD, pack, plain_reading, row, write_dump

EVERY = QuestionFilter(frozenset())
REAL = {
    "datascience_meta_2024_pipe_tags": (83, 83),
    "datascience_meta_2017_angle_tags": (39, 39),
    "missing_accepted_answers": (13, 7),
}


def ledger(questions) -> dict[str, str]:
    return dict(questions.ledger.select("post_id", "reason").iter_rows())


@pytest.fixture(params=["read", "index", "7z", "7z with index"])
def way(request, tmp_path):
    """Every way to read a dump; each must give the same."""

    def read(path: Path, wanted: QuestionFilter = EVERY, **options):
        if request.param == "read":
            return load_dump(path, wanted, index_dir=False, **options)
        if request.param == "index":
            return load_dump(path, wanted, index_dir=tmp_path / "index", **options)
        packed = pack(tmp_path / "dump.7z", {"Posts.xml": path})
        if request.param == "7z":
            return load_dump(packed, wanted, index_dir=False, **options)
        first = load_dump(packed, wanted, index_dir=tmp_path / "index", **options)
        second = load_dump(packed, wanted, index_dir=tmp_path / "index", **options)
        assert_frame_equal(first.questions, second.questions)
        assert_frame_equal(first.ledger, second.ledger)
        assert first.counts == second.counts
        return second

    return read


@pytest.mark.parametrize("name", REAL)
def test_real_dumps_give_the_rows_of_a_plain_reading(shared, way, name):
    path = shared / "data" / "stack_exchange" / name / "Posts.xml"
    expected = plain_reading(path)
    given = way(path)
    assert (len(expected), given.questions.height) == REAL[name]
    for question in given.questions.iter_rows(named=True):
        post, answer = expected[question["question_id"]]
        assert answer is not None
        assert question["title"] == post["Title"]
        assert question["body_text"] == html_to_text(post["Body"])
        assert question["answer_id"] == answer["Id"]
        assert question["answer_text"] == html_to_text(answer["Body"])
        assert question["tags"] == split_tags(post["Tags"])
        assert question["score"] == int(post["Score"])
        assert question["asked_at"] == datetime.fromisoformat(post["CreationDate"]).replace(tzinfo=UTC)
        edited = answer.get("LastEditDate", answer["CreationDate"])
        assert question["answer_edited_at"] == datetime.fromisoformat(edited).replace(tzinfo=UTC)
        assert question["license"].startswith("CC BY-SA")
        assert question["body_text"]
        assert question["answer_text"]
    missing = {post_id for post_id, (_, answer) in expected.items() if answer is None}
    assert {post_id for post_id, reason in ledger(given).items() if reason == "answer missing"} == missing


def test_case_2_both_forms_of_tags_and_none(tmp_path, way):
    rows = [
        row(1, AcceptedAnswerId=9, Tags="|langchain|python|"),
        row(2, AcceptedAnswerId=9, Tags="<langchain><python>"),
        row(3, AcceptedAnswerId=9, Tags=""),
        row(4, AcceptedAnswerId=9, Tags=None),
        row(9, 2, ParentId=1),
    ]
    tags = dict(way(write_dump(tmp_path / "Posts.xml", rows)).questions.select("question_id", "tags").iter_rows())
    assert tags == {"1": ["langchain", "python"], "2": ["langchain", "python"], "3": [], "4": []}
    chosen = way(tmp_path / "Posts.xml", QuestionFilter(frozenset({"python"}))).questions
    assert chosen["question_id"].to_list() == ["1", "2"]


def test_case_3_comment_first_answer_before_question_and_a_character_that_xml_forbids(tmp_path, way):
    bad = row(7, AcceptedAnswerId=3, text="<p>form&feed</p>").replace("form&amp;feed", "form&#x0E;feed")
    rows = ["  <!-- licensed, see <row> -->", row(3, 2, ParentId=7, text="<p>early</p>"), "<!-- <row Id='1'/> -->", bad]
    given = way(write_dump(tmp_path / "Posts.xml", rows), QuestionFilter(frozenset({"langchain"})))
    assert given.questions.select("question_id", "body_text", "answer_text").rows() == [
        ("7", "form\ufffdfeed", "early")
    ]


def test_case_4_exact_tags_only(tmp_path, way):
    rows = [
        row(1, AcceptedAnswerId=9, Tags="|java-211|llamacpp|"),
        row(2, AcceptedAnswerId=9, Tags="|java-21|"),
        row(3, AcceptedAnswerId=9, Tags="<llama-index><llama>"),
        row(9, 2, ParentId=1),
    ]
    given = way(write_dump(tmp_path / "Posts.xml", rows), QuestionFilter(frozenset({"java-21", "llama"})))
    assert given.questions["question_id"].to_list() == ["2", "3"]
    assert given.ledger.height == 0
    assert given.counts["other tag"] == 1


def test_case_5_a_member_far_larger_than_memory_is_streamed(tmp_path):
    import py7zr

    class Endless(io.BufferedIOBase):
        """200 MB of rows that pack to almost nothing."""

        def __init__(self) -> None:
            self.head = (HEAD + row(1, AcceptedAnswerId=2) + row(2, 2, ParentId=1)).encode()
            self.body = (row(5, 4, text="x" * 4000) + "\n").encode() * 64
            self.size = len(self.head) + 200_000_000 // len(self.body) * len(self.body) + len(b"</posts>")
            self.at = 0
            self.rest = b""

        def tell(self) -> int:
            return self.at

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = offset + (self.size if whence else 0)
            return self.at

        def read(self, size: int = -1) -> bytes:
            if self.at == 0 and not self.rest:
                self.rest = self.head
            while len(self.rest) < size and self.at + len(self.rest) < self.size:
                left = self.size - self.at - len(self.rest)
                self.rest += self.body if left > len(self.body) else b"</posts>"
            given, self.rest = self.rest[:size], self.rest[size:]
            self.at += len(given)
            return given

    fast = [{"id": py7zr.FILTER_LZMA2, "preset": 0}]
    with py7zr.SevenZipFile(tmp_path / "dump.7z", "w", filters=fast) as archive:
        archive.writef(Endless(), "stackoverflow.com/Posts.xml")
    assert (tmp_path / "dump.7z").stat().st_size < 1_000_000
    tracemalloc.start()
    given = read_dump(tmp_path / "dump.7z", index=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert given["question_id"].to_list() == ["1"]
    assert peak < 150_000_000


def test_ledger_gives_the_first_reason(tmp_path, way):
    rows = [
        row(1, AcceptedAnswerId=50, CreationDate="2022-12-31T23:59:59.999"),
        row(2, CreationDate="2024-11-01T00:00:00.000"),
        row(3),
        row(4, AcceptedAnswerId=99),
        row(5, AcceptedAnswerId=51, ClosedDate="2023-06-01T00:00:00.000"),
        row(6, AcceptedAnswerId=52, Score=-1),
        row(7, AcceptedAnswerId=53, text="x" * 200),
        row(8, AcceptedAnswerId=54, CreationDate="2023-01-01T00:00:00.000"),
        row(9, AcceptedAnswerId=8),
        *(row(answer, 2, ParentId=1) for answer in range(50, 55)),
        row(60, 5),
    ]
    wanted = QuestionFilter(
        frozenset({"langchain"}),
        asked_from=datetime(2023, 1, 1),
        asked_before=datetime(2024, 11, 1, tzinfo=UTC),
        min_score=0,
        exclude_closed=True,
        max_characters=100,
    )
    given = way(write_dump(tmp_path / "Posts.xml", rows), wanted)
    assert given.questions["question_id"].to_list() == ["8"]
    assert ledger(given) == {
        "1": "before the floor",
        "2": "after the cut-off",
        "3": "no accepted answer",
        "4": "answer missing",
        "5": "closed",
        "6": "score",
        "7": "too long",
        "9": "answer missing",  # what it names is a question
    }
    assert given.counts == {"rows": 15, "questions": 9, "other tag": 0}


def test_duplicates_come_from_post_links(tmp_path):
    rows = [row(1, AcceptedAnswerId=3), row(2, AcceptedAnswerId=3), row(3, 2, ParentId=1)]
    posts = write_dump(tmp_path / "Posts.xml", rows)
    wanted = QuestionFilter(frozenset(), exclude_duplicates=True)
    with pytest.raises(SourceError, match=r"Posts\.xml: exclude_duplicates needs PostLinks\.xml"):
        load_dump(posts, wanted)
    links = tmp_path / "PostLinks.xml"
    links.write_text(
        '<?xml version="1.0"?>\n<postlinks>\n'
        '  <row Id="1" CreationDate="2023-01-01T00:00:00.000" PostId="1" RelatedPostId="2" LinkTypeId="1" />\n'
        '  <row Id="2" CreationDate="2023-01-01T00:00:00.000" PostId="2" RelatedPostId="1" LinkTypeId="3" />\n'
        "</postlinks>"
    )
    assert ledger(load_dump(posts, wanted)) == {"2": "duplicate"}
    packed = pack(tmp_path / "packed.7z", {"PostLinks.xml": links, "Posts.xml": posts})
    links.rename(tmp_path / "elsewhere.xml")
    assert ledger(load_dump(packed, wanted)) == {"2": "duplicate"}


def test_rows_in_unusual_forms_are_not_lost(tmp_path, way):
    broken_over_lines = (
        row(1, AcceptedAnswerId=2, text="<pre>a\nb</pre>").replace("&#xA;", "\n").replace(" Title", "\n\tTitle")
    )
    other_order = "<row PostTypeId='2' Id='2' ParentId='1' Body='&lt;p&gt;say \"hi\" Tags=\"no\"&lt;/p&gt;'></row>"
    on_one_line = row(3, AcceptedAnswerId=4).strip() + row(4, 2, ParentId=3).strip()
    greater_than = row(5, AcceptedAnswerId=2).replace("Title 5", "a > b -/> c")
    no_fraction = row(6, AcceptedAnswerId=2, CreationDate="2023-05-14T00:15:22Z")
    rows = [broken_over_lines, other_order, on_one_line, greater_than, no_fraction, "<rowdy/>"]
    given = way(write_dump(tmp_path / "Posts.xml", rows, end="\r\n</posts>\r\n<!-- end -->\n"))
    assert given.questions["question_id"].to_list() == ["1", "3", "5", "6"]
    assert given.questions["answer_text"][0] == 'say "hi" Tags="no"'
    assert given.questions["title"].to_list() == ["Title 1", "Title 3", "a > b -/> c", "Title 6"]
    assert given.questions["asked_at"][3] == datetime(2023, 5, 14, 0, 15, 22, tzinfo=UTC)


def test_surrogate_references_bytes_that_are_no_text_and_controls(tmp_path, way):
    path = tmp_path / "Posts.xml"
    body = row(1, AcceptedAnswerId=2, text="A B C D").encode()
    body = body.replace(b"A B C D", b"&#55357;&#56832; &#xD83D;&#xDE00; \xff\x01 &#xD83D; &#0;")
    path.write_bytes(HEAD.encode() + body + b"\n" + row(2, 2, ParentId=1).encode() + b"\n</posts>")
    assert way(path).questions["body_text"].to_list() == ["\U0001f600 \U0001f600 \ufffd\ufffd \ufffd \ufffd"]


@pytest.mark.parametrize("cut", [1, 9, 200, 300])
def test_a_cut_off_dump_is_one_clear_error_that_names_file_and_offset(tmp_path, cut):
    whole = write_dump(tmp_path / "Posts.xml", [row(1, AcceptedAnswerId=2), row(2, 2, ParentId=1)])
    size = whole.stat().st_size - cut
    data = whole.read_bytes()[:size]
    whole.write_bytes(data)
    for options in ({"index_dir": False}, {"index_dir": tmp_path / "index"}):
        with pytest.raises(SourceError, match=rf"^\S*Posts\.xml: cut off at byte {size}: [^\n]*$"):
            load_dump(whole, EVERY, **options)
    packed = pack(tmp_path / "dump.7z", {"Posts.xml": whole})
    for options in ({"index_dir": False}, {"index_dir": tmp_path / "index"}):
        with pytest.raises(SourceError, match=rf"^\S*dump\.7z:Posts\.xml: cut off at byte {size}: [^\n]*$"):
            load_dump(packed, EVERY, **options)
    assert not list(tmp_path.glob("index/*"))


def test_a_damaged_archive_is_one_clear_error(tmp_path):
    rows = [row(i, AcceptedAnswerId=2, text=f"{i * 7919 % 10007}" * 20) for i in range(3, 2000)] + [
        row(2, 2, ParentId=1)
    ]
    packed = pack(tmp_path / "dump.7z", {"Posts.xml": write_dump(tmp_path / "Posts.xml", rows)})
    data = packed.read_bytes()
    packed.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=rf"^\S*dump\.7z: not a whole \.7z archive .* byte {len(data) // 2}\b[^\n]*$"):
        load_dump(packed, EVERY)
    packed.write_bytes(data[: len(data) // 3] + bytes(64) + data[len(data) // 3 + 64 :])
    with pytest.raises(SourceError, match=r"^\S*dump\.7z[^\n]*$"):
        load_dump(packed, EVERY)


def test_what_is_no_dump_is_said(tmp_path):
    with pytest.raises(SourceError, match="no such dump"):
        read_dump(tmp_path / "none.xml")
    (tmp_path / "empty.xml").touch()
    with pytest.raises(SourceError, match="cut off at byte 0"):
        read_dump(tmp_path / "empty.xml")
    (tmp_path / "Users.xml").write_text('<users>\n  <row Id="1" />\n</users>')
    with pytest.raises(SourceError, match="does not end with </posts>"):
        read_dump(tmp_path / "Users.xml")
    packed = pack(tmp_path / "a.7z", {"Users.xml": tmp_path / "Users.xml"})
    with pytest.raises(SourceError, match=r"a\.7z: the archive holds no Posts\.xml, only: Users\.xml"):
        read_dump(packed)
    (tmp_path / "utf16.xml").write_text("<posts>\n</posts>", encoding="utf-16")
    with pytest.raises(SourceError, match=r"UTF-16|does not end"):
        read_dump(tmp_path / "utf16.xml")
    (tmp_path / "Posts.xml").write_text('<posts>\n  <row Id="1" PostTypeId="1" Body="a < b" />\n</posts>')
    with pytest.raises(SourceError, match="row at byte 10 is not XML"):
        read_dump(tmp_path / "Posts.xml")


@pytest.mark.parametrize("root", ["<posts />", "<posts></posts>", "<posts>\n</posts>\n"])
def test_a_dump_without_rows(tmp_path, way, root):
    (tmp_path / "Posts.xml").write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{root}')
    given = way(tmp_path / "Posts.xml")
    assert given.questions.height == given.ledger.height == 0
    assert given.questions.schema == TABLES["questions"].schema


def test_answers_that_do_not_fit_aside_are_read_again(tmp_path, monkeypatch, way):
    monkeypatch.setattr(dump_module, "_ASIDE_BYTES", 600)
    rows = [row(i, 2, ParentId=i + 100, text=f"answer {i}") for i in range(1, 21)]
    rows += [row(i + 100, AcceptedAnswerId=i) for i in range(1, 21)]
    given = way(write_dump(tmp_path / "Posts.xml", rows)).questions
    assert dict(given.select("question_id", "answer_text").iter_rows()) == {
        str(i + 100): f"answer {i}" for i in range(1, 21)
    }


def many_rows(count: int) -> list[str]:
    rows = []
    for i in range(1, count, 3):
        rows.append(
            row(i, AcceptedAnswerId=i + 2, Tags=f"|tag-{i % 5}|all|", text=f"<p>question {i}</p>" * (i % 7 + 1))
        )
        rows += [row(i + 1, 2, ParentId=i), row(i + 2, 2, ParentId=i, text=f"answer of {i}")]
    return rows


def test_an_index_in_many_parts_by_several_processes_gives_the_same(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", [*many_rows(900), "<!-- " + row(5000) * 40 + " -->", row(9001)])
    expected = load_dump(path, QuestionFilter(frozenset({"tag-1"})), index_dir=False)
    for workers in (1, 2):
        root = tmp_path / f"index-{workers}"
        build_index(path, root, workers=workers, part_bytes=9973)
        given = load_dump(path, QuestionFilter(frozenset({"tag-1"})), index_dir=root)
        assert_frame_equal(given.questions, expected.questions)
        assert_frame_equal(given.ledger, expected.ledger)
        assert given.counts["questions"] == expected.counts["questions"]
    assert expected.questions.height > 50


def test_workers_say_nothing_of_their_own(tmp_path, capfd):
    build_index(write_dump(tmp_path / "Posts.xml", many_rows(90)), tmp_path / "index", workers=2, part_bytes=4096)
    assert capfd.readouterr() == ("", "")


def test_a_killed_index_goes_on_with_the_missing_parts(tmp_path, monkeypatch):
    path = write_dump(tmp_path / "Posts.xml", many_rows(300))
    whole = build_index(path, tmp_path / "index", workers=1, part_bytes=4096)
    assert whole.parts > 3
    (whole.directory / "dump.json").unlink()
    (whole.directory / "00001.json").unlink()
    assert find_index(path, tmp_path / "index") is None
    written: list[int] = []
    real = index_module._index_part
    monkeypatch.setattr(
        index_module, "_index_part", lambda p, d, part, *bounds: written.append(part) or real(p, d, part, *bounds)
    )
    again = build_index(path, tmp_path / "index", workers=1, part_bytes=4096)
    assert written == [1]
    assert again == whole


def test_a_changed_dump_gets_a_new_index(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", many_rows(60))
    assert load_dump(path, EVERY, index_dir=tmp_path / "index").questions.height == 20
    write_dump(path, many_rows(30))
    assert load_dump(path, EVERY, index_dir=tmp_path / "index").questions.height == 10


def test_the_index_lies_beside_large_dumps_where_that_can_be_written(tmp_path, monkeypatch):
    path = write_dump(tmp_path / "Posts.xml", many_rows(60))
    load_dump(path, EVERY)
    assert not (tmp_path / "Posts.xml.index").exists()
    monkeypatch.setattr(dump_module, "_INDEX_FROM_BYTES", 1000)
    load_dump(path, EVERY)
    assert find_index(path, tmp_path / "Posts.xml.index") is not None


def test_an_index_of_other_rows_is_an_error(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", many_rows(60))
    index = build_index(path, tmp_path / "index", workers=1)
    file = index.directory / "00000.questions.parquet"
    pl.read_parquet(file).with_columns(pl.col("post_id") + 1).write_parquet(file)
    with pytest.raises(SourceError, match=r"delete the index"):
        load_dump(path, EVERY, index_dir=tmp_path / "index")


def test_progress_tells_bytes_rate_and_time_left(tmp_path, monkeypatch):
    path = write_dump(tmp_path / "Posts.xml", many_rows(300))
    monkeypatch.setattr(scan_module, "BLOCK_BYTES", 8192)
    told = []
    read_dump(path, ["all"], index=tmp_path / "index", progress=told.append)
    last = told[-1]
    assert last.done == last.total == path.stat().st_size
    assert last.seconds_left == 0
    assert "0.05 of 0.05 MB" in str(last) and "MB/s" in str(last) and str(last).endswith("0 s left")


def test_tags_of_the_call_replace_those_of_the_filter(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", many_rows(60))
    wanted = QuestionFilter(frozenset({"tag-0"}), min_score=3)
    assert read_dump(path, "tag-1", filter=wanted).height == 4
    assert read_dump(path, {"all"}, filter=QuestionFilter(frozenset(), min_score=4)).height == 0
    assert read_dump(path).height == 20
    assert read_dump(tmp_path).height == 20


def test_urls_licences_and_the_hash_of_the_content(tmp_path):
    rows = [
        row(1, AcceptedAnswerId=2, CreationDate="2011-04-07T00:00:00.000"),
        row(2, 2, ParentId=1, ContentLicense="CC BY-SA 4.0"),
        row(3, AcceptedAnswerId=4, CreationDate="2018-05-02T00:00:00.000", Score=8),
        row(4, 2, ParentId=3),
        row(5, AcceptedAnswerId=2, Title="Title  1"),
    ]
    path = write_dump(tmp_path / "Posts.xml", rows)
    given = load_dump(path, EVERY, site="gamedev.stackexchange.com").questions.rows_by_key(
        "question_id", named=True, unique=True
    )
    assert given["1"]["license"] == "CC BY-SA 2.5 (question), CC BY-SA 4.0 (answer)"
    assert given["3"]["license"] == "CC BY-SA 4.0"
    assert given["3"]["url"] == "https://gamedev.stackexchange.com/questions/3"
    assert given["1"]["content_hash"] == given["5"]["content_hash"] != given["3"]["content_hash"]
    assert len(given["1"]["content_hash"]) == 64


def test_json_of_parts_is_readable(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", many_rows(60))
    index = build_index(path, tmp_path / "index", workers=1)
    assert json.loads((index.directory / "00000.json").read_text())["rows"] == 60


def test_a_comment_over_the_border_of_parts_hides_what_it_holds(tmp_path):
    hidden = "".join(f"<row Id='{i}' PostTypeId='1'/> <row {i}> " for i in range(2000))
    rows = [row(1, AcceptedAnswerId=2), f"<!-- {hidden} -->", row(2, 2, ParentId=1), row(3)]
    path = write_dump(tmp_path / "Posts.xml", rows)
    build_index(path, tmp_path / "index", workers=1, part_bytes=10_000)
    given = load_dump(path, EVERY, index_dir=tmp_path / "index")
    assert given.questions["question_id"].to_list() == ["1"]
    assert ledger(given) == {"3": "no accepted answer"}


def test_a_damaged_row_in_a_later_part_is_an_error(tmp_path):
    rows = [*many_rows(90), '<row Id="x" PostTypeId="1" />', *many_rows(3)]
    path = write_dump(tmp_path / "Posts.xml", rows)
    at = path.read_bytes().index(b'<row Id="x"')
    for workers in (1, 2):
        with pytest.raises(
            SourceError, match=rf"^\S*Posts\.xml: the row at byte {at} has no Id that is a number[^\n]*$"
        ):
            build_index(path, tmp_path / f"index{workers}", workers=workers, part_bytes=4000)


def test_what_a_killed_reading_of_an_archive_left_is_cleared(tmp_path):
    packed = pack(tmp_path / "dump.7z", {"Posts.xml": write_dump(tmp_path / "Posts.xml", many_rows(30))})
    finished = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    name = index_module.fingerprint(packed)
    left = tmp_path / "index" / f".{name}.{int(finished.stdout)}"
    running = tmp_path / "index" / f".{name}.1"
    for folder in (left, running):
        folder.mkdir(parents=True)
    load_dump(packed, EVERY, index_dir=tmp_path / "index")
    assert sorted(each.name for each in (tmp_path / "index").iterdir()) == sorted([running.name, name])


def test_two_builds_at_once_leave_one_right_index(tmp_path):
    path = write_dump(tmp_path / "Posts.xml", many_rows(600))
    expected = load_dump(path, EVERY, index_dir=False).questions
    with ThreadPoolExecutor(3) as pool:
        builds = [pool.submit(build_index, path, tmp_path / "index", workers=1, part_bytes=8192) for _ in range(3)]
        for build in builds:
            build.result()
    assert_frame_equal(load_dump(path, EVERY, index_dir=tmp_path / "index").questions, expected)
    assert not list((tmp_path / "index").rglob(".*"))
