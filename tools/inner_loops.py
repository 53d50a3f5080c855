"""The inner loops of compiled kernels: found in the assembly, searched for spills, and timed by
llvm-mca.

A kernel's inner loops are the instructions from a label to the branch back to it, with no such loop
within, that hold at least half as many multiply-adds as the fullest of them, or another part: LLVM
splits loops and leaves remainders, which do little of the work. A spill is any access to the stack
in such a loop, by the stack's own register or one that was set from it. A loop of a sum adds to
registers that it does not set; the transforms of Winograd's convolution do not. Figures are
llvm-mca's steady state with all loads from the L1 cache; its peak is what it says of nothing but
multiply-adds.

Where a loop has other work than multiply-adds, their share of the peak says little: the busiest of
the core's units, by LLVM's own name for it, and the part of the time for which it is busy, say how
much faster the loop's instructions could be at most.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from farm.errors import BuildError
from farm.processes import subprocesses
from farm.processes.deadline import Deadline

MCA = "llvm-mca"
_ITERATIONS = 200
_LABEL = re.compile(r"^([.\w$]+):")
_FMA = re.compile(
    r"^\s+(?:v?fml[as]|fn?madd|fn?msub|vfm[as]|vml[as]|vfn?m(?:add|sub)\d+)\w*(?:\.f32)?\s+(.*)"
)
_JUMP = re.compile(r"^\s+(?:b(?:\.?[a-z]{2})?|cbn?z|tbn?z|j[a-z]+)\s+(?:.*,\s*)?(\.L\w+)\s*$")
_BASE = re.compile(r"[\[(]%?(\w+)")
_WRITTEN = re.compile(
    r"^\s+(?!st|vst|vpush|cmp|b)\w+(?:\.\w+)?\s+\{?([vqds]\d+)[.\w\[\]]*(?:,\s*([qds]\d+)(?=.*\[))?"
)
_SET = re.compile(r"^\s+(?:add|sub|mov)\s+(x\d+|r\d+|fp), (\w+)")
_REFERENCE = re.compile(r"\.L__tvm_parallel_lambda[.\d]*|\b\w+_compute_\b")


@dataclass(frozen=True)
class Loop:
    """One inner loop. `stack` are the registers that point into the stack there; `multiply_adds`
    counts vectors of 16 bytes.
    """

    lines: tuple[str, ...]
    stack: frozenset[str] = frozenset({"sp", "rsp"})

    @property
    def multiply_adds(self) -> float:
        return sum(_width(match.group(1)) for line in self.lines if (match := _FMA.match(line)))

    @property
    def is_sum(self) -> bool:
        """Whether most of its multiply-adds add to what the iteration before left."""
        added: list[set[str]] = []
        set_here: set[str] = set()
        for line in self.lines:
            if match := _FMA.match(line):
                added.append(_registers(match.group(1)))
            elif match := _WRITTEN.match(line):
                set_here |= set().union(*(_registers(name) for name in match.groups() if name))
        return 2 * sum(not registers & set_here for registers in added) > len(added)

    @property
    def spills(self) -> int:
        return sum(
            match.group(1) in self.stack for line in self.lines if (match := _BASE.search(line))
        )


def _registers(name: str) -> set[str]:
    """The names of a vector register of ARM: 64-bit code calls v1 q1 when it loads it, 32-bit code
    calls the halves of q1 d2 and d3.
    """
    found = re.match(r"([vqd])(\d+)", name.strip())
    kind, number = found.groups() if found else ("", "")
    return {
        "v": {f"v{number}"},
        "q": {f"v{number}"} | {f"d{2 * int(number or 0) + half}" for half in (0, 1)},
        "d": {name},
    }.get(kind, set())


def _width(operands: str) -> float:
    """Of a multiply-add, in vectors of 16 bytes."""
    first = operands.strip().split(",")[0]
    for mark, width in (
        (".4s", 1.0),
        (".2s", 0.5),
        ("q", 1.0),
        ("d", 0.5),
        ("zmm", 4.0),
        ("ymm", 2.0),
    ):
        if mark in first:
            return width
    return 0.25 if first.startswith("s") else 1.0


def assembly(module: Any) -> str:
    """The assembly of a compiled module and all that it imports."""
    own = [module.inspect_source("asm")] if module.kind == "llvm" else []
    return "\n".join([*own, *(assembly(imported) for imported in module.imports)])


def functions(text: str) -> dict[str, list[str]]:
    """Function -> its labels and instructions."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []  # before the first function, of none
    for line in text.splitlines():
        line = re.split(r"\s+(?://|@|#[^\d-])", line, maxsplit=1)[0]
        label = _LABEL.match(line)
        if label and not re.match(r"\.L(?!__tvm)", label.group(1)):
            lines = found.setdefault(label.group(1), [])
        elif label or re.match(
            r"\s+(?:[a-z]|\.long\s+\.L__tvm)", line
        ):  # 32-bit code takes addresses from behind a function
            lines.append(line)
    return found


def inner_loops(
    kernel: str, found: dict[str, list[str]], are_sums: bool | None = None, least: float = 0.5
) -> list[Loop]:
    """The inner loops of a kernel, those of its parallel parts included; only those that are sums,
    or that are not, where that is given.

    `least`: multiply-adds, as a part of the fullest loop's.
    """
    loops = [
        loop for name in _reached(f"{kernel}_compute_", found) for loop in _innermost(found[name])
    ]
    loops = [loop for loop in loops if are_sums in (None, loop.is_sum)]
    most = max((loop.multiply_adds for loop in loops), default=0)
    return [loop for loop in loops if loop.multiply_adds >= max(1, most * least)]


def _reached(name: str, found: dict[str, list[str]]) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        if name in found and name not in reached:
            reached.add(name)
            waiting += [match for line in found[name] for match in _REFERENCE.findall(line)]
    return reached


def _innermost(lines: list[str]) -> Iterator[Loop]:
    labels = {match.group(1): at for at, line in enumerate(lines) if (match := _LABEL.match(line))}
    jumps = [
        (labels.get(match.group(1), len(lines)), at)
        for at, line in enumerate(lines)
        if (match := _JUMP.match(line))
    ]
    back = [(start, end) for start, end in jumps if start < end]
    for start, end in back:
        if not any(
            start <= other and last <= end and (other, last) != (start, end) for other, last in back
        ):
            yield Loop(
                tuple(line for line in lines[start : end + 1] if not _LABEL.match(line)),
                _stack_registers(lines[:end]),
            )


def _stack_registers(lines: list[str]) -> frozenset[str]:
    """Those that hold an address in the stack after these instructions, by their order in the
    text.
    """
    found = {"sp", "rsp"}
    for line in lines:
        if match := _SET.match(line):
            (found.add if match.group(2) in found else found.discard)(match.group(1))
    return frozenset(found | {"sp", "rsp"})


def share_of_peak(loop: Loop, triple: str, cpu: str) -> float:
    """The loop's multiply-adds in a cycle, as a share of the most that the core can do, both by
    llvm-mca.
    """
    return loop.multiply_adds / _timing(loop.lines, triple, cpu).cycles / _peak(triple, cpu)


def cycles(loop: Loop, triple: str, cpu: str) -> float:
    """Of one iteration."""
    return _timing(loop.lines, triple, cpu).cycles


def busiest(loop: Loop, triple: str, cpu: str) -> tuple[str, float]:
    """The unit of the core that the loop keeps busy for most of its time, and the part of the
    time.
    """
    timing = _timing(loop.lines, triple, cpu)
    unit = max(timing.busy, key=lambda name: timing.busy[name])
    return unit, timing.busy[unit] / timing.cycles


@lru_cache
def has_times(triple: str, cpu: str) -> bool:
    """Whether llvm-mca is there, and knows how long the core's instructions take."""
    try:
        return bool(subprocesses.first_installed_program(MCA) and _peak(triple, cpu))
    except BuildError as error:
        if "scheduling information" in error.why:
            return False
        raise


@lru_cache
def _peak(triple: str, cpu: str) -> float:
    if triple.startswith("aarch64"):
        lines = [f"\tfmla v{at}.4s, v30.4s, v31.s[0]" for at in range(24)]
    else:
        lines = [f"\tvmla.f32 q{at}, q14, q15" for at in range(14)]
    return len(lines) / _timing(tuple(lines), triple, cpu).cycles


@dataclass(frozen=True)
class _Timing:
    """Of one iteration: all cycles, and those in which each unit of the core is busy; of several
    alike, the one that is most.
    """

    cycles: float
    busy: Mapping[str, float]


@lru_cache(None)
def _timing(lines: tuple[str, ...], triple: str, cpu: str) -> _Timing:
    with tempfile.TemporaryDirectory(prefix="inner-loops-") as folder:
        source = Path(folder) / "loop.s"
        source.write_text("\n".join(lines) + "\n")
        features = [] if triple.startswith("aarch64") else ["-mattr=+neon"]
        command = [
            MCA,
            f"-mtriple={triple}",
            f"-mcpu={cpu}",
            *features,
            f"-iterations={_ITERATIONS}",
            "-json",
            str(source),
        ]
        printed = subprocesses.run_program(
            command, deadline=Deadline(30), what="the timing of a loop", fix="apt-get install llvm"
        )
    report = json.loads(printed[printed.index("{") :])
    (region,), units = report["CodeRegions"], report["TargetInfo"]["Resources"]
    busy: dict[str, float] = {}
    for use in region["ResourcePressureView"]["ResourcePressureInfo"]:
        if use["InstructionIndex"] == len(
            region["Instructions"]
        ):  # beyond the last: of all together
            unit = units[use["ResourceIndex"]].split(".")[0]
            busy[unit] = max(busy.get(unit, 0), float(use["ResourceUsage"]))
    return _Timing(float(region["SummaryView"]["TotalCycles"]) / _ITERATIONS, busy)
