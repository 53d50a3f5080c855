"""A sample of random single-operator TFLite models, compared with LiteRT; many more are drawn by
tools/fuzz-operators.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("tflite")
pytest.importorskip("ai_edge_litert")

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from random_operators.comparing import BROKEN, RIGHT, WRONG
from random_tflite_operators import elementwise, generated, images, layout, products, reductions
from random_tflite_operators.judging import judge

SEEDS = {elementwise: 1, layout: 1, reductions: 2, images: 2, products: 3}
LEAST_RIGHT = 0.7  # others are refused, by LiteRT or by farm


@pytest.mark.parametrize("rules", SEEDS, ids=lambda rules: rules.__name__.rsplit(".")[-1])
def test_random_forms_of_operators_are_right_or_refused(rules):
    cases = [generated(operator, seed) for operator in rules.RULES for seed in range(SEEDS[rules])]
    judged = list(judge(cases))
    bad = [one for one in judged if one.verdict in (WRONG, BROKEN)]
    told = [f"{one.case.operator}:{one.case.seed} {one.case}: {one.why}" for one in bad]
    assert not told, "\n".join(told)
    right = sum(one.verdict == RIGHT for one in judged)
    assert right >= LEAST_RIGHT * len(judged)
