"""Annotators beside the judge, as assets over a real lake, with a server that answers for every model."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import polars as pl
import pytest
import yaml

from freshstack_dagster.assets.calibration import NO_ANNOTATORS, annotate_pools, compare_judges
from freshstack_dagster.assets.judgments import judge_pools
from freshstack_dagster.assets.qrels import build_qrels
from freshstack_dagster.automation.building import build, prepare_instance
from freshstack_dagster.errors import SettingsError
from freshstack_dagster.judging.annotation import sample_pools
from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Judging, Places, Topic
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
from freshstack_dagster_tests.estimating import reply
from freshstack_dagster_tests.judging.fakes import pools
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer

PAIRS = len(IDS) * len(DOCS) * 2
CLOSE = sum("close" in text for text in TEXTS.values()) * len(IDS)


def test_without_annotators_the_tables_are_empty_and_say_so(tmp_path: Path) -> None:
    lake = make_project(tmp_path)
    told = materialize(tmp_path, judge_pools, annotate_pools, compare_judges, build_qrels)
    for table in ("annotations", "agreement", "disagreements"):
        assert lake.read(table, TOPIC, SNAPSHOT).equals(TABLES[table].empty())
        assert told[table]["annotators"] == NO_ANNOTATORS
    assert told["qrels"]["verdict of"] == "judge"


def test_judges_are_compared_and_their_disagreements_listed(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        annotators = {"one": role(server, "model-right"), "two": role(server, "model-wrong")}
        lake = make_project(tmp_path, roles={"judge": role(server, "model-judge"), "annotators": annotators})
        told = materialize(tmp_path, judge_pools, annotate_pools, compare_judges)
        asked = len(server.served)
        # Nothing is asked again, neither when nothing changed nor when the cache is gone but the verdicts stand.
        assert materialize(tmp_path, annotate_pools)["annotations"]["outcome"].startswith("unchanged")
        make_project(
            tmp_path,
            roles={"judge": role(server, "model-judge"), "annotators": annotators},
            judging={"max_error_share": 0.1},
        )
        (tmp_path / "data" / "cache").rename(tmp_path / "data" / "gone")
        materialize(tmp_path, annotate_pools)
        assert len(server.served) == asked
    annotations = lake.read("annotations", TOPIC, SNAPSHOT)
    assert annotations.height == 2 * PAIRS
    assert sorted(annotations["judge"].unique()) == ["compatible:model-right", "compatible:model-wrong"]
    agreement = lake.read("agreement", TOPIC, SNAPSHOT)
    assert agreement["statistic"].to_list() == ["cohen", "cohen", "cohen", "fleiss"]
    by_judges = {(row["judge_a"].split(":")[-1], row["judge_b"].split(":")[-1]): row for row in agreement.to_dicts()}
    assert by_judges["model-judge", "model-right"]["kappa"] == 1
    parted = by_judges["model-right", "model-wrong"]
    assert parted["agreement"] == pytest.approx(1 - CLOSE / PAIRS)
    assert parted["kappa_low"] <= parted["kappa"] <= parted["kappa_high"] < 1
    assert parted["base_rate_a"] - parted["base_rate_b"] == pytest.approx(CLOSE / PAIRS)
    assert (by_judges["all", "all"]["judges"], by_judges["all", "all"]["pairs"]) == (3, PAIRS)
    divided = lake.read("disagreements", TOPIC, SNAPSHOT)
    assert divided.height == CLOSE
    first = divided.row(0, named=True)
    assert first["question"] == f"How do I {first['question_id']}?"
    assert first["nugget"] == "close it first"
    assert first["chunk"] == f"https://example.org/{first['doc_id']}"
    assert first["unsupported"] == ["compatible:model-wrong"]
    assert {reason["judge"]: reason["quote"] for reason in first["reasons"]}["compatible:model-right"] == "close"
    assert "model-wrong read it" in str(first["reasons"])
    # The panel: a row a role, in dollars by the topic's price table.
    assert "annotator:two | compatible:model-wrong | 6 | 6 | 0" in told["annotations"]["model calls"]
    billed = sum(one.input_tokens * 2 + one.output_tokens * 8 for one in server.served) / 1e6
    assert told["annotations"]["dollars"] + told["judgments"]["dollars"] == pytest.approx(billed)
    assert "dollars leave out" not in told["annotations"]


def test_an_unknown_price_is_named_and_never_zero(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        make_project(tmp_path, roles={"judge": role(server, "unpriced")}, budget={})
        told = materialize(tmp_path, judge_pools)["judgments"]
    assert "| price unknown | none |" in told["model calls"]
    assert "dollars" not in told
    assert told["dollars leave out"].startswith("the calls of compatible:unpriced, whose price is unknown")
    assert told["tokens in"] > 0


def test_annotators_see_the_stored_sample_and_the_majority_makes_the_qrels(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        roles = {
            "judge": role(server, "model-wrong"),
            "annotators": {"one": role(server, "model-right"), "two": role(server, "model-second")},
        }
        lake = make_project(tmp_path, roles=roles, judging={"verdict": "majority", "annotated_share": 0.5})
        told = materialize(tmp_path, judge_pools, annotate_pools, compare_judges, build_qrels)
        annotations = lake.read("annotations", TOPIC, SNAPSHOT)
        qrels, outcomes = lake.read("qrels", TOPIC, SNAPSHOT), lake.read("question_outcomes", TOPIC, SNAPSHOT)
        make_project(tmp_path, roles=roles, judging={"annotated_share": 0.5})
        materialize(tmp_path, build_qrels)
    assert told["qrels"]["verdict of"] == "majority"
    seen = annotations.select("question_id", "doc_id").unique()
    assert 0.2 * PAIRS / 2 < seen.height < 0.8 * PAIRS / 2
    # The judge misses `close`; where the annotators looked, they overrule it.
    close = qrels.filter(pl.col("nugget_id").str.ends_with("_1"))
    relevant = close.filter(relevance=1).select("question_id", "doc_id")
    holding = [doc for doc, text in TEXTS.items() if "close" in text]
    assert relevant.height
    assert relevant.sort("question_id", "doc_id").equals(
        seen.filter(pl.col("doc_id").is_in(holding)).sort("question_id", "doc_id")
    )
    assert set(outcomes["outcome"]) <= {"kept", "partial_support"}
    # By the judge alone no question is fully supported.
    alone = lake.read("question_outcomes", TOPIC, SNAPSHOT)
    assert set(alone["outcome"]) == {"partial_support"}


def test_verdicts_of_people_reach_the_qrels_and_are_held_against_the_judge(tmp_path: Path) -> None:
    with MisbehavingServer(answer) as server:
        lake = make_project(tmp_path, roles={"judge": role(server, "model-wrong")})
        stages = (judge_pools, annotate_pools, compare_judges, build_qrels)
        assert materialize(tmp_path, *stages)["annotations"]["annotators"] == NO_ANNOTATORS
        missed = [doc for doc, text in TEXTS.items() if "close" in text]
        folder = tmp_path / "data" / "verdicts" / TOPIC / SNAPSHOT
        folder.mkdir(parents=True)
        rows = [f"q0_1,{doc},supported" for doc in missed] + [f"q1_1,{missed[0]},"]
        (folder / "ann.csv").write_text("\n".join(["nugget_id,doc_id,verdict", *rows]) + "\n")
        asked = len(server.served)
        told = materialize(tmp_path, *stages)
        assert len(server.served) == asked
    assert told["annotations"]["people"] == ["human:ann"]
    assert told["annotations"]["rows of people without a verdict"] == 1
    [pair] = lake.read("agreement", TOPIC, SNAPSHOT).filter(statistic="cohen").to_dicts()
    assert (pair["pairs"], pair["agreement"], pair["judge_kinds"]) == (len(missed), 0, "human+llm")
    assert lake.read("disagreements", TOPIC, SNAPSHOT).height == len(missed)
    qrels = lake.read("qrels", TOPIC, SNAPSHOT)
    assert qrels.filter(nugget_id="q0_1", relevance=1)["doc_id"].sort().to_list() == sorted(missed)
    assert set(qrels.filter(nugget_id="q0_1", relevance=1)["judge_kind"]) == {"human"}
    assert lake.read("question_outcomes", TOPIC, SNAPSHOT).filter(question_id="q0")["outcome"].to_list() == ["kept"]


def test_a_sample_is_the_same_when_a_pool_grows_and_when_a_text_moves() -> None:
    docs = {f"docs/f{number}.md_0_9": f"text {number}" for number in range(400)}
    chunks = chunk_table(docs)
    judging = Judging(annotated_share=0.25, seed=5)
    small = sample_pools(pools({"q": list(docs)[:200]}), chunks, judging)
    large = sample_pools(pools({"q": list(docs)}), chunks, judging)
    assert 60 < large.height < 140
    assert small["doc_id"].to_list() == [doc for doc in large["doc_id"] if doc in list(docs)[:200]]
    moved = {f"docs/new/{doc[5:]}": text for doc, text in docs.items()}
    later = sample_pools(pools({"q": list(moved)}), chunk_table(moved), judging)
    assert [doc.replace("/new", "") for doc in later["doc_id"]] == large["doc_id"].to_list()
    other = sample_pools(pools({"q": list(docs)}), chunks, judging.model_copy(update={"seed": 6}))
    assert other["doc_id"].to_list() != large["doc_id"].to_list()
    assert sample_pools(pools({"q": list(docs)}), chunks, Judging()).height == 400


def test_a_majority_needs_annotators() -> None:
    with pytest.raises(ValueError, match="there are no annotators"):
        Topic(name="t", title="T", repositories=({"name": "a/b"},), judging=Judging(verdict="majority"))
    from freshstack_dagster.judging.annotation import verdicts_that_count

    judged = TABLES["judgments"].empty().clear(1)
    with pytest.raises(SettingsError, match="build annotations first"):
        verdicts_that_count(judged, TABLES["annotations"].empty(), Judging(verdict="majority"))


@pytest.mark.slow
def test_the_sample_builds_with_a_majority_and_every_check(tmp_path: Path, project: Path) -> None:
    """Judge and one annotator at a server, the heuristic as the third; blocking checks are part of the build."""
    (tmp_path / "data" / "topics").mkdir(parents=True)
    shutil.copy(project / "data" / "snapshots.yaml", tmp_path / "data")
    shutil.copytree(project / "data" / "sample", tmp_path / "data" / "sample")
    topic = yaml.safe_load((project / "data" / "topics" / f"{TOPIC}.yaml").read_text())
    with MisbehavingServer(reply) as server, dg.DagsterInstance.ephemeral() as instance:
        topic["roles"] = {
            "judge": role(server, "a"),
            "annotators": {"b": role(server, "b"), "h": {"provider": "heuristic"}},
        }
        topic["judging"] = {"verdict": "majority", "annotated_share": 0.5}
        (tmp_path / "data" / "topics" / f"{TOPIC}.yaml").write_text(yaml.safe_dump(topic))
        prepare_instance(instance)
        build(Places(root=tmp_path), TOPIC, ["2024-10", "2025-10"], instance=instance)
    lake = Lake(tmp_path / "data" / "lake")
    for snapshot in ("2024-10", "2025-10"):
        agreement = lake.read("agreement", TOPIC, snapshot)
        assert agreement.height == 4
        assert agreement["kappa"].is_between(0.2, 1).all()
        judged, seen = lake.read("judgments", TOPIC, snapshot), lake.read("annotations", TOPIC, snapshot)
        assert 0.4 < seen.height / 2 / judged.height < 0.6
        # Without an annotator's word the judge's stands; with two, two of three decide.
        votes = (
            pl.concat([judged, seen])
            .group_by("nugget_id", "doc_id")
            .agg(supported=(pl.col("verdict") == "supported").sum(), judges=pl.len())
        )
        qrels = lake.read("qrels", TOPIC, snapshot).join(votes, on=["nugget_id", "doc_id"])
        assert ((qrels["relevance"] == 1) == (qrels["supported"] * 2 > qrels["judges"])).all()
    carried = lake.read("annotations", TOPIC, "2025-10")["carried_from"]
    assert carried.count() / len(carried) > 0.3
