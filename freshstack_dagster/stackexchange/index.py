"""The index of a dump: where each question and answer lies, kept beside it so that the next topic reads no dump.

A directory named after the dump's fingerprint (size, time, first and last bytes) holds, for each part of the dump,
`NNNNN.questions.parquet` (id, accepted answer's id, moment asked, tags as `|a|b|`, closed, byte offset and length),
`NNNNN.answers.parquet` (id, offset, length) and `NNNNN.json`, whose presence says that the part is
whole; `dump.json` says that all of it is. A killed build goes on at the first part that is missing. Two builds at once
write the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import freshstack_dagster
from freshstack_dagster.errors import SourceError
from freshstack_dagster.stackexchange.posts import merged_answers, merged_questions
from freshstack_dagster.stackexchange.progress import Meter, ProgressCallback
from freshstack_dagster.stackexchange.scan import CLOSING_TAG, Scanned, cut_off, scan_stream

VERSION = 2
PART_BYTES = 512 << 20
_WORKER_BYTES = 4 << 30
_ENDS_BYTES = 64 << 10


@dataclass(frozen=True)
class DumpIndex:
    """A whole index, ready to be asked."""

    directory: Path
    parts: int
    rows: int

    def question_count(self) -> int:
        """How many questions the dump holds."""
        return sum(
            int(json.loads(_file(self.directory, part, "json").read_text())["questions"]) for part in range(self.parts)
        )

    def questions(self) -> Iterator[pl.LazyFrame]:
        """The questions, one lazy frame a part, in the dump's order."""
        return self._frames("questions.parquet")

    def answers(self) -> Iterator[pl.LazyFrame]:
        """The answers, one lazy frame a part, in the dump's order."""
        return self._frames("answers.parquet")

    def _frames(self, suffix: str) -> Iterator[pl.LazyFrame]:
        read_to = 0
        for part in range(self.parts):
            # A comment that runs over the border of two parts hides rows from the second one's beginning.
            yield pl.scan_parquet(_file(self.directory, part, suffix)).filter(pl.col("offset") >= read_to)
            state = json.loads(_file(self.directory, part, "json").read_text())
            read_to = max(read_to, int(state["end"]))


def fingerprint(path: Path) -> str:
    """Sixteen hex digits that change with the dump's size, time, first or last 64 kB."""
    state = path.stat()
    digest = hashlib.sha256(f"{VERSION} {state.st_size} {state.st_mtime_ns}".encode())
    with open(path, "rb") as file:
        digest.update(file.read(_ENDS_BYTES))
        file.seek(max(0, state.st_size - _ENDS_BYTES))
        digest.update(file.read(_ENDS_BYTES))
    return digest.hexdigest()[:16]


def beside(path: Path) -> Path:
    """Where the index of a dump is kept unless told otherwise."""
    return path.with_name(path.name + ".index")


def find_index(path: Path, root: Path) -> DumpIndex | None:
    """The whole index of the dump under `root`, or None."""
    directory = root / fingerprint(path)
    try:
        state = json.loads((directory / "dump.json").read_text())
        return DumpIndex(directory, int(state["parts"]), int(state["rows"]))
    except (OSError, ValueError, KeyError):
        return None


def build_index(
    path: Path,
    root: Path,
    *,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
    part_bytes: int = PART_BYTES,
) -> DumpIndex:
    """Index a plain `Posts.xml` under `root` with `workers` processes.

    By default one for every 4 GB, at most one a core and eight in all: a process costs as much to start as half a
    gigabyte to read.

    Parts that an earlier, killed build left whole are not read again. Raises SourceError for a dump that lacks its
    end, before anything is read, or that has a row which is not XML.
    """
    size = path.stat().st_size
    require_end(path)
    directory = root / fingerprint(path)
    directory.mkdir(parents=True, exist_ok=True)
    bounds = [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]
    missing = [part for part in range(len(bounds)) if not _is_whole(directory, part, bounds[part])]
    workers = max(1, min(workers or _workers(size), len(missing) or 1))
    meter = Meter(progress, size, f"indexing {path.name}")
    done = sum(stop - start for part, (start, stop) in enumerate(bounds) if part not in set(missing))
    if workers == 1:
        for part in missing:
            for bytes_done in _index_part(path, directory, part, *bounds[part]):
                meter.at(done + bytes_done)
            done += bounds[part][1] - bounds[part][0]
    else:
        _index_in_processes(path, directory, {part: bounds[part] for part in missing}, workers, meter, done)
    meter.at(size, last=True)
    return _finish(directory, len(bounds))


def _workers(size: int) -> int:
    return min(1 + size // _WORKER_BYTES, os.cpu_count() or 1, 8)


class IndexWriter:
    """Writes the index of a dump that is read once from its start to its end, as out of a `.7z`.

    Parts go into a directory of their own that becomes the index when `finish` is called; without it nothing stays.
    """

    def __init__(self, path: Path, root: Path, *, part_bytes: int = PART_BYTES) -> None:
        self._final = root / fingerprint(path)
        self._directory = root / f".{self._final.name}.{os.getpid()}"
        for left in root.glob(f".{self._final.name}.*"):
            if not _is_running(left.suffix[1:]):  # of a run that was killed
                shutil.rmtree(left, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._part_bytes = part_bytes
        self._part = 0
        self._start = 0
        self._scanned: list[Scanned] = []

    def add(self, scanned: Scanned, end: int) -> None:
        """Add a block's rows; `end` is the offset up to which the dump is read."""
        self._scanned.append(scanned)
        if end - self._start >= self._part_bytes:
            self._write(end)

    def finish(self, end: int) -> DumpIndex:
        """Write what is left and put the index in its place."""
        if self._scanned or not self._part:
            self._write(end)
        _finish(self._directory, self._part)
        shutil.rmtree(self._final, ignore_errors=True)
        try:
            os.replace(self._directory, self._final)
        except OSError:  # another run put the same index there in between
            shutil.rmtree(self._directory, ignore_errors=True)
        return DumpIndex(self._final, self._part, _rows(self._final, self._part))

    def discard(self) -> None:
        """Leave nothing behind, after a failure; harmless after `finish`."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _write(self, end: int) -> None:
        _write_part(self._directory, self._part, self._scanned, self._start, end)
        self._part += 1
        self._start = end
        self._scanned = []


def _is_running(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # another user's
        return True
    return True


def require_end(path: Path) -> None:
    """Raise SourceError unless the file ends as a `Posts.xml` does."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        file.seek(max(0, size - _ENDS_BYTES))
        tail = file.read().rstrip()
    if CLOSING_TAG.search(tail) is None and not (b"<posts" in tail and tail.endswith(b"/>") and b"<row" not in tail):
        raise cut_off(str(path), size)


def _index_part(path: Path, directory: Path, part: int, start: int, stop: int) -> Iterator[int]:
    """Write one part's files; yields the bytes done."""
    last = stop >= path.stat().st_size
    scanned: list[Scanned] = []
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        end = start
        until = None if last else stop
        for block, _, base in scan_stream(file.readinto, str(path), start=start, stop=until, parents=False):
            scanned.append(block)
            end = base + block.consumed
            yield min(end, stop) - start
    _write_part(directory, part, scanned, start, stop, end)


def _write_part(
    directory: Path, part: int, scanned: list[Scanned], start: int, stop: int, end: int | None = None
) -> None:
    questions = merged_questions([block.questions for block in scanned]).frame()
    answers = merged_answers([block.answers for block in scanned]).frame().drop("parent_id")
    for name, frame in (("questions", questions), ("answers", answers)):
        target = _file(directory, part, f"{name}.parquet")
        temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
        frame.write_parquet(
            temporary, compression="uncompressed"
        )  # 2% of the dump; zstd: a third of that for twice the CPU
        os.replace(temporary, target)
    state = {
        "start": start,
        "stop": stop,
        "end": stop if end is None else end,
        "rows": sum(block.rows for block in scanned),
        "questions": questions.height,
        # Decided when all parts are there: a comment may begin before this part and hide them.
        "damaged": [row for block in scanned for row in block.damaged],
    }
    target = _file(directory, part, "json")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_text(json.dumps(state))
    os.replace(temporary, target)


def _file(directory: Path, part: int, suffix: str) -> Path:
    return directory / f"{part:05d}.{suffix}"


def _is_whole(directory: Path, part: int, bounds: tuple[int, int]) -> bool:
    try:
        state = json.loads(_file(directory, part, "json").read_text())
    except (OSError, ValueError):
        return False
    return (state.get("start"), state.get("stop")) == bounds


def _rows(directory: Path, parts: int) -> int:
    return sum(int(json.loads(_file(directory, part, "json").read_text())["rows"]) for part in range(parts))


def _finish(directory: Path, parts: int) -> DumpIndex:
    read_to = 0
    for part in range(parts):
        state = json.loads(_file(directory, part, "json").read_text())
        for offset, message in state["damaged"]:
            if offset >= read_to:
                raise SourceError(message)
        read_to = max(read_to, int(state["end"]))
    rows = _rows(directory, parts)
    temporary = directory / f".dump.json.{os.getpid()}"
    temporary.write_text(json.dumps({"version": VERSION, "parts": parts, "rows": rows}))
    os.replace(temporary, directory / "dump.json")
    return DumpIndex(directory, parts, rows)


def _index_in_processes(
    path: Path, directory: Path, parts: dict[int, tuple[int, int]], workers: int, meter: Meter, done: int
) -> None:
    # Fresh interpreters rather than multiprocessing: nothing is forked after polars has started its threads, and a
    # plain script that calls read_dump at its top level is not run again in every worker, as "spawn" would do.
    waiting: queue.Queue[int] = queue.Queue()
    for part in parts:
        waiting.put(part)
    failures: list[str] = []
    lock = threading.Lock()
    progressed = [done]

    def work() -> None:
        process = _worker()
        assert process.stdin is not None and process.stdout is not None
        try:
            while not failures:
                try:
                    part = waiting.get_nowait()
                except queue.Empty:
                    break
                start, stop = parts[part]
                process.stdin.write(json.dumps([str(path), str(directory), part, start, stop]) + "\n")
                process.stdin.flush()
                seen = 0
                while True:
                    reply = _reply(process.stdout.readline())
                    if "bytes" not in reply:
                        break
                    with lock:
                        progressed[0] += reply["bytes"] - seen
                        seen = reply["bytes"]
                        meter.at(progressed[0])
                if "error" in reply:
                    failures.append(reply["error"])
        finally:
            process.stdin.close()
            if failures:
                process.terminate()
            process.wait()

    threads = [threading.Thread(target=work, name=f"index-{number}") for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SourceError(failures[0])


def _reply(line: str) -> dict[str, Any]:
    if not line:
        return {"error": "a worker that indexed the dump ended without a word; run again to go on where it stood"}
    return json.loads(line)


def _worker() -> subprocess.Popen[str]:
    root = str(Path(freshstack_dagster.__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", "from freshstack_dagster.stackexchange.index import serve_parts; serve_parts()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def serve_parts() -> None:
    """A worker: one part a line on standard input, progress and the end of each part on standard output."""
    for line in sys.stdin:
        path, directory, part, start, stop = json.loads(line)
        try:
            for done in _index_part(Path(path), Path(directory), part, start, stop):
                print(json.dumps({"bytes": done}), flush=True)
            print(json.dumps({"part": part}), flush=True)
        except (SourceError, OSError, pl.exceptions.PolarsError) as error:
            print(json.dumps({"error": str(error)}), flush=True)
