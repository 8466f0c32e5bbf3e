"""Chunk many files at once in worker processes, so that no file can harm more than itself.

A worker is a fresh Python that reads files from its standard input and writes cuts to its standard output (no fork,
and no second run of the caller's main module, as multiprocessing would need). Before each file it arms a timer over
its own processor time that ends the process: a grammar that loops in C is stopped too, and a busy machine does not
make a file slow. Whatever a file does, hang, crash or eat its stack, the parent knows which one it was, starts another
worker, and has that file cut as text.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from freshstack_dagster.corpus.pdf import NotReadable, is_pdf, pdf_reader, pdf_text
from freshstack_dagster.errors import CorpusError

if TYPE_CHECKING:
    from freshstack_dagster.corpus.chunk import ChunkedFile

CUT_COLUMNS = (
    *("start_byte", "end_byte", "start_char", "end_char", "start_line", "end_line"),
    *("tokens", "content_hash", "text"),
)
BATCH_BYTES = 256_000
BATCH_FILES = 64
# A worker that waits for something uses no processor time: this many times the limit, and no less than the seconds.
WALL_FACTOR, WALL_SECONDS = 4.0, 30.0
TIMED_OUT = -int(getattr(signal, "SIGPROF", 27))


@dataclass(frozen=True)
class Job:
    """A file to chunk. `number` is the caller's own key."""

    number: int
    path: str
    data: bytes


@dataclass(frozen=True)
class Cuts:
    """What became of a file: the facts of its row in `files`, and its chunks in columns (`CUT_COLUMNS`).

    `head` are the tokens of the path head it was counted with, `low` and `high` the heads for which the cuts are the
    same. `seconds` is None, or the limit under which its grammar was given up (infinity if the grammar crashed).
    """

    outcome: str
    encoding: str | None
    language: str | None
    detail: str
    head: int
    low: int
    high: int
    columns: tuple[list[Any], ...]
    seconds: float | None = None


def cut(path: str, data: bytes, max_tokens: int, as_text: str | None = None) -> Cuts:
    """Chunk one file in this process; `as_text` gives the reason for doing so without its grammar."""
    from freshstack_dagster.corpus import chunk

    if as_text is not None:
        file = chunk.chunk_as_text(path, data, max_tokens=max_tokens, detail=as_text)
    elif is_pdf(path, data) and pdf_reader() is not None:
        file = _cut_pdf(path, data, max_tokens)
    else:
        file = chunk.chunk_document(path, data, max_tokens=max_tokens)
    chunks = file.chunks
    columns: tuple[list[Any], ...] = (
        *([getattr(one, name) for one in chunks] for name in CUT_COLUMNS[:7]),
        [hashlib.sha256(one.text.encode()).hexdigest() for one in chunks],
        [one.text for one in chunks],
    )
    head = chunk.head_tokens(path)
    # Whatever the range says, these cuts are right for this path; whoever waits for them must not wait forever.
    low, high = min(file.head_range[0], head), max(file.head_range[1], head)
    return Cuts(file.outcome, file.encoding, file.language, file.detail, head, low, high, columns)


def _cut_pdf(path: str, data: bytes, max_tokens: int) -> ChunkedFile:
    from freshstack_dagster.corpus.chunk import chunk_as_text, chunk_document

    try:
        text = pdf_text(data)
    except NotReadable as why:
        return replace(chunk_document(path, data, max_tokens=max_tokens), detail=f"PDF: {why}")
    file = chunk_as_text(path, text.encode(), max_tokens=max_tokens, detail="offsets are of the text read from the PDF")
    return replace(file, encoding=None, language="pdf")


def cut_all(
    jobs: Iterable[Job], *, max_tokens: int, seconds_per_file: float, workers: int
) -> Generator[tuple[Job, Cuts]]:
    """Chunk every job in `workers` processes; results come as they are ready, each job exactly once.

    A file that uses more than `seconds_per_file` of processor time, or crashes its worker twice, is cut as text, and
    its detail says so; if that fails too, its outcome is `failed`. Raises CorpusError if no worker can be started, or
    whatever `jobs` raises.
    """
    pool = _Pool(max_tokens, seconds_per_file, workers)
    try:
        yield from pool.run(jobs)
    finally:
        pool.stop()


class _Pool:
    def __init__(self, max_tokens: int, seconds: float, workers: int) -> None:
        self.max_tokens, self.seconds = max_tokens, seconds
        # Bounded, so that reading blobs does not run ahead of chunking them.
        self.batches: queue.Queue[list[Job] | None] = queue.Queue(maxsize=2 * workers)
        self.results: queue.Queue[tuple[Job, Cuts] | BaseException | None] = queue.Queue(maxsize=1000)
        self.stopped = threading.Event()
        self.living: set[_Worker] = set()
        self.threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(workers)]

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, Cuts]]:
        feeder = threading.Thread(target=self._feed, args=(jobs,), daemon=True)
        for thread in [feeder, *self.threads]:
            thread.start()
        running = len(self.threads) + 1
        while running:
            result = self.results.get()
            if result is None:
                running -= 1
            elif isinstance(result, BaseException):
                raise result
            else:
                yield result

    def stop(self) -> None:
        """End the workers and wait for their threads; nothing is left behind when the caller gives up early."""
        self.stopped.set()
        for thread in self.threads:
            while thread.is_alive():
                for worker in list(self.living):
                    worker.process.kill()
                _drain(self.results)
                _drain(self.batches)
                self._put(self.batches, None)
                thread.join(timeout=0.02)

    def _feed(self, jobs: Iterable[Job]) -> None:
        try:
            for batch in _batches(jobs):
                if self.stopped.is_set():
                    return
                self._put(self.batches, batch)
            for _ in self.threads:
                self._put(self.batches, None)
            self._put(self.results, None)
        except BaseException as error:  # handed to the caller
            self._put(self.results, error)

    def _put(self, where: queue.Queue[Any], what: Any) -> None:
        while True:
            try:
                where.put(what, timeout=0.1)
                return
            except queue.Full:
                if self.stopped.is_set():
                    return

    def _serve(self) -> None:
        worker: _Worker | None = None
        try:
            while not self.stopped.is_set() and (batch := self.batches.get()) is not None:
                worker = self._chunk(batch, worker)
            self._put(self.results, None)
        except BaseException as error:  # handed to the caller
            self._put(self.results, error)
        finally:
            if worker is not None:
                self._end(worker)

    def _chunk(self, batch: list[Job], worker: _Worker | None) -> _Worker | None:
        """Chunk a batch; returns the worker, or None if the last one had to be given up."""
        todo = batch
        while todo and not self.stopped.is_set():
            worker = worker or self._start()
            done = 0
            try:
                for cuts in worker.chunk(todo, None, self.max_tokens, self.seconds):
                    self._put(self.results, (todo[done], cuts))
                    done += 1
                return worker
            except _Ended as ended:
                self._end(worker)
                worker = None
                if self.stopped.is_set():
                    break
                cuts, worker = self._rescue(todo[done], ended)
                self._put(self.results, (todo[done], cuts))
                todo = todo[done + 1 :]
        return worker

    def _rescue(self, job: Job, ended: _Ended) -> tuple[Cuts, _Worker | None]:
        """Cuts of a file that ended its worker, and the worker that could make them."""
        if not ended.timed_out:
            try:  # once more: what came before it in the batch may have been to blame
                return self._alone(job, None)
            except _Ended as again:
                ended = again
        if ended.timed_out:
            reason, seconds = f"took more than {self.seconds:g} s", self.seconds
        else:
            reason, seconds = f"crashed ({ended})", float("inf")
        try:
            cuts, worker = self._alone(job, reason)
            return replace(cuts, seconds=seconds), worker
        except _Ended as again:
            none: tuple[list[Any], ...] = tuple([] for _ in CUT_COLUMNS)
            detail = f"{reason}; as text it failed too ({again})"
            return Cuts("failed", None, None, detail, 0, 0, 2**31 - 1, none, seconds), None

    def _alone(self, job: Job, as_text: str | None) -> tuple[Cuts, _Worker]:
        worker = self._start()
        try:
            (cuts,) = worker.chunk([job], as_text, self.max_tokens, self.seconds)
        except _Ended:
            self._end(worker)
            raise
        return cuts, worker

    def _start(self) -> _Worker:
        worker = _Worker()
        self.living.add(worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        self.living.discard(worker)
        worker.end()


def _batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += len(job.data)
        if size >= BATCH_BYTES or len(batch) >= BATCH_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _drain(waiting: queue.Queue[Any]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        pass


class _Ended(Exception):
    """A worker ended, or had to be ended, before it answered."""

    def __init__(self, how: str, timed_out: bool) -> None:
        super().__init__(how)
        self.timed_out = timed_out


class _Worker:
    """One worker process, seen from the parent."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.to, self.back = self.process.stdin, self.process.stdout
        try:
            ready = self._answer(wall=120)
        except (EOFError, _Ended):
            ready = "it ended; see its error output"
        if ready != "ready":
            self.end()
            raise CorpusError(f"a worker process for chunking could not be started: {ready}")

    def chunk(self, jobs: Sequence[Job], as_text: str | None, max_tokens: int, seconds: float) -> Iterator[Cuts]:
        """Cuts of each job, in order. Raises _Ended at the job that ended the worker."""
        wall = max(WALL_FACTOR * seconds, WALL_SECONDS)
        files = [(job.path, job.data) for job in jobs]
        try:
            pickle.dump((max_tokens, seconds, as_text, files), self.to, protocol=pickle.HIGHEST_PROTOCOL)
            self.to.flush()
            for _ in jobs:
                yield Cuts(*self._answer(wall))
        except (EOFError, OSError):
            code = self.process.wait()
            raise _Ended(_how(code), timed_out=code == TIMED_OUT) from None

    def _answer(self, wall: float) -> Any:
        return pickle.loads(self._read(int.from_bytes(self._read(8, wall), "big"), wall))

    def _read(self, size: int, wall: float) -> bytes:
        """Exactly `size` bytes. Not through a buffered file: select sees the pipe only."""
        parts = []
        while size:
            if not select.select([self.back], [], [], wall)[0]:
                raise _Ended(f"no answer in {wall:g} s", timed_out=True)
            parts.append(os.read(self.back.fileno(), min(size, 1 << 20)))
            if not parts[-1]:
                raise EOFError
            size -= len(parts[-1])
        return b"".join(parts)

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(OSError):  # what it did not read is of no use
            self.to.close()
        self.back.close()
        self.process.wait()


def _how(code: int) -> str:
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def _work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """The worker's own loop."""

    def answer(what: Any) -> None:
        pickled = pickle.dumps(what, protocol=pickle.HIGHEST_PROTOCOL)
        answers.write(len(pickled).to_bytes(8, "big") + pickled)
        answers.flush()

    try:
        from freshstack_dagster.corpus.tokens import load_tokenizer

        load_tokenizer()
    except Exception as error:
        answer(" ".join(f"{type(error).__name__}: {error}".split()))
        return
    # What is loaded stays; what a file leaves behind, its counts give back. Looking for more costs a twentieth.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    answer("ready")
    while True:
        try:
            max_tokens, seconds, as_text, files = pickle.load(requests)
        except EOFError:
            return
        for path, data in files:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            cuts = cut(path, data, max_tokens, as_text)
            signal.setitimer(signal.ITIMER_PROF, 0)
            answer(tuple(cuts.__dict__.values()))


if __name__ == "__main__":
    # Left alone, the timer's signal ends the process, inside C code too.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    # A library that prints must not write into the answers.
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        _work(sys.stdin.buffer, own)
