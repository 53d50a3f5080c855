"""Which profile a board gets, by what it says about itself: reports of real boards, and of boards
that say little or nonsense.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from board_reports import cpuinfo, report
from hypothesis import given
from hypothesis import strategies as st

from farm import boards
from farm.boards.arm_cores import EXTENSIONS, core_by_midr
from farm.boards.detected_hardware import CoreGroup
from farm.config import parse_fleet, profiles
from farm.config.edit import add_tables
from farm.errors import DeviceError
from farm.transports.board_architecture import agent_architecture, architecture_from_probe_output

SHIPPED = profiles.built_in_profile_tables()
V8 = "fp asimd evtstrm crc32 cpuid"
V8_2 = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop "
    "asimddp"
)
V7 = "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva idivt vfpd32 lpae evtstrm"
ZEN4 = (
    "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm bmi1 "
    "avx2 bmi2 "
    "avx512f avx512dq avx512cd avx512bw avx512vl"
)


@pytest.mark.parametrize(
    ("board", "compatible", "architecture", "parts", "profile"),
    [
        (
            "Raspberry Pi 3 Model B Rev 1.2",
            "raspberrypi,3-model-b brcm,bcm2837",
            "armv7",
            [(0x41, 0xD03)] * 4,
            "rasp3b",
        ),
        (
            "Raspberry Pi 3 Model B Plus Rev 1.3",
            "raspberrypi,3-model-b-plus brcm,bcm2837",
            "aarch64",
            [(0x41, 0xD03)] * 4,
            "rasp3b-64",
        ),
        (
            "Raspberry Pi 4 Model B Rev 1.4",
            "raspberrypi,4-model-b brcm,bcm2711",
            "aarch64",
            [(0x41, 0xD08)] * 4,
            "rasp4-64",
        ),
        (
            "Raspberry Pi 400 Rev 1.0",
            "raspberrypi,400 brcm,bcm2711",
            "armv7",
            [(0x41, 0xD08)] * 4,
            "rasp4",
        ),
        (
            "Radxa ROCK Pi 4B",
            "radxa,rockpi4b rockchip,rk3399",
            "aarch64",
            [(0x41, 0xD03)] * 4 + [(0x41, 0xD08)] * 2,
            "rk3399",
        ),
        ("Xilinx PYNQ Z1", "digilent,pynq-z1 xlnx,zynq-7000", "armv7", [(0x41, 0xC09)] * 2, "pynq"),
    ],
)
def test_a_board_that_has_a_profile_gets_it(
    tmp_path: Path,
    board: str,
    compatible: str,
    architecture: str,
    parts: list[tuple[int, int]],
    profile: str,
) -> None:
    evidence = boards.hardware_from_report(
        architecture, report(tmp_path, cpuinfo(parts, V8), board, compatible)
    )
    assert (evidence.board, evidence.core_count, evidence.memory_bytes) == (
        board,
        len(parts),
        8131912 * 1024,
    )
    choice = boards.choose_profile("mine", evidence, SHIPPED)
    assert (choice.profile, choice.table) == (profile, None)
    assert board in choice.reason


def test_a_board_of_two_kinds_of_cores_gets_a_profile_of_its_own_for_the_larger_ones(
    tmp_path: Path,
) -> None:
    parts = [(0x41, 0xD05)] * 4 + [(0x41, 0xD0B)] * 4
    evidence = boards.hardware_from_report(
        "aarch64",
        report(
            tmp_path, cpuinfo(parts, V8_2), "Orange Pi 5", "xunlong,orangepi-5 rockchip,rk3588s"
        ),
    )
    choice = boards.choose_profile("opi5", evidence, SHIPPED)
    assert (choice.profile, choice.reason) == ("opi5", "it has 4x Cortex-A76 and 4x Cortex-A55")
    assert choice.table is not None
    text = add_tables(
        "",
        {
            ("devices", "opi5"): {"profile": "opi5", "url": "ssh://opi5"},
            ("profiles", "opi5"): choice.table,
        },
    )
    profile = parse_fleet(text, tmp_path / "devices.toml").device("opi5").profile
    assert profile.description == "Orange Pi 5: 4x Cortex-A76 and 4x Cortex-A55"
    assert profile.target == {
        "kind": "llvm",
        "mtriple": "aarch64-linux-gnu",
        "mcpu": "cortex-a76",
        "mattr": ["+neon"],
        "num-cores": 8,
    }
    assert profile.agent == "aarch64"


def phone(maker: str, model: str, soc: str = " ") -> dict[str, str]:
    soc_maker, soc_model = soc.split(" ")
    names = (
        "ro.product.manufacturer",
        "ro.product.model",
        "ro.soc.manufacturer",
        "ro.soc.model",
        "ro.build.version.release",
    )
    return dict(zip(names, (maker, model, soc_maker, soc_model, "13"), strict=True)) | {
        "ro.board.platform": "a_platform"
    }


@pytest.mark.parametrize(
    ("maker", "model", "profile"),
    [
        ("Google", "Pixel 2", "pixel2"),
        ("Google", "Pixel 2 XL", "pixel2"),
        ("HUAWEI", "ALP-L29", "mate10"),
        ("HUAWEI", "BLA-L09", "mate10pro"),
        ("HUAWEI", "EML-L29", "p20"),
        ("HUAWEI", "CLT-L29", "p20pro"),
    ],
)
def test_a_phone_that_has_a_profile_gets_it(
    tmp_path: Path, maker: str, model: str, profile: str
) -> None:
    parts = [(0x41, 0xD03)] * 4 + [(0x41, 0xD09)] * 4
    evidence = boards.hardware_from_report(
        "aarch64", report(tmp_path, cpuinfo(parts, V8), properties=phone(maker, model))
    )
    assert boards.choose_profile("mine", evidence, SHIPPED).profile == profile


def test_any_other_phone_gets_a_profile_of_its_own_like_a_phones(tmp_path: Path) -> None:
    parts = [(0x41, 0xD05)] * 4 + [(0x41, 0xD0B)] * 2 + [(0x41, 0xD44)] * 2
    said = report(
        tmp_path, cpuinfo(parts, V8_2), properties=phone("Google", "Pixel 6", "Google GS101")
    )
    evidence = boards.hardware_from_report("aarch64", said)
    assert (evidence.board, evidence.cpu, evidence.android) == (
        "Google Pixel 6",
        "Google GS101",
        "13",
    )
    choice = boards.choose_profile("p6", evidence, SHIPPED)
    assert choice.reason == "it has 2x Cortex-X1 and 2x Cortex-A76 and 4x Cortex-A55"
    assert choice.table is not None and choice.table["inherits"] == "pixel2"
    text = add_tables(
        "", {("devices", "p6"): {"profile": "p6", "url": "adb:"}, ("profiles", "p6"): choice.table}
    )
    profile = parse_fleet(text, tmp_path / "devices.toml").device("p6").profile
    assert (profile.triple, profile.agent, profile.target["mcpu"]) == (
        "aarch64-linux-android",
        "aarch64",
        "cortex-x1",
    )


def test_a_phone_of_before_android_12_tells_its_platform(tmp_path: Path) -> None:
    said = report(tmp_path, cpuinfo([(0x41, 0xD03)] * 4, V8), properties=phone("Xiaomi", "Mi A1"))
    assert boards.hardware_from_report("aarch64", said).cpu == "a_platform"


def test_extensions_that_the_kernel_does_not_tell_of_are_not_used(tmp_path: Path) -> None:
    evidence = boards.hardware_from_report(
        "aarch64", report(tmp_path, cpuinfo([(0x41, 0xD49)] * 2, V8_2))
    )  # an N2 whose kernel has no SVE
    table = boards.choose_profile("n2", evidence, SHIPPED).table
    assert table is not None
    assert table["target"]["mcpu"] == "neoverse-n2"
    assert table["target"]["mattr"] == ["+neon", "-i8mm", "-bf16", "-sve", "-sve2"]
    odd = dataclasses.replace(evidence, features=evidence.features | {"sve2", "i8mm"})
    table = boards.choose_profile("n2", odd, SHIPPED).table
    assert table is not None
    assert table["target"]["mattr"] == ["+neon", "-bf16", "-sve", "-sve2"], "it stands on SVE"


@pytest.mark.parametrize(
    ("large", "little"), [(0x800, 0x801), (0x802, 0x803), (0x804, 0x805)], ids=["2", "3", "4"]
)
def test_kryo_cores_of_silver_are_the_little_ones(large: int, little: int) -> None:
    said = {"arm_cores": f"4 0x51 {little:#x},4 0x51 {large:#x},", "features": V8_2}
    choice = boards.choose_profile("phone", boards.hardware_from_report("aarch64", said), SHIPPED)
    core, other = core_by_midr(0x51, large), core_by_midr(0x51, little)
    assert core and other and core.size > other.size
    assert choice.table is not None and choice.table["target"]["mcpu"] == core.mcpu


def test_cores_of_32_bit_inherit_a_profile_of_32_bit(tmp_path: Path) -> None:
    evidence = boards.hardware_from_report(
        "armv7", report(tmp_path, cpuinfo([(0x41, 0xC07)] * 4, V7), "Banana Pi")
    )
    table = boards.choose_profile("banana", evidence, SHIPPED).table
    assert table is not None and (table["inherits"], table["target"]["mcpu"]) == (
        "pynq",
        "cortex-a7",
    )


def test_cores_of_32_bit_have_no_scalable_vectors(tmp_path: Path) -> None:
    """LLVM's target for 32-bit programs knows neither, so neither can be switched off."""
    evidence = boards.hardware_from_report(
        "armv7", report(tmp_path, cpuinfo([(0x41, 0xD47)] * 4, V7), "Banana Pi")
    )
    table = boards.choose_profile("banana", evidence, SHIPPED).table
    assert table is not None and table["target"]["mcpu"] == "cortex-a710"
    assert table["inherits"] == "rasp4", "of 32-bit programs on cores of ARMv8"
    assert table["target"]["mattr"] == ["+neon", "-fullfp16", "-dotprod", "-i8mm", "-bf16"]


@pytest.mark.parametrize(("cores", "count"), [("", 8), ("many", 8), ("6", 6)])
def test_a_board_that_does_not_say_how_many_cores_it_has_has_those_that_it_lists(
    cores: str, count: int
) -> None:
    said = {"arm_cores": "4 0x41 0xd0b,4 0x41 0xd05,", "features": V8_2, "cores": cores}
    table = boards.choose_profile(
        "own", boards.hardware_from_report("aarch64", said), SHIPPED
    ).table
    assert table is not None and table["target"]["num-cores"] == count


def test_unknown_cores_get_generic_code_and_the_user_is_told(tmp_path: Path) -> None:
    choice = boards.choose_profile(
        "new",
        boards.hardware_from_report("aarch64", report(tmp_path, cpuinfo([(0x7F, 0xABC)] * 4, V8))),
        SHIPPED,
    )
    assert choice.table is not None and choice.table["target"]["mcpu"] == "generic"
    assert "implementer 0x7f, part 0xabc" in choice.notes[0]


def test_an_x86_board_gets_the_highest_level_that_it_has() -> None:
    def chosen(flags: str, *, here: bool = False) -> boards.ProfileChoice:
        return boards.choose_profile(
            "pc",
            boards.hardware_from_report("x86_64", {"cpu": "A CPU", "features": flags}),
            SHIPPED,
            here=here,
        )

    assert chosen(ZEN4).profile == "x86-v4"
    assert chosen(ZEN4, here=True).profile == "x86"
    assert chosen(ZEN4.partition(" avx512f")[0]).profile == "x86-v3"
    for lacking in ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"):
        assert chosen(ZEN4.replace(lacking, "")).profile == "x86-v3", "as Knights Landing"
    for lacking in ("avx2", "fma", "bmi2", "f16c", "movbe"):
        assert chosen(ZEN4.replace(f" {lacking} ", " ")).profile == "pc"
    old = chosen("fpu sse sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm")
    assert old.table is not None and (old.table["inherits"], old.table["target"]["mcpu"]) == (
        "x86-v3",
        "x86-64-v2",
    )
    assert chosen("").notes  # it did not say


def test_a_gpu_is_preferred_where_farm_can_build_for_it() -> None:
    evidence = boards.hardware_from_report(
        "x86_64", {"features": ZEN4, "gpus": "9.0, NVIDIA H200;9.0, NVIDIA H200;"}
    )
    assert boards.choose_profile("box", evidence, SHIPPED, builds_cuda=True).profile == "cuda-sm90"
    without = boards.choose_profile("box", evidence, SHIPPED)
    assert without.profile == "x86-v4" and "--profile cuda-sm90" in without.notes[0]
    unknown = boards.choose_profile(
        "box",
        boards.hardware_from_report("x86_64", {"features": ZEN4, "gpus": "12.1, A GPU"}),
        SHIPPED,
        builds_cuda=True,
    )
    assert unknown.profile == "x86-v4" and "sm_121" in unknown.notes[0]


def test_the_gpu_that_has_a_profile_is_named_and_told_from_those_before_it() -> None:
    evidence = boards.hardware_from_report(
        "x86_64", {"features": ZEN4, "gpus": "12.1, A GPU;9.0, NVIDIA H200;"}
    )
    choice = boards.choose_profile("box", evidence, SHIPPED, builds_cuda=True)
    assert (choice.profile, choice.gpu) == ("cuda-sm90", 1)
    assert choice.reason == "its GPU is NVIDIA H200"


def test_a_jetson_without_the_compiler_for_gpus_gets_its_cpu() -> None:
    said = {
        "board": "NVIDIA Jetson Orin Nano Developer Kit",
        "arm_cores": "6 0x41 0xd42,",
        "features": V8_2,
        "cores": "6",
    }
    evidence = boards.hardware_from_report("aarch64", said)
    assert (
        boards.choose_profile("orin", evidence, SHIPPED, builds_cuda=True).profile
        == "jetson-orin-nano"
    )
    cpu = boards.choose_profile("orin", evidence, SHIPPED)
    assert cpu.table is not None and cpu.table["target"]["mcpu"] == "cortex-a78ae"
    assert "--profile jetson-orin-nano" in cpu.notes[-1]


def test_an_agents_facts_name_the_cpu_of_a_pc_the_board_of_others_and_the_gpu() -> None:
    facts = {
        "machine": "x86_64",
        "cpu": "AMD EPYC 9654",
        "cores": "96",
        "memory_total_bytes": "8000000000",
        "gpu": "NVIDIA H200",
        "gpu_architecture": "sm_90",
    }
    gpu = boards.Gpu("NVIDIA H200", "sm_90")
    assert boards.hardware_from_facts(facts) == boards.DetectedHardware(
        "x86_64",
        "x86_64",
        cpu="AMD EPYC 9654",
        core_count=96,
        memory_bytes=8_000_000_000,
        gpus=(gpu,),
    )
    assert boards.hardware_from_facts({"machine": "aarch64", "cpu": "A Pi", "cores": "4"}) == (
        boards.DetectedHardware("aarch64", "aarch64", "A Pi", core_count=4)
    )


def test_what_a_board_says_is_cut() -> None:
    said = {"board": "x" * 1000, "cores": "9" * 20, "features": "neon " * 3000 + "sve2"}
    evidence = boards.hardware_from_report("aarch64", said)
    assert (evidence.board, evidence.core_count) == ("x" * 200, 4096)
    assert "sve2" not in evidence.features
    assert boards.hardware_from_report("aarch64", {"cores": "9" * 21}).core_count == 0


def test_an_agent_at_an_address_is_recognized_by_the_name_of_its_board() -> None:
    facts = {
        "machine": "aarch64",
        "cpu": "Raspberry Pi 4 Model B Rev 1.5",
        "cores": "4",
        "memory_total_bytes": "4000000000",
    }
    assert (
        boards.choose_profile("pi", boards.hardware_from_facts(facts), SHIPPED).profile
        == "rasp4-64"
    )
    with pytest.raises(DeviceError, match="what kind of board pi is cannot be told") as caught:
        boards.choose_profile(
            "pi", boards.hardware_from_facts({**facts, "cpu": "A board of ours"}), SHIPPED
        )
    assert "A board of ours" in caught.value.why and "--profile" in caught.value.fix


@pytest.mark.parametrize(
    ("machine", "bits", "architecture"),
    [
        ("x86_64", "64", "x86_64"),
        ("aarch64", "32", "armv7"),
        ("aarch64", "64", "aarch64"),
        ("armv7l", "32", "armv7"),
        ("armv6l", "32", ""),
    ],
)
def test_the_architecture_is_that_of_the_programs(
    machine: str, bits: str, architecture: str
) -> None:
    assert (
        agent_architecture(architecture_from_probe_output({"machine": machine, "bits": bits}))
        == architecture
    )


def test_a_board_without_an_agent_is_refused() -> None:
    with pytest.raises(DeviceError, match="no agent for the armv6l architecture of zero"):
        boards.choose_profile(
            "zero", boards.hardware_from_report("", {"machine": "armv6l"}), SHIPPED
        )
    with pytest.raises(DeviceError, match="no NEON"):
        boards.choose_profile(
            "old",
            boards.hardware_from_report(
                "armv7", {"features": "half vfp edsp", "arm_cores": "2 0x41 0xc09,"}
            ),
            SHIPPED,
        )


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64", "armv7", "riscv64", ""])
@given(report=st.dictionaries(
    st.sampled_from(["machine", "board", "compatible", "cpu", "arm_cores", "cores", "features", "memory_kib", "gpus"]),  # noqa: E501
    st.text(max_size=60) | st.from_regex(r"\d{1,30} 0x4[0-9a-f] 0x[0-9a-f]{1,4},", fullmatch=True),
))  # fmt: skip
def test_whatever_a_board_says_gives_a_profile_or_an_error(
    architecture: str, report: dict[str, str]
) -> None:
    evidence = boards.hardware_from_report(architecture, report)
    assert 0 <= evidence.core_count <= 4096 and all(
        text.isprintable() for text in (evidence.board, evidence.cpu, evidence.machine)
    )
    try:
        choice = boards.choose_profile("b", evidence, SHIPPED)
    except DeviceError as error:
        assert error.why and error.fix
        return
    tables = {("devices", "b"): {"profile": choice.profile, "url": "ssh://b"}}
    own = {} if choice.table is None else {("profiles", "b"): choice.table}
    assert (
        parse_fleet(add_tables("", {**tables, **own}), Path("/devices.toml"))
        .device("b")
        .profile.agent
    )


def test_every_core_of_the_table_is_one_of_llvms() -> None:
    tvm = pytest.importorskip("tvm")
    names = tvm.get_global_func("target.llvm_get_cpu_archlist")
    triples = {8: "aarch64-linux-gnu", 7: "armv7a-linux-gnueabihf"}
    known = {
        version: set(map(str, names(tvm.target.Target({"kind": "llvm", "mtriple": triple}))))
        for version, triple in triples.items()
    }
    cores = [
        core
        for implementer in range(256)
        for part in range(4096)
        if (core := core_by_midr(implementer, part))
    ]
    assert len(cores) > 40
    for core in cores:
        assert core.mcpu in known[core.architecture], core
        assert core.in_32_bit().mcpu in known[7], core
        assert set(core.extensions) <= set(EXTENSIONS.values())


def test_a_known_board_of_another_architecture_gets_a_profile_of_its_own() -> None:
    cores = (CoreGroup(0x41, 0xD03, 4),)
    board = boards.DetectedHardware("armv7", "armv7l", "Ultra96 Rev1", cores=cores)
    choice = boards.choose_profile("u", board, SHIPPED)
    assert choice.profile == "u" and choice.table is not None
    wide = dataclasses.replace(board, architecture="aarch64")
    assert boards.choose_profile("u", wide, SHIPPED).profile == "ultra96"


def test_a_board_of_64_bits_with_programs_of_32_has_a_neon_unit(tmp_path: Path) -> None:
    """Its kernel calls the unit by the name of 64-bit ARM."""
    evidence = boards.hardware_from_report(
        "armv7", report(tmp_path, cpuinfo([(0x41, 0xD0B)] * 4, V8_2), "Some Board", "maker,board")
    )
    assert boards.choose_profile("mine", evidence, SHIPPED).profile == "mine"
