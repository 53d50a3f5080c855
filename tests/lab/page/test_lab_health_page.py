"""The health of boards over HTTP: page, REST and metrics. A real agent is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import jsonschema
import pytest
from lab_agents import agent_boards
from lab_http import Paged
from lab_power import Powered, becomes
from lab_process import lab
from timeouts import wait_until

from farm.views.schema import schema

LAB = """
[lab]
heartbeat = "1s"
[lab.health]
every = "1d"
"""
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def paged(
    agents: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Paged]:
    """A lab with a board that has been found right."""
    folder = tmp_path_factory.mktemp("powered")
    board = Powered("pi5-07", folder / "pi5-07", agents("x86_64"))
    with lab("--page", "0", inventory=f"{LAB}{board.table}") as one, one.client() as client:
        board.plug_in(one.port)
        try:
            becomes(client, "pi5-07", "good")
            yield Paged(one)
        finally:
            board.unplug()


def test_the_health_of_a_board_by_rest_has_its_checks_and_facts(paged: Paged) -> None:
    answer = paged.get("/api/1/boards/pi5-07/health")
    assert answer.status == 200, answer.text
    jsonschema.validate(answer.json, schema("lab_health"))
    health = answer.json["health"]
    assert (health["board"], health["state"], health["out"]) == ("pi5-07", "good", "")
    [check] = health["checks"]
    assert check["verdict"] == "right" and check["median_s"] > 0 and check["facts"]["kernel"]
    assert health["due_at"] > check["at"] and not health["reduced_stability"]
    missing = paged.get("/api/1/boards/pi5-08/health")
    assert missing.status == 404 and missing.json["error"]["what"] == "there is no board 'pi5-08'"


def test_the_command_shows_the_checks_of_a_board(paged: Paged) -> None:
    done = paged.lab.farm("health", "pi5-07")
    assert done.returncode == 0 and "pi5-07 is good" in done.stdout and "right" in done.stdout
    done = paged.lab.farm("health", "pi5-08", "--json")
    assert done.returncode == 2 and "there is no board 'pi5-08'" in done.stderr + done.stdout


def test_an_administrator_drains_and_returns_a_board_by_rest_and_by_the_page(paged: Paged) -> None:
    place = "/api/1/boards/pi5-07"
    assert paged.ask("POST", f"{place}/drain", {"because": "x"}).status == 403, "who asks?"
    done = paged.ask("POST", f"{place}/drain", {"because": "a new fan"}, unix=True)
    assert done.status == 200, done.text
    jsonschema.validate(done.json, schema("lab_board"))
    assert done.json["board"]["use"] == "out"
    assert "out of service: a new fan" in done.json["board"]["barred"]
    assert '<span aria-hidden="true">!</span> out' in paged.get("/").text
    paged.enter()
    page = paged.get(f"/board?{urlencode({'name': 'pi5-07'})}").text
    assert "out of service: a new fan" in page and "Cycle power" in page
    token = page.split('name="token" value="')[1].split('"')[0]
    form = urlencode({"do": "return", "because": "done", "token": token})
    back = paged.ask("POST", "/board?name=pi5-07", form, Content_Type=FORM)
    assert back.status == 303, back.text
    with paged.lab.client() as client:
        becomes(client, "pi5-07", "good")
    forged = urlencode({"do": "drain", "because": "x", "token": "forged"})
    assert paged.ask("POST", "/board?name=pi5-07", forged, Content_Type=FORM).status == 403
    assert paged.ask("POST", f"{place}/explode", {}, unix=True).status in (404, 405)


def test_the_rows_say_how_fit_a_board_is_also_of_one_that_is_silent(
    paged: Paged, agents: Callable[[str], Path], tmp_path: Path
) -> None:
    with agent_boards(agents, tmp_path) as start, paged.lab.client() as client:
        silent = start(paged.lab.port, "--board", "pi5-09")
        wait_until(
            lambda: "pi5-09" in {one["name"] for one in client.ask("boards")["boards"]}, "it"
        )
        silent.freeze()
        wait_until(
            lambda: (
                next(one for one in client.ask("boards")["boards"] if one["name"] == "pi5-09")[
                    "use"
                ]
                == "silent"
            ),
            "it is silent",
        )
        page = paged.get("/")
        assert page.status == 200
        assert '<span aria-hidden="true">✓</span> good' in page.text
        assert '<span aria-hidden="true">✗</span> silent' in page.text
        assert "it is silent" in page.text


def test_checks_power_and_heartbeats_are_in_the_metrics(paged: Paged) -> None:
    lines = paged.get("/metrics").text.splitlines()
    assert any(one.startswith('farm_lab_checks_total{verdict="right"}') for one in lines), lines
    assert 'farm_lab_check_latency_ratio{board="pi5-07"}' in "\n".join(lines)
    assert any(one.startswith('farm_lab_heartbeat_age_seconds{board="pi5-07"}') for one in lines)
    assert any(one.startswith("farm_lab_commit_seconds_count{}") for one in lines)
    assert "# TYPE farm_lab_commit_seconds histogram" in lines
