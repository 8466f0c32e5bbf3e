"""Reading the heads of a block's rows all at once.

The dumps write a row's attributes in one order: `Id`, `PostTypeId`, then `AcceptedAnswerId` (of a question that has
one) or `ParentId` (of an answer), `CreationDate`; `Tags` follow the body. Rows of that form are read here, with NumPy
over whole blocks; any other row is left to the XML parser. Bytes are compared and numbers read eight at a time.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from freshstack_dagster.stackexchange.posts import ANSWER, NONE, QUESTION, AnswerColumns, QuestionColumns

HEAD_BYTES = 128  # the longest head that is read here: 120 bytes, with ids of 18 digits

_HEAD = b'<row Id="'
_TYPE = b'" PostTypeId="'
_ACCEPTED = b' AcceptedAnswerId="'
_PARENT = b' ParentId="'
_CREATED = b' CreationDate="'
_TAGS = b' Tags="'
_CLOSED = b' ClosedDate="'
_DATE_BYTES = 23
_TAIL_BYTES = 16
_QUOTE = 0x22


class Block:
    """Views of a buffer from which any number of places can be read at once."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self.octets = np.frombuffer(buffer, dtype=np.uint8)
        self.words = np.ndarray((max(len(buffer) - 7, 0),), dtype="<u8", buffer=buffer, strides=(1,))

    def has(self, at: np.ndarray, text: bytes) -> np.ndarray:
        """Whether `text` stands at each place."""
        found = np.ones(len(at), dtype=bool)
        for start, value, mask in _words_of(text):
            found &= (self.words[at + start] & mask) == value
        return found

    def number(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The decimal number of at most 16 digits at each place, and the place after it."""
        value, count = _digits(self.words[at])
        long = count == 8
        if long.any():
            more, more_count = _digits(self.words[at + 8])
            value = np.where(long, value * _TENS[more_count] + more, value)
            count = np.where(long, 8 + more_count, count)
        return value.astype(np.int64), at + count

    def slices(self, at: np.ndarray, length: int) -> np.ndarray:
        """`length` bytes at each place, as a matrix of octets."""
        items = np.ndarray(
            (max(len(self.buffer) - length + 1, 0),), dtype=f"V{length}", buffer=self.buffer, strides=(1,)
        )
        return items[at].view(np.uint8).reshape(len(at), length)


def read_heads(
    block: Block, starts: np.ndarray, ends: np.ndarray, base: int
) -> tuple[QuestionColumns, AnswerColumns, np.ndarray]:
    """Read the rows `<row` at `starts`, each before the next tag at `ends`, in a buffer that begins at byte `base`.

    Returns the questions, the answers and which rows could not be read here; rows of other types are in none of them.
    """
    octets = block.octets
    lengths = _lengths(block, starts, ends)
    read = (lengths > 0) & block.has(starts, _HEAD)
    post_id, place = block.number(starts + len(_HEAD))
    read &= (place > starts + len(_HEAD)) & block.has(place, _TYPE)
    place = place + len(_TYPE)
    kind = octets[place] - np.uint8(0x30)
    read &= octets[place + 1] == _QUOTE
    place = place + 2

    asks = np.flatnonzero(read & (kind == QUESTION))
    at = place[asks]
    has_accepted = block.has(at, _ACCEPTED)
    accepted, after = block.number(at + len(_ACCEPTED))
    at = np.where(has_accepted, after + 1, at)
    good = block.has(at, _CREATED) & (octets[at + len(_CREATED) + _DATE_BYTES] == _QUOTE)
    good &= ~has_accepted | ((octets[after] == _QUOTE) & (after > place[asks] + len(_ACCEPTED)))
    moments, dated = _moments(block.slices(at + len(_CREATED), _DATE_BYTES))
    tag_starts, tag_ends, closed = _tag_places(block, starts[asks], lengths[asks])
    good &= dated & (tag_ends >= 0)
    read[asks[~good]] = False
    if not good.all():
        asks, accepted, has_accepted, moments = asks[good], accepted[good], has_accepted[good], moments[good]
        tag_starts, tag_ends, closed = tag_starts[good], tag_ends[good], closed[good]
    questions = QuestionColumns(
        post_id=post_id[asks],
        accepted_id=np.where(has_accepted, accepted, NONE),
        asked_at=moments,
        tags=_tags(octets, tag_starts, tag_ends),
        closed=closed,
        offset=starts[asks] + base,
        length=lengths[asks],
    )

    replies = np.flatnonzero(read & (kind == ANSWER))
    at = place[replies]
    parent, after = block.number(at + len(_PARENT))
    good = block.has(at, _PARENT) & (octets[after] == _QUOTE) & (after > at + len(_PARENT))
    read[replies[~good]] = False
    replies, parent = replies[good], parent[good]
    answers = AnswerColumns(
        post_id=post_id[replies], parent_id=parent, offset=starts[replies] + base, length=lengths[replies]
    )
    return questions, answers, np.flatnonzero(~read)


def _lengths(block: Block, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Length of each row up to its last `/>`, which blanks may follow before the next tag; 0 if it is not there."""
    lengths = np.zeros(len(starts), dtype=np.int64)
    if not len(starts) or ends[0] < _TAIL_BYTES:
        return lengths
    tails = block.slices(ends - _TAIL_BYTES, _TAIL_BYTES)
    for blanks in (3, 1, 4, 0, 2, 5, 6):  # "\n  " and "\n" are what dumps have
        last = _TAIL_BYTES - 1 - blanks
        closes = (tails[:, last] == 0x3E) & (tails[:, last - 1] == 0x2F) & (lengths == 0)
        lengths[closes] = (ends - blanks - starts)[closes]
        if lengths.all():
            break
    return lengths


def _tag_places(block: Block, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the value of each row's Tags begins and ends (-1 for no Tags), and whether ClosedDate follows.

    Looking for one byte from the row's end is several times faster than looking for the attribute: the last `|` of a
    row, or the last `;` where tags are written `&lt;a&gt;`, ends the tags, unless checking shows otherwise.
    """
    find, rfind = block.buffer.find, block.buffer.rfind
    ends = starts + lengths
    first = np.full(len(starts), -1, dtype=np.int64)
    last = np.full(len(starts), -1, dtype=np.int64)
    left = np.arange(len(starts))
    for mark in (0x7C, 0x3B):
        if not len(left):
            break
        from_, to = starts[left].tolist(), ends[left].tolist()
        marks = [rfind(mark, start, end) for start, end in zip(from_, to, strict=True)]
        quotes = [rfind(_QUOTE, start, max(end, start)) for start, end in zip(from_, marks, strict=True)]
        mark_at, quote_at = np.array(marks, dtype=np.int64), np.array(quotes, dtype=np.int64)
        found = (quote_at > 0) & (block.octets[mark_at + 1] == _QUOTE)
        found &= block.has(np.maximum(quote_at + 1 - len(_TAGS), 0), _TAGS)
        first[left[found]] = quote_at[found] + 1
        last[left[found]] = mark_at[found] + 1
        left = left[~found]
    for row in left.tolist():  # no tags, or an order of attributes of its own
        place = rfind(_TAGS, starts[row], ends[row])
        if place >= 0:
            first[row] = place + len(_TAGS)
            last[row] = find(b'"', place + len(_TAGS), ends[row])
    closed = [find(0x44, start, end) for start, end in zip(last.tolist(), ends.tolist(), strict=True)]  # "D"
    is_closed = np.array(closed, dtype=np.int64) >= 0
    for row in np.flatnonzero(is_closed & (last >= 0)).tolist():
        is_closed[row] = find(_CLOSED, last[row], ends[row]) >= 0
    return first, last, is_closed


def _tags(octets: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> list[str]:
    """The tags between the places, in both forms, as `|a|b|`; an empty text for none."""
    if not len(starts):
        return []
    lengths = ends + 1 - starts  # with the closing quote, which parts them
    before = np.cumsum(lengths) - lengths
    text = (
        octets[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))].tobytes().decode("utf-8", "replace")
    )
    if "&" in text:
        for written, meant in (("&gt;&lt;", "|"), ("&lt;", "|"), ("&gt;", "|"), ("&amp;", "&")):
            text = text.replace(written, meant)
    return text.split('"')[:-1]


@cache
def _words_of(text: bytes) -> list[tuple[int, np.uint64, np.uint64]]:
    parts = []
    for start in range(0, len(text), 8):
        piece = text[start : start + 8]
        value = int.from_bytes(piece, "little")
        parts.append((start, np.uint64(value), np.uint64((1 << (8 * len(piece))) - 1)))
    return parts


_TENS = np.array([10**power for power in range(9)], dtype=np.uint64)


def _u64(value: int) -> np.uint64:
    return np.uint64(value)


def _digits(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and count of the digits that eight bytes begin with (least significant byte first)."""
    nibbles = words ^ _u64(0x3030303030303030)
    low = nibbles & _u64(0x7F7F7F7F7F7F7F7F)
    other = ((low + _u64(0x7676767676767676)) | nibbles) & _u64(0x8080808080808080)  # a high bit for no digit
    first = other & (~other + _u64(1))
    count = np.full(len(words), 8, dtype=np.int64)
    some = first != 0
    count[some] = np.log2(first[some].astype(np.float64)).astype(np.int64) >> 3
    # Digits to the top, zeros below: then always eight. A shift by 64 is not defined, so none is left apart.
    shift = ((8 - count) * 8).astype(np.uint64)
    value = np.where(count > 0, nibbles << np.minimum(shift, _u64(63)), _u64(0))
    value = ((value & _u64(0x0F0F0F0F0F0F0F0F)) * _u64(2561)) >> _u64(8)
    value = ((value & _u64(0x00FF00FF00FF00FF)) * _u64(6553601)) >> _u64(16)
    value = ((value & _u64(0x0000FFFF0000FFFF)) * _u64(42949672960001)) >> _u64(32)
    return value, count


def _moments(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`2014-05-14T00:15:22.253` in each row of octets as datetime64[ms], and which of them are moments at all."""
    valid = np.ones(len(texts), dtype=bool)
    for place, mark in ((4, 0x2D), (7, 0x2D), (10, 0x54), (13, 0x3A), (16, 0x3A), (19, 0x2E)):
        valid &= texts[:, place] == mark

    def number(start: int, count: int) -> np.ndarray:
        value = np.zeros(len(texts), dtype=np.int64)
        for place in range(start, start + count):
            digit = texts[:, place] - np.uint8(0x30)
            np.logical_and(valid, digit <= 9, out=valid)
            value = value * 10 + digit
        return value

    year, month, day = number(0, 4), number(5, 2), number(8, 2)
    hour, minute, second, milli = number(11, 2), number(14, 2), number(17, 2), number(20, 3)
    valid &= (year >= 1970) & (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (second <= 59)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(valid, day - 1, 0)
    valid &= (day >= 1) & (days.astype("datetime64[M]") == months)
    rest = ((hour * 60 + minute) * 60 + second) * 1000 + milli
    return days.astype("datetime64[ms]") + np.where(valid, rest, 0).astype("timedelta64[ms]"), valid
