"""Judge what farm makes of calls of torch: export, import, build for this machine, run, compare.

The reference is torch, run eagerly.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from random_operators.comparing import (
    BROKEN,
    HOST,
    REFUSED,
    TOGETHER,
    UNJUDGED,
    Judged,
    judge_together,
    one_line,
)
from random_operators.random_values import Array

from farm.compiler.host_run import compile_host_runner
from farm.errors import FarmError
from farm.importers.torch.load import load
from farm.types import Model
from random_torch_operators.drawing import Calculation, Case, fed_tensors


def judge(cases: Sequence[Case]) -> Iterator[Judged]:
    """Yield what becomes of each case. Those of one format are built together."""
    ready: dict[bool, list[tuple[Case, list[Array]]]] = defaultdict(list)
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="operators-") as folder:
            try:
                answers = expected(case)
                path = _saved([case], Path(folder))
            except Exception as error:
                yield Judged(case, UNJUDGED, one_line(error))
                continue
            try:
                load(Model("case", str(path)))
            except FarmError as error:
                yield Judged(case, REFUSED, f"{error.what}: {error.why}")
            except Exception as error:
                yield Judged(case, BROKEN, one_line(error))
            else:
                ready[case.traced].append((case, answers))
    for some in ready.values():
        for at in range(0, len(some), TOGETHER):
            yield from judge_together(some[at : at + TOGETHER], run_together)


def expected(case: Case) -> list[Array]:
    """Return torch's answers."""
    with torch.no_grad():
        return [value.numpy() for value in Calculation(case)(*fed_tensors(case.fed))]


def run_together(cases: Sequence[Case], answers: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Return the outputs of each case, built by farm as one model; raises what farm raises."""
    with tempfile.TemporaryDirectory(prefix="operators-") as folder:
        imported = load(Model("case", str(_saved(cases, Path(folder)))))
    run = compile_host_runner(imported.module, imported.weights, HOST)
    made = iter(run([tensor.numpy() for tensor in _fed(cases)]))
    return [[next(made) for _ in of] for of in answers]


class _Several(torch.nn.Module):
    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.each = torch.nn.ModuleList([Calculation(case) for case in cases])
        self.counts = [len(case.fed) for case in cases]

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left, made = list(values), []
        for count, calculation in zip(self.counts, self.each, strict=True):
            made += calculation(*left[:count])
            left = left[count:]
        return tuple(made)


def _fed(cases: Sequence[Case]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for case in cases for tensor in fed_tensors(case.fed))


def _saved(cases: Sequence[Case], folder: Path) -> Path:
    """Return the file of cases of one format."""
    module, inputs = _Several(cases).eval(), _fed(cases)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if cases[0].traced:
            script: Any = torch.jit.trace(module, inputs, check_trace=False)
            script.save(folder / "model.pt")
            return folder / "model.pt"
        torch.export.save(torch.export.export(module, inputs), folder / "model.pt2")
    return folder / "model.pt2"
