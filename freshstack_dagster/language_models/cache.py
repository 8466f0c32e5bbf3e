"""The cache of replies: content-addressed, one small file a reply, shared by any number of processes and machines.

A reply is stored as it came, before it is judged good or bad, so a killed run repeats no paid call. A bad reply is
asked for again under the next attempt's key: the key holds provider, model, address, parameters, prompt, schema and the
number of the attempt. So a second run walks through the same attempts without paying, and raising `attempts` buys more.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from freshstack_dagster.errors import ModelError
from freshstack_dagster.language_models.replies import Reply
from freshstack_dagster.language_models.request import Request
from freshstack_dagster.language_models.scrub import public_url
from freshstack_dagster.settings import ModelRole

# Raised when the meaning of an entry changes, which makes every older entry unknown.
VERSION = 1

# Environment variable with the address of an object store that machines share.
SHARED_REPLIES = "FRESHSTACK_REPLIES"


# How often a process looks whether another has its reply.
_CLAIM_SECONDS = 0.1


class ReplyStore(Protocol):
    """Where replies lie: anything that keeps bytes under a key. `put` is atomic; the first writer of a key wins.

    What was `put` outlives the process; after `secure`, which may take its time, it outlives the machine too. `far` if
    reading waits for a network.
    """

    far: bool

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None."""
        ...

    def put(self, key: str, value: bytes, *, replace: bool = False) -> None:
        """Keep `value` under `key`, at once."""
        ...

    def secure(self, key: str) -> None:
        """Bring what is kept under `key` to where it is safe for good."""
        ...


class FileStore:
    """Replies as files `ab/abcdef….json` below a folder, written beside and renamed."""

    far = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, or None."""
        try:
            # An empty file is what a power cut may leave of one that was just written.
            return self.path(key).read_bytes() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelError(f"{self.path(key)}: the cached reply cannot be read: {error.strerror}") from error

    def put(self, key: str, value: bytes, *, replace: bool = False) -> None:
        """Keep `value` under `key`; an entry that exists stays unless `replace`."""
        path = self.path(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not replace and path.exists() and path.stat().st_size:
                return
            temporary.write_bytes(value)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise ModelError(
                f"{path}: the reply cannot be cached: {error.strerror}; free the disk, run again"
            ) from error

    def secure(self, key: str) -> None:
        """Wait until the entry is on the disk: a power cut then leaves it. Takes up to 50 ms."""
        path = self.path(key)
        try:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise ModelError(f"{path}: the reply cannot be brought to the disk: {error.strerror}") from error


class SharedStore:
    """Replies in an object store that several machines share, with a folder of this machine before it."""

    far = True

    def __init__(self, near: FileStore, filesystem: Any, prefix: str) -> None:
        self.near = near
        self._filesystem = filesystem
        self._prefix = prefix.rstrip("/")

    def get(self, key: str) -> bytes | None:
        """The bytes under `key`, from near or far, or None."""
        value = self.near.get(key)
        if value is None:
            try:
                with self._filesystem.open_input_stream(self._path(key)) as stream:
                    value = stream.read()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise ModelError(f"the shared cache of replies cannot be read at {self._path(key)}: {error}") from None
            self.near.put(key, value)
        return value

    def put(self, key: str, value: bytes, *, replace: bool = False) -> None:
        """Keep `value` near."""
        self.near.put(key, value, replace=replace)

    def secure(self, key: str) -> None:
        """Bring the entry to the disk and to the object store, where it appears whole or not at all."""
        self.near.secure(key)
        value = self.near.path(key).read_bytes()
        try:
            with self._filesystem.open_output_stream(self._path(key)) as stream:
                stream.write(value)
        except OSError as error:
            raise ModelError(f"the shared cache of replies cannot be written at {self._path(key)}: {error}") from None

    def _path(self, key: str) -> str:
        return f"{self._prefix}/{key[:2]}/{key}.json"


def open_store(folder: Path, url: str | None = None) -> ReplyStore:
    """The store of replies: the folder, and behind it the object store at `url` (s3://, gs://, abfs://), if any.

    Raises ModelError if the address is not one of an object store.
    """
    if url is None:
        return FileStore(folder)
    if "://" not in url or url.startswith("file:"):
        raise ModelError(f"{SHARED_REPLIES}: {public_url(url)} is no object store; give s3://bucket/prefix or the like")
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, prefix = FileSystem.from_uri(url)
    except (ArrowException, OSError, ValueError) as error:
        why = str(error).splitlines()[0].replace(url, public_url(url))
        raise ModelError(f"{SHARED_REPLIES}: {public_url(url)} cannot be opened: {why}") from None
    return SharedStore(FileStore(folder), filesystem, prefix)


@asynccontextmanager
async def claimed(folder: Path, key: str) -> AsyncIterator[None]:
    """Hold a key among the processes that share a folder: only one asks for a reply, the others wait for it.

    The claim is a lock on a file, which the system lets go of when its holder is killed. Raises ModelError if the
    folder cannot be written.
    """
    path = folder / "claims" / key
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise ModelError(f"{path}: the claim on a reply cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been taken away by its last holder: then the lock is on nothing.
            if path.stat().st_ino == os.fstat(file).st_ino:
                break
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(file)
        await asyncio.sleep(_CLAIM_SECONDS)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(file)


def reply_key(role: ModelRole, request: Request, attempt: int) -> str:
    """The key of a reply: sha256 over everything that shapes it, 64 hex digits.

    The address counts for endpoints of any kind only, where one name may stand for several models; batch and single
    calls share their replies.
    """
    address = public_url(role.base_url) if role.provider == "compatible" and role.base_url else None
    parameters = [role.temperature, role.max_output_tokens, role.json_schema, role.options]
    prompt = [request.system, request.user, request.schema]
    parts = [VERSION, role.provider, role.model, address, parameters, prompt, attempt]
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_reply(store: ReplyStore, key: str) -> Reply | None:
    """The cached reply, or None. Raises ModelError if the entry is damaged."""
    value = store.get(key)
    if value is None:
        return None
    try:
        return Reply(**json.loads(value)["reply"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cached reply {key} is damaged ({error}); delete it and run again") from None


def write_reply(store: ReplyStore, key: str, reply: Reply, about: dict[str, Any], *, replace: bool = False) -> None:
    """Cache a reply with what a person may want to know about it (task, model, prompt version, attempt)."""
    text = json.dumps({"about": about, "reply": reply.to_dict()}, ensure_ascii=False, indent=1, sort_keys=True)
    store.put(key, text.encode("utf-8", "backslashreplace"), replace=replace)
