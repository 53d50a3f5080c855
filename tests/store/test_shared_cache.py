"""The shared cache: what one store publishes another finds, whole and checked, and no fault of the
bucket stops the work.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import pickle
import socket
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store
from s3_server import KEYS, OTHER, credentials_checked, s3_bucket, s3_server

from farm.errors import UsageError
from farm.store import SharedCacheClient, Store, digest_of_parts, open_local_store_over_shared_cache
from farm.store.folder_archive import ArchiveError, read_archive, write_archive
from farm.store.shared_cache import resolve_location
from farm.types import SharedCacheLocation, normalize_cache_url

DIGEST = "d" * 64
NAME = f"artifacts/{DIGEST}.tar"
CONTENT = {
    "library.so": os.urandom(3 << 20),
    "metadata.json": b"{}",
    "parameters/weights.bin": b"\0" * 70_000,
}
Opened = Callable[..., Store]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server."""
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Store]:
    """An empty bucket, which the variables of AWS lead to."""
    for name, value in {"AWS_ENDPOINT_URL": s3, "AWS_ALLOW_HTTP": "true", **KEYS}.items():
        monkeypatch.setenv(name, value)
    name = f"b{digest_of_parts(str(tmp_path))[:20]}"
    with s3_bucket(s3, name):
        yield S3Store(name, prefix="farm", client_options={"allow_http": True})


@pytest.fixture
def opened(bucket: S3Store, tmp_path: Path) -> Opened:
    def store(name: str, **options: object) -> Store:
        return Store(
            tmp_path / name,
            SharedCacheClient(
                SharedCacheLocation(f"s3://{bucket.config['bucket']}/farm", **options)
            ),
        )  # type: ignore[arg-type]

    return store


def publish(store: Store, kind: str = "artifacts", digest: str = DIGEST) -> Path:
    with store.publish(kind, digest) as folder:
        for name, content in CONTENT.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    return store.root / kind / digest


def content(folder: Path | None) -> dict[str, bytes] | None:
    if folder is None:
        return None
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stored(bucket: S3Store) -> bytes:
    return bytes(obstore.get(bucket, NAME).bytes())


def test_what_one_store_publishes_another_finds(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    two = opened("two")
    for kind in ("models", "workloads", "artifacts"):
        publish(opened("one"), kind=kind)
        assert content(two.find(kind, DIGEST)) == CONTENT
        assert two.find(kind, "e" * 64) is None
        assert content(Store(two.root).find(kind, DIGEST)) == CONTENT, "it stays without the bucket"
    assert not caplog.records and not list((two.root / "tmp").iterdir())


def test_a_store_in_a_folder_is_shared_too(tmp_path: Path) -> None:
    location = SharedCacheLocation(f"file://{tmp_path}/shared")
    publish(Store(tmp_path / "one", SharedCacheClient(location)))
    assert (
        content(Store(tmp_path / "two", SharedCacheClient(location)).find("artifacts", DIGEST))
        == CONTENT
    )


def test_kinds_that_are_of_one_machine_stay_there(opened: Opened, bucket: S3Store) -> None:
    publish(opened("one"), kind="agents")
    assert opened("two").find("agents", DIGEST) is None
    assert [one for chunk in obstore.list(bucket) for one in chunk] == []


def test_what_is_there_is_not_sent_again(opened: Opened, bucket: S3Store) -> None:
    publish(opened("one"))
    first = obstore.head(bucket, NAME)
    publish(opened("two"))
    assert obstore.head(bucket, NAME)["last_modified"] == first["last_modified"]


def test_a_reader_sends_nothing(opened: Opened, bucket: S3Store) -> None:
    publish(opened("one", read_only=True))
    assert [one for chunk in obstore.list(bucket) for one in chunk] == []


def test_it_goes_to_other_processes_without_its_connection(opened: Opened) -> None:
    publish(opened("one"))
    two = opened("two", key=b"k")
    again = pickle.loads(pickle.dumps(two))
    assert again.upstream.location == two.upstream.location  # type: ignore[union-attr]


def rewritten(archive: bytes, change: Callable[[dict[str, object]], object]) -> bytes:
    """An archive with another manifest."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as before,
        tarfile.open(fileobj=made, mode="w") as after,
    ):
        for member in before:
            body = before.extractfile(member).read()  # type: ignore[union-attr]
            if member.name == "farm.json":
                manifest = json.loads(body)
                body = json.dumps(change(manifest) or manifest).encode()
            member.size = len(body)
            after.addfile(member, io.BytesIO(body))
    return made.getvalue()


def one_bit_off(archive: bytes) -> bytes:
    place = archive.index(CONTENT["library.so"][:64]) + 1000
    return archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]


def with_another_file(archive: bytes) -> bytes:
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as before,
        tarfile.open(fileobj=made, mode="w") as after,
    ):
        for member in before:
            after.addfile(member, before.extractfile(member))
        after.addfile(tarfile.TarInfo("../../escaped"), io.BytesIO())
    return made.getvalue()


def with_a_link(archive: bytes) -> bytes:
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as before,
        tarfile.open(fileobj=made, mode="w") as after,
    ):
        for member in before:
            if member.name == "metadata.json":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return made.getvalue()


def of_holes(_: bytes) -> bytes:
    """A file of a megabyte of which three bytes are in the archive; it could be of a petabyte."""
    size, body = 1 << 20, b"abc"
    digest = hashlib.sha256(body + bytes(size - len(body))).hexdigest()
    sparse = {"major": "0", "minor": "1", "map": f"0,{len(body)}", "size": str(size)}
    return archive_of({"hole": {"size": size, "sha256": digest}}, {"hole": (body, sparse)})


def with_a_file_as_a_folder(_: bytes) -> bytes:
    one = {"size": 0, "sha256": hashlib.sha256().hexdigest()}
    return archive_of({"a": one, "a/b": one}, {"a": (b"", {}), "a/b": (b"", {})})


def archive_of(
    named: dict[str, dict[str, object]], files: dict[str, tuple[bytes, dict[str, str]]]
) -> bytes:
    made = io.BytesIO()
    manifest = {"format": 1, "kind": "artifacts", "digest": DIGEST, "files": named}
    members = {"farm.json": (json.dumps(manifest).encode(), {}), **files}
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (body, sparse) in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.pax_headers = {f"GNU.sparse.{key}": value for key, value in sparse.items()}
            archive.addfile(member, io.BytesIO(body))
    return made.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "no archive": lambda _: os.urandom(10_000),
    "half": lambda archive: archive[: len(archive) // 2],
    "without its end": lambda archive: archive[: archive.rindex(b"parameters/weights.bin") - 1024],
    "one bit off": one_bit_off,
    "another file": with_another_file,
    "a link": with_a_link,
    "of holes": of_holes,
    "a file as a folder": with_a_file_as_a_folder,
    "another digest": lambda archive: rewritten(
        archive, lambda manifest: manifest.update(digest="e" * 64)
    ),
    "another kind": lambda archive: rewritten(
        archive, lambda manifest: manifest.update(kind="models")
    ),
    "another format": lambda archive: rewritten(
        archive, lambda manifest: manifest.update(format=2)
    ),
    "a path out of it": lambda archive: rewritten(
        archive, lambda manifest: manifest.update(files={"../x": {"size": 0, "sha256": "0" * 64}})
    ),
    "no manifest": lambda archive: rewritten(archive, lambda manifest: [manifest]),
    "a size of words": lambda archive: rewritten(
        archive, lambda manifest: manifest["files"]["library.so"].update(size="big")
    ),  # type: ignore[index]
    "fewer files": lambda archive: rewritten(
        archive, lambda manifest: manifest["files"].pop("metadata.json")
    ),  # type: ignore[attr-defined]
    "more files": lambda archive: rewritten(
        archive, lambda manifest: manifest["files"].update(more={"size": 0, "sha256": "0" * 64})
    ),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_is_one_warning_and_nothing_of_it_stays(
    damage: str, opened: Opened, bucket: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    publish(opened("one"))
    damaged = DAMAGES[damage](stored(bucket))
    assert damaged != stored(bucket)
    obstore.put(bucket, NAME, damaged)
    two = opened("two")
    assert two.find("artifacts", DIGEST) is None
    assert two.find("artifacts", DIGEST) is None
    (record,) = caplog.records
    assert (record.name, record.levelno) == (
        "farm",
        logging.WARNING,
    ) and "is not used" in record.getMessage()
    assert not (two.root / "artifacts" / DIGEST).exists() and not list((two.root / "tmp").iterdir())
    assert content(publish(two)) == CONTENT


def test_with_a_key_only_what_was_sealed_with_it_is_used(
    opened: Opened, bucket: S3Store, caplog: pytest.LogCaptureFixture
) -> None:
    publish(opened("one", key=b"one key"))
    assert content(opened("two", key=b"one key").find("artifacts", DIGEST)) == CONTENT
    assert opened("three", key=b"another").find("artifacts", DIGEST) is None
    assert "not sealed with this key" in caplog.text
    caplog.clear()
    obstore.put(
        bucket,
        NAME,
        rewritten(
            stored(bucket), lambda manifest: manifest["files"]["library.so"].update(sha256="0" * 64)
        ),
    )  # type: ignore[index]
    assert opened("four", key=b"one key").find("artifacts", DIGEST) is None
    assert "not sealed with this key" in caplog.text


@pytest.mark.parametrize(
    ("sealed_with", "digest", "why"),
    [
        (b"key", "e" * 64, "another build"),
        (b"other", DIGEST, "not sealed with this key"),
        (b"", DIGEST, "not sealed with this key"),
    ],
    ids=["another digest", "another key", "no key"],
)
def test_an_archive_needs_the_seal_of_its_key_and_its_digest(
    tmp_path: Path, sealed_with: bytes, digest: str, why: str
) -> None:
    folder = publish(Store(tmp_path / "one"))
    file = io.BytesIO()
    write_archive(folder, "artifacts", DIGEST, sealed_with, file)
    file.seek(0)
    (tmp_path / "two").mkdir()
    with pytest.raises(ArchiveError, match=why):
        read_archive(file, "artifacts", digest, b"key", tmp_path / "two")


class Spaces(io.RawIOBase):
    """A stream of spaces behind a head, which counts what was read."""

    def __init__(self, head: bytes) -> None:
        self.head, self.total = head, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = (self.head + b" " * len(buffer))[: len(buffer)]
        self.head = self.head[len(buffer) :]
        buffer[:] = part
        self.total += len(part)
        return len(part)


def test_a_header_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    """The headers come before the manifest, whose seal is checked."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 256 << 20
    file = Spaces(header.tobuf(tarfile.USTAR_FORMAT))
    with pytest.raises(ArchiveError):
        read_archive(io.BufferedReader(file), "artifacts", "e" * 64, b"key", tmp_path)
    assert file.total < 32 << 20


def unreachable() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_a_bucket_that_is_away_is_one_warning(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", unreachable())
    one = opened("one")
    assert one.find("artifacts", DIGEST) is None
    assert content(publish(one)) == CONTENT
    (record,) = caplog.records
    assert (
        "is not used" in record.getMessage()
        and "\n" not in record.getMessage()
        and len(record.getMessage()) < 500
    )


def test_credentials_that_the_bucket_refuses_are_one_warning(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish(opened("one"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    with credentials_checked():
        two = opened("two")
        assert two.find("artifacts", DIGEST) is None
        assert content(publish(two)) == CONTENT
    (record,) = caplog.records
    assert "is not used" in record.getMessage() and len(record.getMessage()) < 500


@pytest.mark.skipif(bool(OTHER), reason="some servers create a bucket that is not there")
def test_a_bucket_that_is_not_there_is_one_warning_when_something_is_sent(
    bucket: S3Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(
        tmp_path / "one", SharedCacheClient(SharedCacheLocation("s3://nothing-of-that-name"))
    )
    assert content(publish(store)) == CONTENT
    (record,) = caplog.records
    assert "is not written" in record.getMessage()


def test_a_folder_without_permission_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    store = Store(
        tmp_path / "one", SharedCacheClient(SharedCacheLocation(f"file://{tmp_path}/file/below"))
    )
    assert store.find("artifacts", DIGEST) is None
    assert content(publish(store)) == CONTENT
    assert len(caplog.records) == 1


def test_both_places_list_and_remove_what_they_hold(opened: Opened) -> None:
    one = opened("one")
    publish(one)
    publish(one, kind="models", digest="a" * 64)
    shared = one.upstream
    assert isinstance(shared, SharedCacheClient)
    for place in (one, shared):
        entries = place.entries()
        assert [(entry.kind, entry.digest) for entry in entries] == [
            ("models", "a" * 64),
            ("artifacts", DIGEST),
        ]
        assert all(entry.nbytes >= sum(map(len, CONTENT.values())) for entry in entries)
        assert all(abs(datetime.now(UTC) - entry.used) < timedelta(minutes=5) for entry in entries)
        place.remove(entries[:1])
        assert [entry.kind for entry in place.entries()] == ["artifacts"]
    shared.remove(shared.entries())
    one.remove(one.entries())
    one.remove(one.entries())
    assert one.find("artifacts", DIGEST) is None


def test_what_farm_did_not_store_in_the_bucket_is_not_listed(
    opened: Opened, bucket: S3Store
) -> None:
    for name in (
        "artifacts/..tar",
        "artifacts/-x.tar",
        "artifacts/deep/" + NAME,
        "artifacts/" + "D" * 64 + ".tar",
        "readme.txt",
    ):
        obstore.put(bucket, name, b"x")
    shared = opened("one").upstream
    assert isinstance(shared, SharedCacheClient) and shared.entries() == []


def test_a_use_counts_as_the_last_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    os.utime(publish(store), (0, 0))
    assert store.entries()[0].used.year == 1970
    store.find("artifacts", DIGEST)
    assert datetime.now(UTC) - store.entries()[0].used < timedelta(minutes=5)


def test_a_list_of_a_bucket_that_is_away_is_an_error(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", unreachable())
    shared = opened("one").upstream
    assert isinstance(shared, SharedCacheClient)
    with pytest.raises(UsageError, match="does not answer"):
        shared.entries()


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/a/b",
        "gs://bucket/farm/",
        "az://container/farm",
        "file:///var/cache/a folder",
        "s3://b.c-d/x=1",
    ],
)
def test_urls_of_shared_caches(url: str) -> None:
    assert normalize_cache_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "http://bucket/",
        "s3://",
        "s3:///x",
        "s3://user:secret@bucket",
        "s3://bucket/../x",
        "s3://bucket?x=1",
        "file://x",
        "s3://b\n",
    ],
)
def test_what_is_no_url_of_a_shared_cache(url: str) -> None:
    with pytest.raises(ValueError, match="s3://BUCKET/PREFIX"):
        normalize_cache_url(url)


def test_the_environment_comes_before_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("", "_READ_ONLY", "_KEY"):
        monkeypatch.delenv(f"FARM_SHARED_CACHE{name}", raising=False)
    monkeypatch.setenv("FARM_CACHE", str(tmp_path))
    assert open_local_store_over_shared_cache(None).upstream is None
    assert resolve_location("s3://lab/farm") == SharedCacheLocation("s3://lab/farm")
    monkeypatch.setenv("FARM_SHARED_CACHE", "none")
    assert resolve_location("s3://lab/farm") is None
    monkeypatch.setenv("FARM_SHARED_CACHE", "s3://other/farm")
    monkeypatch.setenv("FARM_SHARED_CACHE_READ_ONLY", "1")
    monkeypatch.setenv("FARM_SHARED_CACHE_KEY", "secret")
    location = resolve_location("s3://lab/farm")
    assert location == SharedCacheLocation(
        "s3://other/farm", True, b"secret"
    ) and "secret" not in repr(location)
    monkeypatch.setenv("FARM_SHARED_CACHE_READ_ONLY", "0")
    location = resolve_location("s3://lab/farm")
    assert location == SharedCacheLocation("s3://other/farm", False, b"secret")
    monkeypatch.setenv("FARM_SHARED_CACHE", "http://lab")
    with pytest.raises(UsageError, match="FARM_SHARED_CACHE names no shared cache"):
        resolve_location(None)


def test_an_archive_of_many_small_files_is_unpacked_whole(tmp_path: Path) -> None:
    """The heads of its members are more than its files."""
    folder, other = tmp_path / "one", tmp_path / "two"
    folder.mkdir()
    other.mkdir()
    for number in range(1300):
        (folder / f"{number}.bin").write_bytes(b"%d" % number)
    file = io.BytesIO()
    write_archive(folder, "artifacts", DIGEST, None, file)
    file.seek(0)
    read_archive(file, "artifacts", DIGEST, None, other)
    assert content(other) == content(folder)
