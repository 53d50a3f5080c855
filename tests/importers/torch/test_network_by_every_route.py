"""Two networks by every route; tools/compare-import-routes takes all of the zoo."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
import import_route_results

TOOLS = Path(import_route_results.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.mark.parametrize("route", list(import_route_results.ROUTES))
@pytest.mark.parametrize("name", ["any_batch", "bidirectional_lstm"])
def test_a_network_is_right_by_every_route(name, route, tmp_path, monkeypatch):
    monkeypatch.chdir(TOOLS)
    cell = import_route_results.made(name, route, tmp_path)
    assert (cell.kind, cell.why) == (import_route_results.RIGHT, "") and cell.max_abs < 1e-5


def test_the_table_numbers_what_is_refused():
    cells = [
        import_route_results.Cell("net", "onnx", import_route_results.RIGHT, 2e-6),
        import_route_results.Cell("net", "pt2", import_route_results.REFUSED, why="no Det"),
    ]
    lines = import_route_results.table(cells, ["onnx", "pt2"]).splitlines()
    assert lines == [
        "| model | onnx | pt2 |",
        "|---|---|---|",
        "| net | 2.0e-06 | refused [1] |",
        "",
        "1. no Det",
    ]
