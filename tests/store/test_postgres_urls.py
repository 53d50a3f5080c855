"""No part of a password of a PostgreSQL url is in an error, whatever signs are in it."""

from __future__ import annotations

import traceback
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.cli import _without_secrets
from farm.errors import UsageError
from farm.store import RunStore
from farm.store.backends import PostgresBackend
from farm.types.postgres_url import parse_postgres_url

HEAD, MIDDLE, TAIL = "Zq7", "Xk8", "Wj9"  # none of them is in a word of ours, of libpq or of a path
SECRET_URL = "postgresql://me:secret@host/farm"
SIGNS = st.text(st.sampled_from("@/:?#%&=[], '\"\\$a1é\n"), max_size=4)


def password(first: str, second: str) -> str:
    return f"{HEAD}{first}{MIDDLE}{second}{TAIL}"


def assert_hidden(*texts: str) -> None:
    assert not [(part, text) for part in (HEAD, MIDDLE, TAIL) for text in texts if part in text]


def said_by(url: str) -> list[str]:
    """All that using a url says: of a server that is not there, or of a url that is none."""
    server = PostgresBackend(url)
    texts = [server.shown, repr(server)]
    try:
        RunStore.at(url)
        with server.engine().connect():
            pass
    except Exception as exc:
        texts.append("".join(traceback.format_exception_only(exc)))
        texts.append(str(exc) if isinstance(exc, UsageError) else "")
    return texts


@given(SIGNS, SIGNS, st.sampled_from(["", "?sslmode=disable", "?sslmode=disable&user=you"]))
@example("@", "", "")
@example("/", "@", "")
@example("?a=/", "", "")
@example("%zz", "", "")
def test_a_password_is_never_said_escaped_or_not(first: str, second: str, query: str) -> None:
    pytest.importorskip("psycopg")
    secret = password(first, second)
    for written in (secret, quote(secret, safe="")):
        assert_hidden(*said_by(f"postgresql://me:{written}@127.0.0.1:1/farm{query}"))
        assert_hidden(*said_by(f"postgresql://me@127.0.0.1:1/farm?password={written}"))
        assert_hidden(*said_by(f"postgresql:/me:{written}@127.0.0.1:1/farm"))


@pytest.mark.parametrize("sign", "@/")
def test_a_password_with_a_sign_that_ends_it_early_is_refused(sign: str) -> None:
    with pytest.raises(UsageError, match="is not understood") as caught:
        RunStore.at(f"postgresql://me:secret{sign}tail@host/farm")
    assert "%40" in caught.value.fix
    assert "tail" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/farm", "postgresql://me@host/farm"),
        ("postgres://me:p%40ss@[::1]:5432/farm", "postgres://me@[::1]:5432/farm"),
        ("postgresql://me:p?q:r#s@a:1,b:2/farm", "postgresql://me@a:1,b:2/farm"),
        ("postgresql://host", "postgresql://host"),
        ("postgresql:///farm?host=/run/pg&password=x", "postgresql:///farm?host=/run/pg"),
        ("postgresql://host/farm?sslpassword=x", "postgresql://host/farm"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert parse_postgres_url(url).shown == shown


def test_the_log_of_a_bug_has_no_secret_of_the_command_line() -> None:
    words = ["farm", "bench", "--store", SECRET_URL, f"--store={SECRET_URL}", "--key", "k3y"]
    shown = " ".join(_without_secrets(words))
    assert shown == "farm bench --store ... --store=... --key ..."
