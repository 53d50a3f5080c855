"""ARM's cores: the part numbers in /proc/cpuinfo, LLVM's names, and the extensions of each.

The numbers are the fields Implementer and PartNum of the register MIDR_EL1, from the technical
reference manuals of the cores; LLVM has the same table in llvm/lib/TargetParser/Host.cpp. The
extensions are those that LLVM enables with -mcpu (ARMTargetParser, AArch64TargetParser).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

# The name of a feature in /proc/cpuinfo (arch/arm64/kernel/cpuinfo.c), and LLVM's
EXTENSIONS = {
    "asimdhp": "fullfp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
}

_NONE: tuple[str, ...] = ()
_HALF = ("fullfp16",)
_V8_2 = ("fullfp16", "dotprod")
_N2 = ("fullfp16", "dotprod", "i8mm", "bf16", "sve", "sve2")
_V1 = ("fullfp16", "dotprod", "i8mm", "bf16", "sve")
# LLVM's names that its target for 32-bit programs does not know
_ONLY_64_BIT = frozenset(
    [
        "a64fx",
        "ampere1",
        "ampere1a",
        "carmel",
        "cortex-a34",
        "cortex-a520",
        "cortex-a715",
        "cortex-a720",
        "cortex-x2",
        "cortex-x3",
        "cortex-x4",
        "neoverse-v2",
        "thunderx2t99",
        "thunderxt88",
        "tsv110",
    ]
)


class CoreClass(enum.IntEnum):
    """The class of a core among those of its time; kernels are compiled for the largest."""

    LITTLE = 0
    BIG = 1
    PRIME = 2


@dataclass(frozen=True, slots=True)
class ArmCore:
    """A kind of core: LLVM's name of it, its class, its extensions, and its architecture (7 or 8).

    `extensions` has LLVM's names. Architecture 8 stands for 9 too.
    """

    mcpu: str
    size: CoreClass
    extensions: tuple[str, ...]
    architecture: int = 8

    def in_32_bit(self) -> ArmCore:
        """Return the core as the target for 32-bit programs knows it, which has no SVE."""
        mcpu = "cortex-a53" if self.mcpu in _ONLY_64_BIT else self.mcpu
        extensions = (
            ()
            if self.mcpu in _ONLY_64_BIT
            else tuple(name for name in self.extensions if not name.startswith("sve"))
        )
        return replace(self, mcpu=mcpu, extensions=extensions)


def core_by_midr(implementer: int, part: int) -> ArmCore | None:
    """Return the kind of a core by two fields of its MIDR; None for one that is not known here."""
    return _CORES.get((implementer, part))


def _v7(mcpu: str, size: CoreClass) -> ArmCore:
    return ArmCore(mcpu, size, _NONE, 7)


_ARM, _CAVIUM, _BROADCOM, _FUJITSU, _HISILICON, _NVIDIA, _QUALCOMM, _AMPERE = (
    0x41,
    0x43,
    0x42,
    0x46,
    0x48,
    0x4E,
    0x51,
    0xC0,
)
_CORES = {
    (_ARM, 0xC05): _v7("cortex-a5", CoreClass.LITTLE),
    (_ARM, 0xC07): _v7("cortex-a7", CoreClass.LITTLE),
    (_ARM, 0xC08): _v7("cortex-a8", CoreClass.BIG),
    (_ARM, 0xC09): _v7("cortex-a9", CoreClass.BIG),
    (_ARM, 0xC0D): _v7("cortex-a17", CoreClass.BIG),
    (_ARM, 0xC0E): _v7("cortex-a17", CoreClass.BIG),
    (_ARM, 0xC0F): _v7("cortex-a15", CoreClass.BIG),
    (_ARM, 0xD02): ArmCore("cortex-a34", CoreClass.LITTLE, _NONE),
    (_ARM, 0xD03): ArmCore("cortex-a53", CoreClass.LITTLE, _NONE),
    (_ARM, 0xD04): ArmCore("cortex-a35", CoreClass.LITTLE, _NONE),
    (_ARM, 0xD05): ArmCore("cortex-a55", CoreClass.LITTLE, _V8_2),
    (_ARM, 0xD07): ArmCore("cortex-a57", CoreClass.BIG, _NONE),
    (_ARM, 0xD08): ArmCore("cortex-a72", CoreClass.BIG, _NONE),
    (_ARM, 0xD09): ArmCore("cortex-a73", CoreClass.BIG, _NONE),
    (_ARM, 0xD0A): ArmCore("cortex-a75", CoreClass.BIG, _V8_2),
    (_ARM, 0xD0B): ArmCore("cortex-a76", CoreClass.BIG, _V8_2),
    (_ARM, 0xD0C): ArmCore("neoverse-n1", CoreClass.BIG, _V8_2),
    (_ARM, 0xD0D): ArmCore("cortex-a77", CoreClass.BIG, _V8_2),
    (_ARM, 0xD0E): ArmCore("cortex-a76ae", CoreClass.BIG, _V8_2),
    (_ARM, 0xD40): ArmCore("neoverse-v1", CoreClass.BIG, _V1),
    (_ARM, 0xD41): ArmCore("cortex-a78", CoreClass.BIG, _V8_2),
    (_ARM, 0xD42): ArmCore("cortex-a78ae", CoreClass.BIG, _V8_2),
    (_ARM, 0xD44): ArmCore("cortex-x1", CoreClass.PRIME, _V8_2),
    (_ARM, 0xD46): ArmCore("cortex-a510", CoreClass.LITTLE, _N2),
    (_ARM, 0xD47): ArmCore("cortex-a710", CoreClass.BIG, _N2),
    (_ARM, 0xD48): ArmCore("cortex-x2", CoreClass.PRIME, _N2),
    (_ARM, 0xD49): ArmCore("neoverse-n2", CoreClass.BIG, _N2),
    (_ARM, 0xD4B): ArmCore("cortex-a78c", CoreClass.BIG, _V8_2),
    (_ARM, 0xD4C): ArmCore("cortex-x1c", CoreClass.PRIME, _V8_2),
    (_ARM, 0xD4D): ArmCore("cortex-a715", CoreClass.BIG, _N2),
    (_ARM, 0xD4E): ArmCore("cortex-x3", CoreClass.PRIME, _N2),
    (_ARM, 0xD4F): ArmCore("neoverse-v2", CoreClass.BIG, _N2),
    (_ARM, 0xD80): ArmCore("cortex-a520", CoreClass.LITTLE, _N2),
    (_ARM, 0xD81): ArmCore("cortex-a720", CoreClass.BIG, _N2),
    (_ARM, 0xD82): ArmCore("cortex-x4", CoreClass.PRIME, _N2),
    (_CAVIUM, 0x0A1): ArmCore("thunderxt88", CoreClass.BIG, _NONE),
    (_CAVIUM, 0x0AF): ArmCore("thunderx2t99", CoreClass.BIG, _NONE),
    (_BROADCOM, 0x516): ArmCore("thunderx2t99", CoreClass.BIG, _NONE),
    (_FUJITSU, 0x001): ArmCore("a64fx", CoreClass.BIG, ("fullfp16", "sve")),
    (_HISILICON, 0xD01): ArmCore("tsv110", CoreClass.BIG, _V8_2),
    (_HISILICON, 0xD40): ArmCore("cortex-a76", CoreClass.BIG, _V8_2),
    (_NVIDIA, 0x003): ArmCore(
        "cortex-a57", CoreClass.BIG, _NONE
    ),  # Denver 2, which LLVM has no name for
    (_NVIDIA, 0x004): ArmCore("carmel", CoreClass.BIG, _HALF),
    (_QUALCOMM, 0x800): ArmCore("cortex-a73", CoreClass.BIG, _NONE),  # Kryo 2xx Gold
    (_QUALCOMM, 0x801): ArmCore("cortex-a53", CoreClass.LITTLE, _NONE),  # Kryo 2xx Silver
    (_QUALCOMM, 0x802): ArmCore("cortex-a75", CoreClass.BIG, _V8_2),  # Kryo 3xx Gold
    (_QUALCOMM, 0x803): ArmCore("cortex-a55", CoreClass.LITTLE, _V8_2),  # Kryo 3xx Silver
    (_QUALCOMM, 0x804): ArmCore("cortex-a76", CoreClass.BIG, _V8_2),  # Kryo 4xx Gold
    (_QUALCOMM, 0x805): ArmCore("cortex-a55", CoreClass.LITTLE, _V8_2),  # Kryo 4xx Silver
    (_AMPERE, 0xAC3): ArmCore("ampere1", CoreClass.BIG, ("fullfp16", "dotprod", "i8mm", "bf16")),
    (_AMPERE, 0xAC4): ArmCore("ampere1a", CoreClass.BIG, ("fullfp16", "dotprod", "i8mm", "bf16")),
}
