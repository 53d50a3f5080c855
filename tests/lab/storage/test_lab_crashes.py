"""The lab's server killed at random points under load: nothing acknowledged is lost, no board is
lent twice.
"""

from __future__ import annotations

import pytest
from lab_crash_load import hammer
from lab_process import lab
from postgres_server import binaries, postgres_server


def test_a_server_that_is_killed_under_load_loses_nothing_and_lends_no_board_twice() -> None:
    with lab() as one:
        found = hammer(one, kills=5)
    assert not found.wrong, found
    assert found.kills == 5 and found.leases > 10 and found.sessions > 10


@pytest.mark.skipif(
    binaries() is None, reason="there is no PostgreSQL server: apt-get install postgresql"
)
def test_a_server_with_postgresql_is_killed_and_postgresql_too() -> None:
    pytest.importorskip(
        "psycopg", reason="psycopg is not installed: pip install 'tvm-farm[postgresql]'"
    )
    with (
        postgres_server() as server,
        lab(inventory=f'[lab]\nstore = "{server.url}"\n') as one,
    ):
        found = hammer(
            one,
            kills=3,
            meanwhile=lambda number: server.restart("immediate" if number % 2 else "fast"),
        )
    assert not found.wrong, found
    assert found.kills == 3 and found.leases > 3
