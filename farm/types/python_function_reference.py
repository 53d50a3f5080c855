"""Parser of `python:package.module:function`, the name of a function that returns a module.

The module is a torch module.
"""

from __future__ import annotations

import re

PYTHON = "python:"
FORM = "python:package.module:function"
_NAME = r"[^\W\d]\w*"
_WHOLE = re.compile(rf"{PYTHON}({_NAME}(?:\.{_NAME})*):({_NAME})")


def is_python_function_reference(source: str) -> bool:
    """Return whether a source is meant as a function rather than as a file."""
    return source.startswith(PYTHON)


def normalize_python_function_reference(text: str) -> str:
    """Return the source of a function, which may be named without `python:`.

    Raises ValueError, with the reason in words, for any other text.
    """
    source = text if is_python_function_reference(text) else PYTHON + text
    module_and_function(source)
    return source


def module_and_function(source: str) -> tuple[str, str]:
    """Return the module and the function that a source names.

    Raises ValueError, with the reason in words, if it names none.
    """
    if not (match := _WHOLE.fullmatch(source)):
        raise ValueError(f"{source!r} is not of the form {FORM}")
    return match[1], match[2]
