"""What commands print for programs, with real devices, is valid by the published schemas; and the
numbers for Prometheus.
"""

from __future__ import annotations

import socket
import urllib.request
from typing import Any

import jsonschema
import pytest
from farm_processes import Farm
from timeouts import LIMIT_S, wait_until

from farm.views.schema import schema


def valid(body: Any) -> None:
    published = schema(body["schema"].split("/")[1])
    jsonschema.Draft202012Validator(published).validate(body)
    assert set(body) <= set(published["properties"])


@pytest.mark.parametrize(
    "line",
    [
        "bench --device host digits",
        "bench --device host nowhere.onnx",
        "bisect --device host digits",
        "deploy --device host digits",
        "deployments --device host",
        "undeploy --device host nothing",
        "devices --device host -v",
        "check digits",
        "compile digits",
        "doctor --device host",
    ],
)
def test_what_a_command_prints_is_valid(farm: Farm, line: str) -> None:
    valid(farm.run(*line.split(), "--json").json)


def test_a_bench_leaves_numbers_for_prometheus(farm: Farm) -> None:
    done = farm.run(
        "bench",
        "--device",
        "host",
        "digits",
        "--prometheus",
        "farm.prom",
        "--save-baseline",
        "first",
        "--json",
    )
    text = (farm.folder / "farm.prom").read_text()
    assert 'farm_latency_p50_seconds{device="host",model="digits",profile="x86"}' in text
    again = farm.run("bench", "--device", "host", "digits", "--baseline", "first", "--json")
    valid(done.json)
    valid(again.json)
    assert len(again.json["comparison"]) == 1


def test_a_tracker_tells_prometheus_of_its_boards(farm: Farm) -> None:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    running = farm.start("tracker", "--port", "0", "--metrics", str(port))
    running.says("tracker on")
    address = running.said.split("tracker on ")[1].split()[0]
    agent = farm.start("agent", "--port", "0", "--tracker", address, "--key", "lab")

    def numbers() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return str(answer.read().decode())

    wait_until(
        lambda: 'farm_tracker_boards_free{key="lab"} 1.0' in numbers(),
        "the board, which registers before it can be lent",
    )
    assert 'farm_tracker_boards{key="lab"} 1.0' in numbers()
    for one in (agent, running):
        one.child.terminate()
        one.end()
