"""What MetaSchedule proposes for a kernel: its rules make spaces of schedules, of which some are drawn, and others made of the best so far.

Measuring is not done by MetaSchedule's own runners: farm's trials have the boards, deadlines, records and Ctrl-C, and one mechanism is
enough. So its loop of search is not used either, which holds its state in one process; what was found comes back as parents instead.
"""

from __future__ import annotations

import json
import random
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.schedule import Trace

from farm.compiler.choices import Steps
from farm.compiler.core import Core

Array = np.ndarray[Any, Any]
_VECTORS = 4  # side by side, at most
_JOBS = 16  # for each core of the device, at most
_UNROLLED = [0, 16, 64]  # steps; its own choices have 512 too, which takes long to compile
_CORES = 4  # of a device that does not say
_PARENTS = 4  # the best
_NEW = 0.3  # of what is proposed beside parents is drawn, the rest made of these
_POOL = 6  # times as many are drawn as are proposed
_LEAST_KNOWN = 5  # of what was measured, to tell anything by it
_NOISE = 0.1  # of the logarithm of a time
_ATTEMPTS = 5  # for each that is drawn: many steps do not apply, or were taken before


class Space:
    """All that MetaSchedule's rules can make of a kernel for a core."""

    def __init__(self, function: tirx.PrimFunc, target: tvm.target.Target, core: Core, seed: int) -> None:
        self._module = tvm.IRModule({"main": function})
        self._random = random.Random(seed)
        self._generator = ms.space_generator.PostOrderApply(sch_rules=_rules(core), postprocs="llvm", mutator_probs="llvm")
        cores = {"num-cores": int(target.attrs.get("num-cores", _CORES))}
        described = tvm.target.Target({**target.export(), **cores})
        # Not by the class: it imports TVM's tensor instructions, which takes more than a minute, for rules that are not used here.
        self._context = _ffi_api.TuneContext(self._module, described, self._generator, None, "main", 1, self._seed(), _silent)
        _ffi_api.TuneContextInitialize(self._context)
        self._spaces = [schedule.trace for schedule in self._context.generate_design_space()]
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._arguments = ms.arg_info.ArgInfo.from_prim_func(function)
        self._known: dict[Steps, Array] = {}
        chances = self._generator.mutator_probs
        self._mutators, self._chances = list(chances), [float(chance) for chance in chances.values()]

    def proposed(self, count: int, tried: Sequence[tuple[Steps, float]], taken: Container[str]) -> list[Steps]:
        """So many steps that are not among those taken, by their words; fewer where there are no more. Those tried have their times.

        Of several times as many the most promising are taken, by what was measured of steps that are like them.
        """
        best = sorted(tried, key=lambda one: one[1])[:_PARENTS]
        parents = [self._applied(steps).trace.simplified(remove_postproc=True) for steps, _ in best]
        enough = len(tried) >= _LEAST_KNOWN
        pool = self._pool(count * _POOL if enough else count, parents, taken)
        if not enough or len(pool) <= count:
            return list(pool)[:count]
        known = np.stack([self._features(steps) for steps, _ in tried])
        expected = predicted(known, np.log([ratio for _, ratio in tried]), np.stack([self._features(*one) for one in pool.items()]))
        return [list(pool)[index] for index in np.argsort(expected)[:count]]

    def _pool(self, count: int, parents: Sequence[Trace], taken: Container[str]) -> dict[Steps, Schedule]:
        found: dict[Steps, Schedule] = {}
        for _ in range(count * _ATTEMPTS):
            if len(found) == count:
                break
            if (made := self._one(parents)) is not None and str(made[0]) not in taken:
                found[made[0]] = made[1]
        return found

    def _one(self, parents: Sequence[Trace]) -> tuple[Steps, Schedule] | None:
        if parents and self._random.random() >= _NEW:
            (mutator,) = self._random.choices(self._mutators, self._chances)
            trace = mutator.apply(self._random.choice(parents))
        else:
            trace = Trace(self._random.choice(self._spaces).insts, {})
        return None if trace is None else self._finished(trace)

    def _finished(self, trace: Trace) -> tuple[Steps, Schedule] | None:
        """A trace with the steps that make loops parallel, vectors and unrolled of its hints."""
        work = Schedule(self._module, seed=self._seed(), error_render_level="none")
        try:
            trace.apply_to_schedule(work, remove_postproc=True)
            work.enter_postproc()
            if not all(step.apply(work) for step in self._generator.postprocs):
                return None
        except Exception:  # a step that does not apply, in whatever words
            return None
        return Steps(json.dumps(work.trace.as_json(), separators=(",", ":"), default=_number)), work

    def _features(self, steps: Steps, work: Schedule | None = None) -> Array:
        """What TVM tells of loops, vectors, and memory touched: of each statement that stores, here the sums and the extremes of all."""
        if steps not in self._known:
            candidate = ms.MeasureCandidate(work or self._applied(steps), self._arguments)
            (table,) = self._extractor.extract_from(self._context, [candidate])
            stores = table.numpy()
            self._known[steps] = np.concatenate([stores.sum(0), stores.max(0)])
        return self._known[steps]

    def _applied(self, steps: Steps) -> Schedule:
        work = Schedule(self._module, error_render_level="none")
        Trace.apply_json_to_schedule(json.loads(steps.trace), work)
        return work

    def _seed(self) -> int:
        return self._random.randrange(1, 1 << 31)


def predicted(known: Array, values: Array, wanted: Array) -> Array:
    """Values of the rows wanted, by those of known ones: the mean of a Gaussian process with a squared exponential kernel, whose length is
    the median distance (Rasmussen and Williams, Gaussian Processes for Machine Learning, equation 2.23)."""
    everything = np.concatenate([known, wanted])
    spread = everything.std(0)
    used = spread > 0
    scaled = (everything[:, used] - everything[:, used].mean(0)) / spread[used]
    distances = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    likeness = np.exp(-distances / (np.median(distances) + 1e-9))
    count, mean = len(known), values.mean()
    weights = np.linalg.solve(likeness[:count, :count] + _NOISE * np.eye(count), values - mean)
    found: Array = mean + likeness[count:, :count] @ weights
    return found


def _rules(core: Core) -> list[ms.ScheduleRule]:
    """MetaSchedule's rules for CPUs, with vectors as wide as a few of the core's; without those that kernels bring along, which TVM has
    for other targets."""
    rule = ms.schedule_rule
    vectors = rule.ParallelizeVectorizeUnroll(_JOBS, _VECTORS * core.lanes, _UNROLLED)
    usual = [one for one in rule.ScheduleRule.create("llvm") if not isinstance(one, rule.ApplyCustomRule)]
    return [vectors if isinstance(one, rule.ParallelizeVectorizeUnroll) else one for one in usual]


def _number(constant: tirx.IntImm | tirx.FloatImm) -> int | float:
    """Of those that TVM has left as they are in its form for JSON."""
    value: int | float = constant.value
    return value


def _silent(*_: object) -> None:
    """Takes what MetaSchedule would log."""
