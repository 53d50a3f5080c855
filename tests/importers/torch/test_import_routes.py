"""Two networks by every route that models come by; tools/route-table takes all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import route_cells

TOOLS = Path(route_cells.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("route", list(route_cells.ROUTES))
@pytest.mark.parametrize("name", ["any_batch", "bidirectional_lstm"])
def test_a_network_is_right_by_every_route(name, route, tmp_path, monkeypatch):
    monkeypatch.chdir(TOOLS)
    cell = route_cells.made(name, route, tmp_path)
    assert (cell.kind, cell.why) == (route_cells.RIGHT, "") and cell.max_abs < 1e-5


def test_the_table_numbers_what_is_refused():
    cells = [
        route_cells.Cell("net", "onnx", route_cells.RIGHT, 2e-6),
        route_cells.Cell("net", "pt2", route_cells.REFUSED, why="no Det"),
    ]
    lines = route_cells.table(cells, ["onnx", "pt2"]).splitlines()
    assert lines == [
        "| model | onnx | pt2 |",
        "|---|---|---|",
        "| net | 2.0e-06 | refused [1] |",
        "",
        "1. no Det",
    ]
