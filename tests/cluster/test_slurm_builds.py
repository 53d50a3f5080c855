"""Builds in jobs: submitit's local executor, and Slurm's, with stand-ins for Slurm's programs."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from cluster_tasks import dies, first_hangs, place_and_number, until_unwanted, wrong
from farm_commands import begin, farm
from slurm_programs import install, scripts
from timeouts import LIMIT_S, wait_until

from farm.api.resolve import host_profile
from farm.cluster import ClusterEngine, environment, open_cluster, slurm
from farm.cluster.slurm import SlurmEngine
from farm.config import load_fleet
from farm.errors import BuildError, UsageError
from farm.pipeline.cluster.builds import build_on_cluster
from farm.pipeline.operations import compile_model
from farm.processes.cancellation import Cancellation, Cancelled
from farm.processes.worker_main import TaskContext
from farm.store import Store
from farm.types import Progress, Stage

FLEET = load_fleet(None)
NODE = os.uname().nodename


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests have jobs run can be imported there."""
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


@pytest.fixture
def engine(tmp_path: Path, importable: None) -> Iterator[SlurmEngine]:
    with SlurmEngine(tmp_path / "shared", "local") as one:
        yield one
    assert not list((tmp_path / "shared").glob("*")), "the folder of the jobs is removed"


@pytest.fixture
def programs(tmp_path: Path, importable: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Slurm's programs are found."""
    found = install(tmp_path / "programs")
    monkeypatch.setenv("FAKE_SLURM", found["FAKE_SLURM"])
    monkeypatch.setenv("PATH", f"{found['PATH_PREFIX']}{os.pathsep}{os.environ['PATH']}")
    return found


def run(engine: ClusterEngine, work: object, request: object) -> tuple[str, object]:
    return engine.run(work, request, lambda _: None)  # type: ignore[arg-type]


def test_a_folder_in_which_others_could_exchange_the_jobs_is_not_used(
    tmp_path: Path, importable: None
) -> None:
    """A job is a pickle: whoever can put another folder in its place runs code as its owner."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with SlurmEngine(shared, "local") as engine:
        with pytest.raises(UsageError, match="is not yours alone") as refused:
            run(engine, place_and_number, 1)
        assert f"every user may write to {shared}" in refused.value.why
        assert list(shared.iterdir()) == []
    shared.chmod(0o1777)  # as in /tmp, others cannot exchange what is ours
    with SlurmEngine(shared, "local") as engine:
        assert run(engine, place_and_number, 1)


def test_a_job_answers_and_its_progress_arrives(engine: SlurmEngine) -> None:
    notes: list[Progress] = []
    node, (process, given) = engine.run(place_and_number, 7, notes.append)  # type: ignore[misc]
    assert (node, given) == (os.uname().nodename, 7)
    assert process != os.getpid()
    assert notes == [Progress(Stage.COMPILING, "adding", 0.5)]


def test_a_task_whose_job_is_killed_runs_again(engine: SlurmEngine, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run, engine, first_hangs, begun)
        victim = int(wait_until(lambda: begun.exists() and begun.read_text(), "the job's begin"))
        os.kill(victim, signal.SIGKILL)
        assert result.result(LIMIT_S)[1] != victim


def test_a_task_whose_job_falls_silent_runs_again(
    engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has died, say. The next job counts as silent from its own begin only."""
    monkeypatch.setattr(slurm, "_SILENCE_S", 3.0)
    monkeypatch.setattr(slurm, "_POLL_S", 0.05)
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run, engine, first_hangs, begun)
        victim = int(wait_until(lambda: begun.exists() and begun.read_text(), "the job's begin"))
        os.kill(victim, signal.SIGSTOP)
        try:
            assert result.result(LIMIT_S)[1] != victim
        finally:
            os.kill(victim, signal.SIGKILL)


def test_a_task_whose_jobs_all_die_is_an_error(
    engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_RESULT_S", 0.1)
    with pytest.raises(BuildError, match="jobs died at this task, one after the other"):
        run(engine, dies, None)


def test_an_exception_of_a_task_is_an_error_in_words(engine: SlurmEngine) -> None:
    with pytest.raises(BuildError, match="could not carry out") as caught:
        run(engine, wrong, "reason")
    assert "ValueError: no reason" in caught.value.why


def test_a_cancelled_task_ends_in_its_job(engine: SlurmEngine, tmp_path: Path) -> None:
    work, ends = Cancellation(), []

    def wait() -> None:
        with work.in_this_thread():
            try:
                run(engine, until_unwanted, tmp_path / "task")
            except Cancelled:
                ends.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until((tmp_path / "task.begun").exists, "the task's begin")
    work.cancel()
    thread.join(LIMIT_S)
    assert ends
    wait_until((tmp_path / "task.ended").exists, "the end of the task in its job")


def test_a_job_builds_what_this_machine_would_build(
    engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_DATA", str(tmp_path / "data"))
    store, model = Store(tmp_path / "cache"), FLEET.model("digits")
    host = host_profile(FLEET)
    prepared, _ = compile_model(
        model, FLEET.profile("x86-v3"), host=host, store=store, show=lambda _: None
    )
    profile = FLEET.profile("rasp3b")
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "node"))
    made = build_on_cluster(TaskContext(tmp_path), model, prepared, profile, store, engine)
    own_store = Store(tmp_path / "own")
    _, own = compile_model(model, profile, host=host, store=own_store, show=lambda _: None)
    assert (made.digest, made.library_digest) == (own.digest, own.library_digest)
    assert (tmp_path / "node" / "artifacts" / own.digest).is_dir()


def test_what_slurm_gets(programs: dict[str, str], tmp_path: Path) -> None:
    with open_cluster(f"slurm:{tmp_path / 'shared'}") as engine:
        assert run(engine, place_and_number, 3)[1][1] == 3  # type: ignore[index]
    (script,) = scripts(programs)
    lines = set(script.splitlines())
    assert lines >= {
        "#SBATCH --job-name=farm",
        "#SBATCH --time=60",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem=4GB",
        "#SBATCH --nodes=1",
    }
    (command,) = [line for line in lines if line.startswith("srun ")]
    assert "-m submitit.core._submit" in command and str(tmp_path / "shared") in command


def test_slurm_that_takes_no_jobs_is_an_error(programs: dict[str, str], tmp_path: Path) -> None:
    (Path(programs["FAKE_SLURM"]) / "down").touch()
    with (
        open_cluster(f"slurm:{tmp_path / 'shared'}") as engine,
        pytest.raises(BuildError, match="Slurm does not take the jobs") as caught,
    ):
        run(engine, place_and_number, 1)
    assert "Unable to contact slurm controller" in caught.value.why


def test_a_machine_without_slurm_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        open_cluster(f"slurm:{tmp_path / 'shared'}") as engine,
        pytest.raises(UsageError, match="this machine has no Slurm"),
    ):
        run(engine, place_and_number, 1)


def test_a_worker_needs_the_minor_version_of_python() -> None:
    theirs = {**environment.local_versions(), "python": str(sys.version_info.major)}
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    difference = environment.describe_version_difference(theirs)
    assert difference == f"python {sys.version_info.major}, here {own}"


def test_a_node_with_other_versions_is_refused_by_name(
    engine: SlurmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {**environment.local_versions(), "tvm-farm": "0.0.1"}
    monkeypatch.setattr(slurm, "local_versions", lambda: here)
    with pytest.raises(
        BuildError, match=rf"the node {os.uname().nodename} .* is refused"
    ) as caught:
        run(engine, place_and_number, 1)
    assert "the controller's 0.0.1" in caught.value.why


def test_bench_builds_in_jobs_of_slurm(programs: dict[str, str], home: Path) -> None:
    words = ("bench", "--device", "here", "--quick", "digits", "--json")
    done = farm(*words, "--cluster", f"slurm:{home / 'shared'}", folder=home)
    assert done.returncode == 0, done.stderr
    assert [run["failure"] for run in json.loads(done.stdout)["runs"]] == [None]
    assert len(scripts(programs)) == 1
    assert not list((home / "shared").iterdir())


def test_ctrl_c_ends_the_jobs_of_slurm(programs: dict[str, str], home: Path) -> None:
    words = ("bench", "--device", "here", "--quick", "digits")
    where = ("--cluster", f"slurm:{home / 'shared'}")
    with begin(*words, *where, folder=home) as controller:
        pid = wait_until(
            lambda: next(Path(programs["FAKE_SLURM"]).glob("job-*/pid"), None), "a job"
        )
        job = psutil.Process(int(wait_until(pid.read_text, "the job's process")))
        controller.send_signal(signal.SIGINT)
        controller.communicate(timeout=LIMIT_S)
    assert controller.returncode == 128 + signal.SIGINT
    wait_until(lambda: not job.is_running() or job.status() == "zombie", "the end of the job")
    assert not list((home / "shared").iterdir())
