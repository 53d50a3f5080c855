from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from farm import config
from farm.config import Fleet
from farm.config.locate import SHIPPED
from farm.errors import ModelError, UsageError
from farm.types import MeasurementSettings, OutputErrorLimits, PreprocessSettings

Load = Callable[[str], Fleet]
BOARDS = """
[devices.a]
profile = "x86"
url = "local:"
tags = ["real", "fast"]
options = { deadline_s = 5, threads = 2, launcher = "taskset -c 0", store = "kept", work_dir = "/tmp/w", key = "k" }
[devices.b]
profile = "rasp3b"
url = "rpc://b:9090"
tags = ["real"]
options.store = "kept"
[devices.c]
profile = "mine"
url = "qemu:"
[profiles.mine]
inherits = "rasp4-64"
description = "mine"
target.mcpu = "cortex-a76"
linker = ["gcc", "-v"]
[profiles.rasp3b]
target = { kind = "llvm", mtriple = "armv7l-linux-gnueabihf" }
[profiles.yours]
inherits = "mine"
"""  # noqa: E501


def test_a_command_keeps_its_words(load: Load) -> None:
    words = ("docker", "exec", "-i", "a b", "$c'd")
    text = f'[devices.box]\nprofile = "x86"\nurl = "exec:box"\noptions.command = {list(words)!r}\n'
    assert load(text).device("box").command == words
    assert load(BOARDS).device("a").command == ()


def test_devices_are_chosen_by_name_tag_or_all(load: Load) -> None:
    fleet = load(BOARDS)

    def names(*arguments: object, **options: object) -> list[str]:
        return [device.name for device in fleet.select_devices(*arguments, **options)]  # type: ignore[arg-type]

    assert names(["b", "a", "b"]) == ["b", "a"]
    assert names((), ["real"]) == ["a", "b"]
    assert names(["c"], ["fast"]) == ["c", "a"]
    assert names(all=True) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("names", "tags", "what", "why"),
    [
        ([], [], "no device was chosen", "known: a, b, c"),
        ([], ["reel"], "no device has the tag 'reel'", "did you mean 'real'?"),
        (["d"], [], "unknown device 'd'", "known: a, b, c"),
    ],
)
def test_a_wrong_choice_of_devices_is_told(
    load: Load, names: list[str], tags: list[str], what: str, why: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(BOARDS).select_devices(names, tags)
    assert (caught.value.what, caught.value.why) == (what, why)
    assert caught.value.fix


def test_all_of_no_devices_is_told(load: Load) -> None:
    with pytest.raises(UsageError, match="there are no devices"):
        load("[devices]").select_devices(all=True)


def test_unknown_names_bring_the_nearest(load: Load) -> None:
    fleet = load(BOARDS + "[models.lenet]\nsource = 'python:a.b:c'\n")
    for look_up, name, near in [
        (fleet.profile, "rasp3", "rasp3b"),
        (fleet.model, "lenett", "lenet"),
        (config.load_fleet().device, "pi33", "a"),
    ]:
        with pytest.raises(UsageError) as caught:
            look_up(name)
        assert near in caught.value.why
        assert name in caught.value.what


def test_a_profile_in_the_place_of_a_device_brings_the_devices_that_have_it() -> None:
    fleet = config.load_fleet()
    for profile, why in [
        ("rasp3b", "rasp3b is a profile, of pi3"),
        ("pynq", "pynq is a profile, of no device"),
    ]:
        with pytest.raises(UsageError) as caught:
            fleet.device(profile)
        assert (caught.value.what, caught.value.why) == (f"unknown device '{profile}'", why)


def test_a_profile_takes_the_rest_from_what_it_inherits(load: Load) -> None:
    fleet = load(BOARDS)
    base, mine, yours = fleet.profile("rasp4-64"), fleet.device("c").profile, fleet.profile("yours")
    assert mine.target == {**base.target, "mcpu": "cortex-a76"}
    assert (mine.triple, mine.agent, mine.linker) == (base.triple, base.agent, ("gcc", "-v"))
    assert (yours.name, yours.target, yours.linker) == ("yours", mine.target, mine.linker)


def test_overriding_a_built_in_profile_keeps_what_is_not_stated(load: Load) -> None:
    profile = load(BOARDS).device("b").profile
    assert profile.target == {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
    }  # a target with a kind is whole
    assert (profile.triple, profile.agent) == ("arm-linux-gnueabihf", "armv7")


def test_options_keep_their_types_and_paths_are_relative_to_the_file(
    load: Load, folder: Path
) -> None:
    fleet = load(BOARDS)
    assert fleet.device("a").options == {
        "deadline_s": 5.0,
        "threads": 2,
        "launcher": "taskset -c 0",
        "key": "k",
        "store": str(folder / "kept"),
        "work_dir": "/tmp/w",
    }
    assert fleet.device("b").options == {"store": "kept"}  # a path on the board


def test_a_job_has_the_limit_that_was_asked_for_else_its_devices_else_that_of_all(
    load: Load,
) -> None:
    fleet = load(BOARDS + "[bench]\ndeadline_s = 77\n")
    own, other = fleet.device("a"), fleet.device("b")
    assert [fleet.deadline_s(own, 3.0), fleet.deadline_s(own)] == [3.0, 5.0]
    assert [fleet.deadline_s(other, 3.0), fleet.deadline_s(other)] == [3.0, 77.0]


def test_places_for_all_are_read_and_a_path_is_relative_to_the_file(
    load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load('store = "runs.sqlite"\ncache = "s3://lab/farm"\ncluster = "tcp://host:8786"\n')
    monkeypatch.chdir("/")
    fleet = config.load_fleet(folder / "devices.toml")
    assert (fleet.store, fleet.cache, fleet.cluster) == (
        str(folder / "runs.sqlite"),
        "s3://lab/farm",
        "tcp://host:8786",
    )
    monkeypatch.chdir(folder)
    url = "postgresql://lab@host/farm"
    fleet = load(f'store = "{url}"\n')
    assert (fleet.store, fleet.cache, fleet.cluster) == (url, None, None)


def test_mean_and_std_may_be_for_pixels_up_to_255_and_a_dataset_may_be_a_folder(
    load: Load, folder: Path
) -> None:
    (folder / "images").mkdir()
    table = "[models.m]\nsource = 'python:a.b:c'\ndataset = 'images'\n"
    model = load(
        f"{table}preprocess = {{ mean = [127.5], std = [51], range = 255, crop = 1 }}"
    ).model("m")
    assert (
        model.preprocess == PreprocessSettings((0.5,), (0.2,), crop=1.0, stated=True)
        and model.dataset == folder / "images"
    )


def test_models_are_read_with_all_that_belongs_to_them(load: Load, folder: Path) -> None:
    for name in ("m.onnx", "labels.txt", "data.npz", "calibration.npz", "weights.pth"):
        (folder / name).touch()
    text = """
    [models.m]
    source = "m.onnx"
    shapes = { x = [1, 3, 8, 8], s = [] }
    values = { sr = 16000, gain = 0.5, on = true, pads = [[1, 2]] }
    labels = "labels.txt"
    dataset = "data.npz"
    preprocess = { kind = "imagenet", layout = "NHWC", std = [2] }
    [models.raw]
    source = "python:a.b:c"
    preprocess = "none"
    [models.weights]
    source = "weights.pth"
    module = "a.b:c"
    dtypes = { x = "int64" }
    calibration_data = "calibration.npz"
    preprocess = { channels = "BGR", crop = 0.5 }
    trust = true
    """
    fleet = load(text)
    weights = fleet.model("weights")
    assert (weights.module, weights.dtypes) == ("python:a.b:c", {"x": "int64"})
    assert (weights.calibration_data, weights.dataset) == (folder / "calibration.npz", None)
    assert weights.trust and not fleet.model("m").trust
    assert not weights.preprocess.stated and fleet.model("raw").preprocess.stated
    model = fleet.model("m")
    assert (model.source, model.labels, model.dataset) == (
        str(folder / "m.onnx"),
        folder / "labels.txt",
        folder / "data.npz",
    )
    assert model.shapes == {"x": (1, 3, 8, 8), "s": ()}
    assert (
        model.values == {"sr": 16000, "gain": 0.5, "on": True, "pads": [[1, 2]]}
        and model.values["on"] is True
    )
    assert model.preprocess == PreprocessSettings(
        (0.485, 0.456, 0.406), (2.0,), "NHWC", "RGB", 0.875, True
    )
    raw = fleet.model("raw").preprocess
    assert [(pixel / 255 - raw.mean[0]) / raw.std[0] for pixel in (0, 255)] == [0, 255]
    assert fleet.bench.models == ("m", "raw", "weights")  # none named: all
    assert fleet.bench.plan == MeasurementSettings()


def test_bench_and_tracker_are_read(load: Load) -> None:
    fleet = load("[models.m]\nsource='python:a:b'\n[models.n]\nsource='python:a:c'\n"
                 "[bench]\nmodels=['n']\nwarmup=0\ncount=7\nminimum_s=0\nmaximum_s=2\ndeadline_s=9\ndataset_limit=0\n"
                 "[tracker]\nhost='::1'\nport=9500\n")  # fmt: skip
    assert fleet.bench == config.BenchSettings(("n",), MeasurementSettings(0, 7, 0.0, 2.0, 9.0, 0))
    assert fleet.tracker == config.TrackerSettings("::1", 9500, 9509)


def test_a_model_that_is_not_configured_is_made_of_its_file_or_function(
    load: Load, folder: Path
) -> None:
    (folder / "deep").mkdir()
    for name in ("net.onnx", "deep/other.pt2", "plain"):
        (folder / name).touch()
    fleet = load("[models.net]\nsource = 'net.onnx'\n[models.other]\nsource = 'python:a:b'\n")
    assert fleet.model("plain").source == str(folder / "plain")
    made = fleet.model("python:my.zoo:tiny")
    assert (made.name, made.source) == ("tiny", "python:my.zoo:tiny")
    assert fleet.model("net.onnx") is fleet.model("net")  # the very source that is configured
    clash = fleet.model("deep/other.pt2")
    assert (clash.name, clash.source) == ("other.pt2", str(folder / "deep/other.pt2"))
    assert fleet.model("package:zoo/digits/digits.onnx").name == "digits"


def test_models_that_are_worked_with_together_are_told_apart_by_their_names(
    load: Load, folder: Path
) -> None:
    (folder / "deep").mkdir()
    for name in ("net.onnx", "net.pt2", "net.int8", "net.float16", "deep/net.onnx"):
        (folder / name).touch()
    fleet = load("[models.own]\nsource = 'python:a:b'\n")

    def names(*words: str) -> list[str]:
        return [model.name for model in fleet.models_together(words)]

    assert names("net.onnx", "net.int8", "net.float16", "own") == [
        "net",
        "net.int8",
        "net.float16",
        "own",
    ]
    assert names("net.onnx", "net.pt2", "net.onnx", "own", "own") == ["net.onnx", "net.pt2", "own"]
    with pytest.raises(UsageError, match=r"two models go by the name net\.onnx") as caught:
        names("net.onnx", "deep/net.onnx")
    assert str(folder / "deep/net.onnx") in caught.value.why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ned.onnx", "no file ned.onnx; that folder has net.onnx"),
        ("nowhere/net.onnx", "no file nowhere/net.onnx: there is no folder nowhere"),
        ("deep/", "deep is a folder, not a file"),
        ("python:net", "'python:net' is not of the form python:package.module:function"),
        ("~nobody-of-this-name/x.onnx", "names the home of an unknown user"),
        ("x" * 5000 + ".onnx", "cannot look at"),
    ],
)
def test_a_missing_model_file_is_told_with_its_path(
    load: Load, folder: Path, text: str, why: str
) -> None:
    (folder / "net.onnx").touch()
    (folder / "deep").mkdir()
    with pytest.raises(ModelError) as caught:
        load("").model(text)
    assert why in caught.value.why
    assert caught.value.fix


def test_the_fleet_can_be_sent_to_another_process(load: Load) -> None:
    fleet = load(BOARDS)
    assert pickle.loads(pickle.dumps(fleet)) == fleet


def test_the_shipped_fleet_works_on_a_fresh_machine() -> None:
    fleet = config.load_fleet()
    assert {
        device.name: (device.profile.name, device.url) for device in fleet.devices.values()
    } == {
        "host": ("x86", "local:"),
        "pi3": ("rasp3b", "qemu:"),
        "rk3399": ("rk3399", "qemu:"),
    }
    assert fleet.bench.models == ("digits", "mobilenet_v2", "resnet18")
    assert all(fleet.device(name).profile.agent for name in fleet.devices)
    digits = fleet.model("digits")
    assert digits.labels is not None
    assert digits.dataset is not None
    assert digits.preprocess.channels == "L"


def test_built_in_models_are_found_by_name_in_a_fleet_of_ones_own(load: Load, folder: Path) -> None:
    fleet = load(BOARDS + "[limits.float32]\nmax_abs = 1e-3\n")
    digits = fleet.model("digits")
    assert (
        digits.source == config.load_fleet(SHIPPED).model("digits").source
        and digits.labels is not None
    )
    assert digits.limits["float32"] == OutputErrorLimits(max_abs=1e-3)  # those of the file
    assert fleet.bench.models == ("digits", "mobilenet_v2", "resnet18")
    with pytest.raises(UsageError, match="unknown model 'digit'") as caught:
        fleet.model("digit")
    assert "did you mean 'digits'" in caught.value.why


def test_a_model_of_the_file_comes_before_a_built_in_one(load: Load, folder: Path) -> None:
    (folder / "digits.onnx").touch()
    fleet = load(
        "[models.resnet18]\nsource = 'python:a.b:c'\n[models.net]\nsource = "
        "'python:a.b:d'\n[bench]\nmodels = ['net', 'digits']\n"
    )
    assert fleet.model("resnet18").source == "python:a.b:c"
    assert fleet.bench.models == ("net", "digits")
    # a file keeps its short name, unless it is worked with beside the built-in model of that name
    assert fleet.model("digits.onnx").name == "digits"
    assert [model.name for model in fleet.models_together(["digits", "digits.onnx"])] == [
        "digits",
        "digits.onnx",
    ]


def test_limits_are_those_of_all_models_with_the_models_own_above_them(load: Load) -> None:
    fleet = load(
        "[limits.int8]\nmin_snr = 25\n[limits.float32]\nmax_abs = 1e-3\n"
        "[models.m]\nsource = 'python:a.b:c'\nlimits = { min_cosine = 0.9 }\n"
    )
    assert fleet.model("m").limits["int8"] == OutputErrorLimits(min_snr_db=25.0, min_cosine=0.9)
    assert fleet.model("m").limits["float32"] == OutputErrorLimits(max_abs=1e-3, min_cosine=0.9)
    other = fleet.model("python:a.b:d")
    assert other.limits["int8"] == OutputErrorLimits(
        min_snr_db=25.0, min_cosine=0.99
    ) and other.limits["float16"] == OutputErrorLimits(max_abs=1e-2)
