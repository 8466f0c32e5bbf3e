"""Reading a dump's bytes in order, from a plain file or straight out of a `.7z`, in bounded memory."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from freshstack_dagster.errors import SourceError

_MAGIC = b"7z\xbc\xaf\x27\x1c"
# Compressed bytes a call: bounds what one call can unpack to, as LZMA turns one byte into up to some 7,000.
_READ_BYTES = 4 << 10
_PIECE_BYTES = 1 << 20
_PIECES = 4


class _Stopped(Exception):
    """The consumer needs no more."""


class _SmallReads(io.FileIO):
    """A file that hands out few bytes at a time once `limited`."""

    limited = False

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        if self.limited and (size is None or size < 0 or size > _READ_BYTES):
            size = _READ_BYTES
        return super().read(-1 if size is None else size) or b""


def is_archive(path: Path) -> bool:
    """Whether the file is a 7z archive, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


class MemberStream:
    """The bytes of one member of a `.7z`, unpacked in a thread as they are asked for.

    `size` is the unpacked size in bytes. Memory: at most some pieces of a megabyte wait.
    """

    def __init__(self, path: Path, member: str) -> None:
        """Open member `member` (by its file name, in any folder); raises SourceError if there is none."""
        self.name = f"{path}:{member}"
        self._path = path
        self._file = _SmallReads(path, "r")
        try:
            self._archive = _open_archive(path, self._file)
            found = [info for info in self._archive.list() if PurePosixPath(info.filename).name == member]
            if not found:
                names = ", ".join(sorted(info.filename for info in self._archive.list())[:10])
                raise SourceError(f"{path}: the archive holds no {member}, only: {names or 'nothing'}")
        except BaseException:
            self._file.close()
            raise
        self.size = int(found[0].uncompressed)
        self._member = found[0].filename
        self._pieces: queue.Queue[bytes | memoryview | BaseException | None] = queue.Queue(maxsize=_PIECES)
        self._stopped = threading.Event()
        self._rest = memoryview(b"")
        self._ended = False
        self._thread = threading.Thread(target=self._unpack, name="unpack", daemon=True)
        self._file.limited = True
        self._thread.start()

    def readinto(self, view: memoryview) -> int:
        """Fill `view` as far as one piece goes; 0 at the end. Raises SourceError if the archive is damaged."""
        if not self._rest and not self._ended:
            piece = self._pieces.get()
            if isinstance(piece, BaseException):
                self._ended = True
                raise piece
            if piece is None:
                self._ended = True
            else:
                self._rest = memoryview(piece)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Stop unpacking and close the archive."""
        self._stopped.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._pieces.get(timeout=0.05)
        self._archive.close()
        self._file.close()

    def _put(self, piece: bytes | memoryview | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._pieces.put(piece, timeout=0.2)
                return
            except queue.Full:
                continue
        raise _Stopped

    def _unpack(self) -> None:
        try:
            factory = _factory(self._put)
            self._archive.extract(targets=[self._member], factory=factory)
            factory.flush()
            self._put(None)
        except _Stopped:
            pass
        except Exception as error:  # py7zr raises many kinds for a damaged archive
            reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
            at = self._file.tell()
            with suppress(_Stopped):
                self._put(SourceError(f"{self._path}: the archive is damaged near byte {at} ({reason}); get it again"))


@contextmanager
def open_member(path: Path, member: str) -> Iterator[MemberStream]:
    """A MemberStream that is closed at the end."""
    stream = MemberStream(path, member)
    try:
        yield stream
    finally:
        stream.close()


def member_names(path: Path) -> list[str]:
    """File names (without folders) of an archive's members."""
    with _SmallReads(path, "r") as file, _open_archive(path, file) as archive:
        return [PurePosixPath(info.filename).name for info in archive.list()]


def _open_archive(path: Path, file: _SmallReads) -> Any:
    try:
        import py7zr
    except ImportError as error:
        raise SourceError(f"{path}: reading a .7z needs the package py7zr: pip install py7zr") from error
    try:
        return py7zr.SevenZipFile(file, "r")
    except Exception as error:  # py7zr raises many kinds for a damaged header
        size = path.stat().st_size
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        raise SourceError(
            f"{path}: not a whole .7z archive ({reason}); it ends at byte {size}, perhaps cut off, get it again"
        ) from error


def _factory(put: Any) -> Any:
    from py7zr.io import Py7zIO, WriterFactory

    class Writer(Py7zIO):
        """Hands on what py7zr unpacks in pieces of about a megabyte, however large or small it comes."""

        def __init__(self) -> None:
            self._waiting: list[bytes] = []
            self._bytes = 0
            self._total = 0

        def write(self, s: bytes | bytearray) -> int:
            self._total += len(s)
            if len(s) < _PIECE_BYTES:
                self._waiting.append(bytes(s))
                self._bytes += len(s)
                if self._bytes >= _PIECE_BYTES:
                    self.flush()
                return len(s)
            self.flush()
            for start in range(0, len(s), _PIECE_BYTES):
                put(memoryview(s)[start : start + _PIECE_BYTES])
            return len(s)

        def flush(self) -> None:
            if self._waiting:
                put(b"".join(self._waiting))
                self._waiting, self._bytes = [], 0

        def read(self, size: int | None = None) -> bytes:
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:
            return 0

        def size(self) -> int:
            return self._total

    class Factory(WriterFactory):
        def __init__(self) -> None:
            self._writers: list[Writer] = []

        def create(self, filename: str) -> Py7zIO:
            self._writers.append(Writer())
            return self._writers[-1]

        def flush(self) -> None:
            for writer in self._writers:
                writer.flush()

    return Factory()
