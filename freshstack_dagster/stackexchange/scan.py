"""The byte-level pass over a `Posts.xml`: where each row lies, and the few attributes that decide about it.

A raw `<` cannot stand inside an XML attribute, so each `<` of a dump opens a row, the root, or a comment. Rows are
found by it, not by lines: a row over several lines or two rows on one line are read like any other. The head of a row
(`<row Id="..." PostTypeId="..."`) is read for a whole block at once with NumPy; a row whose head has another form is
parsed as XML instead, so the fast way decides about speed only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import polars as pl

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange.questions import parse_moment

QUESTION = 1
ANSWER = 2

# Measured: 8 MB costs the least CPU a gigabyte; 1 MB twice as much, 16 MB a tenth more.
BLOCK_BYTES = 8 << 20
# Bytes that must follow the last row of a block, so that a gather never reads past the buffer.
PADDING = 128

QUESTION_SCHEMA = {
    "post_id": pl.Int64(),
    "accepted_id": pl.Int64(),
    "asked_at": pl.Datetime("ms"),
    "tags": pl.String(),
    "closed": pl.Boolean(),
    "offset": pl.Int64(),
    "length": pl.Int32(),
}
ANSWER_SCHEMA = {"post_id": pl.Int64(), "parent_id": pl.Int64(), "offset": pl.Int64(), "length": pl.Int32()}

_LONGEST_ROW = 1 << 30
_BEYOND_STOP = 64 << 10
CLOSING_TAG = re.compile(rb"</posts\s*>")

_HEAD = b'<row Id="'
_TYPE = b'" PostTypeId="'
_ACCEPTED = b' AcceptedAnswerId="'
_PARENT = b' ParentId="'
_CREATED = b' CreationDate="'
_DATE_LENGTH = 23
_CHARACTER_REFERENCE = re.compile(rb"&#(?:x([0-9a-fA-F]{1,8})|([0-9]{1,10}));")
_RAW_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass
class Scanned:
    """What one block held: its questions and answers, all its rows, and how far it was read.

    `damaged` lists rows that are not XML, by offset. Where a reading begins in the middle of a dump they may be text of
    a comment that began before.
    """

    questions: pl.DataFrame
    answers: pl.DataFrame
    rows: int
    consumed: int
    closed_root: bool
    damaged: list[tuple[int, str]] = field(default_factory=list)


def scan_block(buffer: bytearray, size: int, base: int, name: str, *, stop: int | None = None) -> Scanned:
    """Find the rows in `buffer[:size]`, whose first byte is byte `base` of the dump.

    The last tag of the block is left for the next one, as its end is not known yet: `consumed` bytes are done with.
    Rows that start at or after byte `stop` of the dump are left out. `buffer` must be `PADDING` bytes longer than
    `size`.
    """
    octets = np.frombuffer(buffer, dtype=np.uint8)
    opened = np.flatnonzero(octets[:size] == 0x3C)
    if not len(opened):
        return _nothing(consumed=size)
    kind = octets[opened + 1]
    if (kind == 0x21).any():  # "<!": a comment, whose text may hold anything
        opened, consumed = _without_comments(buffer, size, opened)
        if not len(opened):
            return _nothing(consumed=consumed)
        starts, ends = opened, np.append(opened[1:], consumed)
        if consumed == size:
            starts, ends, consumed = opened[:-1], opened[1:], int(opened[-1])
    else:
        starts, ends, consumed = opened[:-1], opened[1:], int(opened[-1])
    closed_root = any(CLOSING_TAG.match(buffer, at, size) for at in starts[octets[starts + 1] == 0x2F].tolist())
    is_row = (octets[starts + 1] == 0x72) & (octets[starts + 2] == 0x6F) & (octets[starts + 3] == 0x77)
    if stop is not None:
        beyond = np.flatnonzero(starts + base >= stop)
        if len(beyond):  # done up to there, not further: a next part goes on from this tag
            consumed = int(starts[beyond[0]])
            is_row[beyond[0] :] = False
    starts, ends = starts[is_row], ends[is_row]
    if not len(starts):
        return _nothing(consumed, closed_root)
    return _read_rows(buffer, octets, starts, ends, base, name, consumed, closed_root)


def scan_stream(
    read_into: Callable[[memoryview], int | None],
    name: str,
    *,
    start: int = 0,
    stop: int | None = None,
    block_bytes: int | None = None,
) -> Iterator[tuple[Scanned, bytearray, int]]:
    """Scan a dump block by block with one buffer of `block_bytes` (default BLOCK_BYTES; a longer row makes it grow).

    `read_into` fills a view from byte `start` of the dump on and returns the number of bytes, 0 at the end. Yields
    what each block held, the buffer, and the offset of the buffer's first byte; the buffer is used again for the next
    block. A dump read whole (no `start`, no `stop`) must end with `</posts>`. Raises SourceError for one that does not,
    and for a row that is not XML unless `start` is given (see `Scanned.damaged`).
    """
    buffer = bytearray((block_bytes or BLOCK_BYTES) + PADDING)
    have, base, closed = 0, start, False
    while True:
        with memoryview(buffer) as view:
            room = len(buffer) - PADDING
            if stop is not None:  # little more than the part: the rest belongs to the next
                room = min(room, have + max(stop - base - have, 0) + _BEYOND_STOP)
            got = read_into(view[have:room]) or 0
        if not got:
            break
        if base == 0 and have < 2:
            _refuse_other_encodings(bytes(buffer[: have + got]), name)
        size = have + got
        scanned = scan_block(buffer, size, base, name, stop=stop)
        closed |= scanned.closed_root
        if scanned.damaged and start == 0:
            raise SourceError(scanned.damaged[0][1])
        yield scanned, buffer, base
        if stop is not None and base + scanned.consumed >= stop:
            return
        have = size - scanned.consumed
        base += scanned.consumed
        if scanned.consumed:
            buffer[:have] = buffer[scanned.consumed : size]
        elif size == len(buffer) - PADDING:
            if len(buffer) > _LONGEST_ROW:
                raise SourceError(f"{name}: no row ends in the gigabyte after byte {base}; is this a Posts.xml?")
            buffer = buffer[:size] + bytearray(size + PADDING)
    rest = bytes(buffer[:have]).strip()
    closed |= CLOSING_TAG.match(rest) is not None or (rest.startswith(b"<posts") and rest.endswith(b"/>"))
    if start == 0 and stop is None and not closed:
        raise cut_off(name, base + have)


def cut_off(name: str, size: int) -> SourceError:
    """The error for a dump of `size` bytes that lacks its end."""
    return SourceError(
        f"{name}: cut off at byte {size}: it does not end with </posts> as a Posts.xml does; nothing was taken, "
        "get it again"
    )


def _refuse_other_encodings(head: bytes, name: str) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceError(f"{name}: written in UTF-16 (byte 0); Stack Exchange dumps are UTF-8, convert it first")


def _read_rows(
    buffer: bytearray,
    octets: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    base: int,
    name: str,
    consumed: int,
    closed_root: bool,
) -> Scanned:
    # The end of each row: the last "/>" in the few bytes before the next tag (a line break and indentation).
    lengths = np.zeros(len(starts), dtype=np.int64)
    for blank in range(6, -1, -1):
        closes = (octets[ends - 1 - blank] == 0x3E) & (octets[ends - 2 - blank] == 0x2F)
        lengths = np.where(closes, ends - blank - starts, lengths)
    fast = (lengths > 0) & _has(octets, starts, _HEAD)
    post_id, position = _number(octets, starts + len(_HEAD))
    fast &= (position > starts + len(_HEAD)) & _has(octets, position, _TYPE)
    post_type = octets[position + len(_TYPE)].astype(np.int64) - 0x30
    fast &= octets[position + len(_TYPE) + 1] == 0x22
    position = position + len(_TYPE) + 2

    asks = fast & (post_type == QUESTION)
    asked, at = starts[asks], position[asks]
    has_accepted = _has(octets, at, _ACCEPTED)
    accepted, after = _number(octets, at + len(_ACCEPTED))
    at = np.where(has_accepted, after + 1, at)
    dated = _has(octets, at, _CREATED) & (octets[at + len(_CREATED) + _DATE_LENGTH] == 0x22)
    moments, valid = _moments(octets, at + len(_CREATED))
    question_ok = dated & valid & (~has_accepted | (octets[after] == 0x22))

    tags: list[str | None] = []
    closed: list[bool] = []
    find, rfind = buffer.find, buffer.rfind
    for start, length in zip(asked.tolist(), lengths[asks].tolist(), strict=True):
        end = start + length
        tag_start = rfind(b' Tags="', start, end)
        if tag_start < 0:
            tags.append(None)
            closed.append(False)
            continue
        tag_end = find(b'"', tag_start + 7, end)
        tags.append(buffer[tag_start + 7 : tag_end].decode("utf-8", "replace"))
        closed.append(find(b' ClosedDate="', tag_end, end) > 0)
    question_ok &= np.array([tag is not None for tag in tags], dtype=bool)

    answers = fast & (post_type == ANSWER)
    at = position[answers]
    parent, after = _number(octets, at + len(_PARENT))
    answer_ok = _has(octets, at, _PARENT) & (octets[after] == 0x22) & (after > at + len(_PARENT))

    fast[np.flatnonzero(asks)[~question_ok]] = False
    fast[np.flatnonzero(answers)[~answer_ok]] = False
    question_frame = pl.DataFrame(
        {
            "post_id": post_id[asks],
            "accepted_id": accepted,
            "has_accepted": has_accepted,
            "asked_at": moments,
            "tags": pl.Series(tags, dtype=pl.String),
            "closed": pl.Series(closed, dtype=pl.Boolean),
            "offset": asked + base,
            "length": lengths[asks],
            "ok": question_ok,
        }
    ).filter("ok")
    question_frame = question_frame.select(
        "post_id",
        pl.when("has_accepted").then("accepted_id").alias("accepted_id"),
        pl.col("asked_at").cast(pl.Datetime("ms")),
        bar_tags(pl.col("tags")),
        "closed",
        "offset",
        pl.col("length").cast(pl.Int32),
    )
    answer_frame = pl.DataFrame(
        {"post_id": post_id[answers], "parent_id": parent, "offset": starts[answers] + base, "length": lengths[answers]}
    ).filter(pl.Series(answer_ok))
    answer_frame = answer_frame.with_columns(pl.col("length").cast(pl.Int32))

    damaged: list[tuple[int, str]] = []
    slow = np.flatnonzero(~fast)
    if len(slow):
        more_questions, more_answers, damaged = _parse_rows(buffer, starts[slow], ends[slow], base, name)
        if more_questions:
            extra = pl.DataFrame(more_questions, schema=QUESTION_SCHEMA, orient="row")
            question_frame = pl.concat([question_frame, extra]).sort("offset")
        if more_answers:
            extra = pl.DataFrame(more_answers, schema=ANSWER_SCHEMA, orient="row")
            answer_frame = pl.concat([answer_frame, extra]).sort("offset")
    return Scanned(question_frame, answer_frame, len(starts), consumed, closed_root, damaged)


def _nothing(consumed: int, closed_root: bool = False) -> Scanned:
    return Scanned(pl.DataFrame(schema=QUESTION_SCHEMA), pl.DataFrame(schema=ANSWER_SCHEMA), 0, consumed, closed_root)


def _has(octets: np.ndarray, at: np.ndarray, text: bytes) -> np.ndarray:
    found = np.ones(len(at), dtype=bool)
    for offset, value in enumerate(text):
        found &= octets[at + offset] == value
    return found


def _number(octets: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The decimal number that starts at each position, and the position after it (at most 18 digits)."""
    value = np.zeros(len(at), dtype=np.int64)
    after = at.copy()
    active = np.ones(len(at), dtype=bool)
    for offset in range(18):
        digit = octets[at + offset] - np.uint8(0x30)
        active &= digit <= 9
        if not active.any():
            break
        value = np.where(active, value * 10 + digit, value)
        after += active
    return value, after


def _moments(octets: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`2014-05-14T00:15:22.253` at each position as datetime64[ms], and which of them are dates at all."""
    if not len(at):
        return np.empty(0, dtype="datetime64[ms]"), np.empty(0, dtype=bool)

    def digits(offset: int, count: int) -> np.ndarray:
        value = np.zeros(len(at), dtype=np.int64)
        for place in range(offset, offset + count):
            digit = octets[at + place] - np.uint8(0x30)
            np.logical_and(valid, digit <= 9, out=valid)
            value = value * 10 + digit
        return value

    valid = np.ones(len(at), dtype=bool)
    for offset, mark in ((4, 0x2D), (7, 0x2D), (10, 0x54), (13, 0x3A), (16, 0x3A), (19, 0x2E)):
        valid &= octets[at + offset] == mark
    year, month, day = digits(0, 4), digits(5, 2), digits(8, 2)
    hour, minute, second, milli = digits(11, 2), digits(14, 2), digits(17, 2), digits(20, 3)
    valid &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (year >= 1970)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    milliseconds = (((day - 1) * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + milli
    return months.astype("datetime64[ms]") + np.where(valid, milliseconds, 0).astype("timedelta64[ms]"), valid


def bar_tags(column: pl.Expr) -> pl.Expr:
    """Both forms of the Tags attribute, as written in XML, as one: `|a|b|`, and an empty string for none."""
    return (
        column.str.replace_all("&gt;&lt;", "|", literal=True)
        .str.replace_all("&lt;", "|", literal=True)
        .str.replace_all("&gt;", "|", literal=True)
        .str.replace_all("&amp;", "&", literal=True)
    )


def split_tags(attribute: str | None) -> list[str]:
    """The tags of a parsed Tags attribute, `<a><b>` or `|a|b|`, in order."""
    if not attribute:
        return []
    return [tag for tag in re.split(r"[<>|]+", attribute) if tag]


def _without_comments(buffer: bytearray, size: int, opened: np.ndarray) -> tuple[np.ndarray, int]:
    """Drop the tags inside comments; also where the block stops, which is before a comment that does not end in it."""
    keep = np.ones(len(opened), dtype=bool)
    done = 0
    for index, start in enumerate(opened.tolist()):
        if start < done:
            keep[index] = False
        elif buffer[start : start + 4] == b"<!--":
            end = buffer.find(b"-->", start + 4, size)
            if end < 0:
                keep[index:] = False
                return opened[keep], start
            done = end + 3
    return opened[keep], size


def _parse_rows(
    buffer: bytearray, starts: np.ndarray, ends: np.ndarray, base: int, name: str
) -> tuple[list[tuple], list[tuple], list[tuple[int, str]]]:
    damaged: list[tuple[int, str]] = []
    questions: list[tuple] = []
    answers: list[tuple] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        row = bytes(buffer[start:end]).rstrip()
        if not row[4:5].isspace() and row[4:5] not in (b"/", b">"):
            continue  # another element whose name begins with "row"
        try:
            attributes = parse_row(row, name, start + base)
        except SourceError as error:
            damaged.append((start + base, str(error)))
            continue
        post_id = _integer(attributes.get("Id"))
        kind = _integer(attributes.get("PostTypeId"))
        if post_id is None:
            message = f"{name}: the row at byte {start + base} has no Id that is a number; is this a Posts.xml?"
            damaged.append((start + base, message))
            continue
        if kind == QUESTION:
            tags = split_tags(attributes.get("Tags"))
            moment = _moment(attributes.get("CreationDate"))
            questions.append(
                (
                    post_id,
                    _integer(attributes.get("AcceptedAnswerId")),
                    moment,
                    "|" + "|".join(tags) + "|" if tags else "",
                    "ClosedDate" in attributes,
                    start + base,
                    len(row),
                )
            )
        elif kind == ANSWER:
            answers.append((post_id, _integer(attributes.get("ParentId")), start + base, len(row)))
    return questions, answers, damaged


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdecimal() else None


def _moment(text: str | None) -> datetime | None:
    moment = parse_moment(text)
    return None if moment is None else moment.replace(tzinfo=None)


def parse_row(row: bytes, name: str, offset: int) -> dict[str, str]:
    """The attributes of one `<row .../>` by a real XML parser.

    Characters that XML does not allow, raw or as references (`&#x0E;`), and bytes that are not UTF-8 become U+FFFD
    instead of costing the row. Raises SourceError, naming `name` and the byte `offset`, if it is no row at all.
    """
    from lxml import etree

    if row.endswith(b">") and not row.endswith(b"/>"):
        row = row[:-1] + b"/>"  # <row ...></row>
    parser = etree.XMLParser(huge_tree=True, resolve_entities=False, no_network=True)
    try:
        return dict(etree.fromstring(row, parser).attrib)
    except etree.XMLSyntaxError:
        pass
    try:
        return dict(etree.fromstring(_mend(row), parser).attrib)
    except etree.XMLSyntaxError as error:
        reason = str(error).splitlines()[0]
        raise SourceError(
            f"{name}: the row at byte {offset} is not XML ({reason}); the dump is damaged, get it again"
        ) from error


def _mend(row: bytes) -> bytes:
    row = _CHARACTER_REFERENCE.sub(_allowed_reference, _joined_surrogates(row))
    row = row.decode("utf-8", "replace").encode()
    return _RAW_CONTROL.sub("\N{REPLACEMENT CHARACTER}".encode(), row)


def _allowed_reference(match: re.Match[bytes]) -> bytes:
    code = int(match[1], 16) if match[1] else int(match[2])
    allowed = code in (0x9, 0xA, 0xD) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return match[0] if allowed else b"&#xFFFD;"


_REFERENCE_PAIR = re.compile(
    rb"&#(?:x([dD][89abAB][0-9a-fA-F]{2})|(5[5-7][0-9]{3}));"
    rb"&#(?:x([dD][c-fC-F][0-9a-fA-F]{2})|(5[6-7][0-9]{3}));"
)


def _joined_surrogates(row: bytes) -> bytes:
    """An emoji written as two surrogate references becomes the one character that it is."""

    def join(match: re.Match[bytes]) -> bytes:
        high = int(match[1], 16) if match[1] else int(match[2])
        low = int(match[3], 16) if match[3] else int(match[4])
        if not (0xD800 <= high < 0xDC00 <= low < 0xE000):
            return match[0]
        return b"&#%d;" % (0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)

    return _REFERENCE_PAIR.sub(join, row)
