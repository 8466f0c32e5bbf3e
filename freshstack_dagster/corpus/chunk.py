"""Cut a file into chunks of at most `max_tokens` tokens of cl100k_base, as FreshStack does, but exactly.

The rule (arXiv 2504.13128, section 3.2; behaviour of the reference package 0.0.6): a file that fits is one chunk. Of
one that does not, the syntax tree decides: a node that fits is a piece, one that does not is replaced by its children,
and neighbouring pieces inside a node are joined while they fit. What no grammar divides is cut at the best separators:
the longest run of newlines, of tabs, of blanks, a blank after punctuation, punctuation.

What always holds here: chunks are in order, do not overlap, hold every byte that is not blank, and begin and end
between characters. No chunk is over the limit, counted with the path line and the blank line that head a document. A
single character is never divided, and where the path leaves fewer than `ROOM_FLOOR` tokens of the limit, text gets
`ROOM_FLOOR` tokens (or `max_tokens`, if that is less): only then can a document be longer than asked for.

A file is tokenised once; the tokens of a slice are estimated from where the tokens end, and only an estimate near a
limit is counted for real. Each such decision depends on the path through the number of its head tokens alone;
`ChunkedFile.head_range` is the interval of that number within which all of them, and so the cuts, are the same.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from freshstack_dagster.corpus.decode import Document, NotText, decode
from freshstack_dagster.corpus.languages import grammar_of, language_of, parser_of
from freshstack_dagster.corpus.notebook import NotANotebook, read_notebook
from freshstack_dagster.corpus.skeleton import Skeleton, skeleton_of
from freshstack_dagster.corpus.tokens import count_tokens, head_tokens, token_ends

__all__ = [
    "CHUNKER_VERSION",
    "Chunk",
    "ChunkedFile",
    "chunk_as_text",
    "chunk_document",
    "chunk_file",
    "head_tokens",
]

DEFAULT_MAX_TOKENS = 2048
ROOM_FLOOR = 8
MERGE_RESERVE = 50  # the reference joins two pieces only if their documents together stay this far under the limit
SLACK = 4  # how far an estimate is trusted to be from the true count; beyond it, only fidelity suffers
MAX_BYTES = 32_000_000
MAX_PARSE_BYTES = 8_000_000
MAX_ERROR_SHARE = 0.5
PARSE_SECONDS = 10  # of CPU; an ordinary file of the greatest size takes less
READ_BYTES = 65536
ANY_HEAD = 2**31 - 1

# The scanners of these grammars write past their buffer at 256 open blocks, and the process dies. A line opens at most
# one block for each marker before its text and for one (YAML) or two (Markdown) columns of indentation.
_DEEP_BLOCKS = {
    "markdown": re.compile(rb"^(?:[ \t]*(?:>|[-+*][ \t]|\d{1,9}[.)][ \t])){64}|^[ \t]{200}[ \t]*(?:[-+*>]|\d)", re.M),
    "yaml": re.compile(rb"^(?:[ \t]*[-?:][ \t]){64}|^[ \t]{150}[ \t]*[^\s#]", re.M),
}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


# Whatever can move a cut is part of the version, because chunks are cached under it.
CHUNKER_VERSION = "1+{}+{}+{}".format(
    *(_installed(package) for package in ("tree-sitter", "tree-sitter-language-pack", "charset-normalizer"))
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a file.

    `start_byte`, `end_byte`: bytes of the blob as it is stored (of the extracted text for a notebook), end exclusive.
    `start_char`, `end_char`: characters of the decoded text, a byte order mark counted. `start_line`, `end_line`:
    lines from 1, both included. `tokens`: cl100k_base tokens of the document, its path head included.
    """

    start_byte: int
    end_byte: int
    start_char: int
    end_char: int
    start_line: int
    end_line: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True)
class ChunkedFile:
    """What became of a file.

    `outcome`: `chunked` (whole, or by its grammar), `text` (cut at separators; `detail` says why), `empty`, `binary`,
    `lfs_pointer` or `too_large`. `encoding` decodes any chunk's bytes; `language` is what the file was read as.
    `head_range`: the least and greatest `head_tokens(path)` for which the same blob gives the same cuts.
    """

    outcome: str
    encoding: str | None
    language: str | None
    detail: str
    chunks: list[Chunk]
    head_range: tuple[int, int]


def chunk_file(path: str, data: bytes, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> list[Chunk]:
    """Chunks of one file, in order; none for a file that is empty or no text.

    `path` heads each document and tells the language; the papers' corpora put `owner/name/` before it. `data` is the
    blob. Any bytes, any path and any limit are taken (a limit below 1 counts as 1).
    Raises CorpusError only when the tokenizer's ranks are not installed.
    """
    return chunk_document(path, data, max_tokens=max_tokens).chunks


def chunk_document(path: str, data: bytes, *, max_tokens: int = DEFAULT_MAX_TOKENS) -> ChunkedFile:
    """Chunks of one file with its outcome, encoding and language, for the ledger of files; see `chunk_file`."""
    return _chunk(path, data, max_tokens, by_grammar=True, detail="")


def chunk_as_text(path: str, data: bytes, *, max_tokens: int = DEFAULT_MAX_TOKENS, detail: str = "") -> ChunkedFile:
    """Like `chunk_document` without a grammar: for a file on which its grammar crashed or took too long.

    `detail` says why, for the ledger.
    """
    return _chunk(path, data, max_tokens, by_grammar=False, detail=detail)


def _chunk(path: str, data: bytes, max_tokens: int, *, by_grammar: bool, detail: str) -> ChunkedFile:
    language = language_of(path)
    if len(data) > MAX_BYTES:
        return ChunkedFile("too_large", None, language, f"{len(data)} bytes, over {MAX_BYTES}", [], (0, ANY_HEAD))
    try:
        document = decode(data)
    except NotText as no:
        return ChunkedFile(no.outcome, None, language, _joined(detail, no.detail), [], (0, ANY_HEAD))
    encoding, details = document.encoding, [detail, document.detail]
    if language == "notebook":
        try:
            notebook = read_notebook(document.text)
        except NotANotebook as no:
            details.append(f"not a notebook: {no}")
            by_grammar = False
        else:
            utf8 = notebook.text.encode("utf-8")
            document, language = Document(utf8, notebook.text, utf8, "utf-8"), notebook.language
            details.append("offsets are of the text extracted from the notebook")
            if not notebook.text:
                return ChunkedFile("empty", encoding, language, "a notebook without text", [], (0, ANY_HEAD))
    cutter = _Cutter(document, head_tokens(path), max_tokens)
    pieces, reason = _cut(cutter, language, by_grammar)
    chunks = cutter.chunks(pieces)
    if not chunks:
        return ChunkedFile("empty", encoding, language, _joined(*details, "only blanks"), [], (0, ANY_HEAD))
    outcome = "text" if reason or not by_grammar else "chunked"
    return ChunkedFile(outcome, encoding, language, _joined(*details, reason), chunks, cutter.head_range())


def _joined(*details: str) -> str:
    return "; ".join(detail for detail in details if detail)


def _cut(cutter: _Cutter, language: str | None, by_grammar: bool) -> tuple[list[Piece], str]:
    """Pieces of a document, and why it was cut as text (empty when it was not)."""
    start, end = cutter.start, cutter.end
    if cutter.fits_whole():
        return [(start, end)], ""
    if not by_grammar:
        return cutter.text_pieces(start, end), ""
    grammar = grammar_of(language)
    skeleton = skeleton_of(grammar, cutter.utf8) if grammar and len(cutter.utf8) <= MAX_PARSE_BYTES else None
    if skeleton is not None:
        tree, _ = _parse(skeleton.utf8, grammar, language)
        if tree is not None and not tree.root_node.has_error:
            pieces = cutter.skeleton_pieces(tree.root_node, skeleton)
            if pieces is not None:
                return pieces, ""
    tree, reason = _parse(cutter.utf8, grammar, language)
    if tree is None:
        return cutter.text_pieces(start, end), reason
    return cutter.tree_pieces(tree.root_node), ""


def _parse(utf8: bytes, grammar: str | None, language: str | None) -> tuple[Any, str]:
    """A syntax tree, or None and why there is none."""
    if grammar is None:
        return None, f"no grammar for {language}" if language else "no language by this name"
    if len(utf8) > MAX_PARSE_BYTES:
        return None, f"too large to parse ({len(utf8)} bytes)"
    if b"\0" in utf8:  # the end of the text to many scanners, and some wait for ever to get past it
        return None, "holds NUL bytes"
    if grammar in _DEEP_BLOCKS and _DEEP_BLOCKS[grammar].search(utf8):
        return None, f"nested too deep for the grammar {grammar}"
    late = f"the grammar {grammar} took longer than {PARSE_SECONDS} s"
    stop, clock = time.thread_time() + PARSE_SECONDS, time.perf_counter() + PARSE_SECONDS

    def over() -> bool:
        # Before the clock says so, the processor's time cannot be over, and the clock costs far less to read.
        return time.perf_counter() > clock and time.thread_time() > stop

    def read(offset: int, _: Any) -> bytes:
        # Handing the text over in pieces costs nothing measurable, and lets a parse be stopped: between two of its
        # steps by the other callback, and here inside a step, since some scanners read a long line again and again.
        return b"" if over() else utf8[offset : offset + READ_BYTES]

    try:
        tree = parser_of(grammar).parse(read, progress_callback=lambda _offset, _error: over())
    except (LookupError, OSError, ImportError) as error:
        return None, f"the grammar {grammar} cannot be had ({type(error).__name__})"
    except ValueError:
        return None, late
    if over():
        return None, late
    root = tree.root_node
    broken = sum(child.end_byte - child.start_byte for child in root.children if child.is_error)
    if not root.child_count or root.is_error or broken > MAX_ERROR_SHARE * len(utf8):
        return None, f"does not parse as {grammar}"
    return tree, ""


Piece = tuple[int, int]
Slice = tuple[int, int, int, int]  # start, end, first token that touches it, the one after the last

_LEADING_BLANK_LINES = re.compile(r"\s*[\r\n]")
_NEWLINES = re.compile(rb"[\r\n]{2,}")
_NEWLINE = re.compile(rb"[\r\n]")
_TABS = re.compile(rb"\t{2,}")
_BLANKS = re.compile(rb"[ \t\n\r\x0b\x0c]{2,}")
_BLANK = re.compile(rb"[ \t\n\r\x0b\x0c]")
# Best first; the ideographic ones after all others, so that they never outrank what the reference knows.
_PUNCTUATION = [mark.encode() for mark in ".?!;,()[]“”‘’'\"`*:—…/\\–&-。！？；，、"]
_MAX_SEPARATOR_LEVELS = 40


class _NotShown(Exception):
    """A node of a skeleton is to be divided, and its children are not those of the text."""


class _Cutter:
    """Decides about one document: what fits, where to cut. Offsets are bytes of its UTF-8."""

    def __init__(self, document: Document, head: int, max_tokens: int) -> None:
        self.document = document
        self.utf8 = document.utf8
        self.limit = max(1, max_tokens)
        # The head counts no more than leaves the floor for text.
        self.head_cap = self.limit - min(ROOM_FLOOR, self.limit)
        self.head = min(head, self.head_cap)
        self.true_head = head
        # The longest that fitted and the shortest that did not, and the same of two to be joined: all that the range
        # of heads depends on.
        self.fit, self.misfit = -ANY_HEAD, ANY_HEAD
        self.joined, self.apart = -ANY_HEAD, ANY_HEAD
        self._counts: dict[Piece, int] = {}
        self._ends: list[int] | None = None
        blank = _LEADING_BLANK_LINES.match(document.text.removeprefix("\ufeff"))
        mark = 3 if document.text.startswith("\ufeff") else 0
        self.start = mark + (len(blank.group().encode()) if blank else 0)
        self.end = len(self.utf8)

    # -- counting ------------------------------------------------------------------------------------------------

    def count(self, start: int, end: int) -> int:
        """Tokens of a slice, by the tokenizer."""
        known = self._counts.get((start, end))
        if known is None:
            known = self._counts[start, end] = count_tokens(self.utf8[start:end].decode("utf-8", "replace"))
        return known

    def fits_whole(self) -> bool:
        """Whether the whole document fits: counted for real, since its tokens are wanted anyway."""
        if self.end - self.start <= 4 * self.limit or self.start > 0:
            return self._at_most(self.count(self.start, self.end))
        self._counts[0, self.end] = len(self.ends())  # likely too long: tokenised for what comes next
        return self._at_most(len(self.ends()))

    def ends(self) -> list[int]:
        """Where the tokens of the document end, ascending."""
        if self._ends is None:
            self._ends = token_ends(self.document.text).tolist()
        return self._ends

    def estimate(self, start: int, end: int) -> int:
        """Tokens of the whole document's tokenisation that touch a slice: the true count within about one."""
        if start >= end:
            return 0
        ends = self.ends()
        return bisect_left(ends, end) - bisect_right(ends, start) + 1

    def fits(self, start: int, end: int) -> bool:
        """Whether a slice and the head are within the limit."""
        room = self.limit - self.head
        estimate = self.estimate(start, end)
        if estimate + SLACK <= room:
            return self._at_most(estimate + SLACK)
        if estimate - SLACK > room:
            return self._at_most(estimate - SLACK)
        return self._at_most(min(max(self.count(start, end), estimate - SLACK), estimate + SLACK))

    def may_join(self, left: Slice, right: Slice) -> bool:
        """The reference's first condition for joining neighbours: both documents, heads included, are short enough."""
        room = self.limit - MERGE_RESERVE - 2 * self.head
        tokens = left[3] - left[2] + right[3] - right[2]
        if abs(tokens - room) <= 2 * SLACK:
            exact = self.count(left[0], left[1]) + self.count(right[0], right[1])
            tokens = min(max(exact, tokens - 2 * SLACK), tokens + 2 * SLACK)
        else:
            tokens += 2 * SLACK if tokens < room else -2 * SLACK
        if tokens < room:
            self.joined = max(self.joined, tokens)
            return True
        self.apart = min(self.apart, tokens)
        return False

    def _at_most(self, tokens: int) -> bool:
        """Decide `head + tokens <= limit`, and note for which heads the answer is the same."""
        if self.head + tokens <= self.limit:
            self.fit = max(self.fit, tokens)
            return True
        self.misfit = min(self.misfit, tokens)
        return False

    def head_range(self) -> tuple[int, int]:
        """The heads for which every decision so far is the same."""
        # 2 * head + tokens < limit - MERGE_RESERVE, for the joined; the contrary for the others.
        low = max(0, self.limit - self.misfit + 1, (self.limit - MERGE_RESERVE - self.apart + 1) // 2)
        high = min(self.limit - self.fit, (self.limit - MERGE_RESERVE - self.joined - 1) // 2)
        # A head over the cap counts as the cap.
        return low, ANY_HEAD if high >= self.head_cap else high

    # -- cutting by the tree -------------------------------------------------------------------------------------

    def skeleton_pieces(self, root: Any, skeleton: Skeleton) -> list[Piece] | None:
        """Pieces by the tree of a skeleton; None if a node would be divided whose children it does not show."""
        before = self.fit, self.misfit, self.joined, self.apart
        try:
            return self.tree_pieces(root, skeleton)
        except _NotShown:
            self.fit, self.misfit, self.joined, self.apart = before
            return None

    def tree_pieces(self, root: Any, skeleton: Skeleton | None = None) -> list[Piece]:
        """Pieces by the syntax tree, joined inside each node; iterative, since trees can be 100,000 deep.

        Raises _NotShown if the tree is a skeleton's and its containers do not reach.
        """
        original = skeleton.original if skeleton is not None and skeleton.at else None
        containers = skeleton.containers if skeleton is not None else None
        pieces: list[Slice] = []
        frames: list[tuple[Iterator[Any], int]] = [(iter(root.children), 0)]
        fits = self.limit - self.head - SLACK  # estimates up to here need no second look
        while frames:
            children, base = frames[-1]
            for node in children:
                start, end = node.start_byte, node.end_byte
                if original is not None:
                    start, end = original(start), original(end)
                piece = self._slice(start, end, pieces)
                estimate = piece[3] - piece[2]
                if estimate <= fits:
                    self.fit = max(self.fit, estimate + SLACK)
                elif not self.fits(piece[0], piece[1]):
                    if containers is not None and node.type not in containers:
                        raise _NotShown
                    if node.child_count:
                        frames.append((iter(node.children), len(pieces)))
                        break
                    for start, end in self.text_pieces(piece[0], piece[1]):
                        self._add(pieces, base, self._slice(start, end, pieces))
                    continue
                self._add(pieces, base, piece)
            else:
                frames.pop()
                if frames and len(pieces) > base > frames[-1][1]:
                    # The node is done: now its first piece may join what its elder siblings left.
                    self._join(pieces, base)
        return [(start, end) for start, end, _, _ in pieces]

    def _slice(self, start: int, end: int, pieces: list[Slice]) -> Slice:
        """A slice with its tokens; never before the last piece, behind which a grammar's empty tokens can lie."""
        ends = self.ends()
        if pieces:
            start, end = max(start, pieces[-1][1]), max(end, pieces[-1][1])
        first = bisect_right(ends, start)
        return start, end, first, bisect_left(ends, end, lo=first) + 1 if start < end else first

    def _add(self, pieces: list[Slice], base: int, piece: Slice) -> None:
        pieces.append(piece)
        if len(pieces) - 1 > base:
            self._join(pieces, len(pieces) - 1)

    def _join(self, pieces: list[Slice], index: int) -> None:
        """Join the piece at `index` to the one before it, if they fit together."""
        left, right = pieces[index - 1], pieces[index]
        if not self.may_join(left, right):
            return
        together = right[3] - left[2] + SLACK  # with what lies between them
        if self.head + together <= self.limit:
            self.fit = max(self.fit, together)
        elif not self.fits(left[0], right[1]):
            return
        pieces[index - 1 : index + 1] = [(left[0], right[1], left[2], max(left[3], right[3]))]

    # -- cutting at separators -----------------------------------------------------------------------------------

    def text_pieces(self, start: int, end: int) -> list[Piece]:
        """Pieces of a slice by its separators, each as long as fits; every one fits unless it is one character."""
        pieces: list[Piece] = []
        todo: list[tuple[int, int, int]] = [(start, end, 0)]
        while todo:
            start, end, level = todo.pop()
            if start >= end:
                continue
            if self._fits_exactly(start, end):
                pieces.append((start, end))
                continue
            parts = self._split(start, end, level)
            if parts is None:
                pieces.extend(self._character_pieces(start, end))
                continue
            found: list[tuple[int, int, int]] = []
            index = 0
            while index < len(parts):
                index = self._take(parts, index, level, found)
            todo.extend(reversed(found))
        return pieces

    def _take(self, parts: list[Piece], index: int, level: int, found: list[tuple[int, int, int]]) -> int:
        """Put the longest run of parts from `index` on that fits into `found` (or the part, to be split again)."""
        start, end = parts[index]
        if not self.fits(start, end):
            found.append((start, end, level + 1))
            return index + 1
        # All parts before `sure` fit by estimate, none from `over` on; between them, count.
        sure, over = index, self._first_over(parts, index)
        while over - sure > 1:
            middle = (sure + over) // 2
            if self.fits(start, parts[middle][1]):
                sure = middle
            else:
                over = middle
        while sure > index and not self._fits_exactly(start, parts[sure][1]):
            sure -= 1
        found.append((start, parts[sure][1], level + 1))
        return sure + 1

    def _first_over(self, parts: list[Piece], index: int) -> int:
        """Index of the first part whose end is out of reach of a piece that starts at part `index`."""
        ends = self.ends()
        first = bisect_right(ends, parts[index][0])
        last = first + self.limit - self.head + SLACK
        if last >= len(ends):
            return len(parts)
        return max(index + 1, bisect_right(parts, ends[last], lo=index, key=lambda part: part[1]))

    def _fits_exactly(self, start: int, end: int) -> bool:
        if not self.fits(start, end):
            return False
        return self._at_most(self.count(start, end))

    def _split(self, start: int, end: int, level: int) -> list[Piece] | None:
        """Split a slice at its best separator; None when it has none. Blank separators belong to no part."""
        data = self.utf8
        # So many kinds of blank runs, each a level, are made up: go on with single ones.
        runs = level < _MAX_SEPARATOR_LEVELS
        for several, single in ((_NEWLINES, _NEWLINE), (_TABS, re.compile(rb"\t")), (_BLANKS, None)):
            longest = max((m.group() for m in several.finditer(data, start, end)), key=len, default=None)
            if longest is not None and runs:
                return self._parts(re.compile(re.escape(longest)), start, end)
            found = single.search(data, start, end) if single else None
            if found or longest is not None:
                pattern = re.compile(re.escape(found.group())) if found and runs else several
                return self._parts(pattern, start, end)
        blank = _BLANK.search(data, start, end)
        if blank:
            for mark in _PUNCTUATION:
                after = re.compile(re.escape(mark) + rb"([ \x0b\x0c])").search(data, start, end)
                if after:
                    separator = rb"(?<=" + re.escape(mark) + rb")" + re.escape(after.group(1))
                    return self._parts(re.compile(separator), start, end)
            return self._parts(re.compile(re.escape(blank.group())), start, end)
        for mark in _PUNCTUATION:
            parts = self._parts_after(mark, start, end)
            if len(parts) > 1:
                return parts
        return None

    def _parts(self, separator: re.Pattern[bytes], start: int, end: int) -> list[Piece]:
        """What lies between the separators, empty parts too: a piece that ends with one holds the last separator."""
        parts: list[Piece] = []
        position = start
        for match in separator.finditer(self.utf8, start, end):
            parts.append((position, match.start()))
            position = match.end()
        parts.append((position, end))
        return parts

    def _parts_after(self, mark: bytes, start: int, end: int) -> list[Piece]:
        """Parts that each end with `mark`, the last perhaps without: punctuation stays with what it ends."""
        parts: list[Piece] = []
        position = start
        while (found := self.utf8.find(mark, position, end)) >= 0:
            parts.append((position, found + len(mark)))
            position = found + len(mark)
        if position < end:
            parts.append((position, end))
        return parts

    def _character_pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Pieces of a slice without separators: as many characters as fit."""
        ends = self.ends()
        room = self.limit - self.head
        while start < end:
            if self._fits_exactly(start, end):
                yield start, end
                return
            first = bisect_right(ends, start)
            stop = min(ends[min(first + room + SLACK, len(ends) - 1)], end)
            low, high = self._next(start), self._character(stop)
            # `low` fits or is a single character; find the greatest that does.
            while low < high:
                middle = self._character((low + high + 1) // 2)
                if middle <= low:
                    middle = self._next(low)
                if self._at_most(self.count(start, middle)):
                    low = middle
                else:
                    high = self._character(middle - 1)
            yield start, low
            start = low

    def _character(self, offset: int) -> int:
        """The start of the character that holds the byte at `offset`."""
        while 0 < offset < self.end and self.utf8[offset] & 0xC0 == 0x80:
            offset -= 1
        return offset

    def _next(self, offset: int) -> int:
        """The start of the character after the one at `offset`."""
        offset += 1
        while offset < self.end and self.utf8[offset] & 0xC0 == 0x80:
            offset += 1
        return offset

    # -- results -------------------------------------------------------------------------------------------------

    def chunks(self, pieces: list[Piece]) -> list[Chunk]:
        """Chunks from pieces: blank ones dropped, gaps filled, every count checked by the tokenizer."""
        final: list[Piece] = []
        for start, end in self._covering(pieces):
            if self._at_most(self.count(start, end)):
                final.append((start, end))
            else:  # an estimate was further off than SLACK
                final.extend(filter(None, (self._trimmed(*piece) for piece in self.text_pieces(start, end))))
        offsets = [offset for piece in final for offset in piece]
        positions = self.document.positions(offsets)
        chunks: list[Chunk] = []
        line, seen = 1, 0
        for index, (start, end) in enumerate(final):
            line += self.utf8.count(b"\n", seen, start)
            last = line + self.utf8.count(b"\n", start, end - 1)
            (start_byte, start_char), (end_byte, end_char) = positions[2 * index : 2 * index + 2]
            text = self.utf8[start:end].decode("utf-8")
            tokens = self.true_head + self.count(start, end)
            chunks.append(Chunk(start_byte, end_byte, start_char, end_char, line, last, tokens, text))
            line, seen = last, end - 1
        return chunks

    def _covering(self, pieces: list[Piece]) -> list[Piece]:
        """Pieces without blank ones, and with what grammars leave between their nodes if it is not blank."""
        covered: list[Piece] = []
        position = self.start
        for start, end in [*pieces, (self.end, self.end)]:
            start, end = max(self._character(start), position), max(self._character(end), position)
            gap = self._trimmed(position, start) if start > position else None
            if gap is not None:
                gap = gap[0], gap[0] + len(self.utf8[gap[0] : gap[1]].decode("utf-8").rstrip().encode("utf-8"))
                if covered and self.fits(covered[-1][0], gap[1]) and self._fits_exactly(covered[-1][0], gap[1]):
                    covered[-1] = covered[-1][0], gap[1]
                elif end > start and self._fits_exactly(gap[0], end):
                    start = gap[0]
                else:
                    covered.extend(filter(None, (self._trimmed(*piece) for piece in self.text_pieces(*gap))))
            piece = self._trimmed(start, end)
            if piece is not None:
                covered.append(piece)
            position = max(position, end)
        return covered

    def _trimmed(self, start: int, end: int) -> Piece | None:
        """A piece without its leading blank lines, which would melt with the head's; None if it is all blank."""
        if start < end and 0x20 < self.utf8[start] < 0x80:
            return start, end
        text = self.utf8[start:end].decode("utf-8")
        if not text or text.isspace():
            return None
        blank = _LEADING_BLANK_LINES.match(text)
        return (start + len(blank.group().encode("utf-8")), end) if blank else (start, end)
