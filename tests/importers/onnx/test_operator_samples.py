"""A sample of random single-operator models: versions, attributes, types and forms of each operator
that the importer supports, compared with ONNX Runtime; tools/fuzz-operators draws many more.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from itertools import chain
from pathlib import Path

import onnx
import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))
from random_operators import OPERATORS, generated
from random_operators.comparing import differences
from random_operators.judging import expected, run_together
from random_operators.sampling import sampled

SEEDS = 32  # of which the sample is chosen
MOST = 3  # cases of an operator
MORE = {
    "BatchNormalization": 8,
    "Pad": 14,
    "Resize": 7,
    "RoiAlign": 6,
}  # of those with the most forms
TOGETHER = 30  # cases of a model
OPSETS = range(7, onnx.defs.onnx_opset_version() + 1)


@pytest.fixture(scope="module")
def sample():
    """By opset, cases and their reference's answers."""
    found, unjudged = defaultdict(list), []
    chosen = (
        sampled(partial(generated, operator), SEEDS, MORE.get(operator, MOST))
        for operator in OPERATORS
    )
    for case in chain.from_iterable(chosen):
        try:
            found[case.opset].append((case, expected(case)))
        except Exception:
            unjudged.append(case.name)
    assert len(unjudged) < 10, unjudged  # no reference has an implementation of these
    return found


@pytest.mark.parametrize("opset", OPSETS)
def test_random_forms_of_every_operator_are_right(opset, sample):
    cases = sample[opset]
    for at in range(0, len(cases), TOGETHER):
        some, answers = zip(*cases[at : at + TOGETHER], strict=True)
        wrong = [
            f"{case.name} {case}: {said}"
            for case, ours, theirs in zip(some, run_together(some, answers), answers, strict=True)
            if (said := differences(case, ours, theirs))
        ]
        assert not wrong, "\n".join(wrong)
