"""A profile of this machine is measured while the other workers pause."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from host_profile import HOST

from farm import zoo
from farm.checked_model_import import prepare_model
from farm.compiler.build import find_or_build_model
from farm.executor.profiling import profile_model
from farm.processes.workers import TaskContext
from farm.types import BuildWithAgent, Device, Progress

BEGINS, ENDS = "others pause", "others go on"


class NotingContext(TaskContext):
    """A context that keeps what is noted, and when the others pause."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.noted: list[str] = []

    def note(self, value: object) -> None:
        if isinstance(value, Progress):
            self.noted.append(value.note)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        self.noted.append(BEGINS)
        yield
        self.noted.append(ENDS)


def test_others_pause_from_the_warm_up_to_the_last_inference(
    agents: Callable[[str], Path], tmp_path: Path
) -> None:
    context, model = NotingContext(tmp_path / "scratch"), zoo.digits()
    prepared = prepare_model(context, model, HOST, tmp_path / "cache")
    built = find_or_build_model(context, prepared, HOST, tmp_path / "cache")
    fitted = BuildWithAgent(model, prepared, built, agents("x86_64"))
    device = Device("host", HOST, "local:")
    profile = profile_model(context, device, fitted, None, 0.05, 120.0)
    assert profile.plain_s
    begin, end = context.noted.index(BEGINS), context.noted.index(ENDS)
    measured = [
        place
        for place, note in enumerate(context.noted)
        if note.startswith("warming up") or note.endswith("recorded")
    ]
    assert measured and all(begin < place < end for place in measured)
