"""What a grammar has to see of a text: long stretches that cannot move a node are made cheap before parsing.

A grammar reads Markdown word by word and an XML attribute character by character, though a cut only asks where blocks
and elements begin and end. A skeleton is the same text with such stretches made into one word, or left out, and the
way back to the offsets of the text. Which stretches those are errs on the side of keeping: where a rule of the format
might look into a line, the line stays. A skeleton that does not parse cleanly is not used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

SHORTEST_VALUE = 32  # an attribute's value below this costs less to parse than to leave out


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A text to parse in place of another.

    `containers` are the types of nodes whose children stand where those of the text itself stand; None if all do.
    `at` and `gone` say where something was left out: from offset `at[i]` of `utf8` on, `gone[i]` bytes in all.
    """

    utf8: bytes
    containers: frozenset[str] | None = None
    at: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)

    def original(self, offset: int) -> int:
        """The offset in the text of an offset of `utf8` at which a node begins or ends."""
        index = bisect_right(self.at, offset)
        return offset + self.gone[index - 1] if index else offset


def skeleton_of(grammar: str, utf8: bytes) -> Skeleton | None:
    """The skeleton of a text for its grammar, or None where the text itself is to be parsed."""
    make = _MAKERS.get(grammar)
    return make(utf8) if make else None


# -- Markdown ----------------------------------------------------------------------------------------------------------

# Blocks whose children are whole blocks. Inside the others the grammar shows signs between words, which are masked.
_MARKDOWN_CONTAINERS = frozenset(["document", "section", "list", "list_item", "block_quote"])

# A first character that opens no block and underlines nothing. A bracket stays: many of them in a row are more than the
# grammar can follow, and what it makes of that is its own.
_FIRST = rb"""(?:[A-Za-z$}{"'(/\\@&%;,.!?^)\]]|[\xc2-\xf4][\x80-\xbf]+)"""


def _plain_lines(rest: bytes) -> re.Pattern[bytes]:
    """Lines of text: one behind a marker, or one and those after it that begin no further left.

    Group 3 can be masked, line ends and all: a paragraph, code and HTML go on over such lines alike.
    """
    # At most four blanks behind a marker: after more, the text is indented code.
    marker = rb"(?:[-+*]|[0-9]{1,9}[.)]|#{1,6})[ ]{1,4}"
    more = rb"(?:\n\1[ \t]*" + _FIRST + rest + rb"*)*"
    return re.compile(
        rb"(?m)^([ \t]*)(" + marker + rb")?" + _FIRST + rb"(" + rest + rb"*(?(2)|" + more + rb"))(?![^\r\n])"
    )


# Raw HTML of these kinds ends where its own sign stands in a line; a table's rows are divided by bars.
_RAW_HTML = re.compile(rb"<(?:[!?]|script|pre|style|textarea)", re.I)
_TABLE = re.compile(rb"\|[^\r\n]*(?:\r\n?|\n)[ \t>]*[|:-][ \t|:-]*(?![^\r\n])")
_FRONT_MATTER = re.compile(rb"(---|\+\+\+)[ \t]*\r?\n(?:.*?\n)??\1[^\n]*", re.S)
_AS_A_WORD = b"x" * 128 + bytes(range(128, 256))  # no character more or less: some columns are counted from there on
_LINES = {
    (raw, table): _plain_lines(rb"[^\r\n" + (rb"<>" if raw else b"") + (rb"|" if table else b"") + rb"]")
    for raw in (False, True)
    for table in (False, True)
}


def _markdown(utf8: bytes) -> Skeleton | None:
    front = _FRONT_MATTER.match(utf8)
    if front is None and utf8.startswith((b"---", b"+++", b"\xef\xbb\xbf")):
        return None  # what the grammar takes for front matter is not clear from here
    lines = _LINES[_RAW_HTML.search(utf8) is not None, _TABLE.search(utf8) is not None]
    kept = ([(0, front.end())] if front else []) + _reference_definitions(utf8, front.end() if front else 0)
    starts = [start for start, _ in kept]

    def mask(match: re.Match[bytes]) -> bytes:
        start, end = match.span(3)
        index = bisect_right(starts, start)
        # To the grammar, a fence also ends at the end of a line of its text.
        if b"```" in match[0] or b"~~~" in match[0] or (index and start < kept[index - 1][1]):
            return match[0]
        return utf8[match.start() : start] + utf8[start:end].translate(_AS_A_WORD)

    return Skeleton(lines.sub(mask, utf8), _MARKDOWN_CONTAINERS)


def _reference_definitions(utf8: bytes, position: int) -> list[tuple[int, int]]:
    """Stretches between blank lines that may hold `[label]: target "title"`, whose words matter."""
    found: list[tuple[int, int]] = []
    position = utf8.find(b"]:", position)
    while position >= 0:
        end = utf8.find(b"\n\n", position)
        end = len(utf8) if end < 0 else end
        found.append((utf8.rfind(b"\n\n", 0, position) + 1, end))
        position = utf8.find(b"]:", end)
    return found


# -- XML ---------------------------------------------------------------------------------------------------------------

# The first character stays, so that an offset says which side of the gap it is on.
_VALUE = re.compile(rb'="[^<>&"\x80-\xff]([^<>&"]{%d,})"' % SHORTEST_VALUE)


def _xml(utf8: bytes) -> Skeleton | None:
    parts: list[bytes] = []
    at: list[int] = []
    gone: list[int] = []
    position = total = 0
    for match in _VALUE.finditer(utf8):
        start, end = match.span(1)
        if b"--" in match[0]:  # ends a comment, if this is in one
            continue
        parts.append(utf8[position:start])
        at.append(start - total)
        total += end - start
        gone.append(total)
        position = end
    if not parts:
        return None
    parts.append(utf8[position:])
    return Skeleton(b"".join(parts), None, at, gone)


_MAKERS: dict[str, Callable[[bytes], Skeleton | None]] = {"markdown": _markdown, "xml": _xml}
