"""PyTorch beside farm, for tools/bench-gpu: its times on a GPU, and how far off its own float16 is.
In a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

_LIMIT_S = 1800.0


def repeated(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Example inputs, so many of them along the first axis."""
    return tuple(one.repeat(batch, *[1] * (one.dim() - 1)) for one in inputs)


def times(name: str, batch: int, precision: str) -> dict[str, Any]:
    """Milliseconds by CUDA events of PyTorch, eager and compiled, in float32 (TF32 off) or float16,
    in a process of its own; `missing` says
    why there are none."""
    try:
        return _apart("--time", name, str(batch), precision)
    except OSError as error:
        return {"missing": str(error)}


def halves(name: str) -> dict[str, float]:
    """The largest value that a model gives in float32, and how far off PyTorch's own float16 is, on
    this machine's CPU. Raises OSError.
    """
    return _apart("--halves", name)


def _apart(*words: str) -> dict[str, Any]:
    """What this file, as a program, says in one line of JSON. Raises OSError."""
    command = [sys.executable, __file__, *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT / "tools", timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no end after {_LIMIT_S:.0f} s") from error
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["?"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _halves(name: str) -> dict[str, float]:
    import models
    import torch

    network, inputs = models.build(name)
    halves = [one.half() if one.is_floating_point() else one for one in inputs]
    with torch.inference_mode():
        expected, found = network.eval()(*inputs), network.half()(*halves)
    return {"largest": float(expected.abs().max()), "off": float((found - expected).abs().max())}


def _times(name: str, batch: int, precision: str) -> dict[str, Any]:
    import models
    import torch

    if not torch.cuda.is_available():
        return {
            "missing": (
                f"torch {torch.__version__} has no CUDA here: pip install torch, in another "
                "environment"
            )
        }
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    network, inputs = models.build(name)
    dtype = getattr(torch, precision)
    given = tuple(
        one.to("cuda", dtype if one.is_floating_point() else None)
        for one in repeated(inputs, batch)
    )
    network = network.to("cuda", dtype).eval()

    def median_ms(run: Any) -> float:
        with torch.inference_mode():
            for _ in range(20):
                run(*given)
            times = []
            for _ in range(100):
                begin, end = (
                    torch.cuda.Event(enable_timing=True),
                    torch.cuda.Event(enable_timing=True),
                )
                begin.record()
                run(*given)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
        return sorted(times)[len(times) // 2]

    found = {"version": torch.__version__, "eager": median_ms(network)}
    try:
        found["compiled"] = median_ms(torch.compile(network, mode="max-autotune"))
    except Exception as exc:  # no compiler, or a graph that it does not take: the eager time stands
        found["not compiled"] = str(exc)[:300]
    return found


def main() -> None:
    if sys.argv[1] == "--halves":
        print(json.dumps(_halves(sys.argv[2])))
    else:
        print(json.dumps(_times(sys.argv[2], int(sys.argv[3]), sys.argv[4])))


if __name__ == "__main__":
    main()
