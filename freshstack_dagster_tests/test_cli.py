"""The console commands: what they print, and one clear line with a code that is not 0 on bad input."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result

from freshstack_dagster.cli import main
from freshstack_dagster.evaluation import build_qrels, evaluate
from freshstack_dagster.judging.support import nugget_hash
from freshstack_dagster.lake import Lake
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.assets.calibration_project import DOCS, IDS, SNAPSHOT, TOPIC, make_project
from freshstack_dagster_tests.conftest import PROJECT

GIVEN = ("--topic", TOPIC, "--snapshot", SNAPSHOT)
# Of each question's first nugget every second of these is supported; the rest of DOCS nobody judged.
JUDGED = DOCS[:6]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with qrels for six questions, one command line away."""
    lake = make_project(tmp_path)
    nuggets = lake.read("nuggets", TOPIC).group_by("question_id", maintain_order=True).first()
    rows = [
        {
            "question_id": question_id,
            "nugget_id": nugget_id,
            "doc_id": doc_id,
            "nugget_hash": nugget_hash(text),
            "content_hash": doc_id,
            "verdict": "supported" if place % 2 == 0 else "unsupported",
            "judge": "heuristic",
            "judge_kind": "heuristic",
            "prompt": "p",
            "reason": "r",
        }
        for question_id, nugget_id, text in nuggets.select("question_id", "nugget_id", "text").iter_rows()
        for place, doc_id in enumerate(JUDGED)
    ]
    schema = TABLES["judgments"].schema
    judgments = TABLES["judgments"].conform(pl.DataFrame(rows, schema={name: schema[name] for name in schema}))
    qrels, outcomes = build_qrels(judgments, nuggets, lake.read("questions", TOPIC))
    built = {"judgments": judgments, "annotations": TABLES["annotations"].empty(), "qrels": qrels}
    for table, frame in {**built, "question_outcomes": outcomes}.items():
        lake.write(table, frame, topic=TOPIC, snapshot=SNAPSHOT)
    lake.refresh_catalogue()
    monkeypatch.setenv("FRESHSTACK_ROOT", str(tmp_path))
    for name in ("FRESHSTACK_LAKE", "FRESHSTACK_CACHE", "FRESHSTACK_MIRRORS", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def refused(*arguments: str) -> str:
    """The one line that a refused command ends with."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def trec(path: Path, questions: list[str], documents: list[str], between: str = "") -> Path:
    """A TREC run that ranks these documents for these questions."""
    lines = [f"{q} Q0 {d} {n} {9.5 - n} tag\n" for q in questions for n, d in enumerate(documents, 1)]
    path.write_text(between.join(lines) + between)
    return path


def printed(result: Result) -> dict[str, list[str]]:
    """Measures of a printed table, to their cells."""
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in result.stdout.splitlines()]
    return {row[0]: row[1:] for row in rows if "@" in row[0]}


def test_score_prints_measures_with_bounds_and_holes(root: Path) -> None:
    path = trec(root / "mine.run", IDS, [DOCS[1], DOCS[9], DOCS[0], DOCS[2]])
    result = run("score", str(path), *GIVEN)
    table = printed(result)
    assert f"mine.run on {TOPIC} {SNAPSHOT}: {len(IDS)} questions" in result.stdout
    # Rank 2 is a hole: right, it would come before the relevant document at rank 3.
    assert table["mrr@10"] == ["0.333", "0.333", "0.500", "0.250"]
    assert table["judged@10"][0] == "0.750"
    assert "judged by the heuristic" in result.stderr
    means = evaluate(Lake(root / "data" / "lake").read("qrels", TOPIC, SNAPSHOT), path)
    for measure, value in means.group_by("measure").agg(pl.col("value").mean()).iter_rows():
        assert table[measure][0] == f"{value:.3f}"


def test_score_skips_blank_lines_and_reads_parquet_alike(root: Path) -> None:
    plain = run("score", str(trec(root / "a.run", IDS, DOCS[:4])), *GIVEN)
    blank = run("score", str(trec(root / "b.run", IDS, DOCS[:4], between="\n  \n")), *GIVEN)
    frame = pl.DataFrame({"question_id": IDS}).join(
        pl.DataFrame({"doc_id": DOCS[:4], "score": [4.0, 3.0, 2.0, 1.0]}), how="cross"
    )
    frame.write_parquet(root / "c.parquet")
    assert printed(plain) == printed(blank) == printed(run("score", str(root / "c.parquet"), *GIVEN))


def test_score_takes_measures_at_any_depth(root: Path) -> None:
    path = str(trec(root / "mine.run", IDS, [DOCS[1], DOCS[9], DOCS[0], DOCS[2]]))
    table = printed(run("score", path, *GIVEN, "--measures", "alpha_ndcg@3, p@2 rr@10"))
    assert list(table) == ["alpha_ndcg@3", "mrr@10", "precision@2"]
    assert table["mrr@10"] == printed(run("score", path, *GIVEN))["mrr@10"]
    assert "'accuracy@3' is not known; known are alpha_ndcg@k" in refused(
        "score", path, *GIVEN, "--measures", "accuracy@3"
    )


def test_score_refuses_ids_that_the_snapshot_lacks(root: Path) -> None:
    line = refused("score", str(trec(root / "a.run", IDS, [DOCS[0], "docs/none.md_0_1"])), *GIVEN)
    assert line == f"error: {root / 'a.run'}: the run has 1 doc_ids that chunks lack: docs/none.md_0_1"
    line = refused("score", str(trec(root / "a.run", [*IDS, "q77"], DOCS[:2])), *GIVEN)
    assert line == f"error: {root / 'a.run'}: the run has 1 question_ids that questions lack: q77"


def test_a_missing_question_is_an_error_or_zero(root: Path) -> None:
    path = trec(root / "a.run", IDS[:-1], [DOCS[0]])
    line = refused("score", str(path), *GIVEN)
    assert "lacks 1 of 6 questions of the qrels: q5" in line
    assert printed(run("score", str(path), *GIVEN, "--missing", "zero"))["mrr@10"][0] == f"{5 / 6:.3f}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "the run holds no line"),
        ("q0 Q0 docs/d0.md_0_9 1 x tag\n", "line 1: expected `question Q0 document rank score tag`"),
        ("\nq0 docs/d0.md_0_9\n", "line 2: expected `question Q0 document rank score tag`"),
        ("q0 Q0 docs/d0.md_0_9 1 nan tag\n", "line 1"),
        ("q0 Q0 docs/d0.md_0_9 1 2 t\nq0 Q0 docs/d0.md_0_9 2 1 t\n", "twice"),
    ],
)
def test_a_run_that_cannot_be_read_names_file_and_line(root: Path, text: str, message: str) -> None:
    path = root / "a.run"
    path.write_text(text)
    line = refused("score", str(path), *GIVEN)
    assert "a.run" in line
    assert message in line


def test_score_names_what_was_never_built(root: Path) -> None:
    path = str(trec(root / "a.run", IDS, DOCS[:1]))
    line = refused("score", path, "--topic", TOPIC, "--snapshot", "2025-10")
    assert line.startswith(f"error: {TOPIC} is not built at 2025-10 but at {SNAPSHOT}; `freshstack-dagster build")
    assert (
        refused("score", path, "--topic", "none", "--snapshot", SNAPSHOT) == f"error: no topic none; there are {TOPIC}"
    )
    assert run("score", str(root / "none.run"), *GIVEN).exit_code == 2
    Lake(root / "data" / "lake").write("qrels", TABLES["qrels"].empty(), topic=TOPIC, snapshot=SNAPSHOT)
    assert "no question was kept" in refused("score", path, *GIVEN)


def test_a_build_says_why_no_question_was_found(root: Path) -> None:
    lines = [
        {"question_id": str(n), "title": "How?", "body_markdown": "b", "answer_markdown": answer, "tags": tags}
        for n, (answer, tags) in enumerate([("", ["mine"]), ("So.", ["other"])])
    ]
    (root / "data" / "q.jsonl").write_text("\n".join(map(json.dumps, lines)))
    topic = root / "data" / "topics" / f"{TOPIC}.yaml"
    topic.write_text(topic.read_text() + "tags: [mine]\nquestions: {kind: jsonl, path: data/q.jsonl}\n")
    for _ in range(2):  # what a check failed on is never taken for unchanged
        result = run("build", TOPIC, SNAPSHOT)
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == (
            "error: questions: the check questions_found failed: no question is kept; left out: no accepted answer 1; "
            "whatever else the source holds bears none of the tags"
        )


def test_sql_prints_a_table_or_csv(root: Path) -> None:
    result = run("sql", "select count(*) as n from qrels", "--csv")
    assert (result.exit_code, result.stdout) == (0, f"n\n{len(IDS) * len(JUDGED)}\n")
    assert "| 36" in run("sql", "select count(*) as n from qrels").stdout


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from nowhere", "nowhere"),
        ("selec 1", "syntax error"),
        ("drop view qrels", "read-only"),
        ("create table t as select 1", "read-only"),
    ],
)
def test_sql_that_cannot_be_answered_is_one_line(root: Path, query: str, message: str) -> None:
    assert message in refused("sql", query)


def test_sql_without_a_catalogue_says_what_to_do(root: Path) -> None:
    (root / "data" / "freshstack.duckdb").unlink()
    assert refused("sql", "select 1").endswith("no catalogue yet; build a topic first")


def test_topics_lists_what_is_built(root: Path) -> None:
    result = run("topics")
    assert result.exit_code == 0
    assert result.stdout.split() == [TOPIC, "Test", "1", "repositories", SNAPSHOT]
    (root / "data" / "topics" / "broken.yaml").write_text("title: X\nrepositores: [a/b]\n")
    assert "did you mean repositories?" in refused("topics")


def test_doctor_says_what_works_and_what_does_not(root: Path) -> None:
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "FAILED" not in result.stdout
    (root / "data" / "topics" / "broken.yaml").write_text("title: X\nrepositores: [a/b]\n")
    (root / "data" / "freshstack.duckdb").write_bytes(b"half of a file")
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAILED   settings:" in result.stdout
    assert "FAILED   catalogue:" in result.stdout
    assert result.stderr.strip() == "error: 2 of the checks failed"
    (root / "data" / "freshstack.duckdb").unlink()
    (root / "data" / "topics" / "broken.yaml").unlink()
    topic = root / "data" / "topics" / f"{TOPIC}.yaml"
    topic.write_text(topic.read_text() + "questions: {kind: jsonl, path: data/q.jsonl}\n")
    result = run("doctor")
    assert result.exit_code == 0
    assert "catalogue: none yet" in result.stdout
    assert f"not there yet: {root / 'data' / 'q.jsonl'} (of {TOPIC})" in result.stdout


def test_topics_names_what_it_cannot_read_and_what_has_no_file(root: Path) -> None:
    topics = root / "data" / "topics"
    (topics / "wrong.yaml").write_text("titel: x\n")
    Lake(root / "data" / "lake").write("nuggets", TABLES["nuggets"].empty(), topic="old")
    result = run("topics")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith(TOPIC) and SNAPSHOT in lines[0]
    assert lines[1].split()[:4] == ["wrong", "cannot", "be", "read,"]
    assert lines[2] == "tables of topics without a file: old; `freshstack-dagster forget` deletes them"
    assert "wrong.yaml" in result.stderr and "did you mean title" in result.stderr


@pytest.mark.parametrize(("name", "why"), [("mine.yml", "end in .yaml"), ("a|b.yaml", "letters, digits")])
def test_a_topic_file_that_would_be_overlooked_is_named(root: Path, name: str, why: str) -> None:
    (root / "data" / "topics" / name).write_text("title: x\n")
    line = refused("topics")
    assert name in line and why in line


def test_forgetting_asks_first_and_leaves_the_file(root: Path) -> None:
    assert "there are tables of sample" in refused("forget", "none")
    assert CliRunner().invoke(main, ["forget", TOPIC], input="n\n").exit_code == 1
    lake = Lake(root / "data" / "lake")
    assert lake.topics() == {TOPIC}
    assert run("forget", TOPIC, "--yes").exit_code == 0
    assert lake.topics() == set()
    assert (root / "data" / "topics" / f"{TOPIC}.yaml").exists()


def test_a_build_looks_for_local_repositories_before_anything_is_paid(root: Path) -> None:
    topic = root / "data" / "topics" / f"{TOPIC}.yaml"
    topic.write_text(topic.read_text().replace("name: a/docs", "name: a/docs\n  path: nowhere"))
    before = Lake(root / "data" / "lake").topics()
    line = refused("build", TOPIC, SNAPSHOT)
    assert line == f"error: repository a/docs: {root / 'nowhere'} does not exist; correct `path`"
    assert Lake(root / "data" / "lake").topics() == before
    assert "snapshot '2024-13' is not a month" in refused("build", TOPIC, "2024-13")


def test_pruning_leaves_what_was_used_lately(root: Path) -> None:
    for name, days_ago in (("old", 100), ("new", 1)):
        folder = root / "data" / "cache" / "bm25" / name
        folder.mkdir(parents=True)
        (folder / "index").write_bytes(b"0" * 200_000)
        used = time.time() - days_ago * 86_400
        os.utime(folder, (used, used))
    printed_lines = run("prune").output.splitlines()
    assert printed_lines == [
        "pruned 0 runs that were made more than 90 days ago",
        "pruned 1 indexes that were not used since, 0.2 MB",
    ]
    assert [path.name for path in (root / "data" / "cache" / "bm25").iterdir()] == ["new"]


def test_a_project_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHSTACK_ROOT", str(tmp_path / "none"))
    assert str(tmp_path / "none") in refused("topics")


@pytest.mark.slow
def test_score_on_the_sample_equals_the_table_of_results_and_topping_up_fills_the_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way on the bundled topic: build, submit, build again with `top_up`."""
    (tmp_path / "data" / "topics").mkdir(parents=True)
    for name in ("dagster.yaml", "workspace.yaml", "data/snapshots.yaml", "data/topics/sample.yaml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    shutil.copytree(PROJECT / "data" / "sample", tmp_path / "data" / "sample")
    topic = tmp_path / "data" / "topics" / "sample.yaml"
    topic.write_text(topic.read_text() + "pooling: {depth: 5}\nkeep_partial: true\n")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("FRESHSTACK_", "DAGSTER_"))}
    environment = {**outside, "FRESHSTACK_ROOT": str(tmp_path)}

    def build() -> None:
        command = [Path(sys.executable).parent / "freshstack-dagster", "build", "--no-drift", TOPIC, SNAPSHOT]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr[-1000:]

    build()
    monkeypatch.setenv("FRESHSTACK_ROOT", str(tmp_path))
    lake = Lake(tmp_path / "data" / "lake")
    # A run that nobody pooled: every question against the same 20 chunks, by their ids.
    chunks = lake.read("chunks", TOPIC, SNAPSHOT)["doc_id"].sort().to_list()[::8][:20]
    questions = lake.read("question_outcomes", TOPIC, SNAPSHOT)["question_id"].to_list()
    folder = tmp_path / "data" / "runs" / TOPIC / SNAPSHOT
    folder.mkdir(parents=True)
    path = trec(folder / "mine.run", questions, chunks[:5])
    before = lake.read("judgments", TOPIC, SNAPSHOT)
    shown = printed(run("score", str(path), *GIVEN))
    assert float(shown["coverage@20"][3]) > 0.5

    build()
    assert printed(run("score", str(path), *GIVEN)) == shown
    results = lake.read("retrieval_results", TOPIC, SNAPSHOT).filter(system="mine", question_id="all")
    for measure, *values in results.select("measure", "value", "lower", "upper", "holes").iter_rows():
        assert shown[measure] == [f"{value:.3f}" for value in values]

    topic.write_text(topic.read_text().replace("depth: 5}", "depth: 5, top_up: true}"))
    build()
    after = lake.read("judgments", TOPIC, SNAPSHOT)
    kept = after.join(before, on=["nugget_id", "doc_id"], how="semi").sort("nugget_id", "doc_id")
    assert after.height > before.height
    assert kept.equals(before.sort("nugget_id", "doc_id"))
    assert all(cells[3] == "0.000" for cells in printed(run("score", str(path), *GIVEN)).values())
