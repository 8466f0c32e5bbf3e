from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from freshstack_dagster.corpus import build
from freshstack_dagster.corpus.build import Corpus, build_corpus, chunk_url, lost_languages, resolve_commits
from freshstack_dagster.corpus.chunk import chunk_document, head_tokens
from freshstack_dagster.corpus.git import list_tree, read_blobs
from freshstack_dagster.corpus.mirrors import NOTES
from freshstack_dagster.corpus.tokens import count_tokens
from freshstack_dagster.errors import CorpusError
from freshstack_dagster.settings import Repository, Topic
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.corpus.repositories import SUBMODULE, SYMLINK, Made, git

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 9\n"
OCTOBER, NOVEMBER = "2024-10-10T00:00:00+00:00", "2024-11-10T00:00:00+00:00"


def topic_of(*made: Made, **settings: object) -> Topic:
    repositories = tuple(Repository(name=f"local/{one.path.stem}", path=one.path) for one in made)
    return Topic(name="made", title="Made", repositories=repositories, **settings)


def built(topic: Topic, tmp_path: Path, snapshot: str = "2024-10", **how: object) -> Corpus:
    commits = resolve_commits(topic, snapshot, tmp_path / "mirrors")
    return build_corpus(topic, commits, tmp_path / "mirrors", tmp_path / "cache", **how)


def outcomes(corpus: Corpus) -> dict[str, str]:
    return dict(corpus.files.select("path", "outcome").iter_rows())


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "made.git")


def code(functions: int, seed: str = "") -> bytes:
    return "".join(f"def f{n}(x):\n    return x + {n}  # {seed}\n\n\n" for n in range(functions)).encode()


def test_every_entry_has_a_row_and_every_chunk_is_the_files_own_text(made: Made, tmp_path: Path) -> None:
    commit = made.commit(
        OCTOBER,
        {
            "src/long.py": code(900),
            "src/utf16.md": "# Übersicht\n\nein Satz\n".encode("utf-16"),
            "模型/数据.md": "# 模型\n".encode(),
            "empty.md": b"",
            "blank.md": b" \n \n",
            "lfs.dat": LFS,
            "logo.ico": b"\0\1\2",
            "logo.png": b"\x89PNG",
            ".github/ci.yml": b"on: push\n",
            "big.txt": b"word " * 1000,
            "link": (SYMLINK, b"src"),
            "vendor": (SUBMODULE, b"1" * 40),
            "Dockerfile": b"FROM scratch\n",
        },
    )
    corpus = built(topic_of(made), tmp_path)
    assert outcomes(corpus) == {
        "src/long.py": "chunked",
        "src/utf16.md": "chunked",
        "模型/数据.md": "chunked",
        "empty.md": "empty",
        "blank.md": "empty",
        "lfs.dat": "lfs_pointer",
        "logo.ico": "binary",
        "logo.png": "excluded",
        ".github/ci.yml": "excluded",
        "big.txt": "chunked",
        "link": "symlink",
        "vendor": "submodule",
        "Dockerfile": "chunked",
    }
    for table, frame in (("files", corpus.files), ("chunks", corpus.chunks)):
        assert_frame_equal(TABLES[table].conform(frame), frame)
    blobs = {entry.path: entry.blob for entry in list_tree(made.path, commit)}
    data = dict(read_blobs(made.path, blobs.values()))
    encodings = dict(corpus.files.select("path", "encoding").iter_rows())
    for row in corpus.chunks.iter_rows(named=True):
        raw = data[blobs[row["path"]]]
        assert raw is not None
        piece = raw[row["start_byte"] : row["end_byte"]]
        assert piece.decode(encodings[row["path"]]) == row["text"]
        assert row["doc_id"] == f"made/{row['path']}_{row['start_byte']}_{row['end_byte']}"
        assert row["tokens"] == head_tokens(f"local/made/{row['path']}") + count_tokens(row["text"]) <= 2048
        assert row["content_hash"] == hashlib.sha256(row["text"].encode()).hexdigest()
        assert row["url"] is None
    counts = corpus.chunks.group_by("path").len().rows()
    assert dict(counts) == dict(corpus.files.filter(pl.col("chunks") > 0).select("path", "chunks").iter_rows())
    assert dict(counts)["src/long.py"] > 1


def test_an_oversized_file_is_told_by_the_topics_limit(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {"a.txt": b"word " * 1000, "b.txt": b"word"})
    corpus = built(topic_of(made, max_file_bytes=4999), tmp_path)
    assert outcomes(corpus) == {"a.txt": "too_large", "b.txt": "chunked"}
    assert "4999" in corpus.files["detail"][0]


def test_the_next_month_costs_what_changed(made: Made, tmp_path: Path) -> None:
    first = {f"src/{n}.py": code(20, str(n)) for n in range(30)}
    made.commit(OCTOBER, first)
    moved = {f"lib/{'deep/' * (n % 3)}{n}.py": data for n, data in enumerate(first.values())}
    made.commit(NOVEMBER, {**moved, "src/new.py": code(5, "new"), "lib/again.py": first["src/0.py"]})
    topic = topic_of(made)
    october = built(topic, tmp_path)
    assert (october.report["chunked_blobs"], october.report["cached_files"]) == (30, 0)
    november = built(topic, tmp_path, "2024-11")
    assert (november.report["chunked_blobs"], november.report["cached_files"]) == (1, 31)
    assert november.report["repositories"]["made"]["cached_files"] == 31
    again = built(topic, tmp_path, "2024-11")
    assert (again.report["chunked_blobs"], again.report["cached_files"]) == (0, 32)
    fresh = built(topic, tmp_path / "other", "2024-11")
    for corpus in (november, again):
        assert_frame_equal(corpus.files, fresh.files)
        assert_frame_equal(corpus.chunks, fresh.chunks)


def test_a_blob_is_cut_anew_where_its_path_is_too_long(made: Made, tmp_path: Path) -> None:
    # 64 tokens: the head decides how much text there is room for.
    data = b"one two three four five six seven eight nine ten\n" * 4
    paths = ["a.txt", "folder/with/a/long/name/that/takes/tokens/a.txt", *(f"{'x-' * n}.txt" for n in range(1, 30))]
    made.commit(OCTOBER, dict.fromkeys(paths, data))
    topic = topic_of(made, max_tokens=64)
    for corpus in (built(topic, tmp_path), built(topic, tmp_path)):
        for path in paths:
            chunks = chunk_document(f"local/made/{path}", data, max_tokens=64).chunks
            rows = corpus.chunks.filter(pl.col("path") == path).select("start_byte", "end_byte", "tokens").rows()
            assert rows == [(one.start_byte, one.end_byte, one.tokens) for one in chunks]
    assert corpus.report["cached_files"] == len(paths)


def test_workers_and_the_process_itself_build_the_same(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.commit(OCTOBER, {f"{n}.py": code(40, str(n)) for n in range(100)})
    alone = built(topic_of(made), tmp_path)
    monkeypatch.setattr(build, "IN_PROCESS_BYTES", 50_000)
    seen: list[tuple[str, int, int]] = []
    together = built(topic_of(made), tmp_path / "other", workers=2, progress=lambda *what: seen.append(what))
    assert (alone.report["workers"], together.report["workers"]) == (0, 2)
    assert_frame_equal(alone.chunks, together.chunks)
    assert_frame_equal(alone.files, together.files)
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2] == 100 * len(code(40, "10")) - 10 * 40


def test_one_blob_in_two_repositories_is_cut_once(tmp_path: Path) -> None:
    one, two = Made(tmp_path / "one.git"), Made(tmp_path / "two.git")
    one.commit(OCTOBER, {"a.py": code(9)})
    two.commit(OCTOBER, {"b.py": code(9), "c.py": code(9), "d.txt": code(9)})
    corpus = built(topic_of(one, two), tmp_path)
    assert corpus.report["chunked_blobs"] == 2  # as Python, and as text
    assert corpus.chunks["repository"].to_list() == ["one", "two", "two", "two"]


def test_a_missing_blob_costs_itself_only(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.commit(OCTOBER, {"a.md": b"a", "b.md": b"b", "c.md": b"c"})
    monkeypatch.setattr(
        build,
        "read_blobs",
        lambda mirror, blobs: ((blob, None if data == b"b" else data) for blob, data in read_blobs(mirror, blobs)),
    )
    corpus = built(topic_of(made), tmp_path)
    assert outcomes(corpus) == {"a.md": "chunked", "b.md": "missing", "c.md": "chunked"}


def test_names_that_are_no_unicode_reach_the_tables(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {b"caf\xe9 #1.md": b"text", "new\nline.md": b"more"})
    corpus = built(topic_of(made), tmp_path)
    assert corpus.files["path"].to_list() == ["caf\\xe9 #1.md", "new\nline.md"]


def test_urls_are_of_github_only_and_percent_encoded() -> None:
    def url(**settings: object) -> str | None:
        return chunk_url(Repository(**settings), "c0ffee", b"a b/caf\xe9#1?.md")

    on_github = "https://github.com/owner/made/blob/c0ffee/a%20b/caf%E9%231%3F.md"
    assert url(name="owner/made") == on_github
    assert url(name="owner/made", url="git@github.com:owner/made.git") == on_github
    assert url(name="owner/made", url="https://gitlab.com/owner/made.git") is None
    assert url(name="owner/made", url="https://github.com.example.invalid/owner/made.git") is None
    assert url(name="owner/made", path=Path("made")) is None


def test_chunks_of_github_repositories_link_their_lines(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = b'{"cells": [{"cell_type": "code", "source": ["x = 1"]}], "metadata": {}, "nbformat": 4}'
    commit = made.commit(OCTOBER, {"a.md": b"one\ntwo\n", "n.ipynb": cell})
    monkeypatch.setattr(build, "chunk_url", lambda _, commit, path: f"https://x/{commit}/{path.decode()}")
    corpus = built(topic_of(made), tmp_path)
    # Lines of a notebook's extracted text are none of the page.
    assert corpus.chunks["url"].to_list() == [f"https://x/{commit}/a.md#L1-L2", f"https://x/{commit}/n.ipynb"]


def test_commits_are_a_table_in_order(tmp_path: Path) -> None:
    one, two = Made(tmp_path / "one.git"), Made(tmp_path / "two.git")
    for at, repository in ((OCTOBER, two), ("2024-10-11T00:00:00+02:00", one)):
        repository.commit(at, {"a": at.encode()})
    commits = resolve_commits(topic_of(two, one), "2024-10", tmp_path / "mirrors")
    assert_frame_equal(TABLES["commits"].conform(commits), commits)
    assert commits["repository"].to_list() == ["one", "two"]
    with pytest.raises(CorpusError, match="local/two, snapshot 2024-09: branch main has no commit before"):
        resolve_commits(topic_of(two, one), "2024-09", tmp_path / "mirrors")


def test_a_young_repository_is_a_part_since_the_month_it_names(tmp_path: Path) -> None:
    old, young = Made(tmp_path / "old.git"), Made(tmp_path / "young.git")
    old.commit(OCTOBER)
    young.commit(NOVEMBER)
    topic = topic_of(old, young)
    since = topic.repositories[1].model_copy(update={"since": "2024-11"})
    topic = topic.model_copy(update={"repositories": (topic.repositories[0], since)})
    assert resolve_commits(topic, "2024-10", tmp_path / "mirrors")["repository"].to_list() == ["old"]
    assert resolve_commits(topic, "2024-11", tmp_path / "mirrors")["repository"].to_list() == ["old", "young"]
    assert built(topic, tmp_path).files["repository"].unique().to_list() == ["old"]
    with pytest.raises(CorpusError, match="2024-10: no repository is a part of it yet; see their `since`"):
        resolve_commits(topic.model_copy(update={"repositories": (since,)}), "2024-10", tmp_path / "mirrors")


def test_one_repository_under_two_names_is_refused(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER)
    first = Repository(name="azure/openai", path=made.path)
    second = Repository(name="azure/openai-samples", path=made.path)
    topic = topic_of(made).model_copy(update={"repositories": (first, second)})
    with pytest.raises(CorpusError, match="azure/openai and azure/openai-samples are one repository under two names"):
        resolve_commits(topic, "2024-10", tmp_path / "mirrors")
    second = second.model_copy(update={"formerly": ("Azure/OpenAI",)})
    with pytest.raises(CorpusError, match="one repository under two names"):
        resolve_commits(topic.model_copy(update={"repositories": (first, second)}), "2024-10", tmp_path / "mirrors")


def test_a_branch_made_since_the_last_fetch_is_fetched(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER)
    repository = Repository(name="owner/made", url=made.path.as_uri())
    topic = topic_of(made).model_copy(update={"repositories": (repository,)})
    resolve_commits(topic, "2024-10", tmp_path / "mirrors")
    new = made.commit("2024-10-11T00:00:00+00:00", branch="new", parents=[])
    topic = topic.model_copy(update={"repositories": (repository.model_copy(update={"branch": "new"}),)})
    assert resolve_commits(topic, "2024-10", tmp_path / "mirrors")["commit"].to_list() == [new]
    topic = topic.model_copy(update={"repositories": (repository.model_copy(update={"branch": "none"}),)})
    with pytest.raises(CorpusError, match="there is no branch none"):
        resolve_commits(topic, "2024-10", tmp_path / "mirrors")


def test_a_broken_cache_costs_time_only(made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made.commit(OCTOBER, {"a.py": code(9)})
    first = built(topic_of(made), tmp_path)
    (broken,) = (tmp_path / "cache").rglob("*.cuts.parquet")
    broken.write_bytes(b"PAR1")
    again = built(topic_of(made), tmp_path)
    assert_frame_equal(again.chunks, first.chunks)
    assert (again.report["chunked_blobs"], again.report["cached_files"]) == (1, 0)
    assert str(broken) in caplog.text


def test_a_cache_that_cannot_be_written_is_one_clear_line(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {"a.py": code(9)})
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(CorpusError, match="the cache cannot be written: "):
        built(topic_of(made), tmp_path)


def test_commits_of_another_topic_are_refused(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER)
    commits = resolve_commits(topic_of(made), "2024-10", tmp_path / "mirrors").with_columns(repository=pl.lit("other"))
    with pytest.raises(CorpusError, match="repositories that the topic does not have"):
        build_corpus(topic_of(made), commits, tmp_path / "mirrors", tmp_path / "cache")


def test_an_empty_tree_gives_empty_tables(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {})
    corpus = built(topic_of(made), tmp_path)
    assert (corpus.files.height, corpus.chunks.height) == (0, 0)
    assert corpus.chunks.schema == TABLES["chunks"].schema
    assert lost_languages(corpus.files).is_empty()


def files_table(*rows: tuple[str, int, str, int]) -> pl.DataFrame:
    filled = [("made", path, "b", size, None, None, outcome, chunks, "") for path, size, outcome, chunks in rows]
    return pl.DataFrame(filled, schema=TABLES["files"].schema, orient="row")


def test_a_language_that_yields_nothing_is_found() -> None:
    files = files_table(
        ("a.py", 900, "chunked", 3),
        ("b.rst", 60, "too_large", 0),
        ("c.rst", 20, "failed", 0),
        ("d.JSON", 5000, "excluded", 0),
        ("e.ico", 5000, "binary", 0),
        ("Makefile", 15, "failed", 0),
        (".env", 5, "failed", 0),
        ("f.po", 4, "chunked", 1),
        ("f/g.PO", 4, "failed", 0),
    )
    lost = lost_languages(files)
    assert lost.select("extension", "files", "bytes", "outcomes").rows() == [
        (".rst", 2, 80, ["failed", "too_large"]),
        ("makefile", 1, 15, ["failed"]),
    ]
    assert lost["share"][0] == pytest.approx(80 / 1008)


RUN = """
import sys
from pathlib import Path
from freshstack_dagster.corpus import build, cache
from freshstack_dagster.settings import Repository, Topic
build.IN_PROCESS_BYTES = 10_000
build.SHARD_BYTES = 50_000
repository, work, slow = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "slow"
topic = Topic(name="made", title="Made", repositories=(Repository(name="local/made", path=repository),))
commits = build.resolve_commits(topic, "2024-10", work / "mirrors")
def progress(what, done, total):
    print(what, done, total, flush=True)
    if slow and what == "chunking":
        sys.stdin.read()
corpus = build.build_corpus(topic, commits, work / "mirrors", work / "cache", workers=1, progress=progress)
corpus.chunks.write_parquet(work / (sys.argv[3] + ".parquet"))
"""


def run(made: Made, work: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, str(made.path), str(work), name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_run_loses_only_what_it_had_not_written(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {f"{n}.py": code(30, str(n)) for n in range(200)})
    killed = run(made, tmp_path, "slow")
    assert killed.stdout is not None
    while "chunking" not in (line := killed.stdout.readline()):
        assert line
    workers = subprocess.run(["ps", "--ppid", str(killed.pid), "-o", "pid="], capture_output=True, text=True).stdout
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    corpus = built(topic_of(made), tmp_path)
    assert 0 < corpus.report["cached_files"] < 200
    fresh = built(topic_of(made), tmp_path / "other")
    assert_frame_equal(corpus.chunks, fresh.chunks)
    for _ in range(100):  # its workers end when nobody is left to ask them
        if not any(Path(f"/proc/{pid}").exists() for pid in workers.split()):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"workers {workers} outlived the run")


def test_two_runs_at_once_build_the_same(made: Made, tmp_path: Path) -> None:
    made.commit(OCTOBER, {f"{n}.py": code(30, str(n)) for n in range(100)})
    runs = [run(made, tmp_path, name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.communicate(timeout=60), runs))
    assert [one.returncode for one in runs] == [0, 0]
    one, two = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "two"))
    assert_frame_equal(one, two)
    assert_frame_equal(one, built(topic_of(made), tmp_path).chunks)


def test_a_default_branch_that_was_renamed_between_two_months(made: Made, tmp_path: Path) -> None:
    # Case 16: 11.x was the default in October; in November it was renamed to 12.x, and 11.x is gone.
    old = made.commit(OCTOBER, {"a.md": b"# of 11\n"}, branch="11.x", parents=[])
    made.default_branch("11.x")
    repository = Repository(name="owner/made", url=made.path.as_uri())
    topic = topic_of(made).model_copy(update={"repositories": (repository,)})
    mirrors = tmp_path / "mirrors"

    def resolved(month: str, where: Path = mirrors, to: Topic = topic) -> tuple[str, str]:
        return resolve_commits(to, month, where).select("commit", "branch").row(0)

    assert resolved("2024-10") == (old, "11.x")
    new = made.commit(NOVEMBER, {"a.md": b"# of 12\n"}, branch="12.x", parents=[old])
    made.default_branch("12.x")
    git(made.path, "update-ref", "-d", "refs/heads/11.x")
    # The mirror was fetched in early November and is fetched again now; these are the days it would have noted.
    (mirror,) = (path for path in mirrors.iterdir() if path.is_dir())
    seen = [[datetime(2024, 11, 2, tzinfo=UTC).timestamp(), "11.x"]]
    notes = json.loads((mirror / NOTES).read_text()) | {"fetched_at": seen[0][0], "default_branches": seen}
    (mirror / NOTES).write_text(json.dumps(notes))
    later = f"{datetime.now(UTC) + timedelta(days=40):%Y-%m}"
    resolve_commits(topic, "2024-12", mirrors)
    assert resolved(later) == (new, "12.x")
    # October stays what it was, and is right from a mirror too that never saw the old name.
    assert resolved("2024-10") == (old, "11.x")
    assert resolved("2024-10", tmp_path / "fresh") == (old, "12.x")
    # A topic may name the branch of the time; where it is gone, that is an error and never another branch.
    named = repository.model_copy(update={"branch": "12.x", "branches": {"2024-10": "11.x"}})
    by_name = topic.model_copy(update={"repositories": (named,)})
    assert resolved("2024-10", to=by_name) == (old, "11.x")
    with pytest.raises(CorpusError, match=r"11\.x"):
        resolved("2024-10", tmp_path / "fresh", by_name)
