"""Propose schedules of a kernel with MetaSchedule: its rules define search spaces of schedules.

Some schedules are sampled from these spaces, others are mutations of the best so far.

MetaSchedule's own runners are not used: farm's trials have the boards, deadlines, records and
handling of Ctrl-C already. Its search loop is not used either, because it holds its state in one
process; here, measured schedules are passed in as parents.
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

from farm.compiler.cpu.kernel_config import ScheduleTrace
from farm.compiler.target.cpu_model import CpuModel

Array = np.ndarray[Any, Any]
_VECTORS = 4  # largest extent of vectorized loops, in vectors
_JOBS = 16  # parallel jobs per core of the device, at most
# Unrolled steps; MetaSchedule's own choices include 512, which takes long to compile
_UNROLLED = [0, 16, 64]
_CORES = 4  # cores of a device if the target does not say
_PARENTS = 4  # number of best schedules that are mutated
_NEW = 0.3  # share of schedules that are sampled, if there are parents; the rest are mutations
_POOL = 6  # candidates per proposal, from which the cost model selects
_LEAST_KNOWN = 5  # least number of measurements to fit the cost model
_NOISE = 0.1  # noise variance of the logarithm of a time
_ATTEMPTS = 5  # attempts per candidate: many traces do not apply or are already known


class SearchSpace:
    """The search space of MetaSchedule's rules for a kernel and a CPU model."""

    def __init__(
        self, function: tirx.PrimFunc, target: tvm.target.Target, core: CpuModel, seed: int
    ) -> None:
        self._module = tvm.IRModule({"main": function})
        self._random = random.Random(seed)
        self._generator = ms.space_generator.PostOrderApply(
            sch_rules=_rules(core), postprocs="llvm", mutator_probs="llvm"
        )
        cores = {"num-cores": int(target.attrs.get("num-cores", _CORES))}
        described = tvm.target.Target({**target.export(), **cores})
        # Not by the class TuneContext: it imports TVM's tensor intrinsics, which takes more than a
        # minute, for rules that are not used here.
        self._context = _ffi_api.TuneContext(
            self._module, described, self._generator, None, "main", 1, self._seed(), _silent
        )
        _ffi_api.TuneContextInitialize(self._context)
        self._spaces = [schedule.trace for schedule in self._context.generate_design_space()]
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._arguments = ms.arg_info.ArgInfo.from_prim_func(function)
        self._known: dict[ScheduleTrace, Array] = {}
        chances = self._generator.mutator_probs
        self._mutators, self._chances = (
            list(chances),
            [float(chance) for chance in chances.values()],
        )

    def proposed(
        self, count: int, tried: Sequence[tuple[ScheduleTrace, float]], taken: Container[str]
    ) -> list[ScheduleTrace]:
        """Return up to `count` new schedule traces whose text is not in `taken`.

        `tried` holds measured traces with their times relative to the default's. With enough of
        them, _POOL times as many candidates are sampled, and a cost model fitted to `tried` selects
        the most promising.
        """
        best = sorted(tried, key=lambda one: one[1])[:_PARENTS]
        parents = [self._applied(steps).trace.simplified(remove_postproc=True) for steps, _ in best]
        enough = len(tried) >= _LEAST_KNOWN
        pool = self._pool(count * _POOL if enough else count, parents, taken)
        if not enough or len(pool) <= count:
            return list(pool)[:count]
        known = np.stack([self._features(steps) for steps, _ in tried])
        expected = predict_scores(
            known,
            np.log([ratio for _, ratio in tried]),
            np.stack([self._features(*one) for one in pool.items()]),
        )
        return [list(pool)[index] for index in np.argsort(expected)[:count]]

    def _pool(
        self, count: int, parents: Sequence[Trace], taken: Container[str]
    ) -> dict[ScheduleTrace, Schedule]:
        found: dict[ScheduleTrace, Schedule] = {}
        for _ in range(count * _ATTEMPTS):
            if len(found) == count:
                break
            if (made := self._one(parents)) is not None and str(made[0]) not in taken:
                found[made[0]] = made[1]
        return found

    def _one(self, parents: Sequence[Trace]) -> tuple[ScheduleTrace, Schedule] | None:
        if parents and self._random.random() >= _NEW:
            (mutator,) = self._random.choices(self._mutators, self._chances)
            trace = mutator.apply(self._random.choice(parents))
        else:
            trace = Trace(self._random.choice(self._spaces).insts, {})
        return None if trace is None else self._finished(trace)

    def _finished(self, trace: Trace) -> tuple[ScheduleTrace, Schedule] | None:
        """Complete a trace by the postprocessors; return it with its schedule.

        Returns None if the trace does not apply, or has steps that no record may have. The
        postprocessors turn annotations into parallel,
        vectorized and unrolled loops.
        """
        sch = Schedule(self._module, seed=self._seed(), error_render_level="none")
        try:
            trace.apply_to_schedule(sch, remove_postproc=True)
            sch.enter_postproc()
            if not all(step.apply(sch) for step in self._generator.postprocs):
                return None
        except Exception:  # an instruction that does not apply may raise any exception
            return None
        text = json.dumps(sch.trace.as_json(), separators=(",", ":"), default=_number)
        try:
            return ScheduleTrace.from_json({"trace": json.loads(text)}), sch
        except ValueError:
            return None

    def _features(self, steps: ScheduleTrace, sch: Schedule | None = None) -> Array:
        """Return the features of a trace: sum and maximum over stores of TVM's features per store.

        TVM's features describe the loops, vectors and memory accesses of each store statement.
        """
        if steps not in self._known:
            candidate = ms.MeasureCandidate(sch or self._applied(steps), self._arguments)
            (table,) = self._extractor.extract_from(self._context, [candidate])
            stores = table.numpy()
            self._known[steps] = np.concatenate([stores.sum(0), stores.max(0)])
        return self._known[steps]

    def _applied(self, steps: ScheduleTrace) -> Schedule:
        sch = Schedule(self._module, error_render_level="none")
        Trace.apply_json_to_schedule(json.loads(steps.trace), sch)
        return sch

    def _seed(self) -> int:
        return self._random.randrange(1, 1 << 31)


def predict_scores(known: Array, values: Array, wanted: Array) -> Array:
    """Return predictions for the rows of `wanted`, from the values of the rows of `known`.

    The arguments are features [n, features], values [n] and features [m, features]; the result has
    the shape [m]. The prediction is the mean of a Gaussian process with a squared exponential
    kernel, whose length scale is the median distance (Rasmussen and Williams, Gaussian Processes
    for Machine Learning, equation 2.23).
    """
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


def _rules(core: CpuModel) -> list[ms.ScheduleRule]:
    """Return MetaSchedule's rules for CPUs, with vectors up to _VECTORS times the CPU model's.

    Custom rules that kernels bring along are left out; TVM has them for other targets.
    """
    rule = ms.schedule_rule
    vectors = rule.ParallelizeVectorizeUnroll(_JOBS, _VECTORS * core.lanes, _UNROLLED)
    usual = [
        one for one in rule.ScheduleRule.create("llvm") if not isinstance(one, rule.ApplyCustomRule)
    ]
    return [vectors if isinstance(one, rule.ParallelizeVectorizeUnroll) else one for one in usual]


def _number(constant: tirx.IntImm | tirx.FloatImm) -> int | float:
    """Return the value of a constant that TVM leaves unconverted in its JSON form."""
    value: int | float = constant.value
    return value


def _silent(*_: object) -> None:
    """Discard MetaSchedule's log messages."""
