"""What assets are given: the project's places, its topics and its lake; and the catalogue, to read."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import duckdb
import yaml
from dagster_duckdb import DuckDBResource

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.lake import Lake, attach_storage
from freshstack_dagster.settings import Places, Topic, find_topic, places


class Project(dg.ConfigurableResource):
    """A project's settings and lake, read anew in each run so that an edited topic file counts at once."""

    root: str = ""

    @property
    def places(self) -> Places:
        """Where things live."""
        return places(Path(self.root) if self.root else None)

    @property
    def lake(self) -> Lake:
        """The tables."""
        return Lake(self.places.lake, self.places.catalogue)

    def topic(self, name: str) -> Topic:
        """The topic's settings. Raises SettingsError if it has no file."""
        return find_topic(self.places, name)


class Catalogue(DuckDBResource):
    """The catalogue, for assets of your own; also where its lake is in a bucket."""

    @contextmanager
    def get_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection that can read every view."""
        with super().get_connection() as connection:
            attach_storage(connection)
            yield connection


def catalogue_resource(catalogue: Path) -> Catalogue:
    """The catalogue, opened read-only: views are rebuilt by the lake and by nothing else."""
    return Catalogue(database=str(catalogue), connection_config={"access_mode": "READ_ONLY"})


def named_executor() -> dg.ExecutorDefinition:
    """How the steps of a run are executed: in the run's own process, unless the environment names another executor.

    In process a step costs 0.15 s, in a process of its own 4.8 s; parallelism comes from runs, and from workers inside
    steps. `FRESHSTACK_EXECUTOR` names an executor as `module:name`, such as `dagster_celery:celery_executor`, and
    `FRESHSTACK_EXECUTOR_CONFIG` a YAML file with its configuration, of the shape that Celery workers are given too
    (`execution: {config: ...}`). Raises SettingsError if either cannot be read.
    """
    name = os.environ.get("FRESHSTACK_EXECUTOR")
    if not name:
        return dg.in_process_executor
    module, _, attribute = name.partition(":")
    try:
        executor = getattr(importlib.import_module(module), attribute)
        path = os.environ.get("FRESHSTACK_EXECUTOR_CONFIG")
        return executor.configured(yaml.safe_load(Path(path).read_text())["execution"]["config"]) if path else executor
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"FRESHSTACK_EXECUTOR={name}: no such executor ({error})") from error
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise SettingsError(f"FRESHSTACK_EXECUTOR_CONFIG={path}: cannot be read ({error})") from error
