"""Options shared by several commands, and their types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from farm.errors import FarmError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def was_given(parameter: str) -> bool:
    """Return whether an option of the command that runs is on its command line."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source is click.core.ParameterSource.COMMANDLINE


class FiniteFloatParamType(click.types.FloatParamType):
    """A finite number.

    "nan" is rejected because it is neither below nor above a limit, and "inf" because it is never
    reached.
    """

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        """Return the number; fail if it is not finite."""
        number = super().convert(value, parameter, context)
        return (
            number
            if math.isfinite(number)
            else self.fail(f"{value} is not a finite number", parameter, context)
        )


class FiniteFloatRange(FiniteFloatParamType, click.FloatRange):
    """A finite number in a range."""


def options_as_one_argument(
    name: str, make: Callable[..., Any], *options: Option
) -> Callable[[Command], Command]:
    """Return a decorator that adds options and passes `make(**values)` as the argument `name`."""

    def decorate(command: Command) -> Command:
        def with_value(**given: Any) -> Any:
            mine = {parameter: given.pop(parameter) for parameter in parameters}
            return command(**given, **{name: make(**mine)})

        with_value.__doc__, with_value.__name__ = command.__doc__, command.__name__
        for option in reversed(options):
            option(with_value)
        its: list[click.Parameter] = with_value.__click_params__  # type: ignore[attr-defined]
        parameters = [parameter.name for parameter in its]
        its[:0] = getattr(command, "__click_params__", [])
        return with_value  # type: ignore[return-value]

    return decorate


def configured_name_completer(
    kind: str,
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion of the configured `devices`, `profiles` or `models`."""

    def names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from farm.config import load_fleet

        try:
            fleet = load_fleet(context.params.get("config"))
        except FarmError:
            return []
        tables: dict[str, Iterable[str]] = {
            "devices": fleet.devices,
            "profiles": fleet.profiles,
            "models": {**fleet.built_in_models, **fleet.models},
        }
        return [name for name in tables[kind] if name.startswith(incomplete)]

    return names


def create_device_option(name: str, help: str, **more: Any) -> Option:  # noqa: A002
    """Return the option -d, --device; the command receives it as `name`."""
    return click.option(
        "-d",
        "--device",
        name,
        metavar="NAME",
        help=help,
        shell_complete=configured_name_completer("devices"),
        **more,
    )


with_device = create_device_option("device_name", "The device.", required=True)
with_device_filter = create_device_option("device", "Only runs on this device.")
with_several_devices = create_device_option("devices", "A device; may be repeated.", multiple=True)


def add_device_selection_options(command: Command) -> Command:
    """Add the options that choose devices: --device, --tag and --all."""
    everywhere = click.option("-a", "--all", "everywhere", is_flag=True, help="All devices.")
    tags = click.option(
        "-t",
        "--tag",
        "tags",
        multiple=True,
        metavar="TAG",
        help="All devices with the tag; may be repeated.",
    )
    chosen: Command = with_several_devices(tags(everywhere(command)))
    return chosen


def add_cluster_option(command: Command) -> Command:
    """Add --cluster."""
    text = "Build on a cluster: tcp://HOST:8786, slurm, or none. [default: that of devices.toml]"
    option: Command = click.option("--cluster", metavar="ADDRESS", help=text)(command)
    return option


def parse_whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the distinct numbers of an option such as 1,2,4. Raises UsageError."""
    words = text.split(",") if text else []
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(
            f"{option} {text}: no numbers",
            "whole numbers above 0, commas between them",
            f"{option} 1,2,4",
        )
    return tuple(dict.fromkeys(map(int, words)))


def add_gate_options(command: Command) -> Command:
    """Add --min-snr and --min-top1, below which a run is WRONG.

    The command receives `min_snr_db` and `min_top1`; the latter is a share from 0 to 1.
    """
    top1 = click.option(
        "--min-top1",
        type=FiniteFloatRange(0, 100),
        callback=lambda _context, _parameter, value: None if value is None else value / 100,
        metavar="PERCENT",
        help=(
            "WRONG below this share of right labelled samples, or of rows with the reference's "
            "best class."
        ),
    )
    snr = click.option(
        "--min-snr",
        "min_snr_db",
        type=FiniteFloatParamType(),
        metavar="DB",
        help="WRONG below this signal-to-noise ratio.",
    )
    return snr(top1(command))
