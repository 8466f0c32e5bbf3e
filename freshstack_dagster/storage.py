"""Where a lake's bytes lie: a directory, or a bucket of an object store behind the same few operations.

A lake needs little: put an object that never changes, replace one small pointer so that no writer loses another's
commit, list, delete. A directory does it by fsync, rename and flock; a bucket by one atomic put and a conditional one.
The stores' own environment variables say where and who (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_REGION` ...);
no secret passes through the project's settings.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import duckdb

from freshstack_dagster.errors import LakeError

REMOTE = ("s3://", "gs://", "az://")
GIVE_UP_SECONDS = 60


class Conflict(Exception):
    """Another writer replaced the object since it was read."""


class Storage(Protocol):
    """Objects below one root, by names such as `chunks/topic=t/_current.json`. Failures are OSError in one line."""

    @property
    def polars_options(self) -> dict[str, str] | None:
        """What polars needs to open a `url`."""

    def url(self, name: str) -> str:
        """The path or URL by which polars and DuckDB open an object."""

    def read(self, name: str) -> tuple[bytes, str] | None:
        """An object's bytes and version, or None if there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""

    def create(self, name: str, write: Callable[[IO[bytes]], Any]) -> tuple[int, str]:
        """Put an object that never changes, all of it or nothing; return its size and the sha256 of its bytes."""

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        """Replace a small object if it still has `version` (None: does not exist). Raises Conflict if it has not."""

    def find(self, folder: str) -> list[str]:
        """Names of all objects below a folder, sorted."""

    def delete(self, name: str) -> None:
        """Delete an object; one that is gone already is no error."""

    @contextmanager
    def lock(self, folder: str) -> Iterator[None]:
        """Keep other writers of a folder waiting, where the storage can; where it cannot, `replace` tells of them."""

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Let a DuckDB connection open the storage's URLs."""


def open_storage(root: str | Path) -> Storage:
    """The storage of a directory or of a URL such as `s3://bucket/prefix`. Raises LakeError for any other URL."""
    text = str(root)
    if text.startswith(REMOTE):
        return ObjectStorage(text.rstrip("/"))
    if "://" in text and not text.startswith("file://"):
        raise LakeError(f"{text}: a lake is a directory or one of {', '.join(f'{scheme}...' for scheme in REMOTE)}")
    return Directory(Path(text.removeprefix("file://")))


class Directory:
    """A lake on a local or shared file system."""

    polars_options: dict[str, str] | None = None

    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, name: str) -> str:
        """The file's absolute path."""
        return str((self.root / name).resolve())

    def read(self, name: str) -> tuple[bytes, str] | None:
        """A file's bytes; a lock makes versions needless here."""
        try:
            return (self.root / name).read_bytes(), ""
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return (self.root / name).exists()

    def create(self, name: str, write: Callable[[IO[bytes]], Any]) -> tuple[int, str]:
        """Write beside, flush to the disk, rename."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{time.time_ns():x}-{secrets.token_hex(4)}.{path.name}")
        try:
            with open(temporary, "w+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                size = file.seek(0, os.SEEK_END)
                file.seek(0)
                content = hashlib.file_digest(file, "sha256").hexdigest()
            os.replace(temporary, path)
            _flush_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
        return size, content

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        """As `create`: whoever replaces a pointer holds its folder's lock."""
        self.create(name, lambda file: file.write(data))

    def find(self, folder: str) -> list[str]:
        """Files below a folder."""
        return sorted(path.relative_to(self.root).as_posix() for path in (self.root / folder).rglob("*.*"))

    def delete(self, name: str) -> None:
        """Unlink the file."""
        (self.root / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, folder: str) -> Iterator[None]:
        """Hold the folder's lock file."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        with locked(self.root / folder / ".lock"):
            yield

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """DuckDB opens paths by itself."""


class ObjectStorage:
    """A lake in a bucket: S3 and what speaks it, Google Cloud Storage, Azure."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.scheme = root.split("://", 1)[0]

    @cached_property
    def store(self) -> Any:
        """The client, made at first use."""
        try:
            from obstore.store import from_url
        except ImportError:
            raise LakeError(f"{self.root}: needs obstore; pip install 'freshstack-dagster[s3]'") from None
        with self._clear_errors():
            return from_url(self.root, **self._client())

    @property
    def polars_options(self) -> dict[str, str] | None:
        """Plain HTTP must be allowed by name; the rest comes from the environment."""
        return {"aws_allow_http": "true"} if _plain_http() else {}

    def url(self, name: str) -> str:
        """The object's URL."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> tuple[bytes, str] | None:
        """An object and its ETag."""
        try:
            with self._clear_errors():
                found = self.store.get(name)
                return bytes(found.bytes()), str(found.meta["e_tag"])
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Ask for the object's head."""
        try:
            with self._clear_errors():
                self.store.head(name)
        except FileNotFoundError:
            return False
        return True

    def create(self, name: str, write: Callable[[IO[bytes]], Any]) -> tuple[int, str]:
        """Write to a temporary file, then put it; a put is seen whole or not at all."""
        with tempfile.TemporaryFile() as file:
            write(file)
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            content = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            with self._clear_errors():
                self.store.put(name, file)
        return size, content

    def replace(self, name: str, data: bytes, version: str | None) -> None:
        """A put on the condition that the ETag is the one read, or that there is no object yet."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self.store.put(name, data, mode="create" if version is None else {"e_tag": version})
        except (AlreadyExistsError, PreconditionError):
            raise Conflict(name) from None
        except Exception as error:
            raise OSError(_one_line(error)) from None

    def find(self, folder: str) -> list[str]:
        """List by prefix."""
        with self._clear_errors():
            return sorted(found["path"] for page in self.store.list(prefix=folder) for found in page)

    def delete(self, name: str) -> None:
        """Delete the object."""
        with suppress(FileNotFoundError), self._clear_errors():
            self.store.delete(name)

    @contextmanager
    def lock(self, folder: str) -> Iterator[None]:
        """Buckets have no locks; `replace` is conditional instead."""
        yield

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Give the connection a file system for the scheme, so that it needs no extension to download."""
        try:
            from obstore.fsspec import FsspecStore
        except ImportError:
            raise LakeError(f"{self.root}: needs obstore and fsspec; pip install 'freshstack-dagster[s3]'") from None
        protocol: Any = self.scheme
        connection.register_filesystem(FsspecStore(protocol, **self._client()))

    def _client(self) -> dict[str, Any]:
        return {
            "client_options": {"allow_http": _plain_http()},
            "retry_config": {"max_retries": 8, "retry_timeout": timedelta(seconds=GIVE_UP_SECONDS)},
        }

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except LakeError:
            raise
        except FileNotFoundError as error:
            raise FileNotFoundError(_one_line(error)) from None
        except Exception as error:
            raise OSError(_one_line(error)) from None


def _plain_http() -> bool:
    return os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")


def _one_line(error: Exception) -> str:
    """What the store says, else the first line of an error, without the debugging text after it."""
    said = re.search(r"<Message>(.*?)</Message>", str(error))
    if said:
        return said[1]
    return str(error).strip().split("\n", 1)[0][:300] or type(error).__name__


def _flush_directory(folder: Path) -> None:
    """Make a rename survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; the kernel lets go when the process ends, however it ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
