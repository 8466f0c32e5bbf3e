"""Runs and pools through their assets: whose calls are recorded, and what a submitted run adds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from freshstack_dagster.assets.evaluation import compare_systems, score_retrieval
from freshstack_dagster.assets.judgments import judge_pools
from freshstack_dagster.assets.pools import pool_candidates, retrieve
from freshstack_dagster.assets.qrels import build_qrels
from freshstack_dagster.lake import Lake
from freshstack_dagster.tables import TABLES
from freshstack_dagster_tests.assets.calibration_project import (
    DOCS,
    IDS,
    SNAPSHOT,
    TEXTS,
    TOPIC,
    answer,
    chunk_table,
    make_project,
    materialize,
    role,
)
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer, Prompt

# Chunks that share no word with any question: only a submitted run finds them.
FAR = {f"docs/far{word}.md_0_9": f"open zebra {word}" for word in ("red", "green", "blue")}
CHAIN = (retrieve, pool_candidates, judge_pools, build_qrels)


def make(root: Path, **settings: Any) -> Lake:
    """The project with variants to retrieve for, so that runs and pools are built rather than made up."""
    lake = make_project(root, retrievers=["bm25"], keep_partial=True, **settings)
    rows = [
        {
            "question_id": question_id,
            "variant": "question",
            "setting": "inference",
            "text": f"document {place}",
            "model": "none",
            "prompt": "p",
            "reply": None,
        }
        for place, question_id in enumerate(IDS)
    ]
    lake.write("query_variants", pl.DataFrame(rows, schema=TABLES["query_variants"].schema), topic=TOPIC)
    lake.write("chunks", chunk_table({**TEXTS, **FAR}), topic=TOPIC, snapshot=SNAPSHOT)
    lake.write("annotations", TABLES["annotations"].empty(), topic=TOPIC, snapshot=SNAPSHOT)
    return lake


def submit(root: Path, name: str, documents: list[str]) -> None:
    """Drop a TREC run that ranks these documents for every question."""
    folder = root / "data" / "runs" / TOPIC / SNAPSHOT
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{q} Q0 {d} {place} {9 - place} x" for q in IDS for place, d in enumerate(documents, 1)]
    (folder / name).write_text("\n".join(lines) + "\n")


def judged_pairs(server: MisbehavingServer) -> Counter[tuple[str, str]]:
    """How often each question was asked about each document."""
    found: Counter[tuple[str, str]] = Counter()
    for served in server.served:
        question = served.prompt.user.split("How do I ", 1)[1].split("?", 1)[0]
        for part in served.prompt.user.split("<document number=")[1:]:
            found[question, part.split(">\n", 1)[1].split("\n</document>", 1)[0]] += 1
    return found


def holes(lake: Lake, system: str) -> dict[str, float]:
    results = lake.read("retrieval_results", TOPIC, SNAPSHOT).filter(system=system, question_id="all")
    return dict(results.select("measure", "holes").iter_rows())


def test_a_submitted_run_tops_the_pool_up_and_only_what_is_unjudged_is_judged(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        lake = make(tmp_path, roles={"judge": role(server, "model-judge")}, pooling={"top_up": True})
        told = materialize(tmp_path, *CHAIN)["pools"]
        assert told["submitted runs"] == "none"
        before = lake.read("judgments", TOPIC, SNAPSHOT)
        pairs = judged_pairs(server)
        assert set(pairs.values()) == {1}

        submit(tmp_path, "mine.run", [*FAR, DOCS[0]])
        materialize(tmp_path, score_retrieval)
        assert holes(lake, "mine")["judged@10"] == pytest.approx(0.75)

        told = materialize(tmp_path, *CHAIN, score_retrieval, compare_systems)["pools"]
        assert (told["submitted runs"], told["documents that only submitted runs found"]) == ("mine", 18)
        assert set(holes(lake, "mine").values()) == {0.0}
        after = judged_pairs(server)
        assert set(after.values()) == {1}, "a pair was judged twice"
        assert {text for _, text in after - pairs} == set(FAR.values())
        kept = lake.read("judgments", TOPIC, SNAPSHOT).join(before, on=["nugget_id", "doc_id"], how="semi")
        assert kept.sort("nugget_id", "doc_id").equals(before.sort("nugget_id", "doc_id"))

        # Nothing in the folder changed: the stage reports what stands.
        assert materialize(tmp_path, pool_candidates)["pools"]["outcome"].startswith("unchanged")


def test_without_top_up_a_submitted_run_changes_no_pool(tmp_path: Path) -> None:
    lake = make(tmp_path)
    materialize(tmp_path, *CHAIN)
    pools = lake.read("pools", TOPIC, SNAPSHOT)
    submit(tmp_path, "mine.run", list(FAR))
    assert materialize(tmp_path, pool_candidates)["pools"]["outcome"].startswith("unchanged")
    assert lake.read("pools", TOPIC, SNAPSHOT).equals(pools)


def test_a_submitted_run_that_ranks_unknown_documents_tops_nothing_up(tmp_path: Path) -> None:
    make(tmp_path, pooling={"top_up": True})
    submit(tmp_path, "mine.run", [*FAR, "docs/nowhere.md_0_9"])
    with pytest.raises(AssertionError, match=r"mine\.run: the run has 1 doc_ids that chunks lack: docs/nowhere"):
        materialize(tmp_path, retrieve, pool_candidates)


def test_qrels_hold_only_ids_that_chunks_has(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        lake = make(tmp_path, roles={"judge": role(server, "model-judge")}, pooling={"top_up": True})
        submit(tmp_path, "mine.run", list(FAR))
        materialize(tmp_path, *CHAIN)
    known = set(lake.read("chunks", TOPIC, SNAPSHOT)["doc_id"])
    qrels = lake.read("qrels", TOPIC, SNAPSHOT)
    assert qrels.height
    assert set(qrels["doc_id"]) <= known
    # Chunks of another day beside judgments of this one are an error, not qrels that point nowhere.
    lost = qrels["doc_id"][0]
    others = {doc_id: text for doc_id, text in {**TEXTS, **FAR}.items() if doc_id != lost}
    lake.write("chunks", chunk_table(others), topic=TOPIC, snapshot=SNAPSHOT)
    with pytest.raises(AssertionError, match=f"doc_ids that chunks lack: {lost}"):
        materialize(tmp_path, build_qrels)


def last_first(prompt: Prompt) -> dict[str, Any]:
    count = prompt.user.split("Passages:")[1].count("[")
    return {"ranking": list(range(count, 0, -1))}


def test_calls_of_a_language_model_reranker_are_recorded(tmp_path: Path) -> None:
    with MisbehavingServer(last_first) as server:
        reranker = {"name": "rr", "kind": "llm", "model": "m", "base_url": server.openai_url, "depth": 5}
        lake = make(tmp_path, rerankers=[reranker])
        told = materialize(tmp_path, retrieve)["runs"]
        runs = lake.read("runs", TOPIC, SNAPSHOT)
        calls = lake.read("model_calls", TOPIC)
        # The fusion of a single retriever has its order: the second list is answered from the cache.
        assert calls.group_by("role", "cached").len().sort("cached").rows() == [
            ("reranker rr", False, len(IDS)),
            ("reranker rr", True, len(IDS)),
        ]
        assert len(server.served) == len(IDS)
    assert "reranker rr" in told["model calls"]
    assert told["report"]["rr"]["lists"] == 2 * len(IDS)
    for question_id in IDS:
        base = runs.filter(question_id=question_id, retriever="bm25").sort("rank")["doc_id"].to_list()[:5]
        again = runs.filter(question_id=question_id, retriever="bm25+rr").sort("rank")["doc_id"].to_list()
        assert again == base[::-1]


def test_an_outage_is_not_taken_for_a_result(tmp_path: Path) -> None:
    """Requests that got no answer are errors in the table, and the next build asks for them again, for nothing else."""
    down = True
    with MisbehavingServer(
        answer, schedule=lambda number, prompt: "no_choices" if down and number % 2 else None
    ) as server:
        lake = make(tmp_path, roles={"judge": role(server, "model-judge")}, judging={"max_error_share": 1})
        told = materialize(tmp_path, *CHAIN)["judgments"]
        assert "requests got no answer" in told["unfinished"]
        errors = lake.read("judgments", TOPIC, SNAPSHOT).filter(verdict="error").height
        assert errors
        down = False
        served = len(server.served)
        told = materialize(tmp_path, judge_pools)["judgments"]
        assert "unfinished" not in told
        assert lake.read("judgments", TOPIC, SNAPSHOT).filter(verdict="error").is_empty()
        assert 0 < len(server.served) - served < served
        assert materialize(tmp_path, judge_pools)["judgments"]["outcome"].startswith("unchanged")


def test_an_edited_prompt_file_is_asked_with(tmp_path: Path) -> None:
    from freshstack_dagster.judging.prompts import load_prompt

    bundled = load_prompt("support")
    prompt = tmp_path / "support.md"
    prompt.write_text(f"# System\n{bundled.system}\n# User\n{bundled.user}\n")
    with MisbehavingServer(answer) as server:
        mine = {**role(server, "model-judge"), "prompt": "support.md"}
        lake = make(tmp_path, roles={"judge": mine})
        materialize(tmp_path, *CHAIN)
        before = lake.read("judgments", TOPIC, SNAPSHOT)["prompt"].unique()
        assert materialize(tmp_path, judge_pools)["judgments"]["outcome"].startswith("unchanged")
        prompt.write_text(prompt.read_text().replace("# User", "Take your time.\n# User"))
        materialize(tmp_path, judge_pools)
        after = lake.read("judgments", TOPIC, SNAPSHOT)["prompt"].unique()
        assert len(before) == len(after) == 1 and before[0] != after[0]
