"""Runs and qrels as people hand them in."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshstack_dagster.errors import EvaluationError
from freshstack_dagster.evaluation import check_qrels, check_run, evaluate, read_qrels, read_run
from freshstack_dagster.evaluation.runs import read_checked, read_submitted


def written(folder: Path, text: str, name: str = "a.run") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("q1 Q0 d1 1 9.5 tag", ("q1", "d1", 9.5)),
        ("q1\tQ0\td1\t1\t-9.5e-3\ttag", ("q1", "d1", -0.0095)),
        ("q1 Q0 docs/my file.md_0_20 1 9.5 tag", ("q1", "docs/my file.md_0_20", 9.5)),
        ("q1 Q0 docs/a  b.md_0_20 1 9.5 tag", ("q1", "docs/a  b.md_0_20", 9.5)),
        ("q1 Q0 d1 1 9.5 my tag", ("q1", "d1", 9.5)),
        ("q1 Q0 a b 3 9.5 my tag", ("q1", "a b", 9.5)),
        ("  q1 Q0 d1 1 9.5 tag  ", ("q1", "d1", 9.5)),
        ("q1 Q0 模型.md_0_2 1 9 tag", ("q1", "模型.md_0_2", 9.0)),
        ("q1 Q0 a\u2028b 1 9 tag", ("q1", "a\u2028b", 9.0)),
    ],
)
def test_a_line_is_read(tmp_path: Path, line: str, row: tuple[str, str, float]) -> None:
    # A blank line, and lines that end as Windows ends them, change nothing.
    run = read_run(written(tmp_path, f"q0 Q0 x 1 1 t\r\n\r\n{line}\n\n"))
    assert run.rows() == [("q0", "x", 1.0), row]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q1 Q0 d1 1 9.5", "the tag is missing"),
        ("q1 Q0 d1 9.5 tag", "found no rank and score"),
        ("q1 d1", "expected `question Q0 document rank score tag`"),
        ("q1 Q0 d1 1 nan tag", "found no rank and score"),
        ("q1 Q0 d1 1 1e999 my tag", "not a finite number"),
        ("q1 Q0 a 1 2 3 tag", "unclear which numbers"),
        ("q0 Q0 x 2 0.5 t", "question q0 lists document x twice"),
    ],
)
def test_a_line_is_refused_with_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, f"q0 Q0 x 1 1 t\n\n{line}\n")
    with pytest.raises(EvaluationError, match=message) as error:
        read_run(path)
    assert f"{path}, line 3: " in str(error.value)


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs"]), min_size=1),
    st.floats(allow_nan=False, allow_infinity=False),
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, document: str, score: float) -> None:
    document = document.replace("\u2028", "").replace("\u2029", "").replace("\ufeff", "") or "d"
    path = written(tmp_path_factory.mktemp("run"), f"q Q0 {document} 1 {score!r} t\n")
    assert read_run(path).rows() == [("q", document, score)]


def test_gzip_parquet_and_text_hold_the_same_run(tmp_path: Path) -> None:
    text = written(tmp_path, "q Q0 b 1 2 t\nq Q0 a 2 1 t\n")
    zipped = tmp_path / "a.run.gz"
    zipped.write_bytes(gzip.compress(text.read_bytes()))
    parquet = tmp_path / "a.parquet"
    read_run(text).write_parquet(parquet)
    ranks = tmp_path / "ranks.parquet"
    pl.DataFrame({"question_id": ["q", "q"], "doc_id": ["b", "a"], "rank": [1, 2]}).write_parquet(ranks)
    assert read_run(text).equals(read_run(zipped))
    assert read_run(text).equals(read_run(parquet))
    assert read_run(ranks)["score"].to_list() == [-1, -2]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"absent\.run: cannot be read: No such file"):
        read_run(tmp_path / "absent.run")
    with pytest.raises(EvaluationError, match=r"absent\.parquet: cannot be read"):
        read_run(tmp_path / "absent.parquet")
    (tmp_path / "latin.run").write_bytes(b"q Q0 a 1 1 t\nq Q0 \xe9 1 1 t\n")
    with pytest.raises(EvaluationError, match=r"latin\.run, line 2: not UTF-8"):
        read_run(tmp_path / "latin.run")
    pl.DataFrame({"question_id": ["q"], "score": [1.0]}).write_parquet(tmp_path / "short.parquet")
    with pytest.raises(EvaluationError, match=r"short\.parquet: missing columns doc_id"):
        read_run(tmp_path / "short.parquet")
    with pytest.raises(EvaluationError, match="holds no line"):
        read_run(written(tmp_path, "\n"))


def test_qrels_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, "q q_0 a 1\n\nq q_1 my file.md_0_5 0\n", "qrels.txt")
    assert read_qrels(path).rows() == [("q", "q_0", "a", 1), ("q", "q_1", "my file.md_0_5", 0)]
    parquet = tmp_path / "qrels.parquet"
    read_qrels(path).drop("question_id").write_parquet(parquet)
    assert read_qrels(parquet).equals(read_qrels(path))
    with pytest.raises(EvaluationError, match=r"line 2: expected `question nugget document relevance`"):
        read_qrels(written(tmp_path, "q q_0 a 1\nq q_0 a yes\n", "qrels.txt"))


def test_paths_are_scored_as_frames_are(tmp_path: Path) -> None:
    qrels = written(tmp_path, "q q_0 a 1\nq q_1 b 1\n", "qrels.txt")
    run = written(tmp_path, "q Q0 b 1 2 t\nq Q0 a 2 1 t\n")
    assert evaluate(str(qrels), run).equals(evaluate(read_qrels(qrels), read_run(run)))


def test_unknown_ids_are_refused_by_name() -> None:
    run = pl.DataFrame({"question_id": ["1", "2"], "doc_id": ["a", "z"], "score": [1.0, 1.0]})
    assert check_run(run, ["a", "z"], ["1", "2"]) is run
    with pytest.raises(EvaluationError, match="1 doc_ids that chunks lack: z"):
        check_run(run, ["a"], ["1", "2"])
    with pytest.raises(EvaluationError, match="1 question_ids that questions lack: 2"):
        check_run(run, pl.Series(["a", "z"]), pl.Series(["1"]))
    with pytest.raises(EvaluationError, match="qrels have 1 doc_ids that chunks lack: z"):
        check_qrels(run, ["a"])


def test_a_folder_of_submitted_runs(tmp_path: Path) -> None:
    chunks = pl.DataFrame({"doc_id": ["a", "b"]})
    outcomes = pl.DataFrame({"question_id": ["q"]})
    assert read_submitted(tmp_path / "absent", chunks, outcomes) == {}
    written(tmp_path, "q Q0 a 1 1 t\n", "mine.v2.run")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "other.txt.gz").write_bytes(gzip.compress(b"q Q0 b 1 1 t\n"))
    runs = read_submitted(tmp_path, chunks.lazy(), outcomes)
    assert {name: run["doc_id"].to_list() for name, run in runs.items()} == {"mine.v2": ["a"], "other": ["b"]}
    written(tmp_path, "q Q0 zz 1 1 t\n", "wrong.run")
    with pytest.raises(EvaluationError, match=r"wrong\.run: the run has 1 doc_ids that chunks lack: zz"):
        read_submitted(tmp_path, chunks, outcomes)
    (tmp_path / "wrong.run").rename(tmp_path / "notes.md")
    with pytest.raises(EvaluationError, match=r"notes\.md: not known as a run"):
        read_submitted(tmp_path, chunks, outcomes)


def test_ids_as_the_trec_export_writes_them_are_read_back(tmp_path: Path) -> None:
    known = ["docs/my file.md_0_9", "docs/50%.md_0_9", "docs/a%20b.md_0_9", "docs/a b.md_0_9"]
    lines = ["docs/my%20file.md_0_9", "docs/50%25.md_0_9", "docs/a%20b.md_0_9", "docs/a b.md_0_9"]
    text = "".join(f"q Q0 {name} {rank} {9 - rank} t\n" for rank, name in enumerate(lines))
    assert read_checked(written(tmp_path, text), known, ["q"])["doc_id"].to_list() == known
    with pytest.raises(EvaluationError, match=r"a\.run: .*chunks lack: docs/c d"):
        read_checked(written(tmp_path, "q Q0 docs/c%20d 1 1 t\n"), known, ["q"])


def test_a_score_beyond_all_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"a\.run, line 2: the score is not a finite number"):
        read_run(written(tmp_path, "q Q0 a 1 1 t\nq Q0 b 2 1e999 t\n"))
