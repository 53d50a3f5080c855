"""Run tasks that read an untrusted model in a process that can use only the model's own files.

Modules:
    policy               which files, memory and disk space a sandboxed process may use
    fork_server          fork a sandboxed process for each task
    environment          drop the variables of the environment that may hold secrets
    capabilities         give up what root may do
    landlock             restrict files, TCP and signals
    seccomp              refuse system calls
    denied_system_calls  the table of system calls that seccomp refuses
    raw_system_calls     call the kernel by system call number
    restricted_program   start a program of this machine with few rights
    restricted_pickle    read the messages of a sandboxed process safely
    field_types          check the fields of dataclasses in them
    array_files          read the .npz files that it has left

Usage:
    support()       report whether this kernel has Landlock and seccomp, and what is missing
    run(...)        run a task in a restricted process

There is no sandbox if the kernel lacks Landlock or seccomp. Bubblewrap is not an alternative: it is
a program that must be installed and started again for each model, and it needs user namespaces,
which are usually refused where Landlock is (containers, gVisor).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm.errors import InternalError

if TYPE_CHECKING:
    from farm.sandbox.fork_server import ForkServerClient
    from farm.sandbox.policy import Policy

__all__ = ["SandboxSupport", "run_sandboxed", "sandbox_support"]


@dataclass(frozen=True, slots=True)
class SandboxSupport:
    """The kernel's features that a sandbox needs.

    `landlock_abi` is the kernel's Landlock version, 0 for none. `seccomp` is True if it has seccomp
    filters. `missing` describes what is missing, and is empty if nothing is.
    """

    landlock_abi: int
    seccomp: bool
    missing: str = ""

    @property
    def complete(self) -> bool:
        """True if models can be sandboxed."""
        return not self.missing


@functools.cache
def sandbox_support() -> SandboxSupport:
    """Return what this machine's kernel offers to this process."""
    from farm.sandbox import landlock, seccomp

    abi, filters = landlock.abi_version(), seccomp.is_available()
    missing = [] if abi else ["Landlock, of Linux 5.13 and later"]
    missing += [] if filters else ["seccomp filters for x86-64 or aarch64"]
    return SandboxSupport(
        abi, filters, f"the kernel does not offer {' or '.join(missing)}" if missing else ""
    )


_servers: list[ForkServerClient] = []


def run_sandboxed(
    policy: Policy,
    scratch: Path,
    task: Callable[..., Any],
    *arguments: Any,
    modules: Sequence[str] = (),
    types: Sequence[type] = (),
    note: Callable[[Any], None],
    helper: Callable[[Any], Any] | None = None,
    what: str,
) -> Any:
    """Run `task(context, *arguments)` in a process that `policy` restricts, and return its result.

    `modules` are imported beforehand, once for all later tasks of this process. The result may hold
    builtin values, arrays, values of farm.types, and values of `types`. `helper` answers the
    requests of the task, here, and must not trust them: they are of the same types. `what`
    describes the task in error messages.

    Raises the FarmError of the task, and ModelError if its process ends without a result.
    """
    from farm.sandbox.fork_server import ForkServerClient, Request

    if not _servers:
        _servers.append(ForkServerClient.start(modules, scratch))
    request = Request(what, tuple(modules), policy, scratch, task, arguments)
    try:
        return _servers[0].run(request, note, types, helper)
    except (EOFError, BrokenPipeError) as exc:
        _servers.clear()
        raise InternalError(
            f"{what}: the process that makes sandboxes has ended", str(exc)
        ) from exc
