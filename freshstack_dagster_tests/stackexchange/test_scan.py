from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange.posts import ANSWER_SCHEMA, QUESTION_SCHEMA
from freshstack_dagster.stackexchange.questions import parse_moment
from freshstack_dagster.stackexchange.row import split_tags
from freshstack_dagster.stackexchange.scan import scan_stream
from freshstack_dagster_tests.stackexchange.dumps import HEAD, row

ALLOWED = st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff")
TEXTS = st.text(st.one_of(ALLOWED, st.sampled_from("\n\t<>&\"'|/ -!")), max_size=40)
MOMENTS = st.sampled_from(
    [
        "2008-07-31T21:42:52.667",
        "2024-02-29T23:59:59.999",
        "2024-12-31T00:00:00.000",
        "2023-01-01T00:00:00",
        "2023-05-05",
    ]
)
TAGS = st.lists(st.sampled_from(["c#", "c++", ".net-8.0", "java-21", "a"]), max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> str:
    post_id = draw(st.integers(1, 10**9))
    kind = draw(st.sampled_from([1, 1, 2, 2, 4, 5, 16]))
    attributes: dict[str, object] = {"CreationDate": draw(MOMENTS)}
    if kind == 1:
        if draw(st.booleans()):
            attributes["AcceptedAnswerId"] = draw(st.integers(1, 10**9))
        tags = draw(TAGS)
        form = draw(st.sampled_from(["|{}|", "<{}>", None]))
        if form is None:
            attributes["Tags"] = None
        else:
            attributes["Tags"] = form.format(("|" if form[0] == "|" else "><").join(tags)) if tags else ""
        attributes["Title"] = draw(TEXTS)
        if draw(st.booleans()):
            attributes["ClosedDate"] = draw(MOMENTS)
    elif kind == 2:
        attributes["ParentId"] = draw(st.integers(1, 10**9))
    written = row(post_id, kind, text=draw(TEXTS), **attributes)
    style = draw(st.sampled_from(["plain"] * 5 + ["lines", "turned", "open"]))
    if style == "lines":
        written = written.replace('" ', '"\n  ')
    elif style == "turned":
        written = re.sub(r'(<row) (Id="\d+") (PostTypeId="\d+")', r"\1 \3\n\2", written)
    elif style == "open":
        written = written.removesuffix("/>") + "></row>"
    return written


GAPS = st.sampled_from(["\n", "\r\n", "", " ", "\n\n  ", "\n<!-- a <row Id='3'/> > -- comment -->\n", "<?note <?>"])
# "--" may not stand inside a comment.
GAPS = GAPS.map(lambda gap: gap.replace("> -- c", "> c"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(GAPS, rows()), max_size=12), st.integers(64, 900), st.data())
def test_a_scan_of_any_well_formed_dump_finds_what_a_parser_finds(parts, block_bytes, data):
    gap_at_end = data.draw(GAPS)
    text = HEAD + "".join(gap + written for gap, written in parts) + gap_at_end + "</posts>"
    octets = text.replace("<?note <?>", "<?note ?>").encode()
    elements = etree.fromstring(octets.removeprefix(b"\xef\xbb\xbf")).iter("row")
    posts = [dict(element.attrib) for element in elements]
    questions, answers, total = [], [], 0
    bounds = sorted({0, *(data.draw(st.lists(st.integers(0, len(octets) - 1), max_size=2)))})
    read_to = 0
    for start, stop in zip(bounds, [*bounds[1:], None], strict=True):
        stream = io.BytesIO(octets)
        stream.seek(start)
        end = start
        for scanned, buffer, base in scan_stream(
            stream.readinto, "Posts.xml", start=start, stop=stop, block_bytes=block_bytes
        ):
            end = base + scanned.consumed
            asked, replied = scanned.questions.frame(), scanned.answers.frame()
            assert asked.schema == QUESTION_SCHEMA
            assert replied.schema == ANSWER_SCHEMA
            for frame, found in ((asked, questions), (replied, answers)):
                for values in frame.iter_rows(named=True):
                    if values["offset"] < read_to:
                        continue  # hidden in a comment that began before this part
                    at = values["offset"] - base
                    written = bytes(buffer[at : at + values["length"]])
                    assert written == octets[values["offset"] : values["offset"] + values["length"]]
                    assert written.startswith(b"<row") and written.endswith(b">")
                    found.append(values)
            total += scanned.rows
        read_to = max(read_to, end)
    assert total >= len(posts)
    expected = [post for post in posts if post["PostTypeId"] == "1"]
    assert [values["post_id"] for values in questions] == [int(post["Id"]) for post in expected]
    for values, post in zip(questions, expected, strict=True):
        accepted = post.get("AcceptedAnswerId")
        assert values["accepted_id"] == (None if accepted is None else int(accepted))
        assert split_tags(values["tags"]) == split_tags(post.get("Tags"))
        assert values["closed"] == ("ClosedDate" in post)
        assert values["asked_at"] == parse_moment(post["CreationDate"]).replace(tzinfo=None)
    expected = [post for post in posts if post["PostTypeId"] == "2"]
    assert [(values["post_id"], values["parent_id"]) for values in answers] == [
        (int(post["Id"]), int(post["ParentId"])) for post in expected
    ]
    # As the index reads it: all but the answers' questions.
    bare = scan_stream(io.BytesIO(octets).readinto, "Posts.xml", block_bytes=block_bytes, parents=False)
    places = [place for scanned, _, _ in bare for place in scanned.answers.frame().drop("parent_id").rows()]
    assert places == [(values["post_id"], values["offset"], values["length"]) for values in answers]


def test_a_row_longer_than_the_block_makes_the_buffer_grow():
    octets = (HEAD + row(1, text="x" * 5000) + row(2, 2, ParentId=1) + "</posts>").encode()
    found = [
        scanned.questions.length.tolist()
        for scanned, _, _ in scan_stream(io.BytesIO(octets).readinto, "Posts.xml", block_bytes=100)
    ]
    assert [length for lengths in found for length in lengths] == [len(row(1, text="x" * 5000).strip())]


def test_a_row_that_is_not_xml_names_file_and_offset():
    octets = b'<posts>\n<row Id="1" PostTypeId="1"\n<row Id="2" PostTypeId="2" ParentId="1" />\n</posts>'
    with pytest.raises(SourceError, match=r"^Posts\.xml: the row at byte 8 is not XML \([^\n]*\); the dump is damaged"):
        list(scan_stream(io.BytesIO(octets).readinto, "Posts.xml"))


def test_dates_of_the_fast_way_equal_those_of_a_parser():
    moments = [
        f"{year}-{month:02d}-28T23:59:59.{year % 1000:03d}" for year in range(1971, 2038, 7) for month in (1, 2, 12)
    ]
    octets = (
        HEAD + "\n".join(row(i + 1, CreationDate=moment) for i, moment in enumerate(moments)) + "\n</posts>"
    ).encode()
    asked = [
        moment
        for scanned, _, _ in scan_stream(io.BytesIO(octets).readinto, "Posts.xml")
        for moment in scanned.questions.asked_at
    ]
    assert asked == [np.datetime64(moment, "ms") for moment in moments]


def test_impossible_dates_do_not_stop_the_reading():
    octets = (HEAD + row(1, CreationDate="2023-02-31T00:00:00.000") + row(2, CreationDate="soon") + "</posts>").encode()
    scanned = [scanned for scanned, _, _ in scan_stream(io.BytesIO(octets).readinto, "Posts.xml")]
    assert [ident for block in scanned for ident in block.questions.post_id.tolist()] == [1, 2]


def test_real_dumps_are_read_by_the_fast_way(shared: Path, monkeypatch):
    from freshstack_dagster.stackexchange import scan

    parsed: list[bytes] = []
    real = scan.parse_row
    monkeypatch.setattr(scan, "parse_row", lambda row, *place: parsed.append(row) or real(row, *place))
    for path in (shared / "data" / "stack_exchange").glob("*/Posts.xml"):
        with open(path, "rb", buffering=0) as file:
            list(scan_stream(file.readinto, str(path)))
    others = [row for row in parsed if re.search(rb'PostTypeId="[12]"', row)]
    assert not others
