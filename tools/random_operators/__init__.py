"""Random single-operator ONNX models, each decided by its operator and seed.

random_values numbers, shapes, axes and arrays
drawing      a case, and what rules draw it with
elementwise  rules of operators that compute each element for itself
layout       rules of operators that move elements
reductions   rules of operators that combine the elements of axes
images       rules of operators that slide windows over images, or sample them
products     rules of operators that are sums of products
judging      what farm makes of cases, compared with a reference
comparing    how answers differ, for torch's operators, too
"""

from __future__ import annotations

from random_operators import elementwise, images, layout, products, reductions
from random_operators.drawing import Case, Draw, Rule

_CONTRIBUTED: dict[str, Rule] = {**elementwise.CONTRIBUTED, **reductions.CONTRIBUTED}
_RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **reductions.RULES,
    **images.RULES,
    **products.RULES,
}
OPERATORS = (*sorted(_RULES), *sorted(_CONTRIBUTED))


def generated(operator: str, seed: int) -> Case:
    """Return the case of an operator and a seed."""
    domain = "com.microsoft" if operator in _CONTRIBUTED else ""
    draw = Draw(operator, seed, domain)
    (_CONTRIBUTED if domain else _RULES)[operator](draw)
    return draw.case
