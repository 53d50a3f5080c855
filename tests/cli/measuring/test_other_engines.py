"""farm bench --against: the same model in other engines on this machine, in turns, with as many
threads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from farm_processes import Farm

NET = """
import torch

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU()).eval(), (torch.ones(1, 32),)
"""  # noqa: E501


def test_a_torch_model_runs_in_torch_and_by_its_onnx_export_in_onnx_runtime(farm: Farm) -> None:
    (farm.folder / "small.py").write_text(NET)
    words = (
        "bench",
        "--device",
        "host",
        "python:small:net",
        "--against",
        "onnxruntime,torch",
        "--threads",
        "1",
        "--json",
    )
    done = farm.run(*words)
    assert done.code == 0, done.err
    (contest,) = done.json["against"]
    assert contest["threads"] == 1 and contest["missing"] == {}
    assert [rival["engine"] for rival in contest["rivals"]] == ["onnxruntime", "torch"]
    for rival in contest["rivals"]:
        assert rival["agreement"]["right"] and rival["version"]
        assert len(rival["seconds"]) == len(contest["seconds"]) >= 10 and min(rival["seconds"]) > 0
        low, high = rival["interval"]
        assert low <= rival["ratio"] <= high
    assert len({tuple(one["seconds"]) for one in (contest, *contest["rivals"])}) == 3


@pytest.mark.parametrize("name", ["small-float", "small-int8"])
def test_a_tflite_file_runs_in_litert_and_the_others_say_so(name: str, farm: Farm) -> None:
    pytest.importorskip("ai_edge_litert")
    model = Path(__file__).parents[2] / "data" / f"{name}.tflite"
    done = farm.run(
        "bench",
        "--device",
        "host",
        str(model),
        "--against",
        "onnxruntime,litert",
        "--threads",
        "1",
        "--json",
    )
    assert done.code == 0, done.err
    (contest,) = done.json["against"]
    (rival,) = contest["rivals"]
    assert rival["engine"] == "litert" and rival["agreement"]["right"] and min(rival["seconds"]) > 0
    assert contest["missing"] == {
        "onnxruntime": (
            f"ONNX Runtime cannot run {name}.tflite: it is a TFLite file, which LiteRT runs: "
            "--against litert"
        )
    }


def test_an_engine_that_cannot_run_the_model_is_told_below_the_table(farm: Farm) -> None:
    done = farm.run("bench", "--device", "host", "digits", "--against", "torch,onnxruntime")
    assert done.code == 0, done.err
    assert "onnxruntime 1." in done.out and "farm is" in done.out
    assert "not in torch: torch cannot run digits.onnx" in done.out


def test_engines_that_are_not_known_or_not_there_are_mistakes_of_usage(farm: Farm) -> None:
    assert "torhc" in farm.run("bench", "--device", "host", "--against", "torhc").error["error"]
    done = farm.run("bench", "--device", "pi3", "digits", "--against", "torch")
    assert done.code == 2 and "this machine" in done.error["why"]
