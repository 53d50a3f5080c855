"""Define where the shared cache lies, and check its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SCHEMES = ("s3", "gs", "az", "file")
_URL = re.compile(
    r"(?:s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9._=+-]+)*/?|file:///[^\x00-\x1f?#%]+"
)


@dataclass(frozen=True, slots=True)
class SharedCacheLocation:
    """The shared cache: a bucket with a prefix, or a folder.

    With a `key`, what was not sealed with the same key is not used.
    """

    url: str
    read_only: bool = False
    key: bytes | None = field(default=None, repr=False)


def normalize_cache_url(text: str) -> str:
    """Return the URL of a shared cache without a slash at its end.

    Raises ValueError if it is none. Credentials are not part of it: the clients of S3, Google
    Cloud Storage and Azure have variables and files of their own for them.
    """
    if not _URL.fullmatch(text) or ".." in text.split("/"):
        raise ValueError(
            "a shared cache is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
        )
    return text.rstrip("/")
