"""The shared cache: what one machine has built, in a bucket from which others fetch it.

An object is the archive of one stored folder (`folder_archive`), under PREFIX/KIND/DIGEST.tar. It
is written whole or not at all, as object stores do. No fault of the bucket is an error: the first
one is a warning, and the work goes on without the bucket.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from farm.errors import UsageError
from farm.store.artifact_store import KINDS, Store, StoredFolder, user_cache_dir
from farm.store.folder_archive import ArchiveError, read_archive, write_archive
from farm.types import SharedCacheLocation, normalize_cache_url

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

URL, READ_ONLY, KEY = "FARM_SHARED_CACHE", "FARM_SHARED_CACHE_READ_ONLY", "FARM_SHARED_CACHE_KEY"
_OFF = ("", "none")  # of FARM_SHARED_CACHE
Answer = TypeVar("Answer")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".tar"
_CHUNK = 1 << 20
# An endpoint with http:// is the user's own choice; the default ones have https.
_CLIENT: Any = {"connect_timeout": "5s", "timeout": "10m", "allow_http": True}
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


def resolve_location(configured: str | None) -> SharedCacheLocation | None:
    """Return the shared cache that the environment, else the configuration, names; None for none.

    FARM_SHARED_CACHE is its URL, or "none". FARM_SHARED_CACHE_READ_ONLY=1 sends nothing to it.
    FARM_SHARED_CACHE_KEY seals what is sent, and refuses what is not sealed so. Raises UsageError.
    """
    given = os.environ.get(URL)
    if given is not None:
        try:
            configured = None if given in _OFF else normalize_cache_url(given)
        except ValueError as exc:
            raise UsageError(
                f"{URL} names no shared cache", str(exc), f"correct it, or: unset {URL}"
            ) from exc
    if configured is None:
        return None
    key = os.environ.get(KEY)
    return SharedCacheLocation(
        configured, os.environ.get(READ_ONLY, "") not in ("", "0"), key.encode() if key else None
    )


class SharedCacheClient:
    """A client of the shared cache; it may be pickled, and connects when it is first used.

    The first fault is logged as a warning, later ones are not. After a fault of the connection
    nothing more is tried.
    """

    def __init__(self, location: SharedCacheLocation) -> None:
        self.location = location
        self._client: Any = None
        self._away = False
        self._warned = False

    def __reduce__(self) -> tuple[type[SharedCacheClient], tuple[SharedCacheLocation]]:
        """Pickle the location only."""
        return SharedCacheClient, (self.location,)

    def fetch(self, kind: str, digest: str, folder: Path) -> bool:
        """Fill an empty folder with what is stored under a digest; return whether it was there.

        If this returns False, the folder may hold some files.
        """
        if kind not in KINDS or self._away:
            return False

        def unpack() -> None:
            import obstore

            found = obstore.get(self._opened(), _name(kind, digest))
            with BufferedReader(
                _Chunks(iter(found.stream(min_chunk_size=_CHUNK))), _CHUNK
            ) as content:
                read_archive(content, kind, digest, self.location.key, folder)

        return self._attempt("used", f"{kind}/{digest[:12]}", unpack)

    def send(self, kind: str, digest: str, folder: Path) -> None:
        """Store a folder under its digest, unless it is there already."""
        if kind not in KINDS or self._away or self.location.read_only:
            return

        def store() -> None:
            import obstore

            if not self._has(kind, digest):
                with tempfile.TemporaryFile() as file:
                    write_archive(folder, kind, digest, self.location.key, file)
                    file.seek(0)
                    obstore.put(self._opened(), _name(kind, digest), file)

        self._attempt("written", f"{kind}/{digest[:12]}", store)

    def reach(self) -> None:
        """Ask the bucket for one object. Raises UsageError if it does not answer."""
        self._asked(lambda: self._has(KINDS[0], "0" * 64))

    def entries(self) -> list[StoredFolder]:
        """Return what is stored. Raises UsageError if the bucket cannot be listed."""
        return self._asked(lambda: list(self._entries()))

    def remove(self, entries: list[StoredFolder]) -> None:
        """Remove what is stored under some digests. Raises UsageError if that is not possible."""

        def delete() -> None:
            import obstore

            if entries:
                obstore.delete(self._opened(), [_name(one.kind, one.digest) for one in entries])

        self._asked(delete)

    def _entries(self) -> Iterator[StoredFolder]:
        import obstore

        for kind in KINDS:
            for chunk in obstore.list(self._opened(), prefix=kind):
                for one in chunk:
                    name = Path(one["path"])
                    if (
                        name.suffix == _SUFFIX
                        and name.parent == Path(kind)
                        and _DIGEST.fullmatch(name.stem)
                    ):
                        yield StoredFolder(kind, name.stem, one["size"], one["last_modified"])

    def _has(self, kind: str, digest: str) -> bool:
        import obstore

        try:
            obstore.head(self._opened(), _name(kind, digest))
        except FileNotFoundError:
            return False
        return True

    def _opened(self) -> Any:
        if self._client is None:
            from obstore.store import LocalStore, from_url

            url = self.location.url
            if url.startswith("file://"):
                self._client = LocalStore(
                    url.removeprefix("file://"), mkdir=not self.location.read_only
                )
            else:
                self._client = from_url(url, client_options=_CLIENT, retry_config=_RETRY)
        return self._client

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except ModuleNotFoundError as exc:
            raise UsageError(
                "the shared cache needs obstore", str(exc), "pip install 'tvm-farm[cache]'"
            ) from exc
        except Exception as exc:
            fix = "correct `cache` in devices.toml, the variables of its credentials, or its rights"
            raise UsageError(
                f"the shared cache {self.location.url} does not answer", _cause(exc), fix
            ) from exc

    def _attempt(self, verb: str, what: str, action: Callable[[], None]) -> bool:
        """Return whether an action succeeded; warn of the first fault that is one of the bucket.

        After a fault of one object the bucket is still used.
        """
        try:
            action()
        except ArchiveError as error:
            self._fault(f"{what} in the shared cache {self.location.url} is not used: {error}")
        except ModuleNotFoundError:
            self._away = True
            self._fault(
                f"the shared cache {self.location.url} is not used: pip install 'tvm-farm[cache]'"
            )
        except Exception as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # one of the local disk: obstore's have no number
            if isinstance(error, FileNotFoundError) and verb == "used":
                return False  # the bucket does not have it
            self._away = True
            self._fault(f"the shared cache {self.location.url} is not {verb}: {_cause(error)}")
        else:
            return True
        return False

    def _fault(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logging.getLogger("farm").warning("%s", text)


def open_local_store_over_shared_cache(configured: str | None) -> Store:
    """Return the user's store of builds, behind which is the shared cache if one is named.

    `configured` is the URL that devices.toml names. Raises BuildError if others could have filled
    the store, UsageError if the environment names no shared cache.
    """
    location = resolve_location(configured)
    return Store(user_cache_dir(), SharedCacheClient(location) if location else None)


class _Chunks(RawIOBase):
    """The chunks of a download as a stream."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer as far as the current chunk reaches; return 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._rest))
        view[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _name(kind: str, digest: str) -> str:
    return f"{kind}/{digest}{_SUFFIX}"


def _cause(error: Exception) -> str:
    """Return what went wrong, without the object, the durations and the client's state.

    So several processes that meet the same fault give one text, which is shown once.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rpartition(" - ")[2][:300]
