"""Pages made from the code, which stand in the repository too: every table, every setting.

    python docs/pages.py

writes them anew; a test says when that is due.
"""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo

from freshstack_dagster import settings
from freshstack_dagster.tables import TABLES, Table

HERE = Path(__file__).parent


def tables_page() -> str:
    """Every table with its columns."""
    head = (
        "# Tables\n\nParquet below `data/lake`, a view each in `data/freshstack.duckdb`, which also has "
        "the columns the table is partitioned by.\n"
    )
    return head + "".join(map(_table, TABLES.values()))


def settings_page() -> str:
    """Every key of the files that a user writes, and the environment."""
    head = (
        "# Settings\n\nEvery key of a topic file (`data/topics/<name>.yaml`) and of the file of months "
        "(`data/snapshots.yaml`). An unknown key is refused with the nearest that is known, and so is one that stands "
        "twice. Relative paths are taken from the project's root.\n"
    )
    classes = {
        "A topic": settings.Topic,
        "`repositories`": settings.Repository,
        "`questions`": settings.QuestionSource,
        "`retrievers`": settings.Retriever,
        "`rerankers`": settings.Reranker,
        "`pooling`": settings.Pooling,
        "`roles`": settings.Roles,
        "A role": settings.ModelRole,
        "`judging`": settings.Judging,
        "`budget`": settings.Budget,
        "Months (`data/snapshots.yaml`)": settings.Snapshots,
    }
    return head + "".join(_keys(title, model) for title, model in classes.items()) + _environment()


def _keys(title: str, model: type[settings.Model]) -> str:
    lines = [f"\n## {title}\n", f"{model.__doc__}\n", "| key | default | |", "| --- | --- | --- |"]
    for name, field in model.model_fields.items():
        # These two may be left out: the file and the kind name them.
        default = "-" if name == "name" and model in (settings.Topic, settings.Retriever) else _default(field)
        lines.append(f"| `{name}` | {default} | {' '.join((field.description or '').split())} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", (), {}, frozenset()):
        return "-"
    if isinstance(value, settings.Model):
        return "see below" if value != settings.ModelRole() else "the heuristic"
    if isinstance(value, tuple):
        return ", ".join(f"`{getattr(item, 'name', item)}`" for item in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _environment() -> str:
    variables = {
        "FRESHSTACK_ROOT": "the project's root, if the commands are not called within it",
        "FRESHSTACK_LAKE": "the lake: a directory or a URL (`s3://`, `gs://`, `az://`); else `data/lake`",
        "FRESHSTACK_MIRRORS": "bare git mirrors; else `data/mirrors`",
        "FRESHSTACK_CACHE": "chunks by blob, embeddings, indexes, model replies; else `data/cache`",
        "FRESHSTACK_REPLIES": "model replies alone, the URL of a bucket that several machines share",
        "FRESHSTACK_<ROLE>_MODEL": "`provider:model` for a role, in place of the topic's; with `_BASE_URL` and "
        "`_API_KEY_ENV`",
        "OPENAI_API_KEY, ANTHROPIC_API_KEY": "keys, unless `api_key_env` names another variable",
        "STACKEXCHANGE_KEY": "key of the Stack Exchange API, for a larger quota",
        "FRESHSTACK_EXECUTOR, FRESHSTACK_EXECUTOR_CONFIG": "how steps are executed; see operating.md",
        "FRESHSTACK_FRESHNESS_DAYS, FRESHSTACK_DAGSTER_URL, FRESHSTACK_ALERT_URL": "see operating.md",
    }
    rows = [f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {text} |" for names, text in variables.items()]
    return "\n## Environment\n\n| variable | |\n| --- | --- |\n" + "\n".join(rows) + "\n"


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


PAGES = {"tables.md": tables_page, "settings.md": settings_page}


def write_pages() -> None:
    """Write the pages that stand in the repository."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write_pages()
