"""pytest plugin: the fixture `farm` measures a model on a device within a test.

    def test_latency(farm):
        assert farm.bench("model.onnx", device="pi5").p50_ms < 40

A figure that is not reliable (the run is NOISY, THROTTLED or EMULATED, or has too few samples) is
never compared: the test fails and says why, or is skipped if `farm_untrusted = skip` is set in
pytest's configuration. A WRONG answer always fails.

The devices come from `farm_config` or --farm-config, or from the devices.toml that the `farm`
command would use. Every run is stored, and pytest's summary lists them.
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
    """Register the plugin's options."""
    group = parser.getgroup("farm")
    group.addoption("--farm-config", metavar="FILE", help="The devices.toml of the `farm` fixture.")
    group.addoption(
        "--farm-store", metavar="URL", help="Where its runs are stored: a file, or postgresql://..."
    )
    parser.addini("farm_config", "The devices.toml of the `farm` fixture.", type="paths")
    parser.addini(
        "farm_untrusted",
        "The result of a test that uses an unreliable figure: fail or skip.",
        default="fail",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the plugin's settings. Raises pytest.UsageError for an unknown value."""
    config.stash[_RUNS] = []
    if config.getini("farm_untrusted") not in _CHOICES:
        raise pytest.UsageError(
            f"farm_untrusted is {config.getini('farm_untrusted')!r}; it is one of "
            f"{', '.join(_CHOICES)}"
        )


@pytest.fixture(scope="session")
def farm(pytestconfig: pytest.Config) -> Farm:
    """Return a `farm.api.Farm`: `farm.bench(model, device=...)` returns a Result with p50_ms."""
    from farm.api import Farm

    given = pytestconfig.getoption("--farm-config")
    configured: list[Path] = pytestconfig.getini("farm_config")
    path = given or (configured[0] if configured else None)
    return Farm.load(
        path, store=pytestconfig.getoption("--farm-store"), kept=pytestconfig.stash[_RUNS].append
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Skip a test that used an unreliable figure, if configured; a wrong answer always fails."""
    from farm import sanitize
    from farm.errors import UntrustedNumber

    try:
        return (yield)
    except UntrustedNumber as error:
        if item.config.getini("farm_untrusted") != "skip" or error.wrong:
            raise
        pytest.skip(sanitize.sanitized_line(f"{error.what}: {error.why}"))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List the runs that the tests made."""
    from farm import formatting

    if runs := config.stash[_RUNS]:
        terminalreporter.section("farm")
        for run in runs:
            figure = (
                formatting.format_median_latency_and_iqr(run)
                if run.latency and not run.emulated
                else ""
            )
            terminalreporter.line(
                formatting.sanitized_line(
                    f"{run.title} on {run.device}: {run.verdict.value} {figure} "
                    f"({formatting.verdict_reason(run)})"
                )
            )
