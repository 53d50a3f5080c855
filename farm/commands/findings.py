"""What doctor and provision have found, as lines and as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from farm.words import plain

if TYPE_CHECKING:
    from farm.pipeline.doctor import Finding


def lines(finding: Finding, name: str = "") -> str:
    """A finding as it is shown; `name` is the device's, where there are several."""
    what, why, fix = finding.failure.parts() if finding.failure else (finding.detail, "", finding.advice)
    sign, shade = ("✗", "red") if finding.failure else ("!", "yellow") if finding.advice else ("✓", "green")
    head = f"{plain(name)}  " if name else "  "
    shown = [f"{head}{click.style(sign, fg=shade)} {finding.layer}: {plain(what)}"]
    shown += [f"{' ' * len(head)}    {label}: {plain(text)}" for label, text in (("why", why), ("fix", fix)) if text]
    text = "\n".join(shown)
    return click.unstyle(text) if os.environ.get("NO_COLOR") else text


def body(found: Mapping[str, Sequence[Finding]]) -> list[dict[str, Any]]:
    """For a JSON document: each device with its layers."""
    return [{"name": name, "layers": [_layer(finding) for finding in findings]} for name, findings in found.items()]


def _layer(finding: Finding) -> dict[str, Any]:
    failure = finding.failure.as_failure() if finding.failure else None
    return {
        "layer": finding.layer,
        "holds": failure is None,
        "detail": finding.detail,
        "advice": finding.advice,
        "error": None if failure is None else {"kind": failure.kind, "what": failure.what, "why": failure.why, "fix": failure.fix},
    }


def exit_code(found: Mapping[str, Sequence[Finding]]) -> int:
    """That of the one failure; 1 where there are several."""
    from farm.pipeline.doctor import failed

    errors = [error for findings in found.values() if (error := failed(findings))]
    return 0 if not errors else errors[0].exit_code if len(errors) == 1 else 1
