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
_TAIL_BYTES = 16
_ENDS_BYTES = 192  # Tags and what follows them, in nearly every row
_QUOTE = 0x22


class Block:
    """Views of a buffer from which any number of places can be read at once."""

    def __init__(self, buffer: bytearray) -> None:
        self.buffer = buffer
        self.octets = np.frombuffer(buffer, dtype=np.uint8)
        self.words = np.ndarray((max(len(buffer) - 7, 0),), dtype="<u8", buffer=buffer, strides=(1,))

    def places(self, octet: int, start: int, stop: int) -> np.ndarray:
        """Every place of a rare octet in the bytes from `start` to `stop`."""
        # The search of the C library reads no more than it must: comparing every octet costs twice as much.
        found: list[int] = []
        find, add = self.buffer.find, found.append
        at = find(octet, start, stop)
        while at >= 0:
            add(at)
            at = find(octet, at + 1, stop)
        return np.array(found, dtype=np.int64)

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
    block: Block, starts: np.ndarray, ends: np.ndarray, base: int, *, parents: bool = True
) -> tuple[QuestionColumns, AnswerColumns, np.ndarray]:
    """Read the rows `<row` at `starts`, each before the next tag at `ends`, in a buffer that begins at byte `base`.

    Returns the questions, the answers and which rows could not be read here; rows of other types are in none of them.
    Without `parents`, answers do not say which question they are of.
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
    good = block.has(at, _CREATED)
    good &= ~has_accepted | ((octets[after] == _QUOTE) & (after > place[asks] + len(_ACCEPTED)))
    moments, dated = _moments(block, at + len(_CREATED))
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
    good = block.has(at, _PARENT)
    if parents:
        parent, after = block.number(at + len(_PARENT))
        good &= (octets[after] == _QUOTE) & (after > at + len(_PARENT))
    else:
        parent = np.full(len(replies), NONE, dtype=np.int64)
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

    Tags stand near the end of a row, so the ends of all rows are looked through together, byte by byte: few bytes there
    are a "T", a quote or a "D". Rows whose Tags are not found so are searched one by one.
    """
    ends = starts + lengths
    first = np.full(len(starts), -1, dtype=np.int64)
    last = first.copy()
    closed = np.zeros(len(starts), dtype=bool)
    near = np.flatnonzero(ends >= _ENDS_BYTES)
    if len(near):
        octets = block.slices(ends[near] - _ENDS_BYTES, _ENDS_BYTES).ravel()
        to_block = ends[near] - _ENDS_BYTES

        def in_block(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            row = at // _ENDS_BYTES
            return row, at - row * _ENDS_BYTES + to_block[row]

        at = np.flatnonzero(octets == 0x54)  # "T"
        row, place = in_block(at)
        hits = block.has(place - 1, _TAGS) & (place > starts[near][row])
        at, row, place = at[hits], row[hits], place[hits]
        quotes = np.flatnonzero(octets == _QUOTE)
        closing = quotes[np.searchsorted(quotes, at + len(_TAGS) - 1)]  # each row ends with a quote, so there is one
        first[near[row]] = place + len(_TAGS) - 1
        last[near[row]] = in_block(closing)[1]
        row, place = in_block(np.flatnonzero(octets == 0x44))  # "D"
        hits = (place > last[near[row]]) & block.has(place - 7, _CLOSED)
        closed[near[row[hits]]] = True
    for number in np.flatnonzero((first < 0) | (last > ends) | (last < first)).tolist():
        first[number] = block.buffer.rfind(_TAGS, starts[number], ends[number])
        if first[number] < 0:
            last[number] = -1
            continue
        first[number] += len(_TAGS)
        last[number] = block.buffer.find(b'"', first[number], ends[number])
        closed[number] = block.buffer.find(_CLOSED, last[number], ends[number]) >= 0
    return first, last, closed


def _tags(octets: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> str:
    """The tags between the places, in both forms, as `|a|b|`, a quote after each row's."""
    if not len(starts):
        return ""
    lengths = ends + 1 - starts
    before = np.cumsum(lengths) - lengths
    every = octets[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]
    text = every.tobytes().decode("utf-8", "replace")
    if "&" in text:
        for written, meant in (("&gt;&lt;", "|"), ("&lt;", "|"), ("&gt;", "|"), ("&amp;", "&")):
            text = text.replace(written, meant)
    return text


@cache
def _words_of(text: bytes) -> list[tuple[int, np.uint64, np.uint64]]:
    parts = []
    for start in range(0, len(text), 8):
        piece = text[start : start + 8]
        value = int.from_bytes(piece, "little")
        parts.append((start, np.uint64(value), np.uint64((1 << (8 * len(piece))) - 1)))
    return parts


_TENS = np.array([10**power for power in range(9)], dtype=np.uint64)
# Constants as NumPy scalars: making them anew for every block would cost more than the arithmetic.
_ZEROS = np.uint64(0x3030303030303030)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH_BITS = np.uint64(0x8080808080808080)
_U1 = np.uint64(1)
_U7 = np.uint64(7)
_ONES = np.uint64(0x0101010101010101)
_U56 = np.uint64(56)
_U64 = np.uint64(64)
_U8 = np.uint64(8)
_U63 = np.uint64(63)
_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_TIMES_10 = np.uint64(2561)
_BYTES_OF_TWO = np.uint64(0x00FF00FF00FF00FF)
_TIMES_100 = np.uint64(6553601)
_U16 = np.uint64(16)
_PAIRS_OF_TWO = np.uint64(0x0000FFFF0000FFFF)
_TIMES_10000 = np.uint64(42949672960001)
_U32 = np.uint64(32)
_U10 = np.uint64(10)
_UFF = np.uint64(0xFF)


def _digits(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and count of the digits that eight bytes begin with (least significant byte first)."""
    nibbles = words ^ _ZEROS
    low = nibbles & _LOW_BITS
    other = ((low + _ABOVE_NINE) | nibbles) & _HIGH_BITS  # a high bit for no digit
    first = other & (~other + _U1)
    before = ((first - _U1) & _HIGH_BITS) >> _U7  # a bit in each byte before the first such
    count = (before * _ONES) >> _U56
    # Digits to the top, zeros below: then always eight. A shift by 64 is not defined, so no digit is left apart.
    value = (nibbles << ((_U64 - count * _U8) & _U63)) * (count > 0)
    value = ((value & _NIBBLES) * _TIMES_10) >> _U8
    value = ((value & _BYTES_OF_TWO) * _TIMES_100) >> _U16
    value = ((value & _PAIRS_OF_TWO) * _TIMES_10000) >> _U32
    return value, count.astype(np.int64)


def _form(text: bytes) -> tuple[np.uint64, np.uint64]:
    """Where digits stand in eight bytes (written `0` in `text`) and the other bytes, as words."""
    digits = bytes(0xFF if octet == 0x30 else 0 for octet in text)
    return np.uint64(int.from_bytes(digits, "little")), np.uint64(int.from_bytes(text.replace(b"0", b"\0"), "little"))


_MOMENT_FORM = [_form(b"0000-00-"), _form(b"00T00:00"), _form(b':00.000"')]
_SHIFTS = [np.uint64(8 * byte) for byte in range(8)]


def _moments(block: Block, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`2014-05-14T00:15:22.253"` at each place as datetime64[ms], and which of them are moments at all."""
    date, day_to_minute, rest = (block.words[at + start] for start in (0, 8, 16))
    valid = np.ones(len(at), dtype=bool)
    pairs = []
    for words, (digits, marks) in zip((date, day_to_minute, rest), _MOMENT_FORM, strict=True):
        valid &= (words & ~digits) == marks
        nibbles = (words ^ _ZEROS) & digits
        low = nibbles & _LOW_BITS
        valid &= (((low + _ABOVE_NINE) | nibbles) & _HIGH_BITS) == 0
        pairs.append(nibbles * _U10 + (nibbles >> _U8))  # each byte: ten times its digit and the next

    def pair(words: np.ndarray, byte: int) -> np.ndarray:
        return ((words >> _SHIFTS[byte]) & _UFF).astype(np.int64)

    year, month = pair(pairs[0], 0) * 100 + pair(pairs[0], 2), pair(pairs[0], 5)
    day, hour, minute = pair(pairs[1], 0), pair(pairs[1], 3), pair(pairs[1], 6)
    second, milli = pair(pairs[2], 1), pair(pairs[2], 4) * 10 + (pair(rest, 6) & 0xF)
    valid &= (year >= 1970) & (month >= 1) & (month <= 12) & (hour <= 23) & (minute <= 59) & (second <= 59)
    months = np.where(valid, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = months.astype("datetime64[D]") + np.where(valid, day - 1, 0)
    valid &= (day >= 1) & (days.astype("datetime64[M]") == months)
    parts = ((hour * 60 + minute) * 60 + second) * 1000 + milli
    return days.astype("datetime64[ms]") + np.where(valid, parts, 0).astype("timedelta64[ms]"), valid
