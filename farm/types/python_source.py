"""`python:package.module:function`, the name of a function that makes a torch module: how it is written and read."""

from __future__ import annotations

import re

PYTHON = "python:"
FORM = "python:package.module:function"
_NAME = r"[^\W\d]\w*"
_WHOLE = re.compile(rf"{PYTHON}({_NAME}(?:\.{_NAME})*):({_NAME})")


def is_python(source: str) -> bool:
    """Whether a source is meant as a function, rather than as a file."""
    return source.startswith(PYTHON)


def python_source(text: str) -> str:
    """The source of a function that may be named without `python:`. Raises ValueError, in words, for what names none."""
    source = text if is_python(text) else PYTHON + text
    module_and_function(source)
    return source


def module_and_function(source: str) -> tuple[str, str]:
    """The module and the function that a source names. Raises ValueError, in words, for what names none."""
    if not (match := _WHOLE.fullmatch(source)):
        raise ValueError(f"{source!r} is not of the form {FORM}")
    return match[1], match[2]
