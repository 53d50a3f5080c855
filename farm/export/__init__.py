"""Export a model as a folder of C++ that needs neither Python nor farm, or as its three parts.

`write_model_folder` makes the folder: the model, TVM's runtime and farm's loader as sources, and an
example. `write_model_parts` makes three files: library, graph and parameters.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from farm import deployments, sanitize
from farm.agent import recipe
from farm.compiler import parameter_files
from farm.compiler.artifact import GRAPH
from farm.types import Artifact, Model, TensorSpec, describe_shape

_FILES = Path(__file__).parent / "files"
_PLACES = {
    "farm_runner.h": "include",
    "farm_runner.cc": "runtime/own",
    "classify.cc": "example",
    "CMakeLists.txt": ".",
}
# The agent's sources that run a model without RPC.
_OWN = (
    *(
        "base/io",
        "base/paths",
        "execution/model",
        "loader/elf_file",
        "loader/elf_image",
        "loader/elf_loader",
    ),
    *("loader/host_symbols", "store/manifest"),
)
_OWN_HEADERS = ("base/error_code",)  # without a source of their own
_COMPILERS = {
    "aarch64": "aarch64-linux-gnu-g++",
    "arm": "arm-linux-gnueabihf-g++",
    "riscv64": "riscv64-linux-gnu-g++",
}


def write_model_folder(model: Model, artifact: Artifact, folder: Path) -> None:
    """Write the folder, which must not exist.

    Raises BuildError if TVM's packages contain no sources.
    """
    folder.mkdir(parents=True)
    _write_model(model, artifact, folder / "model")
    _write_runtime(folder / "runtime")
    for name, place in _PLACES.items():
        (folder / place).mkdir(exist_ok=True)
        shutil.copyfile(_FILES / name, folder / place / name)
    _write_licenses(folder / "licenses")
    (folder / "README.md").write_text(_readme(artifact))


def write_model_parts(model: Model, artifact: Artifact, folder: Path) -> list[Path]:
    """Write the library NAME.so, its graph NAME.json and its parameters NAME.npz into a folder.

    The folder is made if it does not exist. The graph file holds the steps of
    `compiler.execution_graph` and the manifest, which describes the inputs and outputs. Returns the
    three paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library, graph, values = (
        folder / f"{model.name}{suffix}" for suffix in (".so", ".json", ".npz")
    )
    shutil.copyfile(artifact.library, library)
    steps = json.loads((artifact.library.parent / GRAPH).read_text())
    graph.write_text(
        json.dumps(
            {"model": deployments.release_manifest(model, artifact), "graph": steps}, indent=1
        )
    )
    dtypes = {name: tensor["dtype"] for name, tensor in steps["tensors"].items()}
    taken = parameter_files.read_transformed_parameters(artifact.parameters, dtypes)
    np.savez(values, **taken)  # type: ignore[arg-type]  # a parameter of savez is called allow_pickle
    return [library, graph, values]


def _write_model(model: Model, artifact: Artifact, folder: Path) -> None:
    folder.mkdir()
    for path in deployments.artifact_files(artifact):
        shutil.copyfile(path, folder / path.name)
    (folder / "model.json").write_text(
        json.dumps(deployments.release_manifest(model, artifact), indent=1)
    )


def _write_runtime(folder: Path) -> None:
    folder.mkdir()
    own = folder / "own"
    own.mkdir()
    sources = [f"{name}{suffix}" for name in _OWN for suffix in (".cc", ".h")]
    for name in [*sources, *(f"{name}.h" for name in _OWN_HEADERS)]:
        (own / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(recipe.SOURCES / name, own / name)
    recipe.copy_runtime_sources(folder)


def _write_licenses(folder: Path) -> None:
    """Copy the licenses of farm and of the packages whose sources are in the folder."""
    folder.mkdir()
    for name in ("tvm-farm", "apache-tvm", "apache-tvm-ffi"):
        distribution = importlib.metadata.distribution(name)
        for path in distribution.files or ():
            own = (
                "third-party" not in path.parts
            )  # what the agents of a wheel contain, and this does not
            if own and (path.parent.name == "licenses" or path.name in ("LICENSE", "NOTICE")):
                shutil.copyfile(str(distribution.locate_file(path)), folder / f"{name}-{path.name}")


def _readme(artifact: Artifact) -> str:
    triple = str(artifact.target.get("mtriple", "x86_64-linux-gnu"))
    machine = "arm" if triple.startswith("arm") else triple.partition("-")[0]
    values = {
        "NAME": _plain(artifact.model),
        "PROFILE": artifact.profile,
        "TRIPLE": triple,
        "CPU": str(artifact.target.get("mcpu", "any CPU")),
        "COMPILER": _COMPILERS.get(machine, "g++"),
        "TVM": artifact.versions["apache-tvm"],
        "SPECS": f"Inputs: {_listed(artifact.inputs)}. Outputs: {_listed(artifact.outputs)}.",
    }
    text = (_FILES / "README.md").read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _plain(name: str) -> str:
    """Return a model author's name without terminal control characters and Markdown code marks."""
    return sanitize.sanitized_line(name).replace("`", "'")


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"`{_plain(spec.name)}` {spec.dtype} {describe_shape(spec)}" for spec in specs)
