"""Clients of an agent: TVM's own Python client, in other processes than the tests, as a call that
hangs cannot be interrupted from within.

python agent_clients.py NAME JSON      calls the function NAME(**JSON) and prints what it returns, as JSON
"""  # noqa: E501

from __future__ import annotations

import fcntl
import json
import random
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax, rpc

KEY = "board"
SESSION_S = 300.0
_MAGIC = 0xFF271  # of TVM's RPC; an answer is this for welcome, 2 more for another key


def connect(port: int, session_s: float = SESSION_S, key: str = KEY) -> Any:
    return rpc.connect("127.0.0.1", port, key, session_timeout=session_s)


def close(session: Any) -> None:
    session.get_function("CloseRPCConnection")()


def error_of(call: Any, *arguments: Any) -> str:
    """The text of the error that a call ends with; empty when it ends well."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def start_vm(session: Any, library: str) -> Any:
    session.upload(library, "model.so")
    return relax.VirtualMachine(session.load_module("model.so"), session.cpu(0))


def fed(session: Any, library: str, parameters: str, x: str) -> Any:
    """The machine of the small model, its inputs set, fed from the device's tensor cache."""
    device = session.cpu(0)
    vm = start_vm(session, library)
    for file in Path(parameters).iterdir():
        session.upload(str(file), f"parameters/{file.name}")
    folder = session.get_function("tvm.rpc.server.workpath")("parameters")
    session.get_function("vm.builtin.tensor_cache.load")(
        folder, device.dlpack_device_type() % rpc.base.RPC_SESS_MASK, 0
    )
    cached = [
        session.get_function("vm.builtin.tensor_cache.get")(name) for name in ("param_0", "param_1")
    ]
    vm.set_input("main", tvm.runtime.tensor(np.load(x), device=device), *cached)
    return vm


def run(session: Any, library: str, parameters: str, x: str, expected: str) -> dict[str, Any]:
    """The small model against numpy's numbers."""
    device, vm = session.cpu(0), fed(session, library, parameters, x)
    vm.invoke_stateful("main")
    out = vm.get_outputs("main").numpy()
    samples = vm.time_evaluator("invoke_stateful", device, number=1, repeat=5)("main").results
    error = float(np.abs(out - np.load(expected)).max())
    params = session.get_function("vm.builtin.param_module_from_cache")("param", 2)
    return {
        "max_abs": error,
        "samples": list(samples),
        "kind": params.type_key if hasattr(params, "type_key") else "module",
    }


def profiled(
    port: int, pairs: int, seconds: float, library: str, parameters: str, x: str, expected: str
) -> dict[str, Any]:
    """What the agent records of the small model, as farm reads it, and how far an inference after
    that is from numpy.
    """
    from farm.executor.profile_records import parse_recorded_inferences

    session = connect(port)
    vm = fed(session, library, parameters, x)
    profile = session.get_function("farm.agent.profile")
    plain, recorded = parse_recorded_inferences(bytes(profile(vm.module, "main", pairs, seconds)))
    vm.invoke_stateful("main")
    error = float(np.abs(vm.get_outputs("main").numpy() - np.load(expected)).max())
    wrong = error_of(profile, vm.module, "no_such_function", 1, 1.0)
    facts = json.loads(session.get_function("farm.agent.facts")())
    close(session)
    inferences = [
        {"seconds": one.seconds, "spans": [asdict(span) for span in one.spans], "own_s": one.own_s}
        for one in recorded
    ]
    return {
        "plain": plain,
        "recorded": inferences,
        "max_abs": error,
        "wrong": wrong,
        "memory_peak_bytes": facts["memory_peak_bytes"],
    }


def everything(port: int, **model: str) -> dict[str, Any]:
    """One session that does what a bench does."""
    session = connect(port)
    result = run(session, **model)
    session.upload(bytearray(b"hello"), "folder/greeting")
    result["listed"] = session.listdir(".")
    result["downloaded"] = session.download("folder/greeting").decode()
    session.remove("folder/greeting")
    result["listed_after_remove"] = session.listdir("folder")
    result["facts"] = json.loads(session.get_function("farm.agent.facts")())
    close(session)
    return result


def through_tracker(host: str, port: int, sessions: int, **model: str) -> list[float]:
    """The small model, in several sessions one after the other."""
    tracker = rpc.connect_tracker(host, port)
    errors = []
    for _ in range(sessions):
        session = tracker.request(KEY, session_timeout=SESSION_S)
        errors.append(run(session, **model)["max_abs"])
        close(session)
    return errors


def take_and_leave(host: str, port: int) -> str:
    """Asks the tracker for a device and never goes there; returns the key it got."""
    from tvm.rpc import base

    tracker = rpc.connect_tracker(host, port)
    base.sendjson(tracker._sock, [base.TrackerCode.REQUEST, KEY, "", 1])
    return str(base.recvjson(tracker._sock)[1][2])


def knock_during_session(host: str, port: int, agent: int) -> int:
    """What an agent answers to an empty key while a client of its tracker has the session."""
    session = rpc.connect_tracker(host, port).request(KEY)
    with socket.create_connection((host, agent), timeout=10) as visitor:
        name = b"client:"
        visitor.sendall(struct.pack("<ii", _MAGIC, len(name)) + name)
        (answer,) = struct.unpack("<i", visitor.recv(4, socket.MSG_WAITALL))
    close(session)
    return int(answer) - _MAGIC


def through_pipe(program: str, **model: str) -> float:
    session = rpc.PopenSession(program)
    error: float = run(session, **model)["max_abs"]
    close(session)
    return error


def list_files(port: int, session_s: float = SESSION_S, key: str = KEY) -> str:
    session = connect(port, session_s, key)
    names: str = session.listdir(".")
    close(session)
    return names


def connect_error(port: int, key: str) -> str:
    return error_of(connect, port, SESSION_S, key)


def outlive(
    port: int, session_s: float, kept_s: float | None = None, started: str | None = None
) -> str:
    """What a client meets that keeps its session for longer than it asked for, or for `kept_s`.
    `started` appears when it is connected.
    """
    session = connect(port, session_s)
    if started:
        Path(started).touch()
    time.sleep(kept_s or session_s + 1)
    return error_of(session.listdir, ".")


def compute_for_ever(port: int, library: str, x: str, started: str) -> None:
    """Keeps the device busy in one call that lasts for minutes; `started` appears just before."""
    session = connect(port)
    device = session.cpu(0)
    vm = start_vm(session, library)
    inputs = [np.load(x), np.zeros((64, 10), "float32"), np.zeros(10, "float32")]
    vm.set_input("main", *[tvm.runtime.tensor(value, device=device) for value in inputs])
    evaluator = vm.time_evaluator("invoke_stateful", device, number=1_000_000_000, repeat=1)
    Path(started).touch()
    evaluator("main")


def load_errors(port: int, paths: list[str]) -> list[str]:
    """What loading each file as a library ends with, in one session."""
    session = connect(port)
    errors = []
    for path in paths:
        session.upload(path, "model.so")
        errors.append(error_of(session.load_module, "model.so"))
    close(session)
    return errors


def load_corrupted(port: int, library: str, count: int) -> dict[str, int]:
    """Loads a library `count` times with some bytes changed, in half of them among the headers and
    tables at its start.
    """
    whole = Path(library).read_bytes()
    chance = random.Random(1)
    counts = {"loaded": 0, "refused": 0, "died": 0}
    session = connect(port, 600)
    for round_ in range(count):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(2048 if round_ % 2 else len(damaged))] = chance.randrange(256)
        session.upload(damaged, "model.so")
        kind = "refused" if error_of(session.load_module, "model.so") else "loaded"
        if error_of(session.listdir, "."):
            kind = "died"
            session = connect(port, 600)
        counts[kind] += 1
    close(session)
    return counts


def call_all(port: int, calls: list[list[Any]]) -> list[Any]:
    """The results, or errors as text, of calls in one session: [global function, arguments...];
    {"zeros": n} stands for n bytes,
    {"file": path} for those of a file, {"result": i} for what the call of that number gave."""
    session = connect(port)
    results: list[Any] = []
    for call in calls:
        results.append(_result(session, call, results))
    close(session)
    return results


def cores_of_threads(port: int, agent: int, calls: list[list[Any]]) -> list[str]:
    """The cores on which each thread of a session may run after some calls, as the kernel tells:
    0-1. `agent` is the agent's process.
    """
    session = connect(port)
    for call in calls:
        session.get_function(call[0])(*call[1:])
    children = [
        word
        for task in Path(f"/proc/{agent}/task").glob("*/children")
        for word in task.read_text().split()
    ]
    lines = [
        path.read_text()
        for child in children
        for path in Path(f"/proc/{child}/task").glob("*/status")
    ]
    close(session)
    return sorted(
        line.split()[1]
        for text in lines
        for line in text.splitlines()
        if line.startswith("Cpus_allowed_list")
    )


def with_threads(port: int, settings: list[list[Any]], **model: str) -> list[float]:
    """How far the small model is from numpy with each setting, in one session."""
    session, errors = connect(port), []
    for setting in settings:
        session.get_function("farm.agent.threads")(*setting)
        errors.append(run(session, **model)["max_abs"])
    close(session)
    return errors


def send_while_verified(port: int, store: str, name: str, size: int) -> int:
    """Send a file of zeros while another session seems to verify the same: it holds the store's
    lock, and the part has another name.
    """
    session = connect(port)
    begin, write, finish, has = (
        session.get_function(f"farm.store.{verb}") for verb in ("begin", "write", "finish", "has")
    )
    begin(name, size)
    write(name, 0, bytes(size))
    with (Path(store) / ".lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (Path(store) / f"{name}.part").rename(Path(store) / "other.part")
        words = ["sh", "-c", f"sleep 1; mv other.part {name}"]
        other = subprocess.Popen(
            words, cwd=store, pass_fds=[lock.fileno()]
        )  # it has the lock until it ends
    write(name, 0, bytes(size))
    finish(name)
    other.wait()
    found = int(has(name))
    close(session)
    return found


def call_in_folder(port: int, calls: list[list[Any]]) -> list[Any]:
    """As call_all; "symlink" (target, name) is made in the session's folder, which lies on this
    machine.
    """
    session = connect(port)
    folder = Path(session.get_function("tvm.rpc.server.workpath")(""))
    results: list[Any] = []
    for call in calls:
        results.append(
            (folder / call[2]).symlink_to(call[1])
            if call[0] == "symlink"
            else _result(session, call, results)
        )
    close(session)
    return results


def _result(session: Any, call: list[Any], results: list[Any]) -> Any:
    name, *arguments = call
    try:
        result = session.get_function(name)(*[_value(argument, results) for argument in arguments])
        return result.decode() if isinstance(result, bytearray | bytes) else result
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def call_sessions(port: int, sessions: list[list[list[Any]]]) -> list[list[Any]]:
    """As call_all, in several sessions."""
    return [call_all(port, calls) for calls in sessions]


def linked_meanwhile(port: int, digest: str, other: int, calls: list[list[Any]]) -> int:
    """The size of a file that a session has linked, after another agent has been called; see
    call_all.
    """
    session = connect(port)
    session.get_function("farm.store.link")(digest, "linked")
    call_all(other, calls)
    size = len(session.download("linked"))
    close(session)
    return size


def allocate(port: int, mib: int) -> str:
    """The error of a tensor of so many MiB."""
    session = connect(port)
    error = error_of(tvm.runtime.empty, (mib << 20,), "uint8", session.cpu(0))
    close(session)
    return error


def call_library(port: int, threads: int, library: str, calls: list[list[Any]]) -> list[Any]:
    """What functions of a library return, or their errors as text: [name, arguments...]. "sleep"
    waits for so many seconds; "wait" makes its first file and waits for its second one.
    """
    session, results = connect(port), []
    session.get_function("farm.agent.threads")(threads, "all", False)
    session.upload(library, "tasks.so")
    module = session.load_module("tasks.so")
    for name, *arguments in calls:
        if name == "sleep":
            results.append(time.sleep(*arguments))
        elif name == "wait":
            Path(arguments[0]).touch()
            while not Path(arguments[1]).exists():
                time.sleep(0.01)
            results.append(None)
        else:
            try:
                results.append(module[name](*arguments))
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
    close(session)
    return results


def _value(argument: Any, results: list[Any]) -> Any:
    if not isinstance(argument, dict):
        return argument
    if "file" in argument:
        return bytearray(Path(argument["file"]).read_bytes())
    return bytearray(argument["zeros"]) if "zeros" in argument else results[argument["result"]]


def _flat(outputs: Any) -> list[Any]:
    return (
        [part for output in outputs for part in _flat(output)]
        if isinstance(outputs, list | tuple)
        else [outputs]
    )


def run_deployed(port: int, name: str, inputs: list[str], into: str) -> None:
    """The outputs of a deployment for inputs in .npy files, as `into`/0.npy and so on, the way
    farm's executor gets them.
    """
    session = connect(port)
    device = session.cpu(0)
    manifest = json.loads(session.get_function("farm.deploy.open")(name))
    parameters = []
    if "params_shard_0.bin" in manifest["files"]:
        session.get_function("vm.builtin.tensor_cache.load")(
            session.get_function("tvm.rpc.server.workpath")(""), 1, 0
        )
        parameters.append(
            session.get_function("vm.builtin.param_array_from_cache")("parameter", -1)
        )
    vm = relax.VirtualMachine(session.load_module("library.so"), device)
    vm.set_input(
        "main", *[tvm.runtime.tensor(np.load(path), device=device) for path in inputs], *parameters
    )
    vm.invoke_stateful("main")
    for number, output in enumerate(_flat(vm.get_outputs("main"))):
        np.save(Path(into) / f"{number}.npy", output.numpy())
    close(session)


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
