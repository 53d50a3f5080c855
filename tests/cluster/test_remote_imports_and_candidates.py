"""Imports and the candidates of a search on a cluster: what travels, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx
from dask_processes import DaskCluster, dask_cluster
from farm_commands import farm
from network_namespaces import machines
from onnx_models import graph, node, save

from farm import checked_model_import
from farm.api.resolve import host_profile
from farm.cluster import ClusterEngine, open_cluster
from farm.cluster.dask import DaskEngine
from farm.config import load_fleet
from farm.pipeline.cluster.imports import can_import_remotely
from farm.pipeline.cluster.tuning_candidates import request_batch_from_cluster
from farm.pipeline.tuning.loop import BoardState, TuningLoop, TuningState
from farm.pipeline.tuning.search import KernelSearch, TuningSearch
from farm.pipeline.worker_tasks import (
    build_variant_batch_task,
    find_tuning_tasks_task,
    prepare_model_task,
)
from farm.processes.workers import TaskContext, WorkerPool
from farm.store import Store, TuningRecordStore
from farm.types import Candidate, Device, PreparedModel, QuantizeSettings, Task

FLEET = load_fleet(None)
HOST = host_profile(FLEET)
BOARD_PROFILE = (FLEET.profile("x86-v3"),)


def write_model(path: Path) -> None:
    """A convolution that is worth a search."""
    weights = {"w": np.ones((32, 16, 3, 3), "float32") / 100}
    nodes = [node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), node("Relu", ["a"], ["y"])]
    save(path, graph(nodes, {"x": [1, 16, 28, 28]}, {"y": [1, 32, 28, 28]}, weights))


def kinds(cluster: DaskCluster, name: str) -> set[str]:
    return {path.name for path in cluster.cache(name).iterdir() if any(path.iterdir())}


def test_a_model_file_is_imported_on_the_cluster_with_its_external_weights(
    cluster: DaskCluster, home: Path
) -> None:
    write_model(home / "net.onnx")
    onnx.save(
        onnx.load(home / "net.onnx"),
        home / "net.onnx",
        save_as_external_data=True,
        location="net.weights",
        size_threshold=0,
    )
    cluster.worker("one")
    words = ("deploy", "--device", "here", "net.onnx", "--json")
    done = farm(*words, "--cluster", cluster.address, folder=home)
    assert done.returncode == 0, done.stderr
    assert kinds(cluster, "one") >= {"models", "artifacts"}
    (there,) = (cluster.cache("one") / "models").iterdir()
    (here,) = (home / "cache" / "models").iterdir()
    own = checked_model_import.prepared_model_digest(
        FLEET.model(str(home / "net.onnx")), home / "cache"
    )
    assert there.name == here.name == own
    again = farm(*words, "--cluster", "tcp://127.0.0.1:9", folder=home)  # everything is here
    assert again.returncode == 0, again.stderr


def test_an_error_of_an_import_on_the_cluster_is_that_of_an_import_here(
    cluster: DaskCluster, home: Path
) -> None:
    body = graph([node("NoSuchOperator", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    (home / "net.onnx").write_bytes(
        onnx.helper.make_model(
            body, opset_imports=[onnx.helper.make_opsetid("", 17)]
        ).SerializeToString()
    )
    cluster.worker("one")
    told = []
    for where in (cluster.address, "none"):
        done = farm("deploy", "--device", "here", "net.onnx", "--cluster", where, folder=home)
        assert done.returncode != 0
        told.append(next(line for line in done.stderr.splitlines() if line.startswith("error")))
    assert told[0] == told[1]


def test_what_needs_other_files_of_this_machine_is_imported_here(tmp_path: Path) -> None:
    write_model(tmp_path / "net.onnx")
    model = FLEET.model(str(tmp_path / "net.onnx"))
    assert can_import_remotely(model, HOST, BOARD_PROFILE)
    assert can_import_remotely(
        replace(model, quantize=QuantizeSettings(dtype="float16")), HOST, BOARD_PROFILE
    )
    assert not can_import_remotely(model, HOST, (HOST,)), "its check makes the build"
    for other in (
        replace(model, quantize=QuantizeSettings(dtype="int8"), calibration_data=tmp_path),
        replace(model, dataset=tmp_path),
        replace(model, trust=True),
        replace(model, source=str(tmp_path / "missing.onnx")),
        FLEET.model("digits"),
    ):
        assert not can_import_remotely(other, HOST, BOARD_PROFILE)


def test_the_candidates_of_a_search_are_built_on_the_cluster(
    cluster: DaskCluster, home: Path
) -> None:
    write_model(home / "net.onnx")
    cluster.worker("one")
    done = farm(
        *("tune", "--device", "here", "net.onnx", "--minutes", "0.05", "--json"),
        *("--cluster", cluster.address),
        folder=home,
    )
    assert done.returncode == 0, done.stderr
    assert "models" in kinds(cluster, "one"), "tune itself imports here"
    assert not list((home / "cache" / "tmp").iterdir())


def test_a_batch_of_the_cluster_is_that_of_this_machine(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    write_model(tmp_path / "net.onnx")
    model, profile = FLEET.model(str(tmp_path / "net.onnx")), BOARD_PROFILE[0]
    store, context = Store(tmp_path / "cache"), TaskContext(tmp_path)
    prepared = prepare_model_task(context, model, HOST, store)
    _, (task, *_) = find_tuning_tasks_task(context, model, prepared, profile)
    wanted = tuple((task.workload, one) for one in task.candidates[:3])
    own = build_variant_batch_task(context, model, prepared, profile, wanted, tmp_path / "own")
    cluster.worker("one")
    with open_cluster(cluster.address) as engine:
        arguments = (model, prepared, profile, wanted, tmp_path / "made", engine)
        made = request_batch_from_cluster(context, *arguments)
    assert len(made.variants) == 3 and made.variants == own.variants
    for name in ("library", "arrays"):
        assert getattr(made, name).read_bytes() == getattr(own, name).read_bytes()


def test_batches_are_built_ahead_on_a_cluster(tmp_path: Path) -> None:
    profile = FLEET.profile("x86-v3")
    model, prepared = FLEET.model("digits"), cast(PreparedModel, None)
    devices = [Device(name, profile, "local:") for name in ("a", "b")]

    class Waiting(WorkerPool):
        """A pool whose tasks do not end."""

        def __init__(self) -> None:
            self.scratch, self.slots = tmp_path, list[str]()

        def idle(self, slot: str) -> bool:
            return slot not in self.slots

        def assign(self, slot: str, *_: object, **__: object) -> None:
            self.slots.append(slot)

    def slots(cluster: ClusterEngine | None) -> list[str]:
        one = Candidate({"method": "direct", "tile": [1, 1, 16], "order": "pixels"}, "one", 1.0)
        other = Candidate({"method": "direct", "tile": [2, 1, 16], "order": "pixels"}, "two", 2.0)
        kernels = [
            KernelSearch(Task(f"k{number}", 1, (one, other), one, one)) for number in range(9)
        ]
        for kernel in kernels:
            kernel.default_s = kernel.best_s = 1.0
        work = TuningState(
            model, devices, Store(tmp_path), TuningRecordStore(tmp_path / "records.sqlite")
        )
        work.search = TuningSearch(kernels)
        work.boards = [BoardState(device, f"device-{device.name}", None) for device in devices]
        pool = Waiting()
        trials = TuningLoop(work, pool, prepared, profile, lambda *_: None, cluster)
        for _ in range(3):
            trials._build_next()
        return pool.slots

    class Sixteen(DaskEngine):
        def slots(self) -> int:
            return 16

    assert slots(None) == ["worker"]
    assert slots(Sixteen("tcp://127.0.0.1:9")) == [f"worker-{number}" for number in range(1, 5)]


def test_scheduler_and_workers_are_other_machines(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with machines(2) as (head, other), dask_cluster(folder, head) as cluster:
        cluster.machine = other
        cluster.worker("one", "--no-nanny")
        words = ("deploy", "--device", "here", "digits", "--cluster", cluster.address)
        done = farm(*words, folder=home)
        assert done.returncode == 0, done.stderr
        assert head.address in cluster.address
        assert "artifacts" in kinds(cluster, "one")
