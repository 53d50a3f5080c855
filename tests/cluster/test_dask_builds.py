"""Builds on Dask: a real scheduler and workers, which share no files with the controller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cluster_tasks import first_hangs, place_and_number, until_unwanted, wrong
from dask_processes import DaskCluster, dask_cluster
from farm_commands import BOARD, begin, farm
from timeouts import LIMIT_S, wait_until

from farm.api.resolve import host_profile
from farm.cluster import ClusterEngine, dask, open_cluster
from farm.config import load_fleet
from farm.errors import BuildError, FarmError
from farm.pipeline.cluster import builds
from farm.pipeline.cluster.task_transfer import archive_of_stored_folder
from farm.pipeline.operations import compile_model
from farm.processes.cancellation import Cancellation, Cancelled
from farm.processes.worker_main import TaskContext
from farm.store import Store, TuningRecordStore
from farm.types import Artifact, Model, PreparedModel, Profile, Progress, Stage, TuningRecord

FLEET = load_fleet(None)
KILLED_FOR = ("rasp3b", "rk3399")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    return Store(tmp_path / "cache")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What this machine makes of the digits model, for all tests."""
    return Store(tmp_path_factory.mktemp("here"))


def build_here(profile: Profile, here: Store) -> tuple[PreparedModel, Artifact]:
    model, host = FLEET.model("digits"), host_profile(FLEET)
    return compile_model(model, profile, host=host, store=here, show=lambda _: None)


@pytest.fixture(scope="module")
def imported(here: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreparedModel]:
    """The digits model, imported, and its build for another profile than the tests'."""
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("FARM_DATA", str(tmp_path_factory.mktemp("data")))
        prepared, _ = build_here(FLEET.profile("x86-v3"), here)
    folder = tmp_path_factory.mktemp("imported")
    shutil.copytree(here.root, folder, dirs_exist_ok=True)  # before others are built
    return folder, replace(prepared, directory=prepared.directory.relative_to(here.root))


@pytest.fixture
def digits(store: Store, imported: tuple[Path, PreparedModel]) -> tuple[Model, PreparedModel]:
    """The digits model, imported here; its build here is for another profile."""
    folder, prepared = imported
    shutil.copytree(folder, store.root, dirs_exist_ok=True)
    return FLEET.model("digits"), replace(prepared, directory=store.root / prepared.directory)


class Noting(TaskContext):
    """A context that keeps what a task notes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.notes: list[Progress] = []

    def note(self, value: object) -> None:
        assert isinstance(value, Progress)
        self.notes.append(value)


CONTROLLER = """
import sys
from pathlib import Path
from cluster_tasks import until_unwanted
from farm.cluster import open_cluster
with open_cluster(sys.argv[1]) as engine:
    engine.run(until_unwanted, Path(sys.argv[2]), print)
"""


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def run(engine: ClusterEngine, work: Callable[..., object], request: object) -> tuple[str, object]:
    return engine.run(work, request, lambda _: None)


def test_a_worker_builds_what_this_machine_would_build(
    cluster: DaskCluster,
    store: Store,
    here: Store,
    digits: tuple[Model, PreparedModel],
    tmp_path: Path,
) -> None:
    model, prepared = digits
    profile, context = FLEET.profile("rasp3b"), Noting(tmp_path)
    cluster.worker("one")
    with open_cluster(cluster.address) as engine:
        made = builds.build_on_cluster(context, model, prepared, profile, store, engine)
    _, own = build_here(profile, here)
    assert made.library.parent == store.root / "artifacts" / own.digest
    assert (made.library_digest, made.parameters_digest, made.cached) == (
        own.library_digest,
        own.parameters_digest,
        False,
    )
    notes = [one.note for one in context.notes]
    assert notes == ["for rasp3b: graph and schedules", "for rasp3b: machine code"]
    there = Store(cluster.cache("one"))
    assert [one.kind for one in there.entries()] == ["models", "workloads", "artifacts"]
    assert not list((there.root / "tmp").iterdir())


def test_the_users_tuning_records_travel(
    cluster: DaskCluster,
    store: Store,
    here: Store,
    digits: tuple[Model, PreparedModel],
    tmp_path: Path,
) -> None:
    model, prepared = digits
    profile = FLEET.profile("rasp3b")
    _, first = build_here(profile, here)
    (asked,) = (here.root / "workloads").glob(f"{first.digest}/workloads.json")
    found = json.loads(asked.read_text())
    choice: dict[str, object] = {"anything": 1}  # the compiler passes over what it does not know
    record = TuningRecord(
        found["core"],
        found["workloads"][0],
        choice,
        1.0,
        2.0,
        3,
        "2026-01-01T00:00:00+00:00",
        "pi3",
    )
    TuningRecordStore.of_user().keep(record)
    cluster.worker("one", "--no-nanny")
    with open_cluster(cluster.address) as engine:
        made = builds.build_on_cluster(
            TaskContext(tmp_path), model, prepared, profile, store, engine
        )
    _, own = build_here(profile, here)
    assert made.digest == own.digest != first.digest


def test_what_a_worker_sends_is_checked(
    store: Store, digits: tuple[Model, PreparedModel], tmp_path: Path
) -> None:
    model, prepared = digits
    other = FLEET.profile("rasp3b")

    class Lying(ClusterEngine):
        """An engine whose worker answers with another build, or with a damaged one."""

        damage = False

        def slots(self) -> int:
            return 1

        def submit(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

        def close(self) -> None:
            pass

        def lost(self, number: int, error: BaseException) -> BaseException:
            return error

        def run(self, work: object, request: builds.BuildRequest, *_: object) -> tuple[str, object]:  # type: ignore[override]
            (asked,) = (store.root / "workloads").iterdir()
            (made,) = (store.root / "artifacts").iterdir()
            workloads = archive_of_stored_folder(asked, "workloads", request.base)
            name = request.base if self.damage else made.name
            return "tcp://liar", builds.BuildAnswer(
                name, archive_of_stored_folder(made, "artifacts", name), workloads
            )

    before = content(store.root)
    for damage, why in ((False, "its digest is not that"), (True, "its files are not those")):
        engine = Lying()
        engine.damage = damage
        with pytest.raises(BuildError, match="tcp://liar") as caught:
            builds.build_on_cluster(TaskContext(tmp_path), model, prepared, other, store, engine)
        assert caught.value.why.startswith(why)
    assert content(store.root) == before


def test_the_task_of_a_killed_worker_runs_elsewhere(cluster: DaskCluster, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cluster.worker(name, "--no-nanny")
    begun, results = tmp_path / "begun", []
    with open_cluster(cluster.address) as engine:
        thread = threading.Thread(target=lambda: results.append(run(engine, first_hangs, begun)))
        thread.start()
        victim = int(
            wait_until(lambda: begun.exists() and begun.read_text(), "the first worker's begin")
        )
        os.kill(victim, signal.SIGKILL)
        thread.join(LIMIT_S)
    ((_, survivor),) = results
    assert survivor != victim
    assert survivor in {child.pid for child in cluster.processes}


def test_the_task_of_a_frozen_worker_runs_elsewhere(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask, "_SILENT_S", 12.0)
    for name in ("one", "two"):
        cluster.worker(name, "--no-nanny")
    begun, results = tmp_path / "begun", []
    with open_cluster(cluster.address) as engine:
        thread = threading.Thread(target=lambda: results.append(run(engine, first_hangs, begun)))
        thread.start()
        victim = int(
            wait_until(lambda: begun.exists() and begun.read_text(), "the first worker's begin")
        )
        os.kill(victim, signal.SIGSTOP)
        try:
            thread.join(LIMIT_S)
            ((_, survivor),) = results
            assert survivor != victim
            # and what comes after it is not given to the frozen one
            assert {run(engine, place_and_number, 0)[1] for _ in range(3)} == {(survivor, 0)}
        finally:
            os.kill(victim, signal.SIGCONT)
        wait_until(lambda: engine.slots() == 2, "the worker that goes on is used again")


def test_a_build_whose_worker_is_killed_is_made_once_elsewhere(
    cluster: DaskCluster,
    store: Store,
    here: Store,
    digits: tuple[Model, PreparedModel],
    tmp_path: Path,
) -> None:
    model, prepared = digits
    live = {name: cluster.worker(name, "--no-nanny") for name in ("w0", "w1")}
    with ThreadPoolExecutor(1) as pool, open_cluster(cluster.address) as engine:
        run(engine, place_and_number, 0)
        for number, profile in enumerate(map(FLEET.profile, KILLED_FOR), 2):
            made = pool.submit(
                builds.build_on_cluster,
                TaskContext(tmp_path),
                model,
                prepared,
                profile,
                store,
                engine,
            )
            name, child = wait_until(lambda: builder(live), "a build's process")
            victim = live.pop(name)
            victim.kill()
            victim.wait()
            live[f"w{number}"] = cluster.worker(f"w{number}", "--no-nanny")
            artifact = made.result(LIMIT_S)
            wait_until(
                lambda child=child: not child.is_running(), "the end of what the killed worker ran"
            )
            _, own = build_here(profile, here)
            assert (artifact.digest, artifact.library_digest) == (own.digest, own.library_digest)
            names = [f"w{number}" for number in range(number + 1)]
            assert (
                len(
                    [
                        name
                        for name in names
                        if (cluster.cache(name) / "artifacts" / own.digest).is_dir()
                    ]
                )
                == 1
            )


def builder(workers: dict[str, subprocess.Popen[bytes]]) -> tuple[str, psutil.Process] | None:
    """The worker that builds, and the process that it started for that."""
    for name, worker in workers.items():
        for child in psutil.Process(worker.pid).children():
            return name, child
    return None


@pytest.fixture
def short_lived(tmp_path: Path) -> Iterator[DaskCluster]:
    """A cluster whose scheduler is its own."""
    (tmp_path / "short-lived").mkdir()
    with dask_cluster(tmp_path / "short-lived") as cluster:
        yield cluster
        for child in cluster.processes:
            child.kill()  # without their scheduler, workers end late


def test_a_lost_scheduler_is_an_error_for_all_that_wait(
    short_lived: DaskCluster, tmp_path: Path
) -> None:
    cluster = short_lived
    cluster.worker("one", "--no-nanny")
    errors: list[FarmError] = []

    def wait() -> None:
        try:
            run(engine, until_unwanted, tmp_path / "task")
        except FarmError as error:
            errors.append(error)

    with open_cluster(cluster.address) as engine:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until((tmp_path / "task.begun").exists, "the task's begin")
        cluster.scheduler.kill()
        thread.join(LIMIT_S)
        assert [error.what for error in errors] == [
            f"the scheduler of the cluster, {cluster.address}, is gone or cannot be reached"
        ]
        assert "what is built is kept" in errors[0].fix
        with pytest.raises(BuildError, match="is gone"):
            run(engine, place_and_number, 1)


def test_a_scheduler_that_is_not_there_is_an_error() -> None:
    with (
        open_cluster("tcp://127.0.0.1:9") as engine,
        pytest.raises(BuildError, match=r"tcp://127.0.0.1:9, is gone or cannot be reached"),
    ):
        run(engine, place_and_number, 1)


def test_a_cluster_without_workers_is_an_error(cluster: DaskCluster) -> None:
    with (
        open_cluster(cluster.address) as engine,
        pytest.raises(BuildError, match="has no workers") as caught,
    ):
        run(engine, place_and_number, 1)
    assert caught.value.fix == f"start some: dask worker {cluster.address}"


def test_a_cancelled_task_ends_on_its_worker(cluster: DaskCluster, tmp_path: Path) -> None:
    cluster.worker("one")
    work, ends = Cancellation(), []

    def wait() -> None:
        with work.in_this_thread():
            try:
                run(engine, until_unwanted, tmp_path / "task")
            except Cancelled:
                ends.append(True)

    with open_cluster(cluster.address) as engine:
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until((tmp_path / "task.begun").exists, "the task's begin")
        work.cancel()
        thread.join(LIMIT_S)
        assert ends
        wait_until((tmp_path / "task.ended").exists, "the end of the task on the worker")
        assert run(engine, place_and_number, 1)[1]  # the worker is free again


def test_the_task_of_a_killed_controller_ends(cluster: DaskCluster, tmp_path: Path) -> None:
    cluster.worker("one", "--no-nanny")
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-c", CONTROLLER, cluster.address, str(tmp_path / "task")]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    ) as controller:
        wait_until((tmp_path / "task.begun").exists, "the task's begin")
        controller.kill()
    wait_until((tmp_path / "task.ended").exists, "the end of the task on the worker")


def test_bench_builds_on_the_cluster(cluster: DaskCluster, home: Path) -> None:
    cluster.worker("one")
    done = farm(
        "bench",
        "--device",
        "here",
        "--quick",
        "digits",
        "--json",
        "--cluster",
        cluster.address,
        folder=home,
    )
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert [run["failure"] for run in body["runs"]] == [None]
    (build,) = body["builds"]
    assert not build["cached"]
    assert (cluster.cache("one") / "artifacts" / build["digest"]).is_dir()


def test_the_cluster_of_devices_toml_builds(cluster: DaskCluster, home: Path) -> None:
    cluster.worker("one", "--no-nanny")
    (home / "devices.toml").write_text(f'cluster = "{cluster.address}"\n{BOARD}')
    words = ("deploy", "--device", "here", "digits")
    assert farm(*words, "--cluster", "none", folder=home).returncode == 0
    assert not cluster.cache("one").exists()
    (home / "cache" / "artifacts").rename(home / "away")
    assert farm(*words, folder=home).returncode == 0
    assert len(list((cluster.cache("one") / "artifacts").iterdir())) == 1


def test_ctrl_c_ends_a_build_on_the_cluster_and_leaves_nothing(
    cluster: DaskCluster, home: Path
) -> None:
    worker = cluster.worker("one", "--no-nanny")
    words = ("bench", "--device", "here", "--quick", "digits", "--cluster", cluster.address)
    with begin(*words, folder=home) as controller:
        building = wait_until(
            lambda: psutil.Process(worker.pid).children(recursive=True), "the process that builds"
        )
        wait_until(
            lambda: list(cluster.cache("one").glob("tmp/*")), "the scratch folder of the build"
        )
        controller.send_signal(signal.SIGINT)
        controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 128 + signal.SIGINT
    wait_until(lambda: not any(one.is_running() for one in building), "the end of the build")
    wait_until(
        lambda: not list((cluster.cache("one") / "tmp").iterdir()),
        "an empty scratch folder of the worker",
    )
    assert not (cluster.cache("one") / "artifacts").exists()
    assert not list((home / "cache" / "tmp").iterdir())


def old_farm(folder: Path) -> str:
    """A PYTHONPATH on which farm says that it is of version 0.0.1."""
    old = folder / "old" / "tvm_farm-0.0.1.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: tvm-farm\nVersion: 0.0.1\n")
    return os.pathsep.join([str(old.parent), str(Path(__file__).parent)])


def test_a_worker_of_another_version_is_refused_by_name(
    cluster: DaskCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.worker("old", environment={"PYTHONPATH": old_farm(tmp_path)})
    with (
        open_cluster(cluster.address) as engine,
        pytest.raises(BuildError, match=r"every worker .* is refused") as caught,
    ):
        run(engine, place_and_number, 1)
    assert "tvm-farm 0.0.1, here " in caught.value.why
    new = cluster.worker("new", "--no-nanny")
    wait_until(lambda: cluster.log().count("Registered to:") >= 2, "the second worker")
    with open_cluster(cluster.address) as engine:
        for number in range(4):
            _, (place, given) = run(engine, place_and_number, number)  # type: ignore[misc]
            assert (place, given) == (new.pid, number)
    assert "is refused: tvm-farm 0.0.1" in caplog.text


def test_beside_a_refused_worker_the_task_of_a_killed_one_goes_to_its_successor(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    cluster.worker("old", environment={"PYTHONPATH": old_farm(tmp_path)})
    wait_until(lambda: cluster.log().count("Registered to:") >= 1, "the old worker")
    killed = cluster.worker("new", "--no-nanny")
    wait_until(lambda: cluster.log().count("Registered to:") >= 2, "the new worker")
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool, open_cluster(cluster.address) as engine:
        result = pool.submit(run, engine, first_hangs, begun)
        wait_until(lambda: begun.exists() and begun.read_text(), "the task's begin")
        killed.kill()
        successor = cluster.worker("newer", "--no-nanny")
        assert result.result(LIMIT_S)[1] == successor.pid


def test_progress_arrives_before_the_end(cluster: DaskCluster) -> None:
    cluster.worker("one", "--no-nanny")
    notes: list[Progress] = []
    with open_cluster(cluster.address) as engine:
        engine.run(place_and_number, 1, notes.append)
    assert notes == [Progress(Stage.COMPILING, "adding", 0.5)]


def test_an_exception_of_a_task_is_an_error_in_words(cluster: DaskCluster) -> None:
    cluster.worker("one", "--no-nanny")
    with (
        open_cluster(cluster.address) as engine,
        pytest.raises(BuildError, match="could not carry out") as caught,
    ):
        run(engine, wrong, "reason")
    assert caught.value.why == "ValueError: no reason"


def test_dask_warns_of_no_large_model(
    cluster: DaskCluster, recwarn: pytest.WarningsRecorder
) -> None:
    cluster.worker("one", "--no-nanny")
    with open_cluster(cluster.address) as engine:
        assert run(engine, place_and_number, bytes(20 << 20))[1]
    assert [str(one.message) for one in recwarn if "large graph" in str(one.message)] == []
