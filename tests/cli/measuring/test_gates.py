"""--min-snr and --min-top1 of deploy and bench: an answer below them is WRONG, with its reason, and
is not installed.
"""

from __future__ import annotations

import numpy as np
from farm_processes import Farm

from farm import zoo


def test_an_answer_below_a_gate_is_wrong_and_is_not_installed(farm: Farm) -> None:
    done = farm.run("deploy", "--device", "host", "digits", "--min-snr", "300")
    assert (
        done.code == 7
        and "WRONG (its signal to noise is" in done.out
        and "not installed" in done.out
    )
    assert "--min-snr" in done.out
    good = farm.run(
        "deploy", "--device", "host", "digits", "--min-snr", "60", "--min-top1", "100", "--json"
    )
    (run,) = good.json["runs"]
    assert good.code == 0 and run["verdict"] == "RIGHT" and run["samples"]["release"] == 1
    measures = run["samples"]["agreement"]
    assert (
        measures["top1"] == measures["top5"] == 1.0
        and measures["cosine"] > 0.999
        and measures["max_rel"] < 1e-3
        and measures["why"] == ""
    )


def test_the_gate_of_bench_is_of_the_labelled_samples_and_limits_are_the_models_own(
    farm: Farm,
) -> None:
    with np.load(zoo.digits().dataset) as arrays:
        labels = arrays["labels"][:20].copy()
        labels[3] = (labels[3] + 1) % 10
        np.savez(farm.folder / "data.npz", inputs=arrays["inputs"][:20], labels=labels)
    text = (
        (farm.folder / "devices.toml")
        .read_text()
        .replace("package:zoo/digits/digits-test.npz", "data.npz")
    )
    farm.configure(text)
    done = farm.run("bench", "--device", "host", "digits", "--min-top1", "96", "--json")
    (run,) = done.json["runs"]
    assert (done.code, run["verdict"]) == (
        7,
        "WRONG",
    ) and "its top-1 is 95.0 %, less than the 96 % of --min-top1" in run["reason"]
    farm.configure(text + "[models.digits.limits]\nmin_snr = 300\n")
    wrong = farm.run("bench", "--device", "host", "digits", "--json").json["runs"][0]
    assert (
        wrong["verdict"] == "FAILED"
        and "300 dB are the limit, on this machine" in wrong["failure"]["why"]
    ), "before a board is asked"
