"""The versions that a worker of the cluster must share with this machine.

A worker of another version of farm may lack what a request names, and one of another Python cannot
run our functions. Therefore it is asked by an expression of builtins.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPRESSION = (
    "{'python': '.'.join(__import__('platform').python_version_tuple()[:2]), **{"
    "name: next((one.version for one in "
    "__import__('importlib.metadata').metadata.distributions(name=name)), 'none')"
    " for name in ('tvm-farm', 'apache-tvm', 'apache-tvm-ffi', 'ziglang')}}"
)


def local_versions() -> Mapping[str, str]:
    """Return the versions on this machine."""
    found: dict[str, str] = eval(EXPRESSION)
    return found


def describe_version_difference(theirs: object) -> str:
    """Return in words how a worker's versions differ from ours; "" if they do not.

    `theirs` is the worker's answer to EXPRESSION, or the exception that it raised.
    """
    if not isinstance(theirs, Mapping):
        return f"it cannot say its versions: {theirs!r:.200}"
    differing = [
        f"{name} {theirs.get(name, 'none')}, here {own}"
        for name, own in local_versions().items()
        if theirs.get(name) != own
    ]
    return "; ".join(differing)
