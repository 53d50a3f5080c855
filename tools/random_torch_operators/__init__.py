"""Random calls of single operators of torch, each decided by its operator and seed.

drawing      a case, and what rules draw it with
elementwise  rules of operators that compute each element for itself
layout       rules of operators that move elements
reductions   rules of operators that combine the elements of axes
products     rules of convolutions, pools, samples, products, recurrent layers and attention
judging      what farm makes of cases, compared with torch
"""

from __future__ import annotations

from random_torch_operators import elementwise, layout, products, reductions
from random_torch_operators.drawing import Case, Draw, Rule

_RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **reductions.RULES,
    **products.RULES,
}
OPERATORS = tuple(sorted(_RULES))


def generated(operator: str, seed: int) -> Case:
    """Return the case of an operator and a seed."""
    draw = Draw(operator, seed)
    _RULES[operator](draw)
    return draw.case
