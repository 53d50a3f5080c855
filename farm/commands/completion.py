"""farm completion: print shell completion scripts."""

from __future__ import annotations

import click

from farm.commands.output import echo_text

VARIABLE = "_FARM_COMPLETE"  # the environment variable by which the shell requests completions


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    farm completion bash > ~/.local/share/bash-completion/completions/farm
    farm completion zsh > ~/.zfunc/_farm
    farm completion fish > ~/.config/fish/completions/farm.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    echo_text(script(context.find_root().command, {}, "farm", VARIABLE).source())
