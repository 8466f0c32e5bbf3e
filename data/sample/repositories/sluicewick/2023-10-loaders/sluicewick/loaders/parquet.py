"""Records from Parquet files. Needs the extra ``sluicewick[parquet]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator, Sequence


class ParquetLoader:
    """Yield one dict a row of a Parquet file or of every ``*.parquet`` below a folder, in the order of their names.

    Files are read by row group, ``batch_rows`` rows at a time (4,096 unless told), so that memory does not depend on
    the size of the file. ``columns`` narrows what is read from disk. Timestamps come as aware ``datetime`` objects in
    UTC; a timestamp without a zone is taken to be UTC.
    """

    def __init__(self, path: str | Path, *, columns: Sequence[str] | None = None, batch_rows: int = 4_096) -> None:
        self.path, self.columns, self.batch_rows = Path(path), columns, batch_rows
        self.position = 0

    def seek(self, position: int) -> None:
        self.position = position

    def _files(self) -> list[Path]:
        if self.path.is_dir():
            return sorted(self.path.rglob("*.parquet"))
        return [self.path]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError("ParquetLoader needs pyarrow: pip install 'sluicewick[parquet]'") from error
        seen = 0
        for path in self._files():
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=self.batch_rows, columns=self.columns):
                    for row in batch.to_pylist():
                        seen += 1
                        if seen > self.position:
                            self.position = seen
                            yield row
