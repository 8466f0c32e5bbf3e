"""Whole repositories to chunks: ours from mirrors to tables, and the reference package as its users run it.

    python -m freshstack_dagster_tests.benchmarks.repositories NAME=PATH@COMMIT [NAME=PATH@COMMIT ...]
        [--reference-python PATH | --no-reference]

NAME is `owner/name`, PATH a git repository, bare or not, COMMIT a full commit id. The reference, `freshstack` 0.0.6, is
`GitHubRepoChunker.process()` on a checkout of each: it walks the files, reads PDFs through pymupdf4llm, chunks with one
worker and writes JSON lines. Ours is `build_corpus()` of all of them with an empty cache: it lists the trees, reads
blobs, PDFs through pypdfium2, and makes the tables and the cache; once with one worker, once with two. Each is a
process of its own. CPU seconds are of it and its children; theirs are without its imports, ours without what workers
cost that have nothing to do, which is their imports. The reference may run under another Python, in which `freshstack`
and what its chunking imports are installed (see the benchmark `chunking`, and pymupdf4llm).

Changed in the reference: it takes the default branch as known, instead of asking GitHub, and where one file would end
its run, that file has no chunks. Beside the ratio stands the one without PDFs, theirs and ours taken off.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SNAPSHOT = "2024-10"
READERS = ["tiktoken", "semchunk", "tree-sitter", "tree-sitter-language-pack", "pygments", "pymupdf4llm"]


def cpu() -> float:
    """CPU seconds of this process and its ended children."""
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


@contextmanager
def measured(into: dict[str, Any], name: str) -> Iterator[None]:
    """Add the CPU and wall seconds of the block."""
    wall, used = time.perf_counter(), cpu()
    yield
    into[name] = into.get(name, 0.0) + cpu() - used
    into[f"{name}_wall"] = into.get(f"{name}_wall", 0.0) + time.perf_counter() - wall


def check_out(repository: str, commit: str, target: Path) -> None:
    """Write a commit's files; what a partial mirror does not hold is left out."""
    command = ["git", "-C", repository]
    tree = subprocess.run([*command, "ls-tree", "-rz", "--full-tree", commit], capture_output=True, check=True).stdout
    rows = [(*row.partition(b"\t")[0].split(), row.partition(b"\t")[2]) for row in tree.split(b"\0") if row]
    files = [(mode, blob, name) for mode, kind, blob, name in rows if kind == b"blob"]
    with tempfile.TemporaryFile() as names:
        names.write(b"".join(blob + b"\n" for _, blob, _ in files))
        names.seek(0)
        done = subprocess.run([*command, "cat-file", "--batch"], stdin=names, capture_output=True, check=True)
    content = io.BytesIO(done.stdout)
    for mode, _, name in files:
        header = content.readline().split()
        if header[1:2] != [b"blob"]:
            continue
        data = content.read(int(header[2]))
        content.read(1)
        path = target / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == b"120000":
            path.symlink_to(os.fsdecode(data))
        else:
            path.write_bytes(data)


def reference(name: str, files: str, output: str) -> dict[str, Any]:
    """The reference's own run over a checkout below `files`."""
    from freshstack.chunking import chunk_corpus, chunker, data_manager

    seen: dict[str, Any] = {"pdf": 0.0, "failed": 0, "chunks": 0, "versions": versions()}
    data_manager.GitHubRepoManager.default_branch = "main"

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def chunk(self: Any, content: str, metadata: dict[str, Any]) -> Any:
            try:
                return real(self, content, metadata)
            except Exception:  # any of its assertions and its libraries' errors
                seen["failed"] += 1
                return []

        return chunk

    chunker.UniversalFileChunker.chunk = guarded(chunker.UniversalFileChunker.chunk)
    if not hasattr(data_manager, "pymupdf4llm"):
        raise SystemExit("the reference reads PDFs through pymupdf4llm: install it for its Python")
    real_pdf = data_manager.pymupdf4llm.to_markdown

    def to_markdown(path: str) -> str:
        with measured(seen, "pdf"):
            return real_pdf(path)

    data_manager.pymupdf4llm.to_markdown = to_markdown
    run = chunk_corpus.GitHubRepoChunker(repo_id=name, local_dir=files, output_dir=output)
    with measured(seen, "cpu"):
        run.process()
    seen["chunks"] = (Path(output) / "corpus.jsonl").read_bytes().count(b"\n")
    return seen


def ours(places: str, scratch: str, workers: str) -> dict[str, Any]:
    """A build of all repositories (`places`: name, path and commit of each, as JSON) with an empty cache."""
    from freshstack_dagster.corpus.build import build_corpus, resolve_commits
    from freshstack_dagster.corpus.pdf import pdf_reader, pdf_text
    from freshstack_dagster.corpus.workers import BATCH_BYTES, Job, cut, cut_all
    from freshstack_dagster.settings import Repository, Topic

    if pdf_reader() is None:
        raise SystemExit("install the extra `pdf`: the reference reads PDFs too")
    cut("warm.py", b"x = 1\n", 2048)  # loads what this process needs itself
    repositories = {
        name.rpartition("/")[2]: Repository(name=name, path=Path(path), pins={SNAPSHOT: commit})
        for name, path, commit in json.loads(places)
    }
    topic = Topic(name="benchmark", title="Benchmark", repositories=tuple(repositories.values()))
    seen: dict[str, Any] = {}
    with measured(seen, "start"):
        idle = [Job(number, "a.md", b" " * BATCH_BYTES) for number in range(int(workers))]
        list(cut_all(idle, max_tokens=2048, seconds_per_file=20, workers=int(workers)))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        commits = resolve_commits(topic, SNAPSHOT, Path(folder))
        with measured(seen, "cpu"):
            corpus = build_corpus(topic, commits, Path(folder), Path(folder) / "cache", workers=int(workers))
    files = corpus.files.filter(corpus.files["path"].str.to_lowercase().str.ends_with(".pdf"))
    with measured(seen, "pdf"):
        for alias, blob in files.select("repository", "blob").iter_rows():
            git = ["git", "-C", str(repositories[alias].path), "cat-file", "blob", blob]
            data = subprocess.run(git, capture_output=True, check=False).stdout
            with contextlib.suppress(Exception):
                pdf_text(data)
    bytes_cut = int(corpus.files.filter(corpus.files["chunks"] > 0)["bytes"].sum())
    return {**seen, "chunks": corpus.chunks.height, "bytes": bytes_cut, "workers": corpus.report["workers"]}


def versions() -> str:
    """What the reference reads and cuts with."""
    found = []
    for package in ["freshstack", *READERS]:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{package} {version(package)}")
    return ", ".join(found)


def apart(python: str, what: str, *arguments: object) -> dict[str, Any]:
    """Run one of the functions above in a process of its own."""
    command = [python, str(Path(__file__).resolve()), "--only", json.dumps([what, *map(str, arguments)])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repositories", nargs="*", metavar="NAME=PATH@COMMIT")
    parser.add_argument("--reference-python", default=sys.executable, help="the Python that has the reference")
    parser.add_argument("--no-reference", action="store_true", help="ours alone, with one worker and with two")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        logging.disable(logging.CRITICAL)
        warnings.filterwarnings("ignore")
        what, *arguments = json.loads(options.only)
        with contextlib.redirect_stdout(sys.stderr):  # pymupdf4llm prints
            found = {"reference": reference, "ours": ours}[what](*arguments)
        print(json.dumps(found))
        return 0
    if not options.repositories:
        parser.error("name at least one repository")
    places = []
    for argument in options.repositories:
        name, _, place = argument.partition("=")
        repository, _, commit = place.rpartition("@")
        if not (name and repository and commit):
            parser.error(f"{argument!r} is not NAME=PATH@COMMIT")
        places.append((name, repository, commit))
    with tempfile.TemporaryDirectory() as folder:
        theirs = []
        if not options.no_reference:
            theirs = [their_run(options.reference_python, *place, Path(folder)) for place in places]
        one, two = (apart(sys.executable, "ours", json.dumps(places), folder, count) for count in (1, 2))
    report(theirs, one, two)
    return 0


def their_run(python: str, name: str, repository: str, commit: str, folder: Path) -> dict[str, Any]:
    """Check a repository out, chunk it with the reference, and say what it took."""
    check_out(repository, commit, folder / "files" / name)
    run = apart(python, "reference", name, folder / "files", folder / "output" / name)
    pdf = f", {run['pdf']:.1f} of them for PDFs" if run["pdf"] else ""
    failed = f", {run['failed']} files that would have ended the run" if run["failed"] else ""
    print(f"reference, {name}: {run['cpu']:.1f} CPU s{pdf}, {run['chunks']} chunks{failed}", flush=True)
    return run


def report(theirs: list[dict[str, Any]], one: dict[str, Any], two: dict[str, Any]) -> None:
    """Print sums and ratios."""
    size, cost = one["bytes"] / 1e6, one["cpu"] - one["start"]
    whole, pdf = sum(run["cpu"] for run in theirs), sum(run["pdf"] for run in theirs)
    if theirs:
        print(f"reference, all: {whole:.1f} CPU s, {pdf:.1f} of them for PDFs; {theirs[0]['versions']}")
    print(
        f"ours, all: {cost:.1f} CPU s, {one['pdf']:.1f} of them for PDFs, and {one['start']:.1f} to start it; "
        f"{one['chunks']} chunks of {size:.1f} MB, {size / cost:.1f} MB/s"
    )
    print(
        f"wall: one worker {one['cpu_wall']:.1f} s, two {two['cpu_wall']:.1f} s; without their start "
        f"{one['cpu_wall'] - one['start_wall']:.1f} and {two['cpu_wall'] - two['start_wall']:.1f}; two workers take "
        f"{two['cpu'] - two['start']:.1f} CPU s (on a busy machine wall times say little)"
    )
    if theirs:
        print(
            f"times the reference: {whole / cost:.1f}; {(whole - pdf) / (cost - one['pdf']):.1f} without PDFs; "
            f"{whole / one['cpu']:.1f} with the start of the worker"
        )


if __name__ == "__main__":
    sys.exit(main())
