"""What assets are given: the project's places, its topics and its lake; and the catalogue, to read."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster_duckdb import DuckDBResource

from freshstack_dagster.errors import SettingsError
from freshstack_dagster.lake import Lake
from freshstack_dagster.settings import Places, Topic, load_topic, places


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
        path = self.places.topics / f"{name}.yaml"
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in self.places.topics.glob("*.yaml")))
            raise SettingsError(f"no topic {name}: {path} does not exist; there are {known}")
        return load_topic(path)


def catalogue_resource(catalogue: Path) -> DuckDBResource:
    """The catalogue, opened read-only: views are rebuilt by the lake and by nothing else."""
    return DuckDBResource(database=str(catalogue), connection_config={"access_mode": "READ_ONLY"})
