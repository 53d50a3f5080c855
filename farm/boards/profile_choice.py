"""Choose the profile of a board by what it says about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farm.boards.arm_cores import EXTENSIONS, ArmCore, CoreClass, core_by_midr
from farm.boards.detected_hardware import DetectedHardware
from farm.errors import DeviceError
from farm.this_machine import NATIVE_PROFILES

Table = Mapping[str, Any]

SOURCE = "farm add, from what the board says about its CPU"
"""The source of a profile that `choose_profile` made, by which it is known again."""


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """The profile of a board, and the reason in a phrase.

    `table` is the board's own profile, as in devices.toml; None if `profile` is a built-in one.
    `gpu` is the number of the GPU that the profile is for, among those of the board. `notes` are
    what a user should know besides.
    """

    profile: str
    reason: str
    table: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """A board with a built-in profile, by its device tree or its name.

    `profiles` are by architecture.
    """

    compatible: str
    board: re.Pattern[str]
    profiles: Mapping[str, str]


# `compatible` is from the Linux kernel's device trees, `board` from their property `model`, or, of
# a phone, from ro.product.manufacturer and ro.product.model
_KNOWN = (
    _Known(
        "brcm,bcm2837",
        re.compile(r"Raspberry Pi (3|Zero 2|Compute Module 3)"),
        {"armv7": "rasp3b", "aarch64": "rasp3b-64"},
    ),
    _Known(
        "brcm,bcm2711",
        re.compile(r"Raspberry Pi (4|Compute Module 4)"),
        {"armv7": "rasp4", "aarch64": "rasp4-64"},
    ),
    _Known(
        "rockchip,rk3399",
        re.compile(r"RK3399|ROCK Pi 4|ROCKPro64|NanoPi [MT]4|Orange Pi 4\b", re.IGNORECASE),
        {"aarch64": "rk3399"},
    ),
    _Known("xlnx,zynq-7000", re.compile(r"Zynq|PYNQ"), {"armv7": "pynq"}),
    _Known("avnet,ultra96", re.compile(r"Ultra96", re.IGNORECASE), {"aarch64": "ultra96"}),
    _Known("p3701", re.compile(r"Jetson AGX Orin"), {"aarch64": "jetson-agx-orin"}),
    _Known("p3767", re.compile(r"Orin Nano|Orin NX"), {"aarch64": "jetson-orin-nano"}),
    _Known("", re.compile(r"^Google Pixel 2( XL)?$"), {"aarch64": "pixel2"}),
    _Known("", re.compile(r"^HUAWEI ALP-[ALT]"), {"aarch64": "mate10"}),
    _Known("", re.compile(r"^HUAWEI BLA-[ALT]"), {"aarch64": "mate10pro"}),
    _Known("", re.compile(r"^HUAWEI EML-[ALT]"), {"aarch64": "p20"}),
    _Known("", re.compile(r"^HUAWEI CLT-[ALT]"), {"aarch64": "p20pro"}),
)
_X86_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
_X86_V4 = _X86_V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_X86_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
# What a board's own profile inherits, by the architecture of its programs and that of its cores
_LIKE_ANDROID = "pixel2"  # of 64-bit programs
_LIKE = {("aarch64", 8): "rasp4-64", ("armv7", 8): "rasp4", ("armv7", 7): "pynq"}


def choose_profile(
    name: str,
    evidence: DetectedHardware,
    profiles: Mapping[str, Table],
    *,
    here: bool = False,
    builds_cuda: bool = False,
) -> ProfileChoice:
    """Return the profile for a board; a profile of its own is called `name`.

    `profiles` are the complete tables of the built-in profiles. `here` says that the board is this
    machine. `builds_cuda` says whether farm can build for NVIDIA's GPUs: a board's GPU is then
    preferred to its CPU. Raises DeviceError if farm has no agent for the board, or if too little is
    known of it.
    """
    if not evidence.architecture:
        raise DeviceError(
            f"there is no agent for the {evidence.machine or 'unknown'} architecture of {name}",
            "farm's agent runs on x86_64, aarch64, armv7 with NEON, and riscv64",
            "reach the board by rpc:// with an RPC server of TVM's own, and name a --profile",
        )
    native = NATIVE_PROFILES.get(evidence.architecture)
    title = evidence.cpu or evidence.board
    cpu = (
        ProfileChoice(native, f"it is this machine{f', {title}' if title else ''}")
        if here and native
        else _for_cpu(name, evidence)
    )
    gpu, number = next(
        (
            (found, number)
            for number, one in enumerate(evidence.gpus)
            if (found := _of_gpu(evidence, one.architecture, profiles))
        ),
        (None, 0),
    )
    on_board = (
        cpu.profile
        if cpu.table is None and profiles[cpu.profile]["target"]["kind"] != "llvm"
        else None
    )
    wanted = on_board or gpu
    if wanted is None:
        unused = tuple(
            f"no profile is for its GPU, {one.name} ({one.architecture})" for one in evidence.gpus
        )
        return ProfileChoice(cpu.profile, cpu.reason, cpu.table, (*cpu.notes, *unused))
    if builds_cuda:
        notes = (
            ()
            if on_board
            else (f"for its CPU: farm add, under another name, with --profile {cpu.profile}",)
        )
        return ProfileChoice(
            wanted,
            f"its GPU is {evidence.gpus[number].name}" if evidence.gpus else cpu.reason,
            notes=notes,
            gpu=number,
        )
    host = cpu if on_board is None else _own(name, evidence)
    note = f"for its GPU: pip install 'tvm-farm[cuda]', then farm add with --profile {wanted}"
    return ProfileChoice(host.profile, host.reason, host.table, (*host.notes, note))


def _of_gpu(
    evidence: DetectedHardware, architecture: str, profiles: Mapping[str, Table]
) -> str | None:
    """Return the first built-in profile for a GPU whose host is of the board's architecture."""
    agent = f"{evidence.architecture}-cuda"
    fitting = (name for name, table in profiles.items() if table.get("agent") == agent)
    return next(
        (name for name in fitting if profiles[name]["target"].get("arch") == architecture), None
    )


def _for_cpu(name: str, evidence: DetectedHardware) -> ProfileChoice:
    known = _known(evidence)
    if known is not None:
        return ProfileChoice(known, f"it is a {evidence.board or evidence.compatible[0]}")
    if evidence.architecture == "x86_64":
        return _x86(name, evidence)
    if evidence.architecture == "riscv64":
        return ProfileChoice("riscv64", "it is a 64-bit RISC-V board")
    return _own(name, evidence)


def _known(evidence: DetectedHardware) -> str | None:
    """Return the built-in profile of a board that has one."""
    for known in _KNOWN:
        by_tree = known.compatible and any(known.compatible in word for word in evidence.compatible)
        is_this = by_tree or known.board.search(evidence.board)
        if is_this and evidence.architecture in known.profiles:
            return known.profiles[evidence.architecture]
    return None


def _x86(name: str, evidence: DetectedHardware) -> ProfileChoice:
    cpu = evidence.cpu or "an x86-64 CPU"
    if not evidence.features:
        note = "whether it has AVX-512 is not known: --profile x86-v4 uses it"
        return ProfileChoice(
            "x86-v3", f"it is {cpu}; AVX2 is assumed, and a model proves it", notes=(note,)
        )
    if evidence.features >= _X86_V4:
        return ProfileChoice("x86-v4", f"{cpu} has AVX-512")
    if evidence.features >= _X86_V3:
        return ProfileChoice("x86-v3", f"{cpu} has AVX2 and FMA")
    level = "x86-64-v2" if evidence.features >= _X86_V2 else "x86-64"
    table = {
        "inherits": "x86-v3",
        "description": f"{cpu}, an x86-64 CPU without AVX2",
        "target": {"mcpu": level},
        "source": SOURCE,
    }
    return ProfileChoice(name, f"{cpu} lacks AVX2 or FMA", table)


def _own(name: str, evidence: DetectedHardware) -> ProfileChoice:
    """Return a profile of the board's own, for the largest of its ARM cores."""
    if (
        evidence.architecture == "armv7"
        and evidence.features
        and not evidence.features & {"neon", "asimd"}
    ):
        raise DeviceError(
            f"{name} has no NEON unit", "farm's agent for armv7 needs one", "use another board"
        )
    if not evidence.cores:
        raise DeviceError(
            f"what kind of board {name} is cannot be told",
            (
                f"it calls itself {evidence.board or evidence.cpu or 'nothing'}, and does not say "
                "which cores it has"
            ),
            (
                "choose one of the profiles of its architecture: --profile NAME (the reference of "
                "profiles lists them)"
            ),
        )
    cores = [(core_by_midr(one.implementer, one.part), one) for one in evidence.cores]
    known = [(core, one) for core, one in cores if core is not None]
    title = evidence.board or name
    if not known:
        parts = ", ".join(
            f"implementer {one.implementer:#x}, part {one.part:#x}" for one in evidence.cores
        )
        note = (
            f"its cores ({parts}) are not known here: it is compiled for generic ones; "
            "target.mcpu can say more"
        )
        generic = ArmCore("generic", CoreClass.LITTLE, ())
        return ProfileChoice(
            name,
            "its cores are not known",
            _table(title, evidence, generic, "cores that are not known"),
            (note,),
        )
    largest = max(known, key=lambda pair: pair[0].size)[0]
    kinds = " and ".join(
        f"{one.count}x {_spelled(core.mcpu)}"
        for core, one in sorted(known, key=lambda pair: -pair[0].size)
    )
    return ProfileChoice(name, f"it has {kinds}", _table(title, evidence, largest, kinds))


def _table(title: str, evidence: DetectedHardware, core: ArmCore, kinds: str) -> Table:
    """Return the profile's table for a kind of core; `kinds` names the cores of the board."""
    # The kernel tells programs only of extensions that all cores have and that it supports: one
    # that LLVM would enable by -mcpu and that is not among them must not be used.
    core = core.in_32_bit() if evidence.architecture == "armv7" else core
    there = {EXTENSIONS[name] for name in evidence.features if name in EXTENSIONS}
    if "sve" not in there:
        there.discard("sve2")
    missing = [f"-{name}" for name in core.extensions if name not in there]
    more = [
        f"+{name}"
        for name in ("fullfp16", "dotprod")
        if name in there and name not in core.extensions
    ]
    count = evidence.core_count or sum(one.count for one in evidence.cores)
    like = _LIKE[
        evidence.architecture, core.architecture if evidence.architecture == "armv7" else 8
    ]
    return {
        "inherits": _LIKE_ANDROID
        if evidence.android and evidence.architecture == "aarch64"
        else like,
        "description": f"{title}: {kinds}",
        "target": {"mcpu": core.mcpu, "mattr": ["+neon", *more, *missing], "num-cores": count},
        "source": SOURCE,
    }


def _spelled(mcpu: str) -> str:
    """Return a core's name as its maker spells it: cortex-a76ae is Cortex-A76AE."""
    family, _, model = mcpu.partition("-")
    return f"{family.capitalize()}-{model.upper()}" if model else family
