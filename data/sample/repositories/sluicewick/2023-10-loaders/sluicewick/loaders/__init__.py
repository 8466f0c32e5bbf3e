"""Loaders: iterables of records that can say where they are, so that a mooring can resume them."""

from sluicewick.loaders.csv import CsvLoader
from sluicewick.loaders.http_pager import HttpPager
from sluicewick.loaders.jsonl import JsonLinesLoader
from sluicewick.loaders.ledger_sheet import LedgerSheetLoader
from sluicewick.loaders.parquet import ParquetLoader

__all__ = ["CsvLoader", "HttpPager", "JsonLinesLoader", "LedgerSheetLoader", "ParquetLoader"]
