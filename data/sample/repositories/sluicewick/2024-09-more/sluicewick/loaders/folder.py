"""Records from every file of a folder."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator


class FolderLoader:
    """Chain loaders over the files of a folder, in the order of their names.

    ``make`` turns a path into a loader, for instance ``CsvLoader``. Files that begin with a dot or ``_`` are left out,
    because writers use such names for files that are not complete. Each record gets the key ``_file`` unless
    ``tell_file=False``. The position is the pair of file name and position in that file: a file that sorts before the
    current one and arrives later is never read. Name files by date.
    """

    def __init__(
        self,
        folder: str | Path,
        make: Callable[[Path], Iterable[dict[str, Any]]],
        *,
        pattern: str = "*",
        tell_file: bool = True,
    ) -> None:
        self.folder, self.make, self.pattern, self.tell_file = Path(folder), make, pattern, tell_file
        self.position: tuple[str, Any] = ("", None)

    def seek(self, position: tuple[str, Any]) -> None:
        self.position = (position[0], position[1])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        started, inside = self.position
        for path in sorted(self.folder.iterdir()):
            if path.name.startswith((".", "_")) or not fnmatch(path.name, self.pattern) or path.name < started:
                continue
            loader: Any = self.make(path)
            if path.name == started and inside is not None and hasattr(loader, "seek"):
                loader.seek(inside)
            for record in loader:
                self.position = (path.name, getattr(loader, "position", None))
                yield {**record, "_file": path.name} if self.tell_file else record
