"""The files of deploy/ agree with Dagster's schema, with the project, and with each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config

from freshstack_dagster.automation.building import POOL_LIMITS

FILES = ["compose.yaml", "celery.yaml", "workspace.yaml", "kubernetes/values.yaml", "kubernetes/volume.yaml"]


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("folder", [".", "deploy"])
def test_dagsters_settings_fit_its_schema(project: Path, folder: str):
    settings, _ = dagster_instance_config(str(project / folder))
    assert settings["telemetry"] == {"enabled": False}
    limits = settings["concurrency"]["runs"]["tag_concurrency_limits"]
    assert [limit["key"] for limit in limits] == ["dagster/partition"]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_yaml(project: Path, name: str):
    assert _load(project / "deploy" / name)


def test_the_image_copies_what_exists(project: Path):
    for line in (project / "deploy" / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (project / source).exists(), source


def test_services_name_each_other_and_hold_no_secret(project: Path):
    compose = _load(project / "deploy" / "compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in compose["volumes"], name
    example = (project / "deploy" / "example.env").read_text()
    for key, value in re.findall(r"^#? ?([A-Z_]+)=(.*)$", example, re.MULTILINE):
        assert not value or not re.search("KEY|SECRET|PASSWORD", key), key


def test_the_pools_of_kubernetes_are_those_of_init(project: Path):
    text = (project / "deploy" / "kubernetes" / "values.yaml").read_text()
    assert dict(re.findall(r'"(\w+) (\d+)"', text)) == {pool: str(limit) for pool, limit in POOL_LIMITS.items()}
