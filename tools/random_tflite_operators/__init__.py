"""Random single-operator TFLite models, each decided by its operator and seed.

drawing      a case, and what rules draw it with
elementwise  rules of operators that compute each element for itself
layout       rules of operators that move elements
reductions   rules of operators that combine the elements of axes
images       rules of operators that slide windows over images, or sample them
products     rules of operators that are sums of products
judging      what farm makes of cases, compared with LiteRT
"""

from __future__ import annotations

from random_tflite_operators import elementwise, images, layout, products, reductions
from random_tflite_operators.drawing import Case, Draw, Rule

_RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **reductions.RULES,
    **images.RULES,
    **products.RULES,
}
OPERATORS = tuple(sorted(_RULES))


def generated(operator: str, seed: int) -> Case:
    """Return the case of an operator and a seed."""
    draw = Draw(operator, seed)
    _RULES[operator](draw)
    return draw.case
