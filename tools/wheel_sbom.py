"""What the agents in a wheel are made of, beside farm's own sources: versions, licences, and the
bill of materials (CycloneDX).

An agent contains TVM's runtime and FFI, the C and C++ libraries that zig brings, and zig's own
runtime library. Versions are read from the installed packages.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement

from farm.agent.recipe import GPU

FARM = "Apache-2.0"
LLVM = "Apache-2.0 WITH LLVM-exception"
DIGITS = "CC-BY-4.0"  # the images of farm/zoo/digits
_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # RFC 9562: names that are OIDs


@dataclass(frozen=True, slots=True)
class Part:
    """A third-party part of agents: its version (empty where its files do not say), its licence as
    an SPDX expression, and the files with the licence's text.
    """

    name: str
    version: str
    license: str
    texts: tuple[Path, ...]
    package: PackageURL | None
    description: str


def parts_of(agent: str) -> list[Part]:
    """Return the parts of the agent for an architecture."""
    gpu = agent.endswith(GPU)
    libraries = [part for part in _parts() if part.name != ("musl" if gpu else "glibc")]
    return sorted(libraries, key=lambda part: part.name)


def _parts() -> list[Part]:
    zig, ffi = _package("ziglang"), _package("apache-tvm-ffi", "tvm_ffi")
    library = zig / "lib"
    config = (library / "libcxx" / "include" / "__config").read_text()
    number = int(_found(r"_LIBCPP_VERSION (\d+)", config))
    llvm = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    musl = (library / "libc" / "musl" / "src" / "internal" / "version.h").read_text()
    dlpack = (ffi / "include" / "dlpack" / "dlpack.h").read_text()
    return [
        _wheel("apache-tvm", FARM, "the runtime, of which agents contain the part for devices"),
        _wheel("apache-tvm-ffi", FARM, "the functions and objects of TVM's runtime"),
        Part(
            "dlpack",
            ".".join(_found(rf"DLPACK_{n}_VERSION (\d+)", dlpack) for n in ("MAJOR", "MINOR")),
            FARM,
            (),
            PackageURL("github", "dmlc", "dlpack"),
            "a header of tensors, in apache-tvm-ffi",
        ),
        Part(
            "zig",
            importlib.metadata.version("ziglang"),
            "MIT",
            (zig / "LICENSE",),
            PackageURL("pypi", None, "ziglang", importlib.metadata.version("ziglang")),
            "the compiler, of which agents contain compiler-rt and start files",
        ),
        *(
            Part(
                name,
                llvm,
                LLVM,
                (library / folder / "LICENSE.TXT",),
                PackageURL("github", "llvm", "llvm-project", f"llvmorg-{llvm}", None, folder),
                what,
            )
            for name, folder, what in (
                ("libc++", "libcxx", "the C++ library"),
                ("libc++abi", "libcxxabi", "exceptions and run-time types of C++"),
                ("libunwind", "libunwind", "unwinding of the stack"),
            )
        ),
        Part(
            "musl",
            _found(r'VERSION "([\d.]+)"', musl),
            "MIT",
            (library / "libc" / "musl" / "COPYRIGHT",),
            None,
            "the C library of static agents, with zig's changes",
        ),
        Part(
            "glibc",
            "",
            "LGPL-2.1-or-later",
            (library / "libc" / "glibc" / "LICENSES",),
            None,
            "the start files of agents for GPUs, whose licence lets any program contain them; "
            "the C library itself is the board's",
        ),
    ]


def license_files(agents: Sequence[str]) -> dict[str, Path]:
    """Return the texts of the licences of all parts, by their path below third-party/."""
    return {
        f"{part.name}/{text.name}": text
        for agent in agents
        for part in parts_of(agent)
        for text in part.texts
    }


def license_expression(agents: Sequence[str]) -> str:
    """Return the licences of a wheel with these agents, as one SPDX expression."""
    others = {part.license for agent in agents for part in parts_of(agent)}
    return " AND ".join([FARM, *sorted({DIGITS, *others} - {FARM})])


def bill_of_materials(
    version: str, agents: Mapping[str, Path], requirements: Iterable[str], epoch: int
) -> str:
    """Return the CycloneDX document (JSON) of a wheel.

    `agents` are the executables by architecture, `requirements` those of the wheel's metadata, and
    `epoch` the time that the document states. The same arguments give the same text.
    """
    root = Component(
        name="tvm-farm",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="tvm-farm",
        purl=PackageURL("pypi", None, "tvm-farm", version),
        licenses=[LicenseExpression(license_expression(list(agents)))],
    )
    bom = Bom()
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    parts: dict[str, Component] = {}
    below = []
    for arch, path in agents.items():
        inside = [parts.setdefault(one.name, _component(one)) for one in parts_of(arch)]
        agent = _agent(arch, path, version)
        bom.components.add(agent)
        bom.register_dependency(agent, inside)
        below.append(agent)
    for part in parts.values():
        bom.components.add(part)
        bom.register_dependency(part)
    for line in requirements:
        if (wanted := _requirement(line)) is not None:
            bom.components.add(wanted)
            bom.register_dependency(wanted)
            below.append(wanted)
    bom.register_dependency(root, below)
    state = "\n".join(sorted(f"{one.bom_ref} {one.version}" for one in bom.components))
    hashes = "\n".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in agents.values())
    bom.serial_number = uuid.uuid5(_NAMESPACE, f"tvm-farm {version}\n{state}\n{hashes}")
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def _agent(arch: str, path: Path, version: str) -> Component:
    return Component(
        name=f"farm-agent-{arch}",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"farm-agent-{arch}",
        description="the program that runs on boards",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=_sha256(path))],
        licenses=[LicenseExpression(FARM)],
        properties=[Property(name="farm:path", value=f"farm/agent/prebuilt/{path.name}")],
    )


def _component(part: Part) -> Component:
    return Component(
        name=part.name,
        version=part.version or None,
        type=ComponentType.LIBRARY,
        bom_ref=part.name,
        description=part.description,
        licenses=[LicenseExpression(part.license)],
        purl=part.package,
    )


def _requirement(line: str) -> Component | None:
    """Return a package that pip installs with the wheel; None for one of an extra."""
    wanted = Requirement(line)
    if wanted.marker is not None and "extra" in str(wanted.marker):
        return None
    pinned = [one.version for one in wanted.specifier if one.operator == "=="]
    version = pinned[0] if pinned else None
    return Component(
        name=wanted.name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"requires {wanted.name}",
        description="installed beside the wheel, not in it",
        purl=PackageURL("pypi", None, wanted.name.lower(), version),
        properties=[Property(name="farm:required", value=str(wanted.specifier) or "any version")],
    )


def _wheel(distribution: str, terms: str, description: str) -> Part:
    found = importlib.metadata.distribution(distribution)
    texts = {
        path.name: Path(str(found.locate_file(path)))
        for path in found.files or ()
        if path.name in ("LICENSE", "NOTICE")
    }
    package = PackageURL("pypi", None, distribution, found.version)
    return Part(distribution, found.version, terms, tuple(texts.values()), package, description)


def _package(distribution: str, name: str = "") -> Path:
    return Path(
        str(importlib.metadata.distribution(distribution).locate_file(name or distribution))
    )


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, pattern
    return found[1]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
