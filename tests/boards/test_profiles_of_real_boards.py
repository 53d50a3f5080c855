"""Which profile real boards get, by what their owners published of them.

`source` is where the content of /proc/cpuinfo was published. Names in device trees are from the
trees of Linux (arch/arm64/boot/dts) where the source has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from board_reports import report

from farm import boards
from farm.config import parse_fleet, profiles
from farm.config.edit import add_tables
from farm.transports.board_architecture import agent_architecture, architecture_from_probe_output

SOCS = "https://github.com/hrw/arm-socs-table/issues/"
A53 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid"
V8_2 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop"
PHONE = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma "
    "lrcpc dcpop sha3 sm3 sm4 asimddp sha512"
)


@dataclass(frozen=True)
class Board:
    """A board: its cores as (number, implementer, part), their features, and its names; and what
    farm add has to make of it: a built-in profile, or the mcpu of one of its own.
    """

    name: str
    source: str
    cores: tuple[tuple[int, int, int], ...] = ()
    features: str = ""
    profile: str = ""
    mcpu: str = ""
    mattr: tuple[str, ...] = ("+neon",)
    compatible: str = ""
    machine: str = "aarch64"
    model_name: str = ""
    text: str = ""
    properties: Mapping[str, str] | None = field(default=None)

    def cpuinfo(self) -> str:
        if self.text:
            return self.text
        numbered = [core[1:] for core in self.cores for _ in range(core[0])]
        model = f"model name\t: {self.model_name}\n" if self.model_name else ""
        return "\n".join(
            f"processor\t: {number}\n{model}BogoMIPS\t: 48.00\nFeatures\t: {self.features}\n"
            f"CPU implementer\t: {implementer:#04x}\nCPU architecture: 8\nCPU variant\t: 0x0\n"
            f"CPU part\t: {part:#05x}\nCPU revision\t: 4\n"
            for number, (implementer, part) in enumerate(numbered)
        )


def phone(maker: str, model: str) -> dict[str, str]:
    return {
        "ro.product.manufacturer": maker,
        "ro.product.model": model,
        "ro.build.version.release": "12",
    }


U74 = "\n".join(
    f"processor\t: {hart - 1}\nhart\t\t: {hart}\nisa\t\t: rv64imafdc\nmmu\t\t: sv39\n"
    "uarch\t\t: sifive,u74-mc\n"
    for hart in range(1, 5)
)
OLD_KERNEL = "Processor : AArch64 Processor rev 4 (aarch64)\n" + "".join(
    [f"processor : {number}\n" for number in range(8)]
    + [
        "Features : fp asimd evtstrm aes pmull sha1 sha2 crc32\n",
        "CPU implementer : 0x41\nCPU architecture: 8\nCPU variant : 0x0\nCPU part : 0xd03\n",
        "CPU revision : 4\nHardware : Qualcomm Technologies, Inc MSM8952\n",
    ]
)
I5 = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\n"
    "model name\t: Intel(R) Core(TM) i5-4258U CPU @ 2.40GHz\nflags\t\t: fpu vme de pse tsc msr pae "
    "mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr sse sse2 ss ht tm pbe "
    "syscall nx lm constant_tsc pebs bts eagerfpu pni pclmulqdq dtes64 ds_cpl ssse3 fma cx16 xtpr "
    "pdcm movbe popcnt aes xsave avx f16c rdrand hypervisor lahf_lm xsaveopt fsgsbase tsc_adjust "
    "bmi1 avx2 smep bmi2 erms\n"
)
BOARDS = [
    Board(
        "Raspberry Pi 3 Model B Plus Rev 1.3",
        "https://fudongbai.gitlab.io/android/android-procfs-demystified-cpuinfo",
        ((4, 0x41, 0xD03),),
        "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm crc32",
        "rasp3b",
        machine="armv7l",
        model_name="ARMv7 Processor rev 4 (v7l)",
        compatible="raspberrypi,3-model-b-plus brcm,bcm2837",
    ),
    Board(
        "Libre Computer ROC-RK3399-PC Board",
        f"{SOCS}5",
        ((4, 0x41, 0xD03), (2, 0x41, 0xD08)),
        A53,
        "rk3399",
        compatible="libretech,roc-rk3399-pc rockchip,rk3399",
    ),
    Board(
        "StarFive VisionFive V2",
        "https://github.com/pytorch/cpuinfo/issues/124",
        profile="riscv64",
        machine="riscv64",
        text=U74,
        compatible="starfive,visionfive-v2 starfive,jh7110",
    ),
    Board(
        "",
        "https://github.com/pytorch/cpuinfo/blob/42bff7a/test/mock/huawei-mate-10.h",
        ((4, 0x41, 0xD03), (4, 0x41, 0xD09)),
        "fp asimd evtstrm aes pmull sha1 sha2 crc32",
        "mate10",
        properties=phone("HUAWEI", "ALP-L29"),
    ),
    Board(
        "Radxa ROCK 5B",
        f"{SOCS}18",
        ((4, 0x41, 0xD05), (4, 0x41, 0xD0B)),
        f"{V8_2} asimddp",
        mcpu="cortex-a76",
        compatible="radxa,rock-5b rockchip,rk3588",
    ),
    Board(
        "Firefly ROC-RK3328-CC",
        f"{SOCS}17",
        ((4, 0x41, 0xD03),),
        A53,
        mcpu="cortex-a53",
        compatible="firefly,roc-rk3328-cc rockchip,rk3328",
    ),
    Board(
        "Bananapi BPI-R4",
        f"{SOCS}129",
        ((4, 0x41, 0xD09),),
        A53,
        mcpu="cortex-a73",
        compatible="bananapi,bpi-r4 mediatek,mt7988a",
    ),
    Board(
        "NVIDIA Jetson Nano Developer Kit",
        f"{SOCS}91",
        ((4, 0x41, 0xD07),),
        A53,
        mcpu="cortex-a57",
        compatible="nvidia,p3450-0000 nvidia,tegra210",
    ),
    Board(
        "NVIDIA Jetson TX2 Developer Kit",
        f"{SOCS}25",
        ((1, 0x41, 0xD07), (2, 0x4E, 0x003), (3, 0x41, 0xD07)),
        "fp asimd evtstrm aes pmull sha1 sha2 crc32",
        mcpu="cortex-a57",
        model_name="ARMv8 Processor rev 3 (v8l)",
        compatible="nvidia,p2771-0000 nvidia,tegra186",
    ),
    Board(
        "NVIDIA Jetson AGX Xavier Developer Kit",
        f"{SOCS}63",
        ((8, 0x4E, 0x004),),
        "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm dcpop",
        mcpu="carmel",
        model_name="ARMv8 Processor rev 0 (v8l)",
        compatible="nvidia,p2972-0000 nvidia,tegra194",
    ),
    Board(
        "",
        "https://github.com/archspec/archspec-json/issues/41",
        ((80, 0x41, 0xD0C),),
        f"{V8_2} asimddp ssbs",
        mcpu="neoverse-n1",
    ),
    Board(
        "",
        "https://github.com/Dr-Noob/cpufetch/issues/253",
        ((4, 0x41, 0xD46), (3, 0x41, 0xD47), (1, 0x41, 0xD48)),
        f"{PHONE} asimdfhm dit uscat ilrcpc flagm ssbs sb paca pacg dcpodp flagm2 frint i8mm bti",
        mcpu="cortex-x2",
        mattr=("+neon", "-bf16", "-sve", "-sve2"),
        properties=phone("Redmi", "23049RAD8C"),
    ),
    Board(
        "",
        "https://github.com/Dr-Noob/cpufetch/issues/174",
        ((6, 0x51, 0x805), (2, 0x51, 0x804)),
        f"{V8_2} asimddp",
        mcpu="cortex-a76",
        properties=phone("Google", "A phone with Snapdragon 730G"),
    ),
    Board("", f"{SOCS}138", mcpu="cortex-a53", text=OLD_KERNEL, properties=phone("TCL", "6055K")),
    Board(
        "",
        "https://github.com/glpi-project/android-inventory-library/issues/59",
        mcpu="x86-64",
        mattr=(),
        machine="x86_64",
        text=I5,
    ),
]
UNKNOWN = [
    Board(
        "",
        f"{SOCS}24",
        ((8, 0x70, 0x663),),
        A53,
        mcpu="generic",
        model_name="Phytium,D2000/8",
    ),
    Board(
        "",
        f"{SOCS}190",
        ((8, 0x41, 0xD87),),
        f"{PHONE} sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull "
        "svebitperm svesha3 svesm4 flagm2 frint svei8mm svebf16 i8mm bf16 dgh bti ecv afp wfxt",
        mcpu="generic",
        mattr=("+neon", "+fullfp16", "+dotprod"),
        properties=phone("Xiaomi", "A phone with Dimensity 8500"),
    ),
]


def choice_for(board: Board, folder: Path) -> tuple[boards.DetectedHardware, boards.ProfileChoice]:
    said = report(folder, board.cpuinfo(), board.name, board.compatible, board.properties)
    said |= {"machine": board.machine, "bits": "32" if board.machine == "armv7l" else "64"}
    said.pop("shell", None)  # the ELF header of this machine's
    evidence = boards.hardware_from_report(
        agent_architecture(architecture_from_probe_output(said)), said
    )
    return evidence, boards.choose_profile("mine", evidence, profiles.built_in_profile_tables())


@pytest.mark.parametrize("board", BOARDS + UNKNOWN, ids=lambda one: one.source.split("//")[1])
def test_a_real_board_gets_the_profile_for_its_cores(tmp_path: Path, board: Board) -> None:
    evidence, choice = choice_for(board, tmp_path)
    count = sum(core[0] for core in board.cores) or board.text.count("processor")
    assert evidence.core_count == count
    if board.profile:
        assert (choice.profile, choice.table) == (board.profile, None)
        return
    assert choice.table is not None, choice
    target = choice.table["target"]
    assert (target["mcpu"], tuple(target.get("mattr", ()))) == (board.mcpu, board.mattr)
    tables = {
        ("devices", "mine"): {"profile": "mine", "url": "ssh://mine"},
        ("profiles", "mine"): choice.table,
    }
    fleet = parse_fleet(add_tables("", tables), tmp_path / "devices.toml")
    assert fleet.device("mine").profile.agent == evidence.architecture


@pytest.mark.parametrize("board", UNKNOWN, ids=lambda one: one.source.split("//")[1])
def test_the_user_is_told_of_cores_that_are_not_known(tmp_path: Path, board: Board) -> None:
    _, choice = choice_for(board, tmp_path)
    _, implementer, part = board.cores[0]
    assert choice.reason == "its cores are not known"
    assert f"implementer {implementer:#x}, part {part:#x}" in choice.notes[0]
