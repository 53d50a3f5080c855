"""lab.toml: what it says, and each mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import ConfigError
from farm.lab.entities import InventoryBoard, LeaseClass, ReservationRules
from farm.lab.lab_toml import LabSettings, read_settings

WHOLE = """
[lab]
store = "kept/lab.sqlite"
tracker = "[::1]:9200"
people = "group"
tracker_class = "ci"
aging = "10m"
[lab.classes.batch]
longest = "8h"
boards = 3
[lab.reservations]
ahead = "7d"
of_owner = 2
share = 0.25
within = "1d"
[lab.owners."alice"]
share = 2.5
[lab.boards.pi5-07]
kind = "pi5"
address = "192.168.7.7:9090"
tags = ["fan"]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab.toml"


def test_a_whole_file_is_read(path: Path) -> None:
    path.write_text(WHOLE)
    settings = read_settings(path)
    assert (settings.store, settings.tracker, settings.people) == (
        str(path.parent / "kept/lab.sqlite"),
        ("::1", 9200),
        "group",
    )
    rules = settings.rules
    assert (rules.implicit_rank, rules.aging_s, rules.share("alice"), rules.share("bob")) == (
        "ci",
        600.0,
        2.5,
        1.0,
    )
    assert (rules.classes["batch"], rules.classes["ci"]) == (LeaseClass(28800.0, 3), LeaseClass())
    assert rules.reservations == ReservationRules(7 * 86400.0, 2, 600.0, 0.25, 86400.0)
    assert settings.boards == (InventoryBoard("pi5-07", "pi5", "192.168.7.7:9090", ("fan",)),)


def test_without_a_file_everything_has_its_usual_value() -> None:
    assert read_settings(None) == LabSettings()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[lab\n", 1, ""),
        ("[lab]\nstroe = 1\n", 2, "there is no key 'stroe' here; did you mean 'store'?"),
        ("[labs]\n", 1, "there is no key 'labs' here"),
        ("[lab]\nstore = 1\n", 2, "store: this is to be a text"),
        ("[lab]\nstore = 'mysql://x'\n", 2, "store: a path, or postgresql://USER@HOST/DATABASE"),
        ("[lab]\ntracker = '9190'\n", 2, "tracker: an address is HOST:PORT"),
        ("[lab]\ntracker = 'a:99999'\n", 2, "tracker: an address is HOST:PORT"),
        ("[lab]\npeople = 'all'\n", 2, "people: one of owner, group, everyone"),
        ("[lab]\nclasses = 3\n", 2, "lab.classes is a table"),
        ("[lab.classes.vip]\n", 1, "there is no key 'vip' here"),
        ("[lab.classes.ci]\nlongest = '2 h'\n", 2, "longest: '2 h' is no duration"),
        ("[lab.classes.ci]\nboards = -1\n", 2, "boards: this is to be a whole number"),
        ("[lab.owners.a]\nshare = 0\n", 2, "share: this is to be a number above 0"),
        ("[lab.boards.a]\ntags = ['fan']\n", 1, "the board 'a' needs the key 'kind'"),
        ("[lab]\nheartbeat = 10\n", 2, "heartbeat: this is to be a text"),
        (
            "[lab.boards.a]\nkind = 'pi5'\naddress = 'x:1'\ntags = 'fan'\n",
            4,
            "tags: this is to be a list of texts",
        ),
        ("[lab.boards.a]\nkind='p'\naddress='x:1'\n[lab.boards.a]\nkind='p'\n", 4, ""),
        (
            "[lab.boards.a]\nkind='p'\naddress='x:1'\n[lab.boards.b]\nkind='p'\naddress='x:1'\n",
            4,
            "the boards 'a' and 'b' are one",
        ),
        ("[lab.boards]\na = 3\n", 2, "lab.boards.a is a table"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, words: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert f"{path}:{line}: " in caught.value.why and words in caught.value.why
    assert all(caught.value.parts())


def test_a_password_in_a_url_that_is_wrong_is_not_shown(path: Path) -> None:
    path.write_text("[lab]\nstore = 'postgresql://farm:secret word@host:port/x'\n")
    with pytest.raises(ConfigError) as caught:
        read_settings(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"#" * (5 << 20)])
def test_a_file_that_cannot_be_read_is_one_error(content: bytes | None, path: Path) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(path)
