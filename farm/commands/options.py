"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from farm.errors import FarmError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
Option = Callable[[Any], Any]


class AnyNumber(click.types.FloatParamType):
    """A number. "nan" and "inf" are none: the one is neither below a limit nor above, the other never comes."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, parameter, context)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", parameter, context)


class Number(AnyNumber, click.FloatRange):
    """One in a range."""


def gathered(name: str, make: Callable[..., Any], *options: Option) -> Callable[[Command], Command]:
    """Options of which a command receives one value under a name: what `make` makes of theirs."""

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


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion of the configured `devices`, `profiles` or `models`."""

    def names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from farm.config import load

        try:
            return [name for name in getattr(load(context.params.get("config")), kind) if name.startswith(incomplete)]
        except FarmError:
            return []

    return names


def device_option(name: str, help: str, **more: Any) -> Option:  # noqa: A002
    """-d, --device; the command receives it under the name."""
    return click.option("-d", "--device", name, metavar="NAME", help=help, shell_complete=complete("devices"), **more)


on_device = device_option("device_name", "The device.", required=True)
of_device = device_option("device", "Only of this device.")
several_devices = device_option("devices", "A device; may be repeated.", multiple=True)


def on_devices(command: Command) -> Command:
    """The options that choose devices."""
    everywhere = click.option("-a", "--all", "everywhere", is_flag=True, help="All devices.")
    tags = click.option("-t", "--tag", "tags", multiple=True, metavar="TAG", help="All devices with the tag; may be repeated.")
    chosen: Command = several_devices(tags(everywhere(command)))
    return chosen


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """What an option such as 1,2,4 says, each number once. Raises UsageError."""
    words = text.split(",") if text else []
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"{option} {text}: no numbers", "whole numbers above 0, commas between them", f"{option} 1,2,4")
    return tuple(dict.fromkeys(map(int, words)))


def with_gates(command: Command) -> Command:
    """What an answer must reach, or the run is WRONG; the command receives `min_snr_db` and `min_top1`, a share."""
    top1 = click.option(
        "--min-top1",
        type=Number(0, 100),
        callback=lambda _context, _parameter, value: None if value is None else value / 100,
        metavar="PERCENT",
        help="WRONG below this: of the labelled samples, or of rows with the reference's best class.",
    )
    snr = click.option("--min-snr", "min_snr_db", type=AnyNumber(), metavar="DB", help="WRONG below this ratio of signal to noise.")
    return snr(top1(command))
