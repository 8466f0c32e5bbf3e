"""The one Definitions object: assets, checks, jobs, schedules, sensors and resources."""

from __future__ import annotations

import warnings

import dagster as dg

# Multi-dimensional partitions and partitions of checks are marked beta or preview upstream; the pin covers them.
for category in (dg.BetaWarning, dg.PreviewWarning):
    warnings.filterwarnings("ignore", category=category)

from freshstack_dagster import assets  # noqa: E402
from freshstack_dagster.automation.jobs import JOBS  # noqa: E402
from freshstack_dagster.automation.schedules import (  # noqa: E402
    SCHEDULES,
    check_partitions,
    freshness_policy,
    monthly_build_goes_on,
)
from freshstack_dagster.automation.sensors import SENSORS  # noqa: E402
from freshstack_dagster.checks import CHECKS  # noqa: E402
from freshstack_dagster.resources import Project, catalogue_resource, named_executor  # noqa: E402
from freshstack_dagster.settings import Places, places  # noqa: E402


def build_definitions(project_places: Places) -> dg.Definitions:
    """Definitions over the project at the given places; tests and the console script use it too."""
    definitions = dg.Definitions(
        assets=dg.load_assets_from_package_module(assets),
        asset_checks=CHECKS,
        jobs=[*JOBS, check_partitions],
        schedules=SCHEDULES,
        sensors=[monthly_build_goes_on, *SENSORS],
        resources={
            "project": Project(root=str(project_places.root)),
            "catalogue": catalogue_resource(project_places.catalogue),
        },
        executor=named_executor(),
    )
    policy = freshness_policy()
    if policy is None:
        return definitions
    return definitions.map_asset_specs(func=lambda spec: dg.apply_freshness_policy(spec, policy))


defs = build_definitions(places())
