"""What a build will cost: exact where tables stand, typical and named where they do not, unknown where it is."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from click.testing import CliRunner

from freshstack_dagster.assets.calibration import annotate_pools
from freshstack_dagster.assets.judgments import judge_pools
from freshstack_dagster.assets.nuggets import write_query_variants
from freshstack_dagster.assets.pools import pool_candidates, retrieve
from freshstack_dagster.cli import main
from freshstack_dagster.errors import SettingsError
from freshstack_dagster.estimate import BuildEstimate, estimate_build, pilot, pool_growth, same_after
from freshstack_dagster.settings import Places, load_topic
from freshstack_dagster_tests.assets.calibration_project import (
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
from freshstack_dagster_tests.estimating import compare, tokens_in
from freshstack_dagster_tests.judging.fakes import pools
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer


def told(root: Path, snapshot: str = SNAPSHOT) -> BuildEstimate:
    return estimate_build(Places(root=root), load_topic(root / "data" / "topics" / f"{TOPIC}.yaml"), snapshot)


def line(found: BuildEstimate, stage: str) -> dict[str, Any]:
    return found.table().row(by_predicate=pl.col("stage") == stage, named=True)


def roles(server: MisbehavingServer | None, **annotators: str) -> dict[str, Any]:
    """Nuggets that stand were written by `openai:fake`; the judge is the server."""
    judge = {"provider": "compatible", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    judge = judge if server is None else role(server, "m")
    return {
        "nuggets": {"provider": "openai", "model": "fake"},
        "judge": judge,
        "annotators": {name: {**judge, "model": model} for name, model in annotators.items()},
    }


def test_the_pool_that_stands_is_estimated_exactly_and_what_was_judged_costs_nothing(tmp_path: Path) -> None:
    with MisbehavingServer(answer, input_tokens=tokens_in) as server:
        lake = make_project(tmp_path, roles=roles(server, one="n"), judging={"chunks_per_call": 4})
        before = told(tmp_path)
        assert not any("materialise" in text for text in before.summary())
        assert not server.requests
        materialize(tmp_path, judge_pools, annotate_pools)
        calls = len(server.served) // 2
        judged = line(before, "judge: pool")
        assert (judged["basis"], judged["calls"], judged["cached"]) == ("exact requests", calls, 0)
        assert judged["tokens_in"] == pytest.approx(sum(one.input_tokens for one in server.served) / 2, rel=0.02)
        assert line(before, "annotator:one: pool")["calls"] == calls
        after = line(told(tmp_path), "judge: pool")
        # Judged: nothing is asked; without carry-over the replies are still in the cache.
        assert (after["calls"], after["dollars"], after["no_carry_over"]) == (0, 0, 0)
        # A year later, of which nothing stands: a quarter of the verdicts is thought to be carried over.
        later = told(tmp_path, "2025-10")
        row = line(later, "judge: pool")
        assert row["basis"] == f"pool of {SNAPSHOT}"
        assert any("24% of its verdicts are carried over" in text for text in later.assumptions)
        assert row["no_carry_over"] == pytest.approx(judged["dollars"], rel=0.5)
        assert row["dollars"] == pytest.approx(0.76 * row["no_carry_over"])
        # The same texts a year later: only the new one is asked about; the replies known correct the figure.
        moved = {**{f"docs/new/{doc[5:]}": text for doc, text in TEXTS.items()}, "docs/z.md_0_9": "open and new"}
        lake.write("chunks", chunk_table(moved), topic=TOPIC, snapshot="2025-10")
        later = told(tmp_path, "2025-10")
        assert any("found one in the corpus of 2025-10" in text for text in later.assumptions)
        assert line(later, "judge: pool")["calls"] <= len(IDS)
        lake.write("pools", pools({key: list(moved) for key in IDS}), topic=TOPIC, snapshot="2025-10")
        exact = told(tmp_path, "2025-10")
        row = line(exact, "judge: pool")
        assert row["calls"] == len(IDS)
        assert row["no_carry_over"] > 2 * row["dollars"] > 0
        assert exact.dollars() < exact.dollars(carry_over=False)
        spent = len(server.served)
        materialize(tmp_path, judge_pools, snapshot="2025-10")
        served = server.served[spent:]
        assert len(served) == row["calls"]
        billed = sum(one.input_tokens * 2 + one.output_tokens * 8 for one in served) / 1e6
        assert row["dollars"] == pytest.approx(billed, rel=0.1)


def test_a_batch_costs_half_and_an_unknown_price_is_said(tmp_path: Path) -> None:
    judge = {"provider": "openai", "model": "gpt-5-mini", "batch": True}
    unpriced = {"provider": "openai", "model": "nobody-knows"}
    named = {**roles(None), "judge": judge, "annotators": {"other": unpriced}}
    make_project(tmp_path, roles=named, budget={"per_run": 0.000001, "per_month": 100})
    found = told(tmp_path)
    row, other = line(found, "judge: pool"), line(found, "annotator:other: pool")
    assert row["by_batch"] == pytest.approx(row["dollars"] / 2)
    assert (other["dollars"], other["by_batch"], other["at_most"]) == (None, None, None)
    assert other["tokens_in"] == row["tokens_in"] > 0
    assert found.unknown_prices == ["openai:fake", "openai:nobody-knows"]
    assert found.dollars() == pytest.approx(row["by_batch"])
    assert found.dollars(batch=False) == pytest.approx(row["dollars"])
    summary = "\n".join(found.summary())
    assert "plus the calls of openai:fake, openai:nobody-knows" in summary
    assert "the price of openai:nobody-knows is unknown and stands in no sum" in summary
    assert "above budget.per_run of $1e-06: the build will stop there" in summary
    assert "per_month" not in summary
    printed = found.printed().filter(stage="annotator:other: pool")
    assert printed["dollars"][0] == printed["by batch"][0] == printed["no carry-over"][0] == "unknown"


def test_what_is_not_built_is_assumed_aloud(tmp_path: Path) -> None:
    named = {**roles(None), "closed_book_answer": {"provider": "openai", "model": "gpt-5-mini"}}
    make_project(tmp_path, roles=named, rerankers=[{"name": "top", "kind": "llm", "model": "gpt-5"}])
    for table in ("pools", "chunks"):
        shutil.rmtree(tmp_path / "data" / "lake" / table)
    found = told(tmp_path)
    text = " ".join(found.assumptions)
    assert "no pool is built: 56 chunks a question of 1200 tokens each, as in a typical topic" in text
    # Three retrievers and their fusion, 50 deep in windows of 20 every 10, for six questions.
    assert "reranker top (gpt-5), which stands in no sum: it makes up to 96 calls of up to 20 chunks each" in text
    assert "6 questions have no closed-book answer by openai:gpt-5-mini yet" in text
    assert any("everything up to `pools` is materialised" in text for text in found.summary())
    row = line(found, "judge: pool")
    assert row["basis"] == line(found, "judge: closed-book answers")["basis"] == "typical sizes"
    assert row["calls"] == len(IDS) * 3
    assert row["tokens_in"] == pytest.approx(len(IDS) * 56 * 1200, rel=0.2)
    # Nuggets by another model will be written anew.
    make_project(tmp_path, roles={"nuggets": {"provider": "openai", "model": "new"}, "judge": roles(None)["judge"]})
    found = told(tmp_path)
    assert line(found, "judge: pool")["basis"] == "pool as it stands"
    assert any("6 questions have no nuggets by openai:new yet" in text for text in found.assumptions)


def test_where_a_corpus_stands_the_pool_is_foretold(tmp_path: Path) -> None:
    make_project(tmp_path, roles={**roles(None), "sub_questions": {"provider": "openai", "model": "gpt-5-mini"}})
    shutil.rmtree(tmp_path / "data" / "lake" / "pools")
    found = told(tmp_path)
    assert line(found, "judge: pool")["basis"] == "foretold pool"
    text = " ".join(found.assumptions)
    assert f"found one in the corpus of {SNAPSHOT}, and the heuristic's sub_questions stand in for the models'" in text
    # With texts that stay as they are, it is the very pool.
    make_project(tmp_path, roles=roles(None), pooling={"variants": ["nuggets"]})
    shutil.rmtree(tmp_path / "data" / "lake" / "pools")
    foretold = line(told(tmp_path), "judge: pool")
    assert foretold["basis"] == "exact requests"
    materialize(tmp_path, write_query_variants, retrieve, pool_candidates)
    assert line(told(tmp_path), "judge: pool") == foretold


def test_a_pilot_asks_what_the_build_asks_and_nothing_twice(tmp_path: Path) -> None:
    with MisbehavingServer(answer, input_tokens=tokens_in) as server:
        make_project(tmp_path, roles=roles(server, one="n"), judging={"chunks_per_call": 4})
        topic = load_topic(tmp_path / "data" / "topics" / f"{TOPIC}.yaml")
        before = line(told(tmp_path), "judge: pool")
        asked = pilot(Places(root=tmp_path), topic, SNAPSHOT, 3)
        assert asked["calls"] == len(server.served) > 0
        assert set(asked["roles"]) == {"judge", "annotator:one"}
        after = line(told(tmp_path), "judge: pool")
        assert after["cached"] == asked["roles"]["judge"]["calls"] == before["calls"] - after["calls"]
        assert 0 < after["cached"] < before["calls"]
        materialize(tmp_path, judge_pools, annotate_pools)
        users = [(one.prompt.model, one.prompt.user) for one in server.served]
        assert len(users) == len(set(users)) == 2 * before["calls"]


def test_replies_in_another_topic_show_how_long_this_models_are(tmp_path: Path) -> None:
    with MisbehavingServer(answer, input_tokens=tokens_in, output_tokens=lambda _prompt, _text: 5_000) as server:
        lake = make_project(tmp_path, roles=roles(server))
        before = line(told(tmp_path), "judge: pool")
        materialize(tmp_path, judge_pools)
        topics = tmp_path / "data" / "topics"
        document = (topics / f"{TOPIC}.yaml").read_text()
        (topics / "other.yaml").write_text(document)
        for table in ("questions", "nuggets"):
            lake.write(table, lake.read(table, TOPIC), topic="other")
        for table in ("pools", "chunks"):
            frame = lake.read(table, TOPIC, SNAPSHOT)
            if table == "chunks":
                frame = frame.with_columns(text=pl.col("text") + " and more", content_hash=pl.col("content_hash") + "0")
            lake.write(table, frame, topic="other", snapshot=SNAPSHOT)
        found = line(estimate_build(Places(root=tmp_path), load_topic(topics / "other.yaml"), SNAPSHOT), "judge: pool")
        assert (found["calls"], found["cached"]) == (before["calls"], 0)
        assert found["tokens_out"] == pytest.approx(5_000 * found["calls"], rel=0.01)
        assert found["tokens_out"] > 4 * before["tokens_out"]


def test_a_pool_grows_with_each_variant_by_less() -> None:
    names = ("a", "b", "c", "d")
    # Each variant alone finds 10, and every two share 2.
    found = [(name,) for name in names for _ in range(10)] + [pair for pair in combinations(names, 2) for _ in range(2)]
    growth = pool_growth(found, 4, 1)
    # Unions of 1 to 4: 16, 30, 42, 52; so the next adds 10 × 10 / 12.
    assert growth == pytest.approx(1 + 10 * (10 / 12) / 52)
    assert 1 < growth < pool_growth(found, 4, 2) < 1.4
    assert pool_growth([names] * 5, 4, 1) == 1
    assert pool_growth([("a",)] * 5, 1, 1) == 2


def test_texts_stay_the_same_for_a_while() -> None:
    assert same_after(0) == 1
    assert same_after(1) == pytest.approx(0.84)
    assert same_after(12) == pytest.approx(0.24)
    assert 0.24 < same_after(6) < 0.84


def test_the_command_prints_a_table_and_refuses_what_is_not_there(tmp_path: Path, monkeypatch: Any) -> None:
    make_project(tmp_path, roles=roles(None))
    monkeypatch.setenv("FRESHSTACK_ROOT", str(tmp_path))
    result = CliRunner().invoke(main, ["estimate", TOPIC, SNAPSHOT])
    assert result.exit_code == 0, result.output
    assert "judge: pool" in result.output
    assert "as the topic is set: $" in result.output
    refused = CliRunner().invoke(main, ["estimate", TOPIC, "2024-13"])
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "not a month" in refused.output
    refused = CliRunner().invoke(main, ["estimate", "nope", SNAPSHOT])
    assert (refused.exit_code, refused.output) == (1, f"error: no topic nope; there are {TOPIC}\n")
    with pytest.raises(SettingsError):
        told(tmp_path, "2024-1")


@pytest.mark.slow
def test_the_sample_is_estimated_within_ten_percent_of_the_bill(tmp_path: Path, project: Path) -> None:
    """The whole sample built by the heuristic, then estimated and built anew with models at a local server."""
    from freshstack_dagster.automation.building import build, prepare_instance

    source = tmp_path / "source"
    (source / "data" / "topics").mkdir(parents=True)
    for name in ("data/snapshots.yaml", "data/topics/sample.yaml"):
        shutil.copy(project / name, source / name)
    shutil.copytree(project / "data" / "sample", source / "data" / "sample")
    with dg.DagsterInstance.ephemeral() as instance:
        prepare_instance(instance)
        build(Places(root=source), TOPIC, ["2024-10", "2025-10"], instance=instance, drift=False)
    found = {one.what: one for one in compare(source, tmp_path / "paid", TOPIC, "2024-10", later="2025-10")}
    print(*found.values(), sep="\n")
    for what in ("5 questions piloted", "pools stand", "pools stand, 4 replies known"):
        assert abs(found[f"sample 2024-10: {what}"].error) < 0.1
    for what, one in found.items():
        assert "2025-10" not in what or abs(one.error) < 0.1
    # Before a model has said anything, nobody knows how much it says, nor what its texts will find.
    assert abs(found["sample 2024-10: before anything"].error) < 0.25
