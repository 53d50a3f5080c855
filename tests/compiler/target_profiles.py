"""Profiles to build for: the levels of architectures that tests compare, and boards that qemu
emulates.
"""

from __future__ import annotations

from farm.types import Profile

ARM = {
    "armv7": Profile(
        "pynq",
        {
            "kind": "llvm",
            "mtriple": "armv7a-linux-gnueabihf",
            "mcpu": "cortex-a9",
            "mattr": ["+neon"],
            "mfloat-abi": "hard",
        },
        "arm-linux-gnueabihf",
        agent="armv7",
    ),
    "aarch64": Profile(
        "rk3399",
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "mattr": ["+neon"]},
        "aarch64-linux-gnu",
        agent="aarch64",
    ),
    "aarch64 in order": Profile(
        "rasp3b-64",
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "mattr": ["+neon"]},
        "aarch64-linux-gnu",
        agent="aarch64",
    ),
}

X86 = Profile(
    "x86",
    {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"},
    "x86_64-linux-gnu",
    agent="x86_64",
)
ARM64 = Profile(
    "arm64",
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a53", "mattr": ["+neon"]},
    "aarch64-linux-gnu",
)
ARM32 = Profile(
    "arm32",
    {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
        "mcpu": "cortex-a9",
        "mattr": ["+neon"],
        "mfloat-abi": "hard",
    },
    "arm-linux-gnueabihf",
)
