"""PostgreSQL URLs: checks, and the form without secrets.

libpq ends a password at the first `@`, and reads the text before a `/` as hosts: a password with
such a character appears in libpq's errors as a part of a host, a port or a database. farm therefore
refuses it: the only `@` of a URL ends its user and password, and a character that could end a part
early is percent-encoded (RFC 3986), as `%40` for `@`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SCHEMES = ("postgresql", "postgres")
FORM = "postgresql://USER@HOST/DATABASE"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,/@?#\[\]]*)(?::\d*)?"
_WHOLE = re.compile(
    rf"(?P<scheme>{'|'.join(SCHEMES)})://"
    r"(?:(?P<user>[^\s:/@]*)(?::(?P<password>[^/@]*))?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    r"(?P<database>/[^\s/@?#]*)?"
    r"(?:\?(?P<query>\w+=[^&@#]*(?:&\w+=[^&@#]*)*))?"
)
_NO_ESCAPE = re.compile(r"%(?!(?!00)[0-9A-Fa-f]{2})")
_SHOWN = ("host", "port", "dbname", "user", "sslmode", "connect_timeout", "target_session_attrs")


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A URL that libpq parses as intended. `shown` is the part of it that may be printed."""

    shown: str


def is_postgres_url(text: str) -> bool:
    """Return whether a text is meant as the URL of a PostgreSQL database."""
    scheme, colon, _ = text.partition(":")
    return bool(colon) and scheme.lower() in SCHEMES


def parse_postgres_url(text: str) -> PostgresUrl:
    """Parse a URL.

    Raises ValueError for a malformed one; its message contains no part of the URL.
    """
    found = _WHOLE.fullmatch(text)
    if found is None or _NO_ESCAPE.search(text):
        signs = "@ / : ? # % & as %40 %2F %3A %3F %23 %25 %26"
        raise ValueError(f"this is no url of the form {FORM}; in its parts, write {signs}")
    user = f"{found['user']}@" if found["user"] else ""
    words = (found["query"] or "").split("&")
    query = "&".join(word for word in words if word.partition("=")[0] in _SHOWN)
    shown = f"{found['scheme']}://{user}{found['hosts']}{found['database'] or ''}"
    return PostgresUrl(f"{shown}?{query}" if query else shown)
