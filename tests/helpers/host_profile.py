"""The profile of the machine that the tests run on."""

from farm.types import Profile

HOST = Profile("x86", {"kind": "llvm", "mcpu": "native"}, "", agent="x86_64")
