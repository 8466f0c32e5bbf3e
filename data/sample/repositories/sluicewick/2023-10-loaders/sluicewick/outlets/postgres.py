"""Write records to a table of PostgreSQL. Needs the extra ``sluicewick[postgres]``."""

from __future__ import annotations

from typing import Any, Sequence


class PostgresOutlet:
    """Insert or update rows, ``batch_rows`` (1,000 unless told) in one statement and one transaction.

    ``key`` names the columns of a unique index. With it, ``on_conflict="update"`` (the default) overwrites the row
    that is there and ``"ignore"`` leaves it; without a key every record is inserted, so a flow that resumes from a
    mooring may insert the records since the last checkpoint twice.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        key: Sequence[str] = (),
        on_conflict: str = "update",
        batch_rows: int = 1_000,
    ) -> None:
        self.dsn, self.table, self.key = dsn, table, tuple(key)
        self.on_conflict, self.batch_rows = on_conflict, batch_rows
        self._rows: list[dict[str, Any]] = []

    def statement(self, columns: Sequence[str]) -> str:
        names = ", ".join(columns)
        marks = ", ".join(f"%({name})s" for name in columns)
        sql = f"INSERT INTO {self.table} ({names}) VALUES ({marks})"
        if not self.key:
            return sql
        if self.on_conflict == "ignore":
            return f"{sql} ON CONFLICT ({', '.join(self.key)}) DO NOTHING"
        sets = ", ".join(f"{name} = EXCLUDED.{name}" for name in columns if name not in self.key)
        return f"{sql} ON CONFLICT ({', '.join(self.key)}) DO UPDATE SET {sets}"

    def write(self, record: dict[str, Any]) -> None:
        self._rows.append(record)
        if len(self._rows) >= self.batch_rows:
            self.flush()

    def flush(self) -> None:
        import psycopg

        rows, self._rows = self._rows, []
        if rows:
            with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
                cursor.executemany(self.statement(list(rows[0])), rows)

    def close(self) -> None:
        self.flush()
