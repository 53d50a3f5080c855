"""Draw calls of torch as texts: the values of a case, and what its rule decides them with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from random_operators.random_values import Array, RandomInputs, Shape

NAMES = {"torch": torch, "F": torch.nn.functional, "inf": math.inf, "nan": math.nan}


@dataclass
class Case:
    """A Python expression of inputs, constants and modules by name, which gives tensors."""

    operator: str
    seed: int
    expression: str = ""
    fed: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    traced: bool = False  # as TorchScript, not as an exported program
    unordered: int | None = None  # the axis along which the order of results is not defined
    rtol: float = 0.0  # more than usual
    steps: int = 0  # by which integers may differ

    @property
    def name(self) -> str:
        return f"{self.operator}:{self.seed}"

    def __str__(self) -> str:
        values = {**self.fed, **self.constants, **self.modules}
        told = ", ".join(f"{name} {_told(value)}" for name, value in values.items())
        return f"{'traced' if self.traced else 'exported'}: {self.expression} of {told}"


def _told(value: Array | torch.nn.Module) -> str:
    if isinstance(value, torch.nn.Module):
        return str(value)
    said = f"{value.dtype}{list(value.shape)}"
    return said if value.size > 8 else f"{said}={value.tolist()}"


class Draw(RandomInputs):
    """What the rule of an operator draws its case with."""

    def __init__(self, operator: str, seed: int) -> None:
        super().__init__(operator, seed)
        self.case = Case(operator, seed, traced=self.chance(0.15))

    def module(self, module: torch.nn.Module) -> str:
        """Return a module in evaluation mode, with weights that the seed decides."""
        name = f"m{len(self.case.modules)}"
        with torch.no_grad():
            for parameter in module.parameters():
                drawn = self.random.standard_normal(tuple(parameter.shape)) / 2
                parameter.copy_(torch.from_numpy(np.asarray(drawn)))
        self.case.modules[name] = module.eval()
        return name

    def tensor(self, low: int = 0, high: int = 4, dtype: str = "float32", **how: Any) -> str:
        """Return an input of a random shape."""
        return self.feed(self.array(self.shape(low, high), dtype, **how))

    def view(self, name: str) -> str:
        """Return a tensor or, now and then, another view of the same shape."""
        rank = self.case.fed[name].ndim
        if rank == 0 or self.chance(0.75):
            return name
        one, other = self.axis(rank), self.axis(rank)
        return str(
            self.one_of(
                [
                    f"{name}.flip({one})",
                    f"{name}.transpose({one}, {other}).contiguous().transpose({one}, {other})",
                    f"torch.cat([{name}, {name}], {one}).narrow({one}, 0, {name}.shape[{one}])",
                ]
            )
        )

    def compute(self, expression: str) -> None:
        self.case.expression = expression

    def call(self, function: str, *positional: Any, **named: Any) -> None:
        """Make the case a call of a function, or of a method: `x0.sum`. None leaves one out."""
        given = [str(one) for one in positional]
        given += [f"{name}={value}" for name, value in named.items()]
        self.compute(f"{function}({', '.join(given)})")


Rule = Callable[[Draw], None]


def broadcast_partner(draw: Draw, shape: Shape) -> Shape:
    """Return a shape that broadcasts with another: extents of 1, and fewer or more axes."""
    found = [1 if draw.chance(0.25) else extent for extent in shape]
    cut = draw.whole(0, len(found)) if draw.chance(0.4) else 0
    lead = [draw.whole(1, 3)] if cut == 0 and draw.chance(0.15) else []
    return (*lead, *found[cut:])


class Calculation(torch.nn.Module):
    """The expression of a case, as a module of its inputs."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.code = compile(case.expression, case.name, "eval")
        self.inputs, self.constants = list(case.fed), list(case.constants)
        self.parts = torch.nn.ModuleDict(case.modules)
        for name, value in case.constants.items():
            self.register_buffer(name, torch.from_numpy(np.array(value)))

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scope: dict[str, Any] = NAMES | dict(zip(self.inputs, values, strict=True))
        scope |= {name: getattr(self, name) for name in self.constants}
        scope |= {name: self.parts[name] for name in self.parts}
        made = eval(self.code, scope)
        return tuple(_tensors(made))


def _tensors(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made]
    return [tensor for one in made for tensor in _tensors(one)]


def fed_tensors(fed: Mapping[str, Array]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.array(value)) for value in fed.values())
