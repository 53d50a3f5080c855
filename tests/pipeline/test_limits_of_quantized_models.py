"""A run of a quantized model is judged by the limits of its float model."""

from __future__ import annotations

import pytest
from report_runs import timed

from farm.config import load_fleet
from farm.pipeline.compare import _limits

CONFIG = """
[devices.host]
profile = "x86"
url = "local:"

[models.net]
source = "net.onnx"
limits = { max_abs = 0.25 }

[models."net.exact"]
source = "exact.onnx"
limits = { max_abs = 1e-9 }
"""


@pytest.mark.parametrize(
    ("model", "max_abs"), [("net", 0.25), ("net.int8", 0.25), ("net.exact", 1e-9), ("int8", None)]
)
def test_a_quantized_model_has_the_limits_of_its_float_model(model, max_abs, tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(CONFIG)
    for file in ("net.onnx", "exact.onnx"):
        (tmp_path / file).touch()
    fleet = load_fleet(path)
    limits = _limits(timed("host", model, 1), fleet)
    if max_abs is None:
        assert limits == fleet.limits
    else:
        assert {one.max_abs for one in limits.values()} == {max_abs}
