"""Errors of annotators: a warning beside the judge's qrels, a stop where the majority makes them."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from freshstack_dagster.assets.calibration import annotate_pools
from freshstack_dagster.checks import error_share_result
from freshstack_dagster.resources import Project
from freshstack_dagster_tests.assets.calibration_project import (
    SNAPSHOT,
    TOPIC,
    answer,
    make_project,
    materialize,
    role,
)
from freshstack_dagster_tests.language_models.misbehaving_server import MisbehavingServer


@pytest.mark.parametrize("verdict", ["judge", "majority"])
def test_errors_of_annotators_stop_a_build_only_if_they_make_the_qrels(verdict: str, tmp_path: Path) -> None:
    with MisbehavingServer(answer, schedule=lambda number, prompt: "content_filter" if number < 3 else None) as server:
        roles = {"annotators": {"one": role(server, "m")}}
        lake = make_project(tmp_path, roles=roles, judging={"verdict": verdict})
        told = materialize(tmp_path, annotate_pools)["annotations"]
    assert told["error share"] == 0.5
    assert "3 content_filter" in told["model calls"]
    annotations = lake.read("annotations", TOPIC, SNAPSHOT)
    assert (annotations["verdict"] == "error").mean() == 0.5
    result = error_share_result(Project(root=str(tmp_path)), "annotations", TOPIC, SNAPSHOT)
    assert not result.passed
    stops = result.severity == dg.AssetCheckSeverity.ERROR
    assert stops == (verdict == "majority")
