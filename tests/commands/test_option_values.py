"""Options whose values are numbers, cores, shapes and constants, and files that are written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm import pipeline
from farm.commands import model_options
from farm.commands.common import Session, report_no_runs, write_atomically
from farm.commands.model_options import ModelProperties
from farm.commands.options import parse_whole_numbers
from farm.commands.thread_options import ThreadSettings, devices_per_thread_setting
from farm.errors import UsageError
from farm.types import Device, Model, Profile

DEVICE = Device("board", Profile("rk3399", {}, ""), "local:")
SESSION = Session(None, as_json=False, verbosity=-1)


def test_whole_numbers_are_counted_once_each_in_their_order() -> None:
    assert parse_whole_numbers("--threads", "4,1,4,2") == (4, 1, 2)
    assert parse_whole_numbers("--threads", "") == ()
    for text in ("0", "1,0", "-1", "1,", "1.5", "two"):
        with pytest.raises(UsageError, match="no numbers"):
            parse_whole_numbers("--threads", text)


def test_what_the_command_line_says_of_a_model_goes_before_what_its_table_says() -> None:
    model = Model(
        "net",
        "net.onnx",
        shapes={"x": (1, 3, 64, 64), "y": (2,)},
        values={"sr": 8000, "on": True},
        dtypes={"ids": "int64", "mask": "int32"},
        module="table:function",
    )
    properties = ModelProperties(
        shapes={"x": (1, 3, 32, 32)}, values={"sr": 16000}, dtypes={"ids": "int32"}, module="a:b"
    )
    made = properties.of(model)
    assert made.shapes == {"x": (1, 3, 32, 32), "y": (2,)}
    assert made.values == {"sr": 16000, "on": True}
    assert made.dtypes == {"ids": "int32", "mask": "int32"}
    assert (made.module, made.trust) == ("a:b", False)
    assert ModelProperties(trust=True).of(model).trust


@pytest.mark.parametrize("text", ["x:-1", "x:", ":1,3", "1,3", "x:1,a"])
def test_what_is_no_name_and_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no input's name and shape"):
        model_options._described((text,), (), (), None, False)


def test_an_input_may_have_no_elements() -> None:
    made = model_options._described(("past:1,8,0,64",), (), (), None, False)
    assert made.shapes == {"past": (1, 8, 0, 64)}


def test_each_core_is_a_big_or_a_little_one_and_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"board": {"big_cores": "4-5", "little_cores": "0-1"}}
    monkeypatch.setattr(pipeline, "query_device_facts", lambda *_, **__: facts)
    monkeypatch.setattr(Session, "artifacts", lambda _: None)
    each = devices_per_thread_setting(
        SESSION, [DEVICE], ThreadSettings(cores=("big", "each"), pinned=True)
    )
    assert [one.options for one in each] == [
        {"threads": 1, "cores": cores, "pinned": True} for cores in ("big", "4", "5", "0", "1")
    ]
    with pytest.raises(UsageError, match="one thread at a time"):
        devices_per_thread_setting(SESSION, [DEVICE], ThreadSettings((2,), ("each",)))


def test_cores_and_threads_are_combined() -> None:
    made = devices_per_thread_setting(SESSION, [DEVICE], ThreadSettings((1, 2), ("big", "little")))
    assert [(one.options["cores"], one.options["threads"]) for one in made] == [
        ("big", 1),
        ("big", 2),
        ("little", 1),
        ("little", 2),
    ]
    assert devices_per_thread_setting(SESSION, [DEVICE], ThreadSettings()) == [DEVICE]


def test_a_file_that_is_written_again_stays_closed_to_others(tmp_path: Path) -> None:
    secret = tmp_path / "devices.toml"
    secret.write_text("old")
    secret.chmod(0o640)
    write_atomically(secret, "new")
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("new", 0o640)
    assert [path.name for path in tmp_path.iterdir()] == ["devices.toml"]


@pytest.mark.parametrize(
    ("kept", "models", "devices", "said"),
    [
        (True, ["net"], [], "no runs of net among those that are kept: farm history"),
        (True, [], ["pi3"], "no runs on pi3 among those that are kept: farm history"),
        (True, ["net"], ["pi3"], "no runs of net on pi3 among those that are kept: farm history"),
        (True, [], [], "no runs yet: farm bench --all"),
        (False, ["net"], [], "no runs yet: farm bench --all"),
    ],
)
def test_that_there_is_no_run_is_told_by_what_was_asked(
    kept: bool, models: list[str], devices: list[str], said: str, capsys: Any
) -> None:
    store = SimpleNamespace(runs=lambda **_: [object()] if kept else [])
    session: Any = SimpleNamespace(record=lambda: store)
    report_no_runs(session, models, devices)
    assert capsys.readouterr().err == f"{said}\n"
