"""Pages made while the site is built: the start page from the README, the tables from their schemas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from freshstack_dagster.tables import TABLES, Table

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the made pages to the site."""
    files.append(File.generated(config, "index.md", content=_start()))
    files.append(File.generated(config, "tables.md", content=_tables()))
    return files


def _start() -> str:
    """The README with its links into `docs/` made relative and those to source files made plain."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    return re.sub(r"\[([^\]]+)\]\(((?!http|images/|#)[^)]+\.(?:py|yaml))\)", r"\1", text)


def _tables() -> str:
    head = (
        "# Tables\n\nParquet below `data/lake`, a view each in `data/freshstack.duckdb`, which also has "
        "the columns the table is partitioned by.\n"
    )
    return head + "".join(_table(table) for table in TABLES.values())


def _table(table: Table) -> str:
    lines = [
        f"\n## {table.name}\n",
        f"{table.description} By {' and '.join(table.by)}; a row is known by `{', '.join(table.key)}`.\n",
        "| column | type | |",
        "| --- | --- | --- |",
    ]
    for name, column in table.columns.items():
        empty = " (may be null)" if column.nullable else ""
        kind = str(column.dtype).replace("|", "\\|")
        lines.append(f"| `{name}` | {kind} | {column.description}{empty} |")
    return "\n".join(lines) + "\n"
