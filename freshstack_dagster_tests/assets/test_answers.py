"""Closed-book answers and generated answers, judged by the topic's judge."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from freshstack_dagster.assets.answers import probe_contamination, score_answers
from freshstack_dagster.lake import Lake
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.assets.calibration_project import IDS, TOPIC, answer, make_project, materialize, role
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer


def write_variants(lake: Lake, model: str) -> None:
    rows = [
        {
            "question_id": question_id,
            "variant": "closed_book_answer",
            "setting": "inference",
            "text": "you open it" if number % 2 else "you open and close it",
            "model": model,
            "prompt": "p",
            "reply": None,
        }
        for number, question_id in enumerate(IDS)
    ]
    lake.write("query_variants", pl.DataFrame(rows, schema=TABLES["query_variants"].schema), topic=TOPIC)


def test_contamination_is_judged_and_heuristic_answers_are_skipped(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        lake = make_project(tmp_path, roles={"judge": role(server, "model-judge")})
        write_variants(lake, "heuristic")
        told = materialize(tmp_path, probe_contamination)["contamination"]
        assert told["questions skipped: no closed-book answer by a model"] == len(IDS)
        row = lake.read("contamination", TOPIC).row(-1, named=True)
        assert (row["asked"], row["questions"], row["skipped"], row["share"]) == ("all", 0, 6, None)
        assert row["judge_kind"] == "none"
        assert not server.served
        write_variants(lake, "openai:gpt")
        materialize(tmp_path, probe_contamination)
        assert len(server.served) == len(IDS)
    row = lake.read("contamination", TOPIC).row(-1, named=True)
    assert (row["questions"], row["skipped"], row["nuggets"], row["stated"], row["fully_stated"]) == (6, 0, 12, 9, 3)
    assert row["share"] == 0.75
    assert lake.read("closed_book_judgments", TOPIC).height == 12


def write_answers(root: Path, name: str, answers: dict[str, str]) -> Path:
    folder = root / "data" / "answers" / TOPIC
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"question_id": key, "answer": text}) for key, text in answers.items()]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def test_generated_answers_are_scored(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        lake = make_project(tmp_path, roles={"judge": role(server, "model-judge")})
        assert materialize(tmp_path, score_answers)["answer_results"]["systems"].startswith("none; put answers into")
        assert not lake.read("answer_results", TOPIC).height
        write_answers(tmp_path, "good.jsonl", dict.fromkeys(IDS, "open it, then close it"))
        materialize(tmp_path, score_answers)
        asked = len(server.served)
        write_answers(tmp_path, "poor.jsonl", {**dict.fromkeys(IDS, "close it"), "q0": ""})
        told = materialize(tmp_path, score_answers)["answer_results"]
        # What is known of the first system is not asked again.
        assert len(server.served) == asked + len(IDS) - 1
    results = lake.read("answer_results", TOPIC)
    means = {row["system"]: row["value"] for row in results.filter(question_id="all").to_dicts()}
    assert means == {"good": 1.0, "poor": pytest.approx(2.5 / 6)}
    assert results.height == 2 * (len(IDS) + 1)
    assert "| poor | 12 | 5 | 0 | 0.4167 |" in told["means"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "good.jsonl, line 1: not JSON"),
        ("[1]", "line 1: expected an object with question_id and answer"),
        ('{"question_id": "q0"}', "line 1: expected an object with question_id and answer"),
        ('{"question_id": "q0", "answer": 3}', "line 1: the answer to q0 is not a text"),
        ('{"question_id": null, "answer": "x"}', "question_id is None, expected a text or a whole number"),
        ('\n{"question_id": 17, "answer": "x"}', "line 2: the topic has no question '17'"),
        ('{"question_id": "q0", "answer": ""}\n' * 2, "line 2: question q0 was answered on line 1 already"),
        ("\n", "no answers in it"),
        ('{"question_id": "q0", "answer": "x"}', "system good has no answer to 5 questions, such as q1"),
    ],
)
def test_wrong_answer_files_are_named(text: str, message: str, tmp_path: Path) -> None:
    make_project(tmp_path)
    write_answers(tmp_path, "good.jsonl", {}).write_text(text)
    with pytest.raises(AssertionError) as caught:
        materialize(tmp_path, score_answers)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    make_project(tmp_path)
    write_answers(tmp_path, "good.csv", {})
    with pytest.raises(AssertionError, match=r"good\.csv: answers are read from <system>\.jsonl"):
        materialize(tmp_path, score_answers)
