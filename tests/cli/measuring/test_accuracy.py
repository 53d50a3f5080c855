"""farm accuracy: shares and their intervals on several devices, going on after whatever ended it,
and data that are wrong.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from farm_processes import DEVICES, DIGITS, QUICK, Farm
from PIL import Image
from timeouts import wait_until

from farm import zoo

TOTAL, RIGHT = 360, 357  # of the digits' test set, by the reference


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """The digits' test set, many times over: some seconds of work for a device."""
    with np.load(zoo.digits().dataset) as arrays:
        path = tmp_path / "many.npz"
        np.savez(
            path,
            inputs=np.tile(arrays["inputs"], (20, 1, 1, 1)),
            labels=np.tile(arrays["labels"], 20),
        )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two digits of each class as images in folders."""
    with np.load(zoo.digits().dataset) as arrays:
        for digit in range(10):
            (tmp_path / "images" / str(digit)).mkdir(parents=True)
            for number, sample in enumerate(arrays["inputs"][arrays["labels"] == digit][:2]):
                Image.fromarray((sample[0] * 255).round().astype(np.uint8)).save(
                    tmp_path / "images" / str(digit) / f"{number}.png"
                )
    return tmp_path / "images"


def test_the_samples_of_a_bench_are_of_all_classes_though_a_folder_has_them_class_by_class(
    farm: Farm, folder: Path
) -> None:
    for digit in "0123":  # whoever takes the first ten alone gets none right
        for image in (folder / digit).iterdir():
            image.write_bytes((folder / "9" / image.name).read_bytes())
    images = DIGITS.replace("package:zoo/digits/digits-test.npz", str(folder))
    farm.configure(DEVICES + images + QUICK.replace("dataset_limit = 20", "dataset_limit = 10"))
    done = farm.run("bench", "--device", "host", "digits", "--json")
    [run] = done.json["runs"]
    assert (run["samples"]["correct"], run["samples"]["total"]) == (6, 10), done.err


def kept(farm: Farm) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(
            sqlite3.connect(f"file:{farm.data}/answers.sqlite?mode=ro", uri=True)
        ) as db,
    ):
        return int(db.execute("SELECT COUNT(*) FROM answers").fetchone()[0])
    return 0


def test_devices_and_the_reference_are_measured_on_the_same_samples(
    farm: Farm, emulators: None
) -> None:
    done = farm.run(
        "accuracy", "--device", "host", "--device", "pi3", "digits", "--samples", "90", "--json"
    )
    assert done.code == 0, done.err
    host, pi3 = done.json["devices"]
    for found in (host, pi3, done.json["reference"]):
        assert (found["answered"], found["total"], found["kept"], found["failure"]) == (
            90,
            90,
            0,
            None,
        )
        low, high = found["shares"]["top1"]["interval"]
        assert 0.9 < low < found["top1"] / 90 <= high <= 1 and found["top5"] >= found["top1"]
    assert host["same"] == pi3["same"] == 90
    again = farm.run("accuracy", "--device", "host", "--device", "pi3", "digits")
    assert (
        again.code == 0
        and "99.17" in again.out
        and "97.58–99.72" in again.out
        and "90 answers are from an earlier run" in again.out
    )


def test_a_killed_run_goes_on_where_it_was(farm: Farm, many: Path) -> None:
    command = ("accuracy", "--device", "host", "digits", "--data", many)
    running = farm.start(*command)
    wait_until(lambda: kept(farm) > 300, "answers")
    running.child.kill()
    running.end()
    before = kept(farm)
    stopped = farm.start(*command)
    wait_until(lambda: kept(farm) > before, "more answers")
    stopped.send(signal.SIGINT)
    done = stopped.end()
    assert done.code == 130 and "answers kept: the same command goes on" in done.err
    assert kept(farm) > before
    between = kept(farm)
    last = farm.run(*command, "--json").json
    (host,) = last["devices"]
    assert host["kept"] + last["reference"]["kept"] == between
    assert (host["answered"], host["top1"], last["reference"]["top1"]) == (
        20 * TOTAL,
        20 * RIGHT,
        20 * RIGHT,
    )
    assert kept(farm) == 2 * 20 * TOTAL
    farm.assert_nothing_is_left()


def test_answers_to_images_that_were_prepared_otherwise_do_not_count(
    farm: Farm, folder: Path
) -> None:
    """Nothing else tells them from others: without samples of its own, the model's build is one."""
    alone = DIGITS.replace('dataset = "package:zoo/digits/digits-test.npz"', "")
    farm.configure(DEVICES + alone + QUICK)
    command = ("accuracy", "--device", "host", "digits", "--data", folder, "--json")
    assert farm.run(*command).json["devices"][0]["kept"] == 0
    assert farm.run(*command).json["devices"][0]["kept"] == 20
    shifted = 'preprocess = { layout = "NCHW", channels = "L", mean = [0.5] }'
    other = alone.replace('preprocess = "grey"', shifted)
    farm.configure(DEVICES + other + QUICK)
    changed = farm.run(*command)
    assert changed.json["devices"][0]["kept"] == changed.json["reference"]["kept"] == 0, changed.err


def test_folders_of_images_are_counted_and_conversions_said(farm: Farm, folder: Path) -> None:
    Image.open(folder / "3" / "0.png").convert("RGB").save(folder / "3" / "0.png")
    done = farm.run("accuracy", "--device", "host", "digits", "--data", folder)
    assert done.code == 0, done.err
    assert "1 images converted: colour to grey" in done.out and "100.00" in done.out


def test_a_corrupt_image_is_named_and_nothing_before_it_is_lost(farm: Farm, folder: Path) -> None:
    broken = folder / "7" / "1.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:40])
    done = farm.run("accuracy", "--device", "host", "digits", "--data", folder)
    assert done.code == 3
    assert done.error["error"].startswith(
        f"sample 15 of {folder}: {broken} cannot be read as an image"
    )
    assert kept(farm) == 2 * 15
    broken.write_bytes(whole)
    mended = farm.run("accuracy", "--device", "host", "digits", "--data", folder, "--json").json
    assert (mended["devices"][0]["kept"], mended["devices"][0]["answered"]) == (15, 20)


def test_data_that_do_not_match_the_model_are_refused_before_any_device(
    farm: Farm, folder: Path, tmp_path: Path
) -> None:
    (folder / "9").rename(folder / "10")
    error = farm.run("accuracy", "--device", "host", "digits", "--data", folder).error
    assert (
        "1 of its 10 folders is no class of the model: '10'" in error["error"]
        and "classes are 0 to 9" in error["why"]
    )
    (tmp_path / "empty").mkdir()
    assert (
        "holds no samples"
        in farm.run("accuracy", "--device", "host", "digits", "--data", tmp_path / "empty").error[
            "error"
        ]
    )
    assert "no `dataset`" in farm.run("accuracy", "--device", "host", "slow.onnx").error["why"]
    assert (
        "is no classifier"
        in farm.run("accuracy", "--device", "host", "slow.onnx", "--data", folder).error["error"]
    )


def test_a_share_that_is_too_small_is_a_wrong_answer(farm: Farm, folder: Path) -> None:
    for digit in (0, 1):  # the images of one under the label of the other
        (folder / str(digit)).rename(folder / f"{1 - digit}x")
    for digit in (0, 1):
        (folder / f"{digit}x").rename(folder / str(digit))
    done = farm.run("accuracy", "--device", "host", "digits", "--data", folder, "--min-top1", "90")
    assert (
        done.code == 7
        and done.error["error"] == "top-1 is below 90 % on host"  # and not on the reference
        and "80.00" in done.out
    )
    assert (
        farm.run(
            "accuracy", "--device", "host", "digits", "--data", folder, "--min-top1", "80"
        ).code
        == 0
    )


def test_one_devices_failure_is_its_own(farm: Farm) -> None:
    with (farm.folder / "devices.toml").open("a") as file:
        file.write('[devices.gone]\nprofile = "x86"\nurl = "rpc://127.0.0.1:9"\n')
    done = farm.run(
        "accuracy", "--device", "gone", "--device", "host", "digits", "--samples", "20", "--json"
    )
    gone, host = done.json["devices"]
    assert gone["failure"] and gone["answered"] == 0 and host["answered"] == 20 and done.code == 5
