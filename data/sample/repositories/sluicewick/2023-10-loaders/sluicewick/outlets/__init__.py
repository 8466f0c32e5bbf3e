"""Outlets: where records go. An outlet has ``write(record)`` and ``close()``."""

from sluicewick.outlets.http import HttpOutlet
from sluicewick.outlets.parquet import ParquetOutlet
from sluicewick.outlets.postgres import PostgresOutlet

__all__ = ["HttpOutlet", "ParquetOutlet", "PostgresOutlet"]
