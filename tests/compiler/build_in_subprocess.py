"""A build in a process of its own: build_in_subprocess.py CACHE SCRATCH PREPARED PROFILE (the last
two pickled) prints the artifact as JSON.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

from farm.compiler.build import find_or_build_model
from farm.processes.workers import TaskContext
from farm.tvm_import_without_torch import hide_torch_from_now_on


def main() -> None:
    hide_torch_from_now_on()  # as a worker does
    cache, scratch, prepared, profile = map(Path, sys.argv[1:])
    artifact = find_or_build_model(
        TaskContext(scratch),
        pickle.loads(prepared.read_bytes()),
        pickle.loads(profile.read_bytes()),
        cache,
    )
    digests = (artifact.digest, artifact.library_digest, artifact.parameters_digest)
    print(
        json.dumps(
            {
                "cached": artifact.cached,
                "digests": digests,
                "seconds": sum(artifact.seconds.values()),
            }
        )
    )


if __name__ == "__main__":
    main()
