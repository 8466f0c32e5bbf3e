"""The byte-level pass over a `Posts.xml`: where each row lies, and the few attributes that decide about it.

A raw `<` cannot stand inside an XML attribute, so each `<` of a dump opens a row, the root, or a comment. Rows are
found by it, not by lines: a row over several lines or two rows on one line are read like any other. The head of a row
(`<row Id="..." PostTypeId="..."`) is read for a whole block at once (`heads.py`); a row whose head has another form is
parsed as XML instead (`row.py`), so the fast way decides about speed only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange.heads import HEAD_BYTES, Block, read_heads
from freshstack_dagster.stackexchange.posts import (
    ANSWER,
    QUESTION,
    AnswerColumns,
    QuestionColumns,
    answer_columns,
    in_order,
    merged_answers,
    merged_questions,
    question_columns,
)
from freshstack_dagster.stackexchange.questions import parse_moment
from freshstack_dagster.stackexchange.row import parse_row, split_tags

# Tags are looked for in each piece while it is in the processor's cache; the rows of a whole block are read together,
# as each of some 200 NumPy calls costs about the same for many rows as for few. Measured: 4 MB costs the least.
_PIECE_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20
# Bytes that must follow the last row of a block, so that a gather never reads past the buffer.
PADDING = HEAD_BYTES

_LESS_THAN = 0x3C
_LONGEST_ROW = 1 << 30
_BEYOND_STOP = 64 << 10
CLOSING_TAG = re.compile(rb"</posts\s*>")
# A row of another type (wiki, tag wiki ...) in the usual form: nothing in it is of use.
_OTHER_TYPE = re.compile(rb'<row Id="\d+" PostTypeId="(?:[03-9]|\d\d+)" ')


@dataclass
class Scanned:
    """What one block held: its questions and answers, the number of its rows, and how far it was read.

    `damaged` lists rows that are not XML, by offset. Where a reading begins in the middle of a dump they may be text of
    a comment that began before.
    """

    questions: QuestionColumns
    answers: AnswerColumns
    rows: int
    consumed: int
    closed_root: bool
    damaged: list[tuple[int, str]] = field(default_factory=list)


def scan_block(
    block: Block,
    size: int,
    base: int,
    name: str,
    *,
    opened: np.ndarray | None = None,
    stop: int | None = None,
    parents: bool = True,
) -> Scanned:
    """Find the rows in the first `size` bytes of a block, the first of which is byte `base` of the dump.

    `opened` are the places of every `<` in them, if they are known. The last tag of the block is left for the next one,
    as its end is not known yet: `consumed` bytes are done with. Rows that start at or after byte `stop` of the dump are
    left out. The block must be `PADDING` bytes longer than `size`. Without `parents`, an answer's question is not read.
    """
    buffer = block.buffer
    opened = block.places(_LESS_THAN, 0, size) if opened is None else opened
    if not len(opened):
        return _nothing(consumed=size)
    ends_at = size
    if (block.octets[opened + 1] == 0x21).any():  # "<!": a comment, whose text may hold anything
        opened, ends_at = _without_comments(buffer, size, opened)
        if not len(opened):
            return _nothing(consumed=ends_at)
    if ends_at < size:  # before a comment that goes on: the tag before it is whole
        starts, ends, consumed = opened, np.append(opened[1:], ends_at), ends_at
    else:
        starts, ends, consumed = opened[:-1], opened[1:], int(opened[-1])
    second = block.octets[starts + 1]
    closed_root = any(CLOSING_TAG.match(buffer, at, size) for at in starts[second == 0x2F].tolist())
    is_row = block.has(starts, b"<row")
    if stop is not None:
        beyond = np.flatnonzero(starts + base >= stop)
        if len(beyond):  # done up to there, not further: a next part goes on from this tag
            consumed = int(starts[beyond[0]])
            is_row[beyond[0] :] = False
    starts, ends = starts[is_row], ends[is_row]
    if not len(starts):
        return _nothing(consumed, closed_root)
    questions, answers, others = read_heads(block, starts, ends, base, parents=parents)
    scanned = Scanned(questions, answers, len(starts), consumed, closed_root)
    if len(others):
        _parse_rows(buffer, starts[others], ends[others], base, name, scanned)
    return scanned


def _nothing(consumed: int, closed_root: bool = False) -> Scanned:
    return Scanned(merged_questions([]), merged_answers([]), 0, consumed, closed_root)


def scan_stream(
    read_into: Callable[[memoryview], int | None],
    name: str,
    *,
    start: int = 0,
    stop: int | None = None,
    block_bytes: int | None = None,
    parents: bool = True,
) -> Iterator[tuple[Scanned, bytearray, int]]:
    """Scan a dump block by block with one buffer of `block_bytes` (default BLOCK_BYTES; a longer row makes it grow).

    `read_into` fills a view from byte `start` of the dump on and returns the number of bytes, 0 at the end. Yields
    what each block held, the buffer, and the offset of the buffer's first byte; the buffer is used again for the next
    block. A dump read whole (no `start`, no `stop`) must end with `</posts>`. Raises SourceError for one that does not,
    and for a row that is not XML unless `start` is given (see `Scanned.damaged`). Without `parents`, the questions
    of answers are left out.
    """
    buffer = bytearray((block_bytes or BLOCK_BYTES) + PADDING)
    block = Block(buffer)
    have, base, closed = 0, start, False
    while True:
        room, size = len(buffer) - PADDING, have
        if stop is not None:  # little more than the part: the rest belongs to the next
            room = min(room, have + max(stop - base - have, 0) + _BEYOND_STOP)
        opened = [block.places(_LESS_THAN, 0, have)]
        with memoryview(buffer) as view:
            while size < room and (got := read_into(view[size : min(size + _PIECE_BYTES, room)])):
                opened.append(block.places(_LESS_THAN, size, size + got))
                size += got
        if size == have:
            break
        if base == 0 and have < 2:
            _refuse_other_encodings(bytes(buffer[:size]), name)
        scanned = scan_block(block, size, base, name, opened=np.concatenate(opened), stop=stop, parents=parents)
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
            block = Block(buffer)
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
    buffer: bytearray, starts: np.ndarray, ends: np.ndarray, base: int, name: str, scanned: Scanned
) -> None:
    """Read rows of any form by the XML parser, and put them in their places among those read already."""
    questions: list[tuple] = []
    answers: list[tuple] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if _OTHER_TYPE.match(buffer, start, end):
            continue
        row = bytes(buffer[start:end]).rstrip()
        if not row[4:5].isspace() and row[4:5] not in (b"/", b">"):
            continue  # another element whose name begins with "row"
        try:
            attributes = parse_row(row, name, start + base)
        except SourceError as error:
            scanned.damaged.append((start + base, str(error)))
            continue
        post_id = _integer(attributes.get("Id"))
        kind = _integer(attributes.get("PostTypeId"))
        if post_id is None:
            message = f"{name}: the row at byte {start + base} has no Id that is a number; is this a Posts.xml?"
            scanned.damaged.append((start + base, message))
        elif kind == QUESTION:
            accepted = _integer(attributes.get("AcceptedAnswerId"))
            tags = split_tags(attributes.get("Tags"))
            barred = f"|{'|'.join(tags)}|".replace('"', "") if tags else ""
            moment = _moment(attributes.get("CreationDate"))
            closed = "ClosedDate" in attributes
            questions.append((post_id, accepted, moment, barred, closed, start + base, len(row)))
        elif kind == ANSWER:
            answers.append((post_id, _integer(attributes.get("ParentId")), start + base, len(row)))
    if questions:
        scanned.questions = merged_questions([scanned.questions, question_columns(questions)])
        in_order(scanned.questions)
    if answers:
        scanned.answers = merged_answers([scanned.answers, answer_columns(answers)])
        in_order(scanned.answers)


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.strip().isdecimal() else None


def _moment(text: str | None) -> datetime | None:
    moment = parse_moment(text)
    return None if moment is None else moment.replace(tzinfo=None)
