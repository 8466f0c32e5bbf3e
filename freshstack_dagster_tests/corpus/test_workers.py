from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from freshstack_dagster.corpus import chunk
from freshstack_dagster.corpus.workers import Job, cut, cut_all
from freshstack_dagster.errors import CorpusError

# What a worker imports before anything else: makes a file hang in C, or crash its process, by its name.
TROUBLE = """
import os, sys
from dataclasses import replace
from pathlib import Path
marks = Path(__file__).parent
def spoil(chunk):
    whole, as_text = chunk.chunk_document, chunk.chunk_as_text
    def trouble(path, data, **limits):
        if "hang" in path: sum(iter(int, 1))
        if "crash" in path: os.abort()
        if "once" in path and not (marks / "done").exists():
            (marks / "done").touch(); os.kill(os.getpid(), 11)
        if "print" in path: print("noise" * 1000)
        return whole(path, data, **limits)
    def hopeless(path, data, **limits):
        if "hopeless" in path: os.abort()
        return as_text(path, data, **limits)
    chunk.chunk_document, chunk.chunk_as_text = trouble, hopeless
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "freshstack_dagster.corpus.chunk": return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module); spoil(module)
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""


@pytest.fixture
def trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(TROUBLE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def jobs(paths: list[str]) -> Iterator[Job]:
    for number, path in enumerate(paths):
        yield Job(number, path, f"# {path}\n".encode() * 3)


def outcomes(paths: list[str], seconds: float = 20, workers: int = 1) -> dict[str, tuple[str, str, float | None]]:
    results = list(cut_all(jobs(paths), max_tokens=2048, seconds_per_file=seconds, workers=workers))
    assert sorted(job.number for job, _ in results) == list(range(len(paths)))
    return {job.path: (cuts.outcome, cuts.detail, cuts.seconds) for job, cuts in results}


def test_workers_cut_as_this_process_does() -> None:
    paths = [f"{n}.md" for n in range(150)]
    for job, cuts in cut_all(jobs(paths), max_tokens=2048, seconds_per_file=20, workers=2):
        assert cuts == cut(job.path, job.data, 2048)
        assert cuts.columns[8] == [job.data.decode()]


def test_cuts_always_serve_the_path_they_were_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chunk.chunk_document
    wrong = (999, 1000)
    monkeypatch.setattr(chunk, "chunk_document", lambda *a, **k: replace(whole(*a, **k), head_range=wrong))
    cuts = cut("a.md", b"text", 2048)
    assert cuts.low == cuts.head < 999 < cuts.high


@pytest.mark.usefixtures("trouble")
def test_trouble_costs_a_file_its_grammar_and_nobody_else() -> None:
    found = outcomes(["a.md", "crash.md", "print.md", "z.md"])
    assert found["a.md"] == found["print.md"] == found["z.md"] == ("chunked", "", None)
    assert found["crash.md"] == ("text", "crashed (SIGABRT)", float("inf"))


@pytest.mark.slow
@pytest.mark.usefixtures("trouble")
def test_a_file_is_tried_once_more_and_at_last_given_up() -> None:
    found = outcomes(["a.md", "once.md", "hopeless-crash.md", "z.md"])
    assert found["a.md"] == found["once.md"] == found["z.md"] == ("chunked", "", None)
    outcome, detail, seconds = found["hopeless-crash.md"]
    assert (outcome, seconds) == ("failed", float("inf"))
    assert detail == "crashed (SIGABRT); as text it failed too (SIGABRT)"


@pytest.mark.usefixtures("trouble")
def test_a_file_has_its_seconds_and_no_more() -> None:
    started = time.monotonic()
    found = outcomes(["a.md", "hang.md", "z.md"], seconds=1)
    assert found["hang.md"] == ("text", "took more than 1 s", 1)
    assert found["a.md"] == found["z.md"] == ("chunked", "", None)
    assert time.monotonic() - started < 30


def test_nothing_is_left_when_the_caller_stops_early() -> None:
    results = cut_all(jobs([f"{n}.md" for n in range(1000)]), max_tokens=2048, seconds_per_file=20, workers=1)
    next(results)
    results.close()
    listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True).stdout
    assert "freshstack_dagster.corpus.workers" not in listed


def test_trouble_with_the_jobs_reaches_the_caller() -> None:
    def broken() -> Iterator[Job]:
        yield Job(0, "a.md", b"a")
        raise CorpusError("no more")

    with pytest.raises(CorpusError, match="no more"):
        list(cut_all(broken(), max_tokens=2048, seconds_per_file=20, workers=1))


def test_a_worker_that_cannot_start_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['fastokens'] = None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CorpusError, match=r"could not be started: .*fastokens"):
        list(cut_all(jobs(["a.md"]), max_tokens=2048, seconds_per_file=20, workers=1))


def test_a_script_without_a_main_guard_can_use_them(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from freshstack_dagster.corpus.workers import Job, cut_all\n"
        "print(len(list(cut_all([Job(0, 'a.md', b'a')], max_tokens=99, seconds_per_file=9, workers=1))))\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1"]
