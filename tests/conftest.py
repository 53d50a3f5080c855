"""Fixtures that every test may use."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from quick_tier import is_quick, refuse_tvm

from farm.agent.build import ensure_executable
from farm.importers.torch import python_source_dependencies
from farm.processes.deadline import Deadline
from farm.processes.garbage import collect_garbage_less_often

_BUILD_S = 1200.0
# Folders whose tests compute; those of the others mostly wait.
_COMPUTING = ("compiler", "importers", "pipeline", "quantize", "zoo")

# Hypothesis calls an example a failure that takes 0.2 s, which a busy machine may need for any.
# The same examples each time, unless FARM_HYPOTHESIS=random asks for others.
settings.register_profile(
    "same examples",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(
    "random" if os.environ.get("FARM_HYPOTHESIS") == "random" else "same examples"
)

# Programs under test inherit signals that are ignored, for which some tests wait: hang-ups under
# nohup, Ctrl-C in a shell's background.
for number, handler in (
    (signal.SIGHUP, lambda *_: None),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


# A thread of TVM's pool that has nothing to do gives its core away 300,000 times before it sleeps,
# each time for a time slice beside other programs that compute. A thousand times here. The agent
# has a pool of its own.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # as farm's commands do
os.environ.pop("PYTHONUNBUFFERED", None)  # output that waits in a buffer is written at the end

# Torch's threads wait for each other without a pause, beside other tests that compute.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

collect_garbage_less_often()  # as farm's processes do

# jsonschema loads this for IRIs, which no schema of ours has: seconds for their grammar in each
# worker of pytest-xdist. test_wheel.py, whose document has IRIs, checks it in another process.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


@pytest.fixture(autouse=True, scope="session")
def _tests_are_no_models() -> Iterator[None]:
    """Leave the modules of tests, of which each worker has hundreds, out of what a `python:` source
    has read.
    """
    system = (*python_source_dependencies._SYSTEM, Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_source_dependencies, "_SYSTEM", system)
        yield


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    """Give the cores back that TVM's threads have taken from this one, for the programs of later
    tests.
    """
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help="only the tests of tests/helpers/quick_tier.py, without TVM",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--quick"):
        refuse_tvm()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over files of other tiers without importing them."""
    return True if config.getoption("--quick") and not is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the files that compute with those that wait for boards, deadlines and networks.

    Each kind keeps its order, and both come to their ends together: workers that take a file after
    the other then wait and compute at the same time.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    root = Path(__file__).parent

    def computes(file: Path) -> bool:
        return file.is_relative_to(root) and file.relative_to(root).parts[0] in _COMPUTING

    places: list[tuple[float, Path]] = []
    for kind in (True, False):
        found = [file for file in files if computes(file) is kind]
        places += [(place / len(found), file) for place, file in enumerate(found)]
    items[:] = [item for _, file in sorted(places) for item in files[file]]


def pytest_collection_finish() -> None:
    """Let no collection search what was loaded for the tests, which stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def agents() -> Callable[[str], Path]:
    """Architecture -> the path of its agent, built at the first use and kept in the farm's
    cache.
    """
    cache = Path(os.environ.get("FARM_CACHE") or Path.home() / ".cache" / "farm")

    def executable(arch: str) -> Path:
        return ensure_executable(arch, cache, lambda _text, _fraction: None, Deadline(_BUILD_S))

    return executable
