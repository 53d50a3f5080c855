"""TVM's intrinsics, registered in seconds."""

from __future__ import annotations

import subprocess
import sys

from timeouts import LIMIT_S

# In a process of its own, as they are registered once; where somebody asks for a frame's source, it
# ends with an error.
SCRIPT = """
import inspect, tvm
from farm.compiler.gpu import tensor_cores
from tvm.tirx.script.parser import entry

del inspect.getframeinfo
tensor_cores.register_intrinsics()
assert entry.inspect is inspect
assert tvm.s_tir.TensorIntrin.get("wmma_sync_16x16x16_f16f16f32_trans") is not None
"""


def test_they_are_registered_without_a_look_at_the_source_of_the_stack():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=LIMIT_S)
