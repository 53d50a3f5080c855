"""From an imported module to scheduled loop nests, for one target: the part of a build that host check and boards share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from farm.clock import timed
from farm.compiler import passes, schedules
from farm.compiler.core import core_of
from farm.errors import BuildError
from farm.types import Kernel, Profile


@dataclass(frozen=True, slots=True)
class Lowered:
    """A module ready for code generation. Its `main` takes the inputs, then a tuple of `parameters` where there are any."""

    module: tvm.IRModule
    parameters: list[np.ndarray[Any, Any]]
    kernels: tuple[Kernel, ...]


def resolve_target(profile: Profile) -> tvm.target.Target:
    """The profile's target, `native` replaced by the CPU of this machine."""
    content = dict(profile.target)
    if content.get("kind") != "llvm":
        raise BuildError(
            f"{profile.name}: code for {content.get('kind')} cannot be built yet",
            "this version builds for CPUs; the profile is there so that configurations can name it",
            "use the CPU of the same board, for example --profile rk3399 or --profile rasp4-64",
        )
    if content.get("mcpu") == "native":
        content["mcpu"] = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target(content)


def lower(module: tvm.IRModule, weights: Sequence[np.ndarray[Any, Any]], target: tvm.target.Target, seconds: dict[str, float]) -> Lowered:
    """Graph passes, schedules, parameters out of the code. Adds what each took to `seconds`."""
    core = core_of(target)
    with target:
        with timed(seconds, "graph"):
            module = passes.optimize(passes.bind(module, weights), core)
        with timed(seconds, "schedule"):
            module, kernels = schedules.schedule(module, core)
        module, parameters = passes.lift_parameters(module)
    return Lowered(module, parameters, tuple(kernels))
