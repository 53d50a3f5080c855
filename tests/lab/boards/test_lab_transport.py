"""Devices at `lab:` and `lab://`: farm's agents, leased from a lab, here and through its door."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked_commands
import numpy as np
import onnx
import pytest
from lab_agents import registered, uses
from lab_door import Door, door
from lab_process import Lab
from onnx import TensorProto, helper, numpy_helper
from timeouts import LIMIT_S, wait_until

from farm import Farm, transports
from farm.api.resolve import device_with_options
from farm.config import load_fleet
from farm.errors import DeviceError, FarmError, UnavailableError, UsageError
from farm.lab_client.leasing import WantedBoards, ask_for_reserved
from farm.transports.lab import transport
from farm.types import Device


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with door(tmp_path_factory.mktemp("door")) as one:
        one.add("alice")
        (one.sshd.home / ".ssh" / "config").write_text(f"IdentityFile {one.key_of('alice')}\n")
        with registered(one.lab, 2):
            yield one


@pytest.fixture(autouse=True)
def home(served: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is alice's: her SSH configuration, and the socket of the lab beside it."""
    monkeypatch.setenv("HOME", str(served.sshd.home))
    monkeypatch.setenv("FARM_LAB", str(served.lab.socket))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield
    transport._pool.end_all()
    with served.lab.client() as client:
        wait_until(lambda: set(uses(client)) == {"free"}, "the boards are back")


@pytest.fixture(params=["lab:", "lab://"])
def place(request: pytest.FixtureRequest, served: Door) -> str:
    """Both ways to the lab: its socket, and its door."""
    return "lab:" if request.param == "lab:" else f"{served.sshd.url.replace('ssh', 'lab', 1)}/"


def device(tmp_path: Path, url: str, **options: Any) -> Device:
    words = ", ".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in options.items()
    )
    (tmp_path / "devices.toml").write_text(
        f'[devices.one]\nprofile = "x86"\nurl = "{url}"\noptions = {{ {words} }}\n'
    )
    return load_fleet(tmp_path / "devices.toml").devices["one"]


def leases(served: Door) -> list[dict[str, Any]]:
    with served.lab.client() as client:
        found: list[dict[str, Any]] = client.ask("leases")["leases"]
        return found


def test_a_session_has_a_board_of_a_lease_which_is_given_back(
    served: Door, place: str, tmp_path: Path
) -> None:
    one = device(tmp_path, f"{place}x86", **{"class": "ci", "for_s": 100})
    assert transports.count_boards(one) == 2 and transports.max_parallel_jobs(one) == 2
    assert transports.probe_state(one).why == "2 of 2 free"
    with transports.open(one, None, tmp_path, 60.0) as link:
        [lease] = leases(served)
        assert (lease["owner"], lease["class"], lease["for_s"]) == (
            "alice" if place != "lab:" else "root",
            "ci",
            100.0,
        )
        assert link.native and link.facts()["lab_board"] == lease["boards"][0]
    with transports.open(one, None, tmp_path, 60.0) as link:  # the same one, and the same lease
        assert [again["lease"] for again in leases(served)] == [lease["lease"]]
        assert link.facts()["lab_board"] == lease["boards"][0]
    wait_until(lambda: leases(served) == [], "it is given back without being asked")


def test_two_sessions_at_once_have_two_boards_and_a_third_waits(
    served: Door, place: str, tmp_path: Path
) -> None:
    one = device(tmp_path, f"{place}x86", wait_s=1)
    with (
        transports.open(one, None, tmp_path, 60.0) as first,
        transports.open(one, None, tmp_path, 60.0) as second,
    ):
        assert first.leased["lab_board"] != second.leased["lab_board"]
        with (
            pytest.raises(UnavailableError) as failed,
            transports.open(one, None, tmp_path, 60.0),
        ):
            pass
        assert failed.value.exit_code == 5
        assert failed.value.what == "the lab had no board within 1 s"
        assert failed.value.why == "waiting for a x86: 2 of 2 lent"


def test_what_a_session_waits_for_is_said(served: Door, tmp_path: Path) -> None:
    one, said = device(tmp_path, "lab:x86", wait_s=60), list[str]()
    with served.lab.client() as client:
        lease = client.ask("request", kind="x86", for_s=60.0, count=2)["lease"]["lease"]

        def say(words: str) -> None:
            said.append(words)
            client.ask("end", lease=lease)

        transports.reserve_board(one, lambda _: None, say)
    assert said == ["1. in the lab's queue: waiting for a x86: 2 of 2 lent"]


def test_a_board_by_its_name_and_what_the_lab_has_not(
    served: Door, place: str, tmp_path: Path
) -> None:
    with served.lab.client() as client:
        name = client.ask("boards")["boards"][1]["name"]
    with transports.open(device(tmp_path, f"{place}board={name}"), None, tmp_path, 60.0) as link:
        assert link.leased["lab_board"] == name
    for path, words in [
        ("x68", "no board is of kind 'x68'"),
        ("board=x86@nowhere", "the lab has not the board x86@nowhere"),
        ("x86/tag=fan", "no board of kind x86 is tagged fan"),
    ]:
        with (
            pytest.raises(UsageError, match=words),
            transports.open(device(tmp_path, f"{place}{path}"), None, tmp_path, 60.0),
        ):
            pass
        assert transports.probe_state(device(tmp_path, f"{place}{path}")).word == "unavailable"


def test_a_lease_that_is_revoked_in_a_session_is_what_the_error_tells(
    served: Door, place: str, tmp_path: Path
) -> None:
    one = device(tmp_path, f"{place}x86")
    with (
        pytest.raises(UnavailableError) as failed,
        transports.open(one, None, tmp_path, 60.0) as link,
    ):
        [lease] = leases(served)
        with served.lab.client() as client:
            client.ask("end", lease=lease["lease"], why="a new fan")
        for _ in range(100):
            link.facts()
    how = "released" if place == "lab:" else "revoked"  # root is who asks, and who has it
    assert failed.value.parts()[:2] == (f"lease {lease['lease']} has ended", f"{how}: a new fan")


def test_an_upload_goes_on_while_the_server_is_killed_and_started_again(
    served: Door, place: str, tmp_path: Path
) -> None:
    one, killed = device(tmp_path, f"{place}x86"), list[int]()
    file = tmp_path / "large"
    file.write_bytes(os.urandom(48 << 20))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    def note(count: int) -> None:
        if not killed and count > 1 << 20:
            killed.append(count)
            served.lab.kill()

    with transports.open(one, None, tmp_path, 120.0) as link:
        link.put(file, digest, note)
        assert killed and killed[0] < file.stat().st_size
        assert "tvm" in link.facts()
        served.lab.start()
        [lease] = leases(served)
        assert lease["state"] == "active"
        assert "tvm" in link.facts()
    with served.lab.client() as client:
        wait_until(lambda: set(uses(client)) == {"free"}, "the boards are back")


def test_a_lab_that_is_away_is_offline(place: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FARM_LAB", str(tmp_path / "none"))
    one = device(tmp_path, f"{place}x86" if place == "lab:" else "lab://127.0.0.1:1/x86")
    assert transports.probe_state(one).word == "offline"
    with pytest.raises(DeviceError), transports.open(one, None, tmp_path, 60.0):
        pass


def test_a_killed_client_leaves_its_board_to_others_after_the_heartbeat(
    served: Door, tmp_path: Path
) -> None:
    """It says nothing when it ends: the lease has a heartbeat of a minute at most."""
    one = device(tmp_path, "lab:x86")
    with transports.open(one, None, tmp_path, 60.0):
        [lease] = leases(served)
        assert 0 < lease["heartbeat_s"] <= 60


def test_a_wait_for_a_board_ends_with_the_work_of_its_thread(served: Door, tmp_path: Path) -> None:
    from farm.processes.cancellation import Cancellation

    one, work, failed = device(tmp_path, "lab:x86", wait_s=600), Cancellation(), list[object]()
    with served.lab.client() as client:
        lease = client.ask("request", kind="x86", for_s=60.0, count=2)["lease"]["lease"]

        def wait() -> None:
            with work.in_this_thread():
                try:
                    transports.reserve_board(one, lambda _: None, lambda _: None)
                except FarmError as error:
                    failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: len(leases(served)) == 2, "it waits")
        work.cancel()
        thread.join(LIMIT_S)
        assert failed
        wait_until(lambda: len(leases(served)) == 1, "it has left the queue")
        client.ask("end", lease=lease)


def test_the_doctor_checks_door_server_and_board(served: Door, place: str, tmp_path: Path) -> None:
    from farm.processes.deadline import Deadline
    from farm.transports.connectivity_checks import connection_layers

    def found(path: str) -> dict[str, str]:
        with contextlib.ExitStack() as stack:
            checks = connection_layers(device(tmp_path, f"{place}{path}"), stack, Deadline(60.0))
            return {layer.name: layer.check() for layer in checks}

    result = found("x86")
    assert list(result) == ["socket" if place == "lab:" else "door", "server", "board"]
    assert result["server"] == f"you are {'root' if place == 'lab:' else 'alice'}"
    assert re.fullmatch(r"2 of 2 free: x86-\S+, x86-\S+", result["board"])
    with pytest.raises(DeviceError, match="the lab has not a pi5"):
        found("pi5")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """The command line, in a folder with two small models that are built.

    A job that waited for its build could get the board that another one has just given back.
    """
    folder = tmp_path_factory.mktemp("farm")
    own = {"FARM_DATA": str(folder / "data"), "FARM_CACHE": str(folder / "cache")}
    for name, width in (("first", 8), ("second", 16)):
        onnx.save(two_layers(width), folder / f"{name}.onnx")
        words = ("compile", f"{name}.onnx", "--profile", "x86")
        assert forked_commands.run(words, {**os.environ, **own}, folder).returncode == 0

    def run(lab: Lab, url: str, *words: str, options: str = "") -> Any:
        (folder / "devices.toml").write_text(
            f'[devices.one]\nprofile = "x86"\nurl = "{url}"\noptions = {{ {options} }}\n'
        )
        environment = {**os.environ, **own, "FARM_LAB": str(lab.socket)}
        return forked_commands.run(words, environment, folder)

    return run


def two_layers(width: int) -> onnx.ModelProto:
    values = np.linspace(-1, 1, 4 * width).astype("float32").reshape(4, width)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Relu", ["h"], ["y"]),
        ],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(values, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


def test_bench_takes_the_boards_that_are_free_and_gives_them_back(
    served: Door, place: str, farm: Callable[..., Any]
) -> None:
    words = ("bench", "--quick", "--all", "first.onnx", "second.onnx", "--json")
    done = farm(served.lab, f"{place}x86", *words)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert len({run["samples"]["facts_before"]["lab_board"] for run in runs}) == 2
    with served.lab.client() as client:
        wait_until(lambda: uses(client) == ["free", "free"], "the boards are back")
        ended = client.ask("leases", ended=True)["leases"][-2:]
    assert [one["state"] for one in ended] == ["released", "released"]


def test_bench_that_waits_in_vain_is_unavailable_with_the_queues_reason(
    served: Door, place: str, farm: Callable[..., Any]
) -> None:
    with served.lab.client() as client:
        lease = client.ask("request", kind="x86", for_s=600.0, count=2)["lease"]["lease"]
        words = ("bench", "--quick", "--all", "first.onnx", "second.onnx", "--json")
        done = farm(served.lab, f"{place}x86", *words, options="wait_s = 1")
        client.ask("end", lease=lease)
    assert done.returncode == 5, done.stderr
    for run in json.loads(done.stdout)["runs"]:
        assert run["verdict"] == "UNAVAILABLE"
        assert run["failure"]["why"] == "waiting for a x86: 2 of 2 lent"


def test_devices_deploy_and_doctor_lease_too(
    served: Door, place: str, farm: Callable[..., Any]
) -> None:
    done = farm(served.lab, f"{place}x86", "devices", "--json")
    assert json.loads(done.stdout)["devices"][0]["why"] == "2 of 2 free"
    done = farm(served.lab, f"{place}x86", "deploy", "--device", "one", "first.onnx")
    assert done.returncode == 0, done.stderr
    done = farm(served.lab, f"{place}x86", "doctor", "--device", "one")
    assert done.returncode == 0, done.stdout
    assert "2 of 2 free" in done.stdout
    with served.lab.client() as client:  # the command gave its board back before it ended
        assert set(uses(client)) == {"free"}
        assert "lease-abandoned" not in [one["what"] for one in client.ask("events")["events"]]


@contextlib.contextmanager
def reservation(served: Door, place: str, count: int = 2) -> Iterator[dict[str, Any]]:
    """A reservation that has begun, of whoever asks by this way to the lab; yields its lease."""
    with served.lab.client() as client:
        if place != "lab:":
            client.ask("speak-for", user="alice")
        made = client.ask("reserve", kind="x86", in_s=0.3, for_s=600.0, count=count)["reservation"]

        def begun() -> Any:
            [one] = client.ask("reservations")["reservations"]
            held = client.ask("lease", lease=one["lease"])["lease"] if one["lease"] else {}
            return held if len(held.get("boards", ())) == count else None

        held = wait_until(begun, "the reservation's boards")
        assert held["reservation"] == made["reservation"]
        try:
            yield held
        finally:
            client.ask("end", lease=held["lease"])


def test_bench_on_the_boards_of_a_reservation_which_outlasts_it(
    served: Door, place: str, farm: Callable[..., Any], tmp_path: Path
) -> None:
    with reservation(served, place) as held:
        one = device_with_options(
            device(tmp_path, f"{place}x86"), {"reservation": held["reservation"]}
        )
        assert transports.max_parallel_jobs(one) == 2, "though no board is free for others"
        words = ("bench", "--quick", "--device", "one", "first.onnx", "second.onnx", "--json")
        number = str(held["reservation"])
        done = farm(served.lab, f"{place}x86", *words, "--reservation", number)
        assert done.returncode == 0, done.stderr
        runs = json.loads(done.stdout)["runs"]
        used = {run["samples"]["facts_before"]["lab_board"] for run in runs}
        assert used <= set(held["boards"])
        [lease] = leases(served)
        assert (lease["lease"], lease["state"]) == (held["lease"], "active")


def test_deploy_run_and_the_library_use_a_reservation(
    served: Door, farm: Callable[..., Any], tmp_path: Path
) -> None:
    with reservation(served, "lab:") as held:
        number, url = held["reservation"], "lab:x86"
        done = farm(
            served.lab, url, "deploy", "-d", "one", "first.onnx", "--reservation", str(number)
        )
        assert done.returncode == 0, done.stderr
        np.save(tmp_path / "x.npy", np.zeros((1, 4), "float32"))
        words = ("run", "-d", "one", "first.onnx", "--input", str(tmp_path / "x.npy"))
        done = farm(served.lab, url, *words, "--reservation", str(number))
        assert done.returncode == 0, done.stderr
        device(tmp_path, url)
        result = Farm.load(tmp_path / "devices.toml", store=str(tmp_path / "runs")).bench(
            "digits", device="one", preset="quick", reservation=number
        )
        assert result.run.samples and result.run.samples.facts_before["lab_board"] in held["boards"]
        [lease] = leases(served)
        assert (lease["lease"], lease["state"]) == (held["lease"], "active")


def test_profile_accuracy_and_a_comparison_in_turns_use_a_reservation(
    served: Door, farm: Callable[..., Any], tmp_path: Path
) -> None:
    labels = np.zeros(8, "int64")
    np.savez(tmp_path / "labelled.npz", inputs=np.zeros((8, 4), "float32"), labels=labels)
    with reservation(served, "lab:", 1) as held:
        number, url = str(held["reservation"]), "lab:x86"
        words = ("profile", "-d", "one", "first.onnx", "--seconds", "0.1")
        done = farm(served.lab, url, *words, "--reservation", number)
        assert done.returncode == 0, done.stderr
        words = ("accuracy", "-d", "one", "first.onnx", "--data", str(tmp_path / "labelled.npz"))
        done = farm(served.lab, url, *words, "--reservation", number)
        assert done.returncode == 0, done.stderr
        words = ("bench", "--quick", "-d", "one", "first.onnx", "--json")
        runs = []
        for _ in range(2):
            done = farm(served.lab, url, *words, "--reservation", number)
            runs.append(json.loads(done.stdout)["runs"][0]["id"])
        words = ("compare", *runs, "--in-turns", "--seconds", "1")
        done = farm(served.lab, url, *words, "--reservation", number)
        assert done.returncode == 0, done.stderr
        done = farm(served.lab, url, "compare", *runs, "--reservation", number)
        assert done.stderr.startswith("error: --reservation: nothing is measured"), done.stderr
        for command in (("profile",), ("accuracy", "--data", str(tmp_path / "labelled.npz"))):
            words = (*command, "-d", "one", "first.onnx", "--reservation", "999")
            done = farm(served.lab, url, *words)
            assert (done.returncode, done.stderr.splitlines()[0]) == (
                2,
                "error: there is no reservation 999",
            )
        with served.lab.client() as client:
            after = [one for one in client.ask("events")["events"] if one.get("lease")]
        newest = max(one["lease"] for one in after)
        assert newest == held["lease"], "no board was leased besides the reservation's"
        [lease] = leases(served)
        assert (lease["lease"], lease["state"]) == (held["lease"], "active")


def test_tuning_searches_on_the_boards_of_a_reservation(
    served: Door, farm: Callable[..., Any]
) -> None:
    with reservation(served, "lab:") as held:
        words = ("tune", "first.onnx", "--device", "one", "--minutes", "0.2", "--json")
        done = farm(served.lab, "lab:x86", *words, "--reservation", str(held["reservation"]))
        assert done.returncode == 0, done.stderr
        assert set(json.loads(done.stdout)["boards"]) == {"one-1", "one-2"}
        [lease] = leases(served)
        assert (lease["lease"], lease["state"]) == (held["lease"], "active")


def test_a_reservation_is_used_only_if_all_its_boards_are_wanted(served: Door) -> None:
    with reservation(served, "lab:", 2) as held, served.lab.client() as client:
        wanted = WantedBoards(reservation=held["reservation"])
        for fitting in (wanted, dataclasses.replace(wanted, kind="x86")):
            assert ask_for_reserved(client, fitting)["lease"] == held["lease"]
        for board in held["boards"]:
            with pytest.raises(UsageError, match=f"is not of the board {board} only"):
                ask_for_reserved(client, dataclasses.replace(wanted, board=board))


def test_a_reservation_whose_boards_are_all_taken_makes_runs_unavailable(
    served: Door, farm: Callable[..., Any], tmp_path: Path
) -> None:
    with reservation(served, "lab:", 1) as held, contextlib.ExitStack() as stack:
        number = held["reservation"]
        one = device_with_options(device(tmp_path, "lab:x86"), {"reservation": number})
        stack.enter_context(transports.open(one, None, tmp_path, LIMIT_S))
        words = ("bench", "--quick", "-d", "one", "first.onnx", "--reservation", str(number))
        done = farm(served.lab, "lab:x86", *words, options="wait_s = 1")
        assert done.returncode == 5, done.stderr
        assert done.stderr.splitlines()[-3:] == [
            f"error: all boards of reservation {number} are in use",
            f"why: {held['boards'][0]} had a session for 1 s",
            "fix: run the command again when the one that has them has ended: farm lab boards",
        ]


@pytest.mark.parametrize("command", ["bench --quick", "deploy", "run --input x.npy", "tune"])
@pytest.mark.parametrize(
    ("url", "which", "lines"),
    [
        ("lab:x86", "bob's", ["reservation {} is not yours", "it belongs to bob", "farm lab"]),
        ("lab:x86", "later", ["reservation {} has not begun", "it begins at", "farm lab"]),
        ("lab:x68", "mine", ["reservation {} is not of kind 'x68'", "it is of kind x86", "name"]),
        ("lab:board=x", "mine", ["reservation {} is not of the board x only", "it has", "use a"]),
        ("lab:x86", "none", ["there is no reservation 999", "it never was", "farm lab"]),
        ("local:", "mine", ["one cannot be reserved", "it is no device of a lab", "leave the"]),
    ],
)
def test_a_reservation_that_cannot_be_used_is_an_error_of_three_lines_before_any_build(
    served: Door, command: str, url: str, which: str, lines: list[str], farm: Callable[..., Any]
) -> None:
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(served.lab.client())
        number = 999
        if which == "mine":
            number = stack.enter_context(reservation(served, "lab:", 1))["reservation"]
        elif which != "none":
            if which == "bob's":
                client.ask("speak-for", user="bob")
            wanted = {"kind": "x86", "in_s": 3600.0, "for_s": 60.0}
            number = client.ask("reserve", **wanted)["reservation"]["reservation"]
            stack.callback(lambda: client.ask("cancel", reservation=number))
        word, *options = command.split()
        words = (word, "-d", "one", "first.onnx", *options, "--reservation", str(number))
        done = farm(served.lab, url, *words)
    assert done.returncode == 2, done.stderr
    said = done.stderr.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["error", "why", "fix"], done.stderr
    for line, words_of_it in zip(said, lines, strict=True):
        assert words_of_it.format(number) in line
