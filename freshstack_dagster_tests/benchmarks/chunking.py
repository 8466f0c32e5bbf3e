"""Speed and fidelity of the chunker beside the reference package `freshstack`, on real repositories.

    python -m freshstack_dagster_tests.benchmarks.chunking NAME=PATH@COMMIT [NAME=PATH@COMMIT ...] [--no-reference]

NAME is `owner/name` (it heads the documents, as in the papers), PATH a git repository, bare or not, COMMIT anything
that git resolves. Every file is chunked by both in one process, in passes of their own; CPU seconds are compared,
reading git and loading grammars left out. `times` is the ratio over all files, `shared` the ratio over those of which
the reference makes chunks: it leaves out what is large, in another encoding, or of a language that it does not know.
`/floor` is ours over the least work: one tokenisation of every text and one parse of every text over the limit (a
skeleton can cost less). PDFs are files of the reference's corpora: it reads them through pymupdf4llm, which takes most
of its time where a repository holds a long one; they are counted if both sides can read them (ours: pypdfium2, the
extra `pdf`), and stand in a row of their own beside `Markdown` and `other`, as `all` stands beside `all but PDF`.

The reference is used if `freshstack.chunking` can be imported (its chunking needs tiktoken with cl100k_base in
TIKTOKEN_CACHE_DIR, semchunk, pygments, nbformat, nbconvert, traitlets, transformers); without it our figures stand
alone. The benchmark `repositories` runs both as their users do, git, files and tables included.

Fidelity: chunk ids of the reference that are ours too, by class of file. `clean` are the files on which ids are
promised to be equal; each other class names what the reference does to the file.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from freshstack_dagster.corpus import chunk as chunker
from freshstack_dagster.corpus.decode import NotText, decode
from freshstack_dagster.corpus.languages import grammar_of, language_of, parser_of
from freshstack_dagster.corpus.pdf import is_pdf, pdf_reader
from freshstack_dagster.corpus.tokens import count_tokens, load_tokenizer, token_ends
from freshstack_dagster.corpus.workers import cut

MAX_TOKENS = 2048
# What the reference leaves out before chunking.
EXCLUDED = {".png", ".gif", ".bin", ".jpg", ".jpeg", ".mp4", ".csv", ".json"}
REFERENCE_MAX_CHARACTERS = 1_000_000

KINDS = ("Markdown", "PDF", "other", "all but PDF", "all")

Span = tuple[int, int]
Reference = Callable[[str, bytes], list[tuple[Span, str]] | None]


@dataclass
class Tally:
    """Sums over files."""

    files: int = 0
    with_pdf: bool = False
    bytes: int = 0
    seconds: float = 0.0
    reference_seconds: float = 0.0
    shared_seconds: float = 0.0  # ours, on the files of which the reference makes chunks
    shared_reference_seconds: float = 0.0
    floor_seconds: float = 0.0
    chunks: int = 0
    reference_chunks: int = 0


@dataclass
class Fidelity:
    """Chunk ids by class of file."""

    files: Counter[str] = field(default_factory=Counter)
    theirs: Counter[str] = field(default_factory=Counter)
    ours: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    lost_files: Counter[str] = field(default_factory=Counter)
    lost_chunks: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)


def blobs(repository: str, commit: str) -> Iterator[tuple[str, bytes]]:
    """Paths and contents that the reference would read, in the tree's order."""
    tree = subprocess.run(
        ["git", "-C", repository, "ls-tree", "-r", "-z", "--full-tree", commit], capture_output=True, check=True
    ).stdout
    reader = subprocess.Popen(
        ["git", "-C", repository, "cat-file", "--batch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert reader.stdin and reader.stdout
    with reader:
        for row in tree.split(b"\0"):
            meta, _, name = row.partition(b"\t")
            parts = meta.split()
            path = name.decode("utf-8", "surrogateescape")
            hidden = any(part.startswith(".") for part in path.split("/"))
            if len(parts) != 3 or parts[1] != b"blob" or parts[0] == b"120000" or hidden:
                continue
            if PurePosixPath(path).suffix.lower() in EXCLUDED:
                continue
            reader.stdin.write(parts[2] + b"\n")
            reader.stdin.flush()
            header = reader.stdout.readline().split()
            if header[1:2] != [b"blob"]:
                continue  # a partial mirror
            yield path, reader.stdout.read(int(header[2]))
            reader.stdout.read(1)
        reader.stdin.close()


def reference_chunker() -> Reference | None:
    """The reference as a function from path and bytes to spans and texts; None where it fails on the file."""
    try:
        from freshstack.chunking import UniversalFileChunker
    except ImportError as error:
        print(f"no reference: {error}", file=sys.stderr)
        return None
    reference: Any = UniversalFileChunker(max_tokens=MAX_TOKENS)

    def run(path: str, data: bytes) -> list[tuple[Span, str]] | None:
        try:
            text = pdf_as_markdown(data) if path.endswith(".pdf") else data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # it opens files in text mode
        if len(text) >= REFERENCE_MAX_CHARACTERS:
            return None
        try:
            found = reference.chunk(text, {"file_path": path, "url": ""})
        except Exception:  # any of its assertions and its libraries' errors
            return None
        texts = [((c.start_byte, c.end_byte), c.file_content[c.start_byte : c.end_byte]) for c in found]
        return [(span, text) for span, text in texts if text.strip()]

    return run


def pdf_as_markdown(data: bytes) -> str:
    """A PDF's text as the reference reads it."""
    import pymupdf4llm

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.pdf"
        path.write_bytes(data)
        return pymupdf4llm.to_markdown(str(path))


def ours(path: str, data: bytes) -> list[Span]:
    """Our cuts of a file, a PDF's of its text."""
    if is_pdf(path, data):
        starts, ends, *_ = cut(path, data, MAX_TOKENS).columns
        return list(zip(starts, ends, strict=True))
    return [(one.start_byte, one.end_byte) for one in chunker.chunk_file(path, data)]


def floor(path: str, data: bytes) -> None:
    """The least work: tokenise once, parse once if the file does not fit."""
    try:
        document = decode(data)
    except NotText:
        return
    if len(data) <= 2 * MAX_TOKENS:
        count_tokens(document.text)
        return
    tokens = len(token_ends(document.text))
    grammar = grammar_of(language_of(path))
    if tokens > MAX_TOKENS and grammar:
        parser_of(grammar).parse(document.utf8)


def class_of(path: str, data: bytes, theirs: list[tuple[Span, str]]) -> str:
    """What stands in the way of equal ids; `clean` if nothing does."""
    if path.endswith(".ipynb"):
        return "notebook: the reference rewrites every `pip` and keeps empty cells"
    if not data.isascii():
        return "not ASCII: the reference takes byte offsets for characters"
    if b"\r" in data:
        return "carriage returns: the reference reads them as newlines"
    text, position, lost = data.decode(), 0, []
    for (start, end), piece in theirs:
        if start < position or text[start:end] != piece:
            return "a leaf over the limit: the reference's offsets are of the leaf"
        lost.append(text[position:start])
        position = end
    lost.append(text[position:])
    if any(gap.strip() for gap in lost):
        return "the reference loses text between or after its nodes"
    return "clean"


def compare(
    fidelity: Fidelity, path: str, data: bytes, theirs: list[tuple[Span, str]] | None, ours: list[Span]
) -> None:
    """Add one file to the fidelity tally."""
    extension = PurePosixPath(path).suffix.lower() or PurePosixPath(path).name
    if not theirs:
        if ours:
            fidelity.lost_files[extension] += 1
            fidelity.lost_chunks[extension] += len(ours)
        return
    spans = {span for span, _ in theirs}
    kind = class_of(path, data, theirs)
    fidelity.files[kind] += 1
    fidelity.theirs[kind] += len(spans)
    fidelity.ours[kind] += len(ours)
    fidelity.equal[kind] += len(spans & set(ours))
    if kind == "clean" and spans - set(ours):
        fidelity.differing.append(f"{path}: {len(spans - set(ours))} of {len(spans)}")


def main() -> int:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="+", metavar="NAME=PATH@COMMIT")
    parser.add_argument("--no-reference", action="store_true", help="only our own speed and the floor")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    reference = None if options.no_reference else reference_chunker()
    load_tokenizer()
    with_pdf = pdf_reader() is not None and (reference is None or find_spec("pymupdf4llm") is not None)
    if not with_pdf:
        print("PDFs are left out: pypdfium2 or the reference's pymupdf4llm is not installed", file=sys.stderr)
    tallies: dict[str, Tally] = defaultdict(Tally)
    fidelities: dict[str, Fidelity] = {}
    for argument in options.repositories:
        name, _, place = argument.partition("=")
        repository, _, commit = place.rpartition("@")
        if not (name and repository and commit):
            parser.error(f"{argument!r} is not NAME=PATH@COMMIT")
        fidelities[name] = measure(
            name, [file for file in blobs(repository, commit) if with_pdf or not is_pdf(*file)], reference, tallies
        )
    print_speed(tallies, reference is not None)
    if reference is not None:
        for name, fidelity in fidelities.items():
            print_fidelity(name, fidelity)
    return 0


def seconds(work: Callable[[str, bytes], Any], path: str, data: bytes) -> tuple[float, Any]:
    """CPU seconds of this process for one file, and the result."""
    began = time.process_time()
    result = work(path, data)
    return time.process_time() - began, result


def measure(
    name: str, files: list[tuple[str, bytes]], reference: Reference | None, tallies: dict[str, Tally]
) -> Fidelity:
    """Chunk a repository's files in one pass each of ours, the floor and the reference; none profits from another."""
    for grammar in {grammar_of(language_of(path)) for path, _ in files} - {None}:
        parser_of(str(grammar))
    cuts = [seconds(ours, f"{name}/{path}", data) for path, data in files]
    least = [seconds(floor, f"{name}/{path}", data)[0] for path, data in files]
    fidelity = Fidelity()
    for (path, data), (ours_seconds, chunks), floor_seconds in zip(files, cuts, least, strict=True):
        theirs, reference_seconds = None, 0.0
        if reference is not None:
            reference_seconds, theirs = seconds(reference, f"{name}/{path}", data)
            if not is_pdf(path, data):  # two readers, two texts
                compare(fidelity, path, data, theirs, chunks)
        kind = "Markdown" if path.endswith((".md", ".mdx")) else "PDF" if is_pdf(path, data) else "other"
        for key in (name, kind, "all", *(["all but PDF"] if kind != "PDF" else [])):
            tally = tallies[key]
            tally.files += 1
            tally.with_pdf |= kind == "PDF"
            tally.bytes += len(data)
            tally.seconds += ours_seconds
            tally.floor_seconds += floor_seconds
            tally.reference_seconds += reference_seconds
            if theirs:
                tally.shared_seconds += ours_seconds
                tally.shared_reference_seconds += reference_seconds
            tally.chunks += len(chunks)
            tally.reference_chunks += len(theirs or [])
    return fidelity


def print_speed(tallies: dict[str, Tally], with_reference: bool) -> None:
    """One row a repository, and the sums."""
    print(
        f"{'':42}{'files':>7}{'MB':>8}{'chunks':>8}{'CPU s':>8}{'MB/s':>7}{'/floor':>8}{'reference':>11}{'times':>7}"
        f"{'shared':>8}"
    )
    for key, tally in sorted(tallies.items(), key=lambda row: (KINDS.index(row[0]) if row[0] in KINDS else -1, row[0])):
        row = f"{key:42}{tally.files:7}{tally.bytes / 1e6:8.2f}{tally.chunks:8}{tally.seconds:8.2f}"
        row += f"{tally.bytes / 1e6 / max(tally.seconds, 1e-9):7.1f}"
        # Reading a PDF is neither tokenising nor parsing.
        row += f"{'':8}" if tally.with_pdf else f"{tally.seconds / max(tally.floor_seconds, 1e-9):8.2f}"
        if with_reference:
            row += f"{tally.reference_seconds:11.1f}{tally.reference_seconds / max(tally.seconds, 1e-9):7.1f}"
            row += f"{tally.shared_reference_seconds / max(tally.shared_seconds, 1e-9):8.1f}"
        print(row)


def print_fidelity(name: str, fidelity: Fidelity) -> None:
    """Ids in common by class, what differs among the clean, and what the reference drops, by extension."""
    print(f"\n{name}: reference chunk ids that are ours too")
    for kind, files in fidelity.files.most_common():
        theirs, equal = fidelity.theirs[kind], fidelity.equal[kind]
        print(
            f"  {equal:6} of {theirs:6} ({equal / theirs:7.2%}), ours {fidelity.ours[kind]:6}, {files:5} files: {kind}"
        )
    for line in fidelity.differing:
        print(f"    differs: {line}")
    lost = ", ".join(f"{x} {n} files {fidelity.lost_chunks[x]} chunks" for x, n in fidelity.lost_files.most_common(20))
    print(f"  no chunk from the reference, but from ours: {lost or 'none'}")


if __name__ == "__main__":
    sys.exit(main())
