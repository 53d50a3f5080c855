"""Import and build exported models on this machine, for tools/zoo-table: zoo_import_check.py FOLDER
NAME=EXPORT..., where EXPORT is what tools/zoo_exports.py says of a model. With --import-only first,
nothing is built.

A line of JSON says what became of each: right, refused, wrong or broken, and why.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from farm.checked_model_import import PREPARED, import_and_check_into_folder  # noqa: E402
from farm.errors import FarmError, WrongAnswer  # noqa: E402
from farm.importers import import_model  # noqa: E402
from farm.processes.workers import TaskContext  # noqa: E402
from farm.types import Model, Profile  # noqa: E402

HOST = Profile("this machine", {"kind": "llvm", "mcpu": "native"}, "")


class _Quiet(TaskContext):
    def note(self, value: object) -> None:
        pass


def check(name: str, made: dict[str, Any], folder: Path, *, build: bool) -> tuple[str, str]:
    shapes = {key: tuple(shape) for key, shape in made.get("shapes", {}).items()}
    model = Model(name, made["file"], shapes=shapes)
    try:
        if not build:
            fixed = import_model(model, folder).fixed
            return "imported", f"for a batch of 1: {fixed}" if fixed else ""
        import_and_check_into_folder(_Quiet(folder), model, HOST, folder, folder)
        fixed = json.loads((folder / PREPARED).read_text())["fixed"]
    except WrongAnswer as error:
        return "wrong", f"{error.what}: {error.why}"
    except FarmError as error:
        return "refused", f"{error.what}: {error.why}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())
        return "broken", f"{type(error).__name__} in {where.name}: {text[:300]}"
    return "right", f"for a batch of 1: {fixed}" if fixed else ""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    build = sys.argv[1] != "--import-only"
    for argument in sys.argv[2 if build else 3 :]:
        name, _, said = argument.partition("=")
        folder, start = Path(tempfile.mkdtemp(prefix="zoo-")), time.monotonic()
        try:
            result, why = check(name, json.loads(said), folder, build=build)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        line = {"model": name, "result": result, "why": why}
        line["seconds"] = round(time.monotonic() - start, 1)
        print(json.dumps(line), file=answers, flush=True)


if __name__ == "__main__":
    main()
