"""What goes up to a board, and what happens when it breaks on the way: nothing that has arrived
goes twice, and nothing that is there.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from farm_processes import Done, Farm, command
from farm_processes import server as program
from large_upload_models import arrives, write_heavy_model
from ssh_board_checks import assert_failed, assert_nothing_is_left, configure
from ssh_server import SshServer
from throttled_tcp_relay import Relay, slow_relay
from timeouts import patient

SPEED = 4e6  # bytes per second of a slow way


def deploy(farm: Farm, *names: str) -> Done:
    return farm.run("deploy", "--device", "board", *names, "--json")


def uploaded(done: Done) -> int:
    assert done.code == 0, done.err
    return int(done.json["runs"][0]["samples"]["uploaded"])


def files(farm: Farm, done: Done) -> dict[str, int]:
    """The sizes of what was deployed, by name."""
    folder = farm.cache / "artifacts" / done.json["runs"][0]["artifact_digest"]
    return {
        path.name: path.stat().st_size
        for path in folder.rglob("*")
        if path.suffix in (".so", ".bin") or path.name == "tensor-cache.json"
    }


def test_what_is_there_is_not_sent_again(farm: Farm, server: SshServer) -> None:
    size = write_heavy_model(farm.folder / "heavy.onnx")
    write_heavy_model(farm.folder / "other.onnx", "Relu")
    configure(farm, server.url)
    first = deploy(farm, "heavy.onnx")
    assert uploaded(first) == sum(files(farm, first).values()) > size
    assert uploaded(deploy(farm, "heavy.onnx")) == 0
    changed = deploy(farm, "other.onnx")
    assert uploaded(changed) == files(farm, changed)["library.so"], "the same weights, other code"


def by_a_cut(farm: Farm, relay: Relay) -> None:
    relay.cut()


def by_its_agents_end(farm: Farm, relay: Relay) -> None:
    os.kill(farm.processes_like(r"^\S*farm-agent --stdio")[0], signal.SIGKILL)


@pytest.mark.parametrize("breaks", [by_a_cut, by_its_agents_end])
def test_an_upload_that_breaks_goes_on_where_it_was(
    farm: Farm, server: SshServer, breaks: Callable[[Farm, Relay], None]
) -> None:
    size = write_heavy_model(farm.folder / "heavy.onnx")
    with slow_relay(server.port, SPEED) as relay:
        configure(farm, through(relay, server))
        running = farm.start("deploy", "--device", "board", "heavy.onnx", "--json")
        arrived = arrives(server.folder, size // 2)
        breaks(farm, relay)
        running.says("; trying again in 1 s")
        assert size <= uploaded(running.end()) < size + (size - arrived), running.said
    assert_nothing_is_left(farm, server)
    assert list(server.folder.rglob("*.part")) == []


def through(relay: Relay, server: SshServer) -> str:
    """The url of the board by way of the relay, its key vouched for there too."""
    there, here = f"127.0.0.1:{server.port}", f"127.0.0.1:{relay.port}"
    key = server.known_hosts.read_text()
    server.known_hosts.write_text(key + key.replace(f":{server.port} ", f":{relay.port} "))
    return server.url.replace(there, here)


def test_a_board_that_does_not_come_back_is_told(farm: Farm, server: SshServer) -> None:
    size = write_heavy_model(farm.folder / "heavy.onnx")
    with slow_relay(server.port, SPEED) as relay:
        port = relay.port
        configure(farm, through(relay, server), options=f"deadline_s = {patient(15)}")
        running = farm.start("deploy", "--device", "board", "heavy.onnx")
        arrives(server.folder, size // 3)
        relay.close()
        assert_failed(
            running.end(),
            5,
            f"nobody listens at 127.0.0.1:{port}|the SSH connection to .*:{port} broke",
        )
    assert_nothing_is_left(farm, server)


def test_an_upload_to_an_agent_at_an_address_goes_on_too(farm: Farm) -> None:
    size, store = write_heavy_model(farm.folder / "heavy.onnx"), farm.cache / "agent" / "store"
    words, env = command("agent", "--port", "0", "--no-key"), {**farm.env, "FARM_TEST": "a server"}
    with (
        program(farm.folder, *words, says=r"listening on [^:]*:(\d+)", env=env) as port,
        slow_relay(int(port), SPEED) as relay,
    ):
        configure(farm, f"rpc://127.0.0.1:{relay.port}")
        running = farm.start("deploy", "--device", "board", "heavy.onnx", "--json")
        arrived = arrives(store, size // 2)
        relay.cut()
        running.says("; trying again in 1 s")
        assert size <= uploaded(running.end()) < size + (size - arrived), running.said
    farm.assert_nothing_is_left()
    assert list(store.rglob("*.part")) == []
