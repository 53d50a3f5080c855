"""Findings of doctor and provision, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farm import sanitize
from farm.commands.output import Styled

if TYPE_CHECKING:
    from farm.pipeline.doctor.board import Finding


def finding_lines(finding: Finding, name: str = "") -> list[list[str | Styled]]:
    """Return the lines of a finding, each as parts for `output.echo`.

    `name` is the device's, given if there are several.
    """
    what, why, fix = (
        finding.failure.parts() if finding.failure else (finding.detail, "", finding.advice)
    )
    sign, shade = (
        ("✗", "red") if finding.failure else ("!", "yellow") if finding.advice else ("✓", "green")
    )
    head = f"{sanitize.sanitized_line(name)}  " if name else "  "
    below = " " * (len(head) + 4)
    first, *more = sanitize.sanitized_lines(what) or [""]
    shown: list[list[str | Styled]] = [[head, Styled(sign, shade), f" {finding.layer}: {first}"]]
    for label, text in (("why", why), ("fix", fix)):
        first, *rest = sanitize.sanitized_lines(text) or [""]
        more += (
            [f"{label}: {first}", *(f"{' ' * len(label)}  {line}" for line in rest)] if text else []
        )
    return shown + [[f"{below}{line}"] for line in more]


def findings_to_json(found: Mapping[str, Sequence[Finding]]) -> list[dict[str, Any]]:
    """Return the findings by device as JSON."""
    return [
        {"name": name, "layers": [_layer(finding) for finding in findings]}
        for name, findings in found.items()
    ]


def _layer(finding: Finding) -> dict[str, Any]:
    failure = finding.failure.as_failure() if finding.failure else None
    return {
        "layer": finding.layer,
        "holds": failure is None,
        "detail": finding.detail,
        "advice": finding.advice,
        "error": None
        if failure is None
        else {"kind": failure.kind, "what": failure.what, "why": failure.why, "fix": failure.fix},
    }


def findings_exit_code(found: Mapping[str, Sequence[Finding]]) -> int:
    """Return 0 without failures, the code of a single failure, or 1 for several."""
    from farm.pipeline.doctor.board import error_of_first_failed_check

    errors = [
        error for findings in found.values() if (error := error_of_first_failed_check(findings))
    ]
    return 0 if not errors else errors[0].exit_code if len(errors) == 1 else 1
