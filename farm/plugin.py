"""pytest's fixture `farm`: a test measures a model on a device, and fails where it is too slow.

    def test_latency(farm):
        assert farm.bench("model.onnx", device="pi5").p50_ms < 40

A figure that is not to be relied on (the run is NOISY, THROTTLED or EMULATED, or has too few samples) never compares: the test fails, or is
skipped with `farm_untrusted = skip` in pytest's configuration, and says why. A WRONG answer always fails. The devices are those of
`farm_config`, --farm-config, or of what `farm` itself would find; every run is kept, and pytest's summary lists them.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from farm.api import Farm
    from farm.types import Run

_RUNS = pytest.StashKey[list["Run"]]()
_CHOICES = ("fail", "skip")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("farm")
    group.addoption("--farm-config", metavar="FILE", help="The devices.toml of the `farm` fixture.")
    group.addoption("--farm-store", metavar="URL", help="Where its runs are kept: a file, or postgresql://...")
    parser.addini("farm_config", "The devices.toml of the `farm` fixture.", type="paths")
    parser.addini("farm_untrusted", "What becomes of a test that asks for a figure not to be relied on: fail or skip.", default="fail")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_RUNS] = []
    if config.getini("farm_untrusted") not in _CHOICES:
        raise pytest.UsageError(f"farm_untrusted is {config.getini('farm_untrusted')!r}; it is one of {', '.join(_CHOICES)}")


@pytest.fixture(scope="session")
def farm(pytestconfig: pytest.Config) -> Farm:
    """The farm: see `farm.api.Farm`. `farm.bench(model, device=...)` gives a Result with p50_ms and verdict."""
    from farm.api import Farm

    given = pytestconfig.getoption("--farm-config")
    configured: list[Path] = pytestconfig.getini("farm_config")
    path = given or (configured[0] if configured else None)
    return Farm.load(path, store=pytestconfig.getoption("--farm-store"), kept=pytestconfig.stash[_RUNS].append)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Turns a figure that is not to be relied on into a skip, where that is wished; a wrong answer never."""
    from farm.errors import UntrustedNumber

    try:
        return (yield)
    except UntrustedNumber as error:
        if item.config.getini("farm_untrusted") != "skip" or error.wrong:
            raise
        pytest.skip(f"{error.what}: {error.why}")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    from farm import words

    if runs := config.stash[_RUNS]:
        terminalreporter.section("farm")
        for run in runs:
            figure = words.latency(run) if run.latency and not run.emulated else ""
            terminalreporter.line(words.plain(f"{run.title} on {run.device}: {run.verdict.value} {figure} ({words.why(run)})"))
