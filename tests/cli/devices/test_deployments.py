"""Deployments that stay: installed once the answer was right, run without a build or an upload,
listed, rolled back and removed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_programs
from farm_processes import DIGITS, QUICK, Farm, server
from onnx import numpy_helper
from ssh_server import SshServer

import farm as package

ZOO = Path(package.__file__).parent / "zoo" / "digits"


def boards(farm: Farm, *names: str, more: str = "") -> str:
    """Devices on this machine, each with a store of its own."""
    table = (
        '[devices.{name}]\nprofile = "x86"\nurl = "local:"\ntags = ["lab"]\noptions = {{ store = '
        '"{folder}/store-{name}" }}\n'
    )
    return "".join(table.format(name=name, folder=farm.folder) for name in names) + more


@pytest.fixture
def one(farm: Farm) -> Farm:
    """A farm with one board."""
    farm.configure(boards(farm, "one") + DIGITS + QUICK)
    return farm


@pytest.fixture
def image(farm: Farm) -> Path:
    """A handwritten digit as an input of the model."""
    path = farm.folder / "x.npy"
    np.save(
        path, np.load(ZOO / "digits-test.npz")["inputs"][:1].reshape(1, 1, 8, 8).astype("float32")
    )
    return path


def other_weights(farm: Farm, name: str = "digits.onnx") -> Path:
    """The model of the same code with other weights."""
    model = onnx.load(ZOO / "digits.onnx")
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(
                numpy_helper.from_array(
                    numpy_helper.to_array(tensor) * np.float32(0.5), tensor.name
                )
            )
    onnx.save(model, farm.folder / name)
    return farm.folder / name


def deploy(farm: Farm, *words: str | Path, code: int = 0) -> Any:
    done = farm.run("deploy", *words, "--json")
    assert done.code == code, done.err
    return done.json["runs"]


def listed(farm: Farm, name: str = "one") -> list[tuple[str, int, bool]]:
    done = farm.run("deployments", "--device", name, "--json")
    assert done.code == 0, done.err
    (device,) = done.json["devices"]
    return [
        (release["name"], release["release"], release["current"]) for release in device["releases"]
    ]


def outputs(farm: Farm, *words: str | Path) -> np.ndarray[Any, Any]:
    """What `farm run` gives for a handwritten digit."""
    done = farm.run("run", "--input", "x.npy", "--output", "out.npz", *words)
    assert done.code == 0, done.err
    with np.load(farm.folder / "out.npz") as kept:
        (result,) = (kept[name] for name in kept.files)
    (farm.folder / "out.npz").unlink()
    return np.asarray(result)


def test_a_deployed_model_runs_without_its_source_a_build_or_an_upload(
    one: Farm, image: Path
) -> None:
    (run,) = deploy(one, "--device", "one", "digits")
    assert run["samples"]["release"] == 1
    built = outputs(one, "--device", "one", "digits", "--build")
    one.configure(boards(one, "one"))
    (one.folder / "empty").mkdir()
    (one.folder / "empty" / "agents").symlink_to(one.cache / "agents")
    one.cache = one.folder / "empty"
    assert np.array_equal(outputs(one, "--device", "one", "digits"), built), "the very bits"
    assert not (one.cache / "artifacts").exists() and not (one.cache / "models").exists()
    done = one.run("run", "--device", "one", "digits", "--input", "x.npy")
    assert "release 1 of" in done.err
    assert (
        len(
            re.findall(
                r"^ +-?[\d.]+  (zero|one|two|three|four|five|six|seven|eight|nine|\d)",
                done.out,
                re.MULTILINE,
            )
        )
        == 5
    ), done.out
    one.assert_nothing_is_left()


def test_an_unchanged_model_is_no_new_release_and_sends_nothing(one: Farm) -> None:
    first, second = (
        deploy(one, "--device", "one", "digits"),
        deploy(one, "--device", "one", "digits"),
    )
    assert (first[0]["samples"]["release"], second[0]["samples"]["release"]) == (1, 1)
    assert first[0]["samples"]["uploaded"] > 0
    assert second[0]["samples"]["uploaded"] == 0
    assert listed(one) == [("digits", 1, True)]


def test_a_rollback_gives_back_the_bits_of_the_release_before(one: Farm, image: Path) -> None:
    deploy(one, "--device", "one", "digits")
    before = outputs(one, "--device", "one", "digits")
    one.configure(boards(one, "one") + QUICK + '[models.digits]\nsource = "digits.onnx"\n')
    other_weights(one)
    assert deploy(one, "--device", "one", "digits")[0]["samples"]["release"] == 2
    assert listed(one) == [("digits", 2, True), ("digits", 1, False)]
    after = outputs(one, "--device", "one", "digits")
    assert not np.allclose(before, after)
    done = one.run("rollback", "--device", "one", "digits")
    assert done.code == 0, done.err
    assert "release 1 of" in done.out
    assert listed(one) == [("digits", 2, False), ("digits", 1, True)]
    assert np.array_equal(outputs(one, "--device", "one", "digits"), before)
    assert one.run("rollback", "--device", "one", "digits").code == 5, (
        "there is none before the first"
    )
    assert one.run("rollback", "--device", "one", "digits", "--to", "2").code == 0
    assert np.array_equal(outputs(one, "--device", "one", "digits"), after)
    assert one.run("rollback", "--device", "one", "digits", "--to", "7").code == 5


def test_the_same_weights_with_other_code_send_the_library_only(one: Farm) -> None:
    deploy(one, "--device", "one", "digits")
    model = onnx.load(ZOO / "digits.onnx")
    last = model.graph.output[0].name
    next(node for node in model.graph.node if last in node.output).output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Neg", ["before"], [last]))
    onnx.save(model, one.folder / "negated.onnx")
    one.configure(boards(one, "one") + QUICK + '[models.digits]\nsource = "negated.onnx"\n')
    (run,) = deploy(one, "--device", "one", "digits")
    libraries = [path.stat().st_size for path in one.cache.glob("artifacts/*/library.so")]
    assert run["samples"]["uploaded"] in libraries
    assert run["samples"]["release"] == 2


def test_what_is_undeployed_is_gone(one: Farm, image: Path) -> None:
    deploy(one, "--device", "one", "digits")
    done = one.run("undeploy", "--device", "one", "digits")
    assert done.code == 0, done.err
    assert listed(one) == []
    assert "nothing is deployed" in one.run("deployments", "--device", "one").err
    assert "release" not in one.run("run", "--device", "one", "digits", "--input", "x.npy").err, (
        "built again"
    )
    again = one.run("undeploy", "--device", "one", "digits")
    assert again.code == 5
    assert "digits" in again.error["error"] + again.error["why"]


def test_a_model_whose_answer_is_wrong_is_not_installed(one: Farm) -> None:
    deploy(one, "--device", "one", "digits")
    shutil.copytree(one.cache, one.folder / "cache", symlinks=True)
    one.cache = one.folder / "cache"
    for reference in one.cache.glob("models/*/reference.npz"):
        with np.load(reference) as kept:
            content = {
                name: kept[name] + (1 if name.startswith("output") else 0) for name in kept.files
            }
        np.savez(reference, **content)  # type: ignore[arg-type]
    before = listed(one)
    (run,) = deploy(one, "--device", "one", "digits", code=7)
    assert run["verdict"] == "WRONG"
    assert run["samples"]["release"] is None
    assert listed(one) == before


def test_the_others_follow_where_all_models_are_well_on_the_canary(farm: Farm) -> None:
    halves = f'[models.halves]\nsource = "{other_weights(farm, "halves.onnx")}"\n'
    farm.configure(boards(farm, "a", "b", "c") + DIGITS + halves + QUICK)
    running = farm.run("deploy", "--tag", "lab", "--canary", "1", "digits", "halves", "--json")
    assert running.code == 0, running.err
    assert [run["samples"]["release"] for run in running.json["runs"]] == [1] * 6
    said = re.findall(r"([abc]) (digits|halves): (connecting|RIGHT)", running.err)
    begun = [said.index(one) for one in said if one[0] in "bc" and one[2] == "connecting"]
    for model in ("digits", "halves"):
        assert said.index(("a", model, "RIGHT")) < min(begun), running.err


def test_nothing_is_begun_on_the_others_where_a_canary_fails(farm: Farm) -> None:
    broken = (
        '[devices.broken]\nprofile = "x86"\nurl = "local:"\ntags = ["lab"]\noptions = { launcher '
        '= "false" }\n'
    )
    farm.configure(boards(farm, more=broken) + boards(farm, "b", "c") + DIGITS + QUICK)
    runs = deploy(farm, "--device", "broken", "--tag", "lab", "--canary", "1", "digits", code=1)
    assert [(run["device"], run["verdict"]) for run in runs] == [
        ("broken", "FAILED"),
        ("b", "SKIPPED"),
        ("c", "SKIPPED"),
    ]
    assert listed(farm, "b") == []
    shown = farm.run("deploy", "--device", "broken", "--tag", "lab", "--canary", "1", "digits")
    assert "digits on b: not begun: a canary failed" in shown.out
    farm.assert_nothing_is_left()


def test_devices_that_cannot_be_asked_do_not_hide_the_others(farm: Farm) -> None:
    gone = '[devices.gone]\nprofile = "x86"\nurl = "rpc://127.0.0.1:1"\n'
    farm.configure(boards(farm, "one", more=gone) + DIGITS + QUICK)
    deploy(farm, "--device", "one", "digits")
    done = farm.run("deployments")
    assert done.code == 1
    assert "digits" in done.out
    assert "gone is offline" in done.error["error"]
    assert farm.run("deployments", "--device", "gone").code == 5


@pytest.fixture
def tvm_server(farm: Farm) -> Iterator[int]:
    words = [
        sys.executable,
        "-m",
        "tvm.exec.rpc_server",
        "--host=127.0.0.1",
        "--port=19300",
        "--port-end=19399",
    ]
    with server(
        farm.folder, *words, says=r"bind to .*:(\d+)", env=tvm_programs.environment(farm.env)
    ) as port:
        yield int(port)


def test_tvms_own_server_keeps_nothing_and_it_is_said(farm: Farm, tvm_server: int) -> None:
    farm.configure(
        f'[devices.theirs]\nprofile = "x86"\nurl = "rpc://127.0.0.1:{tvm_server}"\n'
        + DIGITS
        + QUICK
    )
    done = farm.run("deploy", "--device", "theirs", "digits")
    assert done.code == 0, done.err
    assert "not kept there" in done.out
    asked = farm.run("deployments", "--device", "theirs")
    assert asked.code == 5
    assert "keeps no deployments" in asked.error["error"]


@pytest.mark.parametrize(
    ("profile", "arch", "emulator"), [("x86", "x86_64", ""), ("rasp3b", "armv7", "qemu-arm")]
)
def test_the_agent_alone_gives_the_same_output(
    farm: Farm,
    image: Path,
    agents: Callable[[str], Path],
    emulators: None,
    profile: str,
    arch: str,
    emulator: str,
) -> None:
    url = "qemu:" if emulator else "local:"
    store = farm.folder / "store"
    farm.configure(
        f'[devices.one]\nprofile = "{profile}"\nurl = "{url}"\noptions = {{ store = "{store}" }}\n'
        + DIGITS
        + QUICK
    )
    deploy(farm, "--device", "one", "digits")
    by_farm = outputs(farm, "--device", "one", "digits")
    command = [
        *filter(None, [emulator]),
        agents(arch),
        "run",
        "digits",
        "--input",
        image,
        "--output",
        "alone",
        "--store",
        store,
    ]
    done = subprocess.run(command, cwd=farm.folder, capture_output=True, text=True, check=True)
    (file,) = (farm.folder / "alone").glob("*.npy")
    assert np.array_equal(np.load(file), by_farm), "the very bits"
    assert len(done.stdout.splitlines()) >= 5


@pytest.mark.parametrize(
    ("profile", "launcher"), [("x86", ""), ("rasp3b", "qemu-arm"), ("rk3399", "qemu-aarch64")]
)
def test_a_board_by_ssh_keeps_releases_and_runs_them_alone(
    farm: Farm, server: SshServer, image: Path, emulators: None, profile: str, launcher: str
) -> None:
    options = f'options = {{ launcher = "{launcher}", threads = 1 }}\n' if launcher else ""
    board = f'[devices.one]\nprofile = "{profile}"\nurl = "{server.url}"\n{options}' + QUICK
    farm.configure(board + DIGITS)
    assert deploy(farm, "--device", "one", "digits")[0]["samples"]["release"] == 1
    first = outputs(farm, "--device", "one", "digits")
    other_weights(farm)
    farm.configure(board + '[models.digits]\nsource = "digits.onnx"\n')
    assert deploy(farm, "--device", "one", "digits")[0]["samples"]["release"] == 2
    assert not np.allclose(outputs(farm, "--device", "one", "digits"), first)
    assert farm.run("rollback", "--device", "one", "digits").code == 0
    assert np.array_equal(outputs(farm, "--device", "one", "digits"), first)
    command = [server.kept / "farm-agent", "run", "digits", "--input", image, "--output", "alone"]
    subprocess.run(command, cwd=farm.folder, capture_output=True, check=True)
    (file,) = (farm.folder / "alone").glob("*.npy")
    assert np.array_equal(np.load(file), first), "the very bits, with no host around"
    assert farm.run("undeploy", "--device", "one", "digits").code == 0
    assert listed(farm) == []
    farm.assert_nothing_is_left()
