"""Check the address of a cluster."""

from __future__ import annotations

import re

SLURM = "slurm"  # alone, or with a colon and a folder that its nodes share
_SLURM_FOLDER = re.compile(rf"{SLURM}(:/.+)?")
_ADDRESS = re.compile(r"(?:tcp|tls)://(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


def check_cluster_address(text: str) -> str:
    """Return the address of a cluster. Raises ValueError if it is none."""
    if _SLURM_FOLDER.fullmatch(text):
        return text
    found = _ADDRESS.fullmatch(text)
    if not found or not 0 < int(found[1]) < 1 << 16:
        raise ValueError(
            "a cluster is the scheduler of Dask, as tcp://HOST:8786 or tls://HOST:8786, or slurm, "
            "or slurm:/FOLDER that Slurm's nodes share"
        )
    return text
