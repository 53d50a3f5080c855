"""Names, messages, files, variables and records from outside reach the terminal clean.

Commands run in this process as `farm` would run them; what reaches the descriptors is looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import shlex
import socketserver
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import onnx
import pytest
from onnx import TensorProto, helper
from report_runs import GONE, timed
from rich.live import Live
from rich.table import Table
from rich.text import Text

from farm import cli, config, export, metrics, pytest_plugin, views
from farm.commands import output
from farm.commands.devices import doctor_output
from farm.errors import DeviceError, FarmError, UntrustedNumber
from farm.pipeline import compare
from farm.pipeline.doctor.board import Finding
from farm.sanitize import is_terminal_safe
from farm.store import RunStore, Store, TuningRecordStore
from farm.types import PreprocessSettings, Release, TensorSpec, TuningRecord, Verdict

EVIL = "EVIL\x1b]0;PWNED\x07\x1b[2J\nerror: forged\r\x9b2J\u202e\u2066\u200b\x7f\u2028\x08[link=http://x]y[/link]"
MAGIC, EXCEPTION, RAW_STRING = (
    0xFF271,
    5,
    8,
)  # of TVM's RPC: the greeting, a packet's code, a type's index
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # farm's own, where they are on

Said = Callable[..., str]


def clean(text: str, escapes: bool = True) -> None:
    """Assert that a text says what is evil, and that none of it acts, or begins a line."""
    assert not (
        wrong := sorted(
            {char for char in text if not is_terminal_safe(char) and char not in "\n\u202f"}
        )
    ), wrong
    assert not re.search(r"^error: forged", text, re.MULTILINE)
    if escapes:
        assert r"EVIL\x1b]0;PWNED\x07" in re.sub(r"\s*\n\s*", "", text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with nothing of this user's in reach."""
    for name in ("FARM_CACHE", "FARM_CONFIG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("DATA", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def said(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Said:
    """What a command line writes, to both streams; it may fail."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["farm", *arguments])
        with output.sanitize_standard_streams(), contextlib.suppress(SystemExit):
            cli._run()
        return "".join(capfd.readouterr())

    return run


def examples() -> Iterator[str]:
    """A command line of each command's help, of every subcommand's where it has some."""
    for command in cli.cli.commands.values():
        lines = re.findall(
            r"^\s*(farm .*?)(?:  +.*| > .*)?$", command.help or "", re.MULTILINE
        ) or [f"farm {command.name}"]
        yield from lines[: None if isinstance(command, click.Group) else 1]


@pytest.mark.parametrize("name", cli.cli.commands)
def test_a_command_cleans_what_was_typed(name: str, said: Said) -> None:
    clean(said(name, f"--{EVIL}"))


@pytest.mark.parametrize(
    "line",
    [line for line in examples() if shlex.split(line)[1] not in ("agent", "completion", "schema")],
)
def test_a_command_cleans_what_its_configuration_says(line: str, said: Said, folder: Path) -> None:
    (folder / "devices.toml").write_text(f"[devices.pi3]\n{json.dumps(EVIL)} = 1\n", "utf-8")
    clean(said(*shlex.split(line)[1:]), escapes=False)
    clean(said("devices"))


def test_the_examples_are_of_all_commands() -> None:
    assert {shlex.split(line)[1] for line in examples()} == set(cli.cli.commands)


@pytest.mark.parametrize(
    "arguments", [[EVIL], ["schema", EVIL], ["compile", EVIL], ["check", f"{EVIL}.onnx"]]
)
def test_names_that_are_not_known_are_cleaned(arguments: list[str], said: Said) -> None:
    assert "EVIL" in said(*arguments)
    clean(said(*arguments), escapes=False)


def test_variables_of_the_environment_are_cleaned(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_CONFIG", f"/nowhere/{EVIL}.toml")
    clean(said("devices"))


@pytest.fixture
def record(folder: Path) -> list[str]:
    """A record in which everything that can be is evil, as --store FILE."""
    at, kept = folder / "runs.sqlite", []
    for number in range(8):
        versions = {"farm": f"{EVIL}{number}", EVIL: EVIL}
        run = timed(
            EVIL,
            EVIL,
            number,
            10.0 if number < 4 else 20.0,
            profile=EVIL,
            reason=EVIL,
            versions=versions,
        )
        assert run.samples
        facts = dict.fromkeys(("cpu", "governor", EVIL), f"{EVIL}{number}")
        samples = dataclasses.replace(
            run.samples, facts_before=facts, facts_after=facts, ledger={"build": 1.0, EVIL: 2.0}
        )
        kept.append(
            dataclasses.replace(
                run,
                id=f"{number}{EVIL}",
                url=f"rpc://{EVIL}",
                samples=samples,
                verdict=Verdict.STABLE,
            )
        )
    failure = dataclasses.replace(GONE, what=EVIL, why=EVIL, fix=EVIL)
    kept.append(
        timed(
            "pi",
            "net",
            9,
            verdict=Verdict.FAILED,
            failure=failure,
            samples=None,
            latency=None,
            reason=EVIL,
        )
    )
    store = RunStore(at)
    store.add(kept)
    store.save_baseline(EVIL, kept[:1])
    return ["--store", str(at)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["history"],
        ["history", EVIL, "--device", EVIL],
        ["report", "--markdown"],
        ["report", "--markdown", "--baseline", EVIL, "--title", EVIL],
        ["compare", f"0{EVIL}", f"5{EVIL}"],
        ["baseline", "list"],
        ["baseline", "save", EVIL],
        ["baseline", "remove", f"{EVIL}?"],
        ["baseline", "remove", EVIL, "--json"],
        ["runs", "export"],
        ["history", "--json"],
        ["report", "--json"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(EVIL, "EVIL"),
)
@pytest.mark.parametrize("colours", [False, True])
def test_a_record_of_others_is_shown_clean(
    arguments: list[str],
    colours: bool,
    said: Said,
    record: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    text = said(*arguments, *record)
    assert "EVIL" in text
    assert "\x1b" not in text or colours
    clean(COLOURS.sub("", text), escapes=False)


def test_the_page_of_a_report_holds_nothing_that_acts(
    said: Said, record: list[str], folder: Path
) -> None:
    said("report", "--output", "report.html", *record, "--title", f"{EVIL}<b>")
    page = (folder / "report.html").read_text("utf-8")
    assert r"EVIL\x1b]0;PWNED" in page and "<b>EVIL" not in page
    clean(page.replace("\t", ""), escapes=False)


def test_records_of_tuning_are_shown_clean(said: Said) -> None:
    TuningRecordStore.of_user().keep(
        TuningRecord(EVIL, EVIL, {EVIL: EVIL}, 1e-3, 2e-3, 5, EVIL, EVIL)
    )
    clean(said("records"))


def test_a_file_of_runs_that_cannot_be_read_is_told_clean(said: Said, folder: Path) -> None:
    (folder / f"{EVIL}.jsonl".replace("/", "")).write_text(json.dumps({EVIL: EVIL}) + "\n")
    clean(said("runs", "import", f"{EVIL}.jsonl".replace("/", "")))


class HostileBoard(socketserver.StreamRequestHandler):
    """Greet as a board of TVM's; answer the first request with an exception full of escapes."""

    def handle(self) -> None:
        if len(greeting := self.rfile.read(8)) == 8:
            self.rfile.read(struct.unpack("<ii", greeting)[1])
            self.wfile.write(struct.pack("<ii", MAGIC, 7) + b"server:")
        if len(size := self.rfile.read(8)) == 8:
            self.rfile.read(struct.unpack("<Q", size)[0])
            message = EVIL.encode()
            packet = struct.pack("<iiiQ", EXCEPTION, 1, RAW_STRING, len(message)) + message
            self.wfile.write(struct.pack("<Q", len(packet)) + packet)


@pytest.fixture
def hostile_board() -> Iterator[str]:
    """The url of one."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), HostileBoard) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"rpc://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
    thread.join(10)


@pytest.mark.parametrize("command", ["deployments", "doctor"])
def test_messages_of_a_board_are_shown_clean(
    command: str, said: Said, folder: Path, hostile_board: str
) -> None:
    (folder / "devices.toml").write_text(
        f'[devices.evil]\nprofile = "x86"\nurl = "{hostile_board}"\n'
    )
    text = said(command, "--device", "evil")
    assert "fix: " in text
    clean(text)


def hostile_model(path: Path, operator: str = "Add") -> Path:
    """A model whose every name is evil."""
    x, y = (
        helper.make_tensor_value_info(f"{EVIL}{name}", TensorProto.FLOAT, [1, 4]) for name in "xy"
    )
    weights = helper.make_tensor("w", TensorProto.FLOAT, [4], [1.0] * 4)
    node = helper.make_node(operator, [x.name, "w"], [y.name], name=EVIL)
    graph = helper.make_graph([node], EVIL, [x], [y], [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


@pytest.mark.parametrize("operator", ["Add", f"Add{EVIL}"])
def test_a_model_is_described_clean(operator: str, said: Said, folder: Path) -> None:
    clean(said("check", str(hostile_model(folder / "names.onnx", operator))))


def test_labels_are_shown_clean(capfd: pytest.CaptureFixture[str]) -> None:
    output.echo(f"{0.5:10.4f}  {EVIL}")
    clean(capfd.readouterr().out)


def test_what_the_doctor_finds_is_shown_clean(capfd: pytest.CaptureFixture[str]) -> None:
    for finding in (
        Finding("agent", EVIL),
        Finding("agent", "", failure=DeviceError(EVIL, EVIL, EVIL)),
    ):
        for line in doctor_output.finding_lines(finding, EVIL):
            output.echo(*line)
    clean(capfd.readouterr().out)


def test_lines_below_a_finding_are_indented() -> None:
    finding = Finding("agent", "", failure=DeviceError("what", "one\ntwo"))
    assert [line[0] for line in doctor_output.finding_lines(finding)[1:]] == [
        "      why: one",
        "           two",
    ]


def test_an_error_keeps_its_lines_and_they_cannot_pass_for_farms_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output.show_error(FarmError("what", "one\nerror: two\rfix: three\u2028four"))
    assert capfd.readouterr().err.splitlines() == [
        "error: what",
        "why: one",
        "       error: two",
        "       fix: three\\u2028four",
    ]


def test_devices_and_deployments_are_shown_clean(capfd: pytest.CaptureFixture[str]) -> None:
    console = output.console(stderr=False)
    console.print(
        views.devices_table(
            [views.DeviceRow(EVIL, EVIL, EVIL, (EVIL,), "ready", EVIL, {EVIL: EVIL})], 300
        )
    )
    release = Release(
        EVIL, 1, True, EVIL, EVIL, {}, (), (), PreprocessSettings(), (EVIL,), EVIL, {"farm": EVIL}
    )
    console.print(views.deployments_table([(EVIL, release)], 300))
    clean(capfd.readouterr().out)


def test_a_table_whose_cells_nobody_cleaned_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    table = Table(EVIL, title=EVIL, caption=Text(EVIL))
    table.add_row(Text(EVIL), EVIL)
    console = output.console(stderr=False)
    console.print(table)
    console.print(EVIL)
    console.print("[red]a[/red] [link=http://x]b[/link] :smile:")
    text = capfd.readouterr().out
    assert "[red]a[/red] [link=http://x]b[/link] :smile:" in text
    clean(text.replace("\nerror: forged", ""), escapes=False)


def test_what_libraries_warn_log_and_raise_is_clean(capfd: pytest.CaptureFixture[str]) -> None:
    with output.sanitize_standard_streams():
        sys.stderr.write(warnings.formatwarning(EVIL, UserWarning, "file.py", 1))
        logging.lastResort.stream.write(EVIL)  # type: ignore[union-attr]
        sys.excepthook(ValueError, ValueError(EVIL), None)
        print(EVIL)
        with Live(console=output.console(stderr=True), auto_refresh=False):
            print(EVIL, file=sys.stderr)
    out, err = capfd.readouterr()
    assert out.count("EVIL") == 1 and err.count("EVIL") == 4
    clean((out + err).replace("\nerror: forged", ""), escapes=False)


def test_streams_are_as_they_were_after_guarding() -> None:
    before = sys.stdout, sys.stderr
    with output.sanitize_standard_streams():
        assert sys.stdout is not before[0]
        assert sys.stdout.fileno() == before[0].fileno() or not before[0].isatty()
    assert (sys.stdout, sys.stderr) == before


def test_a_label_of_prometheus_is_one_line_of_printable_characters() -> None:
    text = metrics.metrics_of_runs([timed(EVIL, EVIL, 1)])
    clean(text.replace("\\\\", "\\"))
    assert all(line.startswith(("#", "farm_")) for line in text.splitlines())


def test_a_name_that_is_no_text_is_shown(said: Said) -> None:
    assert r"EVIL\udcff" in said("compile", os.fsdecode(b"EVIL\xff.onnx"))


def test_the_description_of_an_exported_model_is_clean() -> None:
    said = export._listed([TensorSpec(f"`{EVIL}", (1,), "float32")])
    clean(said)
    assert said.count("`") == 2


@pytest.mark.parametrize(
    "name", ["net; touch here", "$(touch here)", "`touch here`", "it's", "a && b"]
)
def test_a_command_to_copy_has_names_of_others_as_single_words(name: str, folder: Path) -> None:
    run = timed(name, name, 1, id=name, artifact_digest=None)
    with pytest.raises(FarmError) as caught:
        compare.build_of_run(run, config.load_fleet(None), Store(folder))
    assert shlex.split(caught.value.fix.partition(": ")[2]) == [
        "farm",
        "bench",
        "--device",
        name,
        name,
    ]


def test_what_pytest_shows_of_a_figure_is_clean() -> None:
    item = SimpleNamespace(config=SimpleNamespace(getini=lambda _: "skip"))

    running = pytest_plugin.pytest_runtest_call(item)  # type: ignore[arg-type]
    next(running)
    with pytest.raises(pytest.skip.Exception) as caught:
        running.throw(UntrustedNumber(EVIL, EVIL))
    clean(str(caught.value))


def test_pytests_summary_of_runs_is_clean() -> None:
    lines: list[str] = []
    reporter = SimpleNamespace(section=lambda _: None, line=lines.append)
    stash = pytest.Stash()
    stash[pytest_plugin._RUNS] = [timed(EVIL, EVIL, 1)]
    pytest_plugin.pytest_terminal_summary(reporter, SimpleNamespace(stash=stash))  # type: ignore[arg-type]
    [line] = lines
    clean(line)
