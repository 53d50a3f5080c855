"""farm compile: build a model into a library for a kind of board."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from farm import this_machine
from farm.commands.common import Session, host_profile, with_session
from farm.commands.model_options import ModelProperties, with_model_properties
from farm.commands.options import configured_name_completer
from farm.commands.output import echo

if TYPE_CHECKING:
    from farm.types import Artifact, PreparedModel


@click.command(name="compile")
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
@with_model_properties
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Copy the artifact into this new folder.",
)
@with_session
def compile_(
    session: Session, model: str, profile_name: str, described: ModelProperties, output: Path | None
) -> None:
    """Import a model, check it against its reference, and build it for a profile.

    The check runs on this machine. The artifact is a folder: library.so, parameters, metadata.json.
    It is stored under a digest of everything that determines it. With -v, a table shows the
    schedule of each kernel.

    \b
    farm compile model.onnx --profile rasp3b -o out
    """
    from farm.commands.progress import Spinner
    from farm.errors import UsageError
    from farm.pipeline import compile_model
    from farm.types import describe_open_batch

    fleet = session.fleet()
    profile, chosen = fleet.profile(profile_name), described.of(fleet.model(model))
    if output and output.exists():
        raise UsageError(
            f"{output} exists already",
            "an artifact is never mixed with other files",
            "name a new folder, or remove it",
        )
    with Spinner(session, f"{chosen.name} for {profile.name}") as spinner:
        prepared, artifact = compile_model(
            chosen, profile, host=host_profile(fleet), store=session.artifacts(), show=spinner.show
        )
    if output:
        shutil.copytree(artifact.library.parent, output)
    if session.as_json:
        session.document("artifact", _body(prepared, artifact))
        return
    where = output or artifact.library.parent
    how = (
        "from the store" if artifact.cached else f"built in {sum(artifact.seconds.values()):.1f} s"
    )
    echo(
        f"{artifact.model} for {artifact.profile}: {artifact.nbytes / 1e6:.1f} MB, {how}, "
        f"artifact {artifact.digest[:12]}"
    )
    echo(
        f"import checked against {prepared.engine}: largest difference {prepared.check.max_abs:.2g}"
    )
    if batch := describe_open_batch(prepared.inputs, prepared.fixed):
        echo(f"batch: {batch}")
    echo(str(where))
    if session.verbosity > 0:
        from farm import views

        console = session.out()
        console.print(views.kernel_table(artifact.kernels, console.width))
        console.print(
            views.ledger_table(
                {"import and check": prepared.seconds, "build": artifact.seconds}, console.width
            )
        )


def _body(prepared: PreparedModel, artifact: Artifact) -> dict[str, object]:
    import json

    metadata = json.loads((artifact.library.parent / "metadata.json").read_text())
    return {
        **metadata,
        "path": str(artifact.library.parent),
        "cached": artifact.cached,
        "engine": prepared.engine,
    }
