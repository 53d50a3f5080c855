"""Descriptions of TOML values and of expected types, for messages."""

from __future__ import annotations

EXPECTED = {
    "string_type": "expected text in quotes",
    "string_too_short": "expected text",
    "bool_type": "expected true or false",
    "int_type": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "float_type": "expected a number",
    "list_type": "expected a list",
    "dict_type": "expected a table",
    "model_type": "expected a table",
    "finite_number": "expected a finite number",
    "literal_error": "expected {expected}",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
}
_VERY_LARGE = 10**100


def describe_value(value: object) -> str:
    """Return a description of a TOML value."""
    if isinstance(value, bool):
        return str(value).lower()
    # Python formats no integer of more than 4300 digits
    if isinstance(value, int) and abs(value) >= _VERY_LARGE:
        return "a very large number"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"{value!r}" if value else "an empty text"
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "a table"
    return "a date or time"
