"""Records from a query of any DB-API connection."""

from __future__ import annotations

from typing import Any, Callable, Iterator


class QueryLoader:
    """Yield one dict a row of a query.

    ``connect`` is called when the flow starts, so that the connection belongs to the thread that reads. Rows are fetched
    ``arraysize`` at a time (2,000 unless told); with PostgreSQL name a server-side cursor, or the client holds the whole
    result in memory. ``after`` names a growing column: its last value is the position, and the query must hold the
    placeholder ``{after}`` and an ``ORDER BY`` on it.
    """

    def __init__(self, connect: Callable[[], Any], query: str, *, after: str = "", start: Any = 0, arraysize: int = 2_000):
        self.connect, self.query, self.after, self.arraysize = connect, query, after, arraysize
        self.position = start
        if after and "{after}" not in query:
            raise ValueError("a query with after= needs the placeholder {after}")

    def seek(self, position: Any) -> None:
        self.position = position

    def __iter__(self) -> Iterator[dict[str, Any]]:
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.arraysize = self.arraysize
            cursor.execute(self.query.format(after=repr(self.position)) if self.after else self.query)
            names = [column[0] for column in cursor.description]
            while rows := cursor.fetchmany():
                for row in rows:
                    record = dict(zip(names, row))
                    if self.after:
                        self.position = record[self.after]
                    yield record
        finally:
            connection.close()
