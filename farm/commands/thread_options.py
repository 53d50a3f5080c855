"""--threads, --cores and --pinned: the threads of an inference, and the cores they run on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from farm.commands.options import Command, options_as_one_argument, parse_whole_numbers

if TYPE_CHECKING:
    from farm.commands.common import Session
    from farm.types import Device

EACH = "each"


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """Thread settings from the command line, all empty by default.

    Numbers of threads, sets of cores, and whether each thread is pinned to a core.
    """

    threads: tuple[int, ...] = ()
    cores: tuple[str, ...] = ()
    pinned: bool = False

    def on(self, device: Device, cores: Sequence[str]) -> list[Device]:
        """Return the device once for each combination of cores and threads."""
        pinned: dict[str, str | int | float | bool] = {"pinned": True} if self.pinned else {}
        given: list[dict[str, str | int | float | bool]] = [
            {
                **({"threads": count} if count else {}),
                **({"cores": where} if where else {}),
                **pinned,
            }
            for where in cores or [""]
            for count in self.threads or (0,)
        ]
        return [
            replace(device, options={**device.options, **options}) if options else device
            for options in given
        ]


def thread_options_decorator(*, several: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds the three options; the command receives `asked`, an Asked."""
    many = ", or several: 1,2,4" if several else ""
    each = ", or each: one thread, on each core in turn; may be repeated" if several else ""

    def asked(threads: str, cores: Sequence[str] | str | None, pinned: bool) -> ThreadSettings:
        chosen = (cores,) if isinstance(cores, str) else tuple(cores or ())
        return ThreadSettings(_counts(threads, several), _sets(chosen, several), pinned)

    return options_as_one_argument(
        "asked",
        asked,
        click.option(
            "--threads",
            metavar="N",
            default="",
            help=f"Threads per inference{many}. [default: one per core]",
        ),
        click.option(
            "--cores",
            multiple=several,
            help=f"big, little, all, numbers such as 0,2-3{each}. [default: big]",
        ),
        click.option("--pinned", is_flag=True, help="Pin each thread to a core of its own."),
    )


def devices_per_thread_setting(
    session: Session, devices: Sequence[Device], asked: ThreadSettings
) -> list[Device]:
    """Return each device once for each setting.

    With `--cores each`, the devices are queried for their cores. Raises UsageError for
    contradictory options, and for a device that does not report its cores.
    """
    from farm.errors import UsageError

    if EACH not in asked.cores:
        return [setting for device in devices for setting in asked.on(device, asked.cores)]
    if any(count != 1 for count in asked.threads):
        raise UsageError(
            "--cores each: one thread at a time", "a core takes one thread", "leave --threads out"
        )
    single, result = replace(asked, threads=(1,)), []
    for device, numbers in zip(devices, _cores_of(session, devices), strict=True):
        words = [cores for word in asked.cores for cores in (numbers if word == EACH else [word])]
        result += single.on(device, list(dict.fromkeys(words)))
    return result


def _cores_of(session: Session, devices: Sequence[Device]) -> list[list[str]]:
    from farm.commands.common import max_parallel_builds
    from farm.commands.progress import Spinner
    from farm.errors import FarmError, UsageError
    from farm.executor.threads import parse_core_ranges
    from farm.pipeline import query_device_facts

    with Spinner(session, "asking the devices for their cores") as spinner:
        answers = query_device_facts(
            devices, store=session.artifacts(), slots=max_parallel_builds(), show=spinner.show
        )
    found = []
    for device in devices:
        facts = answers[device.name]
        if isinstance(facts, FarmError):
            raise facts
        if "big_cores" not in facts:
            raise UsageError(
                f"{device.name} does not tell its cores",
                "TVM's own RPC server answers there",
                "name them: --cores 0",
            )
        found.append(
            [
                str(n)
                for kind in ("big_cores", "little_cores")
                if facts.get(kind)
                for n in parse_core_ranges(facts[kind])
            ]
        )
    return found


def _counts(text: str, several: bool) -> tuple[int, ...]:
    from farm.errors import UsageError

    counts = parse_whole_numbers("--threads", text)
    if len(counts) > 1 and not several:
        raise UsageError(
            f"--threads {text}: several numbers of threads", "an inference has one", "--threads 2"
        )
    return counts


def _sets(cores: Sequence[str], several: bool) -> tuple[str, ...]:
    from farm.config.schema import CORES
    from farm.errors import UsageError

    for text in cores:
        if not (CORES.fullmatch(text) or (several and text == EACH)):
            words = f"big, little, all, {'each, ' if several else ''}or numbers such as 0,2-3"
            raise UsageError(f"--cores {text}: no cores", f"cores are {words}", "--cores big")
    return tuple(dict.fromkeys(cores))
