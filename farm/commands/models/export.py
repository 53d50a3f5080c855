"""farm export: write a model as files that run without farm."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from farm import this_machine
from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import configured_name_completer
from farm.commands.output import echo

FOLDER, PARTS = "folder", "parts"


@click.command()
@click.argument("model", shell_complete=configured_name_completer("models"))
@click.option(
    "-p",
    "--profile",
    "profile_name",
    default=this_machine.native_profile_name() or "x86",
    show_default=True,
    help="The kind of board.",
    shell_complete=configured_name_completer("profiles"),
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder to write to: a new one; for parts, any.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice([FOLDER, PARTS]),
    default=FOLDER,
    show_default=True,
    help="What to write, see above.",
)
@with_model_properties
@with_session
def export(
    session: Session,
    model: str,
    profile_name: str,
    output: Path,
    kind: str,
    described: ModelProperties,
) -> None:
    """Write a model as files that run without farm, and without Python.

    folder: the model, a C++ header and its runner, the runtime's sources, an example (image in,
    label out), and a CMakeLists.txt that builds them for this machine or with a cross compiler. Its
    README.md explains how.

    parts: three files: the library MODEL.so, the graph MODEL.json (inputs, outputs, steps), and the
    parameters MODEL.npz.

    \b
    farm export digits --profile rasp3b -o digits-for-pi
    """
    from farm import export as out
    from farm.commands.progress import Spinner
    from farm.errors import UsageError
    from farm.pipeline import compile_model

    fleet = session.fleet()
    profile, chosen = fleet.profile(profile_name), described.of(fleet.model(model))
    if kind == FOLDER and output.exists():
        raise UsageError(
            f"{output} exists already",
            "an export is never mixed with other files",
            "name a new folder, or remove it",
        )
    if kind == FOLDER and profile.on_gpu:
        fix = (
            "write its parts, for a program of your own with TVM's runtime for GPUs: --format "
            f"{PARTS}"
        )
        raise UsageError(
            f"{profile.name} is for GPUs, and the runtime of the folder for CPUs",
            "its runner would not find the kernels",
            fix,
        )
    with Spinner(session, f"{chosen.name} for {profile.name}") as spinner:
        _, artifact = compile_model(
            chosen, profile, host=host_profile(fleet), store=session.artifacts(), show=spinner.show
        )
    written = [output]
    if kind == FOLDER:
        out.write_model_folder(chosen, artifact, output)
    else:
        written = out.write_model_parts(chosen, artifact, output)
    if session.as_json:
        session.document(
            "export",
            {
                "artifact": artifact.digest,
                "profile": artifact.profile,
                "paths": [str(path) for path in written],
            },
        )
        return
    for path in written:
        echo(str(path))
    if kind == FOLDER:
        build = shlex.quote(f"{output}/build")
        echo(
            f"build it: cmake -B {build} -S {shlex.quote(str(output))} && cmake --build {build} -j",
            err=True,
        )
