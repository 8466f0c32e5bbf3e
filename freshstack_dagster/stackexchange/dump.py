"""Questions with accepted answers from a Stack Exchange dump: `Posts.xml`, plain or inside a `.7z`, of any size.

Two ways lead to the same rows. With an index (see `index.py`) the dump is read only where wanted rows lie; building
it is the one full pass. Without one (small dumps, the first reading of a `.7z`, or `index=False`) the dump is read once
in order, keeping what the topic wants; answers that come before their question wait aside.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path

import numpy as np
import polars as pl

from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange import questions as reasons
from freshstack_dagster.stackexchange.archive import MemberStream, is_archive, member_names, open_member
from freshstack_dagster.stackexchange.index import (
    DumpIndex,
    IndexWriter,
    beside,
    build_index,
    find_index,
    require_end,
)
from freshstack_dagster.stackexchange.progress import Meter, ProgressCallback
from freshstack_dagster.stackexchange.questions import (
    Question,
    QuestionFilter,
    QuestionRows,
    Questions,
    joint_license,
    license_at,
    parse_moment,
    user_url,
)
from freshstack_dagster.stackexchange.row import parse_row, split_tags
from freshstack_dagster.stackexchange.scan import Scanned, scan_stream
from freshstack_dagster.stackexchange.text import html_to_text

POSTS = "Posts.xml"
POST_LINKS = "PostLinks.xml"

# Dumps smaller than this are read faster than an index is written and asked.
_INDEX_FROM_BYTES = 64 << 20
# Answers whose question is still to come may take this much memory before a second reading is planned instead.
_ASIDE_BYTES = 64 << 20
_DUPLICATE_LINK = re.compile(rb'<row [^<]*?\bPostId="(\d+)"[^<]*?\bLinkTypeId="3"')
_DUPLICATE_TITLE = re.compile(r"\[duplicate\]\s*$", re.IGNORECASE)


def read_dump(
    path: str | Path,
    tags: Iterable[str] | None = None,
    *,
    filter: QuestionFilter | None = None,
    index: str | Path | bool | None = None,
    progress: ProgressCallback | None = None,
    site: str = "stackoverflow.com",
) -> pl.DataFrame:
    """Read the questions with accepted answers from a dump.

    `path` is a `Posts.xml` or a `.7z` that holds one; `tags` the exact tags of which a question must carry one (None:
    every question), in place of those of `filter`, which may ask for more. `index`: a folder to keep the index in,
    False for none; by default it is kept beside dumps over 64 MB as `<name>.index`, if that folder can be written.
    `progress` is called about once a second with a `Progress`. Returns the columns of table `questions`, sorted by
    question_id. Raises SourceError for a file that is missing, cut off or damaged.
    """
    chosen = filter or QuestionFilter(frozenset())
    if tags is not None:
        wanted = frozenset([tags] if isinstance(tags, str) else tags)
        chosen = QuestionFilter(**{**chosen.__dict__, "tags": wanted})
    return load_dump(path, chosen, site=site, index_dir=index, progress=progress).questions


def load_dump(
    path: str | Path,
    filter: QuestionFilter,
    *,
    site: str = "stackoverflow.com",
    index_dir: str | Path | bool | None = None,
    progress: ProgressCallback | None = None,
    workers: int | None = None,
) -> Questions:
    """Read the topic's questions from a dump, and why each of its other questions was left out.

    As `read_dump`, with the ledger, and counts of the dump's `rows` and `questions` and of questions of another tag
    (`other tag`). `site` is the host that the pages lie on. A question is left out for the first of: before the floor,
    after the cut-off, no accepted answer, answer missing, duplicate, closed, score, too long. `exclude_duplicates`
    needs `PostLinks.xml` beside `Posts.xml` or in the same archive.
    """
    source = _locate(Path(path))
    selection = _Selection(filter, site, str(source))
    if filter.exclude_duplicates:
        selection.duplicates = _duplicate_ids(source, progress)
    packed = is_archive(source)
    root = _index_root(source, index_dir)
    index = find_index(source, root) if root is not None else None
    if index is None and root is not None and not packed:
        index = build_index(source, root, workers=workers, progress=progress)
    if index is not None:
        _select_by_index(source, index, selection, packed, progress)
    else:
        _select_by_reading(source, selection, packed, root, progress)
    return selection.finish()


def ensure_index(
    path: str | Path,
    *,
    index_dir: str | Path | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> DumpIndex:
    """The index of a dump, built if it is not there yet (in `index_dir`, by default beside the dump)."""
    source = _locate(Path(path))
    root = Path(index_dir) if index_dir is not None else beside(source)
    index = find_index(source, root)
    if index is not None:
        return index
    if not is_archive(source):
        return build_index(source, root, workers=workers, progress=progress)
    writer = IndexWriter(source, root)
    try:
        with _open(source, True) as stream:
            meter = Meter(progress, stream.size, f"indexing {source.name}")
            end = 0
            for scanned, _, base in scan_stream(stream.readinto, stream.name):
                end = base + scanned.consumed
                writer.add(scanned, end)
                meter.at(end)
            meter.at(stream.size, last=True)
        return writer.finish(end)
    finally:
        writer.discard()


class _Ids:
    """A set of post ids, asked for many at once: a byte an id up to the highest, as the ids of a dump are dense."""

    _SMALL = 1 << 28

    def __init__(self) -> None:
        self._seen = np.zeros(1 << 16, dtype=bool)
        self._large: set[int] = set()

    def add(self, ids: np.ndarray) -> None:
        small = ids[ids < self._SMALL]
        self._large.update(ids[ids >= self._SMALL].tolist())
        if len(small):
            highest = int(small.max())
            if highest >= len(self._seen):
                grown = np.zeros(max(highest + 1, 2 * len(self._seen)), dtype=bool)
                grown[: len(self._seen)] = self._seen
                self._seen = grown
            self._seen[small] = True

    def contain(self, ids: np.ndarray) -> np.ndarray:
        within = (ids >= 0) & (ids < len(self._seen))
        found = np.zeros(len(ids), dtype=bool)
        found[within] = self._seen[ids[within]]
        if self._large:
            found |= np.array([number in self._large for number in ids.tolist()], dtype=bool)
        return found


class _Selection:
    """Decides question by question, holds the texts that are kept, and joins them at the end."""

    def __init__(self, wanted: QuestionFilter, site: str, name: str) -> None:
        self.filter = wanted
        self.site = site
        self.name = name
        self.duplicates: frozenset[int] = frozenset()
        self.rows = QuestionRows()
        self.accepted = _Ids()  # answers of the questions that are still wanted
        self._pairs: dict[int, int] = {}  # question -> its accepted answer
        self._questions: dict[int, dict[str, str]] = {}
        self._answers: dict[int, dict[str, str]] = {}
        for name in ("rows", "questions", reasons.OTHER_TAG):
            self.rows.count(name, 0)
        self._about = 0
        self._patterns = [f"|{tag}|" for tag in sorted(wanted.tags)]

    def candidates(self, questions: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
        """Of indexed questions those to be fetched; the reasons against others of the topic go to the ledger."""
        frame = questions.lazy()
        if self._patterns:
            frame = frame.filter(pl.col("tags").str.contains_any(self._patterns))
        about = frame.collect()
        self._about += about.height
        if not about.height:
            return about
        keep = []
        for post_id, accepted, asked_at in about.select("post_id", "accepted_id", "asked_at").iter_rows():
            moment = None if asked_at is None else asked_at.replace(tzinfo=UTC)
            against = self.filter.reason_against(asked_at=moment)
            if against is None and accepted is None:
                against = (reasons.NO_ACCEPTED_ANSWER, "")
            if against is not None:
                self.rows.leave_out(str(post_id), against[0], against[1] or None)
            else:
                self._pairs[post_id] = accepted
            keep.append(against is None)
        kept = about.filter(pl.Series(keep, dtype=pl.Boolean))
        self.accepted.add(kept["accepted_id"].to_numpy())
        return kept

    def question(self, post_id: int, row: bytes, offset: int) -> None:
        """Take in a question's row."""
        self._questions[post_id] = self._parse(row, offset, post_id)

    def answer(self, post_id: int, row: bytes, offset: int) -> None:
        """Take in an accepted answer's row."""
        self._answers[post_id] = self._parse(row, offset, post_id)

    def _parse(self, row: bytes, offset: int, post_id: int) -> dict[str, str]:
        attributes = parse_row(row, self.name, offset)
        if attributes.get("Id", "").strip() != str(post_id):
            raise SourceError(
                f"{self.name}: byte {offset} holds post {attributes.get('Id')}, the index says {post_id}; "
                "delete the index folder beside the dump and run again"
            )
        return attributes

    def missing(self) -> set[int]:
        """Accepted answers that have not come yet."""
        return set(self._pairs.values()) - self._answers.keys()

    def count(self, name: str, number: int) -> None:
        """Add to the counts of the dump."""
        self.rows.count(name, number)

    def may_hold(self, tags: str) -> bool:
        """Whether any of the wanted tags stands in a block's tags: one look that spares most blocks the next."""
        return not self._patterns or any(pattern in tags for pattern in self._patterns)

    def finish(self) -> Questions:
        """Join questions and answers, apply what is known only now, and make the tables."""
        self.count(reasons.OTHER_TAG, self.rows.counts["questions"] - self._about)
        for question_id, answer_id in self._pairs.items():
            question = self._questions.pop(question_id)
            answer = self._answers.get(answer_id)
            if answer is None:
                self.rows.leave_out(str(question_id), reasons.ANSWER_MISSING, f"answer {answer_id} is not in the dump")
                continue
            self._join(str(question_id), question, str(answer_id), answer)
        return self.rows.tables()

    def _join(self, question_id: str, question: dict[str, str], answer_id: str, answer: dict[str, str]) -> None:
        title = " ".join(question.get("Title", "").split())
        body = html_to_text(question.get("Body", ""))
        asked_at = parse_moment(question.get("CreationDate"))
        score = _integer(question.get("Score"))
        against = self.filter.reason_against(
            asked_at=asked_at,
            score=score,
            closed="ClosedDate" in question,
            duplicate=int(question_id) in self.duplicates or _DUPLICATE_TITLE.search(title) is not None,
            characters=len(title) + 1 + len(body),
        )
        if against is not None:
            self.rows.leave_out(question_id, *against)
            return
        self.rows.add(
            Question(
                question_id=question_id,
                title=title,
                body_text=body,
                answer_id=answer_id,
                answer_text=html_to_text(answer.get("Body", "")),
                tags=split_tags(question.get("Tags")),
                score=score,
                view_count=_integer(question.get("ViewCount")),
                asked_at=asked_at,
                answer_edited_at=parse_moment(answer.get("LastEditDate") or answer.get("CreationDate")),
                url=f"https://{self.site}/questions/{question_id}",
                author_url=user_url(self.site, question.get("OwnerUserId")),
                answer_author_url=user_url(self.site, answer.get("OwnerUserId")),
                license=_license(question, answer),
            )
        )


def _license(question: dict[str, str], answer: dict[str, str]) -> str | None:
    return joint_license(
        *(
            post.get("ContentLicense") or license_at(parse_moment(post.get("CreationDate")))
            for post in (question, answer)
        )
    )


def _integer(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _locate(path: Path) -> Path:
    if path.is_dir() and (path / POSTS).is_file():
        path = path / POSTS
    if not path.is_file():
        raise SourceError(f"{path}: no such dump; give a {POSTS} or a .7z that holds one")
    if path.stat().st_size == 0:
        raise SourceError(f"{path}: empty, cut off at byte 0; get it again")
    return path


def index_place(path: str | Path, spare: Path) -> Path | None:
    """Where a dump's index belongs: beside the dump (None says so), or in `spare` if nothing can be written there.

    An index that stands beside a dump is used even where it cannot be written. Raises SourceError without a dump.
    """
    source = _locate(Path(path))
    root = beside(source)
    if root.is_dir() and (os.access(root, os.W_OK) or find_index(source, root) is not None):
        return None
    if not root.is_dir() and (os.access(source.parent, os.W_OK) or source.stat().st_size < _INDEX_FROM_BYTES):
        return None
    return spare


def tag_index_place(path: str | Path, spare: Path) -> Path | None:
    """As `index_place`, but a dump too small to deserve an index beside it gets one in `spare`."""
    source = _locate(Path(path))
    small = source.stat().st_size < _INDEX_FROM_BYTES and not beside(source).is_dir()
    return spare if small else index_place(source, spare)


def _index_root(source: Path, index_dir: str | Path | bool | None) -> Path | None:
    if index_dir is False:
        return None
    if index_dir is None or index_dir is True:
        root = beside(source)
        if index_dir is None and not root.is_dir() and source.stat().st_size < _INDEX_FROM_BYTES:
            return None
        return root if os.access(root if root.is_dir() else source.parent, os.W_OK) else None
    return Path(index_dir)


@contextmanager
def _open(source: Path, packed: bool) -> Iterator[_PlainStream | MemberStream]:
    if packed:
        with open_member(source, POSTS) as stream:
            yield stream
    else:
        with open(source, "rb", buffering=0) as file:
            yield _PlainStream(str(source), source.stat().st_size, file.readinto)


class _PlainStream:
    def __init__(self, name: str, size: int, readinto: Callable[[memoryview], int | None]) -> None:
        self.name = name
        self.size = size
        self.readinto = readinto


def _select_by_index(
    source: Path, index: DumpIndex, selection: _Selection, packed: bool, progress: ProgressCallback | None
) -> None:
    fetch: list[tuple[int, int, int, bool]] = []  # offset, length, id, whether it is a question
    for questions in index.questions():
        for post_id, offset, length in (
            selection.candidates(questions).select("post_id", "offset", "length").iter_rows()
        ):
            fetch.append((offset, length, post_id, True))
    if missing := selection.missing():
        wanted = pl.Series(sorted(missing), dtype=pl.Int64).implode()
        for answers in index.answers():
            found = answers.filter(pl.col("post_id").is_in(wanted)).select("post_id", "offset", "length").collect()
            fetch.extend((offset, length, post_id, False) for post_id, offset, length in found.iter_rows())
    selection.count("rows", index.rows)
    selection.count("questions", index.question_count())
    fetch.sort()
    rows = _unpacked_rows(source, fetch, progress) if packed else _rows_at(source, fetch)
    for (offset, _, post_id, is_question), row in zip(fetch, rows, strict=True):
        (selection.question if is_question else selection.answer)(post_id, row, offset)


def _rows_at(source: Path, places: list[tuple[int, int, int, bool]]) -> Iterator[bytes]:
    with open(source, "rb", buffering=0) as file:
        for offset, length, _, _ in places:
            file.seek(offset)
            yield file.read(length)


def _unpacked_rows(
    source: Path, places: list[tuple[int, int, int, bool]], progress: ProgressCallback | None
) -> Iterator[bytes]:
    """The rows at sorted places of a packed dump, which is unpacked up to the last of them."""
    if not places:
        return
    with open_member(source, POSTS) as stream:
        meter = Meter(progress, places[-1][0] + places[-1][1], f"unpacking {source.name}")
        scratch = bytearray(1 << 20)
        position = 0

        def forward(count: int, keep: bool) -> bytes:
            nonlocal position
            kept = bytearray()
            while count:
                with memoryview(scratch)[: min(count, len(scratch))] as view:
                    got = stream.readinto(view)
                    if not got:
                        raise SourceError(f"{stream.name}: ends at byte {position}, before the rows of its index")
                    if keep:
                        kept += view[:got]
                position += got
                count -= got
                meter.at(position)
            return bytes(kept)

        for offset, length, _, _ in places:
            forward(offset - position, keep=False)
            yield forward(length, keep=True)


def _select_by_reading(
    source: Path, selection: _Selection, packed: bool, root: Path | None, progress: ProgressCallback | None
) -> None:
    if not packed:
        require_end(source)
    writer = IndexWriter(source, root) if root is not None else None
    asked = _Ids()
    aside: dict[int, tuple[bytes, int]] = {}
    aside_bytes, dropped = 0, set()
    try:
        with _open(source, packed) as stream:
            meter = Meter(progress, stream.size, f"reading {source.name}")
            end = 0
            for scanned, buffer, base in scan_stream(stream.readinto, stream.name):
                end = base + scanned.consumed
                _take_questions(selection, scanned, buffer, base)
                asked.add(scanned.questions.post_id)
                answers = scanned.answers
                if len(answers.post_id):
                    accepted = selection.accepted.contain(answers.post_id)
                    early = ~asked.contain(answers.parent_id)
                    for place in np.flatnonzero(accepted | early).tolist():
                        post_id, offset = int(answers.post_id[place]), int(answers.offset[place])
                        length, now = int(answers.length[place]), accepted[place]
                        row = bytes(buffer[offset - base : offset - base + length])
                        if now:
                            selection.answer(post_id, row, offset)
                        elif aside_bytes + length <= _ASIDE_BYTES:
                            aside[post_id] = (row, offset)
                            aside_bytes += length
                        else:
                            dropped.add(post_id)
                selection.count("rows", scanned.rows)
                if writer is not None:
                    writer.add(scanned, end)
                meter.at(end)
            meter.at(stream.size, last=True)
        if writer is not None:
            writer.finish(end)
    finally:
        if writer is not None:
            writer.discard()
    for post_id in selection.missing() & aside.keys():
        selection.answer(post_id, *aside[post_id])
    missing = selection.missing() & dropped
    if missing:  # a dump in an order of its own: read it again for the answers that had no room
        with _open(source, packed) as stream:
            meter = Meter(progress, stream.size, f"reading {source.name} again")
            for scanned, buffer, base in scan_stream(stream.readinto, stream.name):
                found = scanned.answers.frame().filter(pl.col("post_id").is_in(list(missing)))
                for post_id, offset, length in found.select("post_id", "offset", "length").iter_rows():
                    selection.answer(post_id, bytes(buffer[offset - base : offset - base + length]), offset)
                meter.at(base + scanned.consumed)


def _take_questions(selection: _Selection, scanned: Scanned, buffer: bytearray, base: int) -> None:
    selection.count("questions", len(scanned.questions.post_id))
    if not len(scanned.questions.post_id) or not selection.may_hold(scanned.questions.tags):
        return
    questions = scanned.questions.frame()
    for post_id, offset, length in selection.candidates(questions).select("post_id", "offset", "length").iter_rows():
        selection.question(post_id, bytes(buffer[offset - base : offset - base + length]), offset)


def _duplicate_ids(source: Path, progress: ProgressCallback | None) -> frozenset[int]:
    """Questions that PostLinks.xml calls duplicates (LinkTypeId 3)."""
    links = source.with_name(POST_LINKS)
    if links.is_file():
        with open(links, "rb", buffering=0) as file:
            return _linked_ids(file.readinto, links.stat().st_size, str(links), progress)
    if is_archive(source) and POST_LINKS in member_names(source):
        with open_member(source, POST_LINKS) as stream:
            return _linked_ids(stream.readinto, stream.size, stream.name, progress)
    raise SourceError(
        f"{source}: exclude_duplicates needs {POST_LINKS} of the same dump beside it; put it there or leave it off"
    )


def _linked_ids(
    read_into: Callable[[memoryview], int | None], size: int, name: str, progress: ProgressCallback | None
) -> frozenset[int]:
    found: set[int] = set()
    meter = Meter(progress, size, f"reading {name}")
    rest, done = b"", 0
    scratch = bytearray(4 << 20)
    while got := read_into(memoryview(scratch)):
        done += got
        text = rest + bytes(scratch[:got])
        cut = text.rfind(b"<")
        cut = len(text) if cut < 0 else cut
        found.update(int(match[1]) for match in _DUPLICATE_LINK.finditer(text, 0, cut))
        rest = text[cut:]
        meter.at(done)
    if not rest.startswith(b"</postlinks") and b"<postlinks" not in rest:
        raise SourceError(f"{name}: cut off at byte {done}: it does not end with </postlinks>; get it again")
    return frozenset(found)
