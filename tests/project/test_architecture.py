"""The layers of ARCHITECTURE and its four borders, checked over the syntax tree: `violations` is a
function of sources.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import farm

# A room may import rooms of the rows above its own; rooms of one row are peers and do not know each
# other.
LAYERS = """
    sanitize regular_files npy_header
    types time_ledger interleaved_measurement prompts
    errors
    tvm_import_without_torch
    processes stats ownership this_machine
    rpc formatting metrics sandbox
    comparison
    config store kernels lab_client
    importers zoo compiler transports agent boards cluster
    inputs
    data
    quantize
    checked_model_import deployments
    executor export
    pipeline tracker
    lab
    api
    dashboard views pytest_plugin
    lab_page
    commands
    cli
    __main__
""".strip().splitlines()
LEVEL = {room: level for level, row in enumerate(LAYERS) for room in row.split()}

HEAVY = {"tvm", "tvm_ffi", "torch", "torchvision", "onnx", "onnxruntime", "sqlalchemy"}
# Rooms whose modules may import the heavy libraries as they load; others may import such a module
# inside a function only.
HEAVY_ROOMS = {
    "store",
    "kernels",
    "compiler",
    "importers",
    "zoo",
    "checked_model_import",
    "executor",
    "quantize",
}
SUBPROCESS = {"farm.processes.subprocesses"}
RICH = {"dashboard", "views", "commands"}
EXITING = {"commands", "cli"}
# Only here does anything go to the terminal: `output` cleans what comes from outside. `asking`
# cleans its questions by itself.
PRINTING = {
    "farm.commands.output": re.compile(".*"),
    "farm.prompts": re.compile(r"os\.write"),
    # a program of its own, whose streams are an SSH channel's
    "farm.lab.door.main": re.compile(r"os\.write"),
    "farm.lab.door.pump": re.compile(r"os\.write"),
}
PRINTERS = re.compile(
    r"((builtins|rich|pprint|click)\.)?(print|pprint|echo_via_pager|secho|confirm|prompt|get_text_stream|get_binary_stream)"
    r"|click\.echo|(\w+\.)*Console|os\.write|(sys\.)?_*std(out|err)_*(\.buffer)?\.(write|writelines)"
)
PRINTING_IMPORTS = {
    "click": {"echo", "secho", "echo_via_pager", "confirm", "prompt"},
    "sys": {"stdout", "stderr"},
    "rich": {"print"},
}


# Inside a room: a package or module may import those of the rows above its own. "__init__" is the
# room's own file.
INSIDE_TABLES = {
    "processes": """
        deadline cancellation at_exit output_end garbage
        subprocesses signals worker_main
        workers
        __init__
    """,
    "compiler": """
        winograd_weights equal_arrays
        weight_transforms
        target ir parameter_files artifact build_digests __init__
        graph
        cpu.tir_passes
        cpu gpu
        execution_graph relax_pipeline load_time_transforms codegen
        lower
        build host_run
        import_check_linker tuning diagnostics
    """,
    "importers": """
        archive_check
        size_limits
        imported_model model_file_check layer_names relax_postprocessing farm_kernels
        fourier extents
        grid_sampling
        summary fixed_batch
        onnx tflite
        torch
        fingerprints format_risks
        __init__
    """,
    "pipeline": """
        sandboxed_tasks job_dependencies interleaving
        worker_tasks
        cluster.task_transfer
        cluster.builds cluster.imports cluster.tuning_candidates
        cluster operations
        run_jobs
        accuracy layer_bisect build_feasibility compare discover doctor guard_page_check identify
        other_engines profile quantize tuning provision __init__
    """,
    "tracker": """
        errors scheduler admission limited_log listening
        agent_messages
        protocol metrics_page
        framing
        peer
        server
        run
        __init__
    """,
    "lab": """
        entities durations care.health_state_machine door.commands door.pump
        door.sshd_settings_check shared_places scheduling.reserved_share
        board_records care.board_checks
        scheduling.queue_order refusals lab_toml storage.entity_json
        scheduling.scheduler_changes scheduling.registry scheduling.reservations
        door.main door.authorized_keys callers door.board_address_check
        scheduling.promises change_budget
        scheduling.scheduler relay.tracker door.board_socket_broker
        relay.sessions
        storage.lab_database care.notices
        storage.lab_database_writer
        board_sessions
        lender
        care.health_controller
        control_socket
        run
        care relay scheduling storage
        __init__
    """,
    "commands": """
        rich_theme options
        output
        common
        progress
        completion engine_option model_options reservation_option schema thread_options
        judge models servers
        measure devices
        __init__
    """,
    "lab_page": """
        http_responses snapshot history gantt connections
        access templates lab_metrics
        rest live_parts
        event_stream pages
        server
        __init__
    """,
}
INSIDE = {
    home: {
        unit: level for level, row in enumerate(table.strip().splitlines()) for unit in row.split()
    }
    for home, table in INSIDE_TABLES.items()
}


@dataclass(frozen=True, slots=True)
class Import:
    """A module that another imports: when it is loaded, inside a function only, or for the type
    checker only.
    """

    line: int
    name: str
    inside: bool
    for_types: bool


def imports(
    module: str, tree: ast.AST, known: frozenset[str], inside: bool = False, for_types: bool = False
) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, inside, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = (
                ".".join([*parts[: -node.level], node.module or ""]).strip(".")
                if node.level
                else node.module or ""
            )
            for (
                alias
            ) in node.names:  # `from farm import x` imports the module farm.x where there is one
                full = f"{base}.{alias.name}"
                yield Import(node.lineno, full if full in known else base, inside, for_types)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imports(module, ast.Module(node.body, []), known, inside, True)
            yield from imports(module, ast.Module(node.orelse, []), known, inside, for_types)
        else:
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports(module, node, known, inside or function, for_types)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def heavy(found: Mapping[str, list[Import]]) -> set[str]:
    """The modules that bring in a heavy library as they load, themselves or by what they import."""
    names = set(HEAVY)
    while True:
        more = {
            module
            for module, its in found.items()
            if any(at_load(one) and names & chain(one.name) for one in its)
        } - names
        if not more:
            return names
        names |= more


def at_load(one: Import) -> bool:
    return not (one.inside or one.for_types)


def chain(name: str) -> set[str]:
    """A module and the packages that are imported with it."""
    parts = name.split(".")
    return {".".join(parts[:size]) for size in range(1, len(parts) + 1)}


def violations(sources: Mapping[str, str]) -> list[str]:
    """What is wrong in a package: `sources` are its modules by name ("farm.store.artifact_store"; a
    package by "farm.store.__init__").
    """
    known = frozenset(name.removesuffix(".__init__") for name in sources)
    trees = {module: ast.parse(source) for module, source in sources.items()}
    imported = {module: list(imports(module, tree, known)) for module, tree in trees.items()}
    slow = heavy({module.removesuffix(".__init__"): its for module, its in imported.items()})
    found = []
    for module, tree in trees.items():
        home = room(module)
        if home not in LEVEL and home != "__init__":
            found.append(f"{module}: {home} is in no layer")
            continue
        for one in imported[module]:
            found += [
                f"{module}:{one.line}: {words}" for words in _wrong_import(module, home, one, slow)
            ]
        if home not in EXITING:
            found += [
                f"{module}:{line}: {call} belongs in commands and cli"
                for line, call in _exits(tree)
            ]
        allowed = PRINTING.get(module)
        found += [
            f"{module}:{line}: {name} prints past farm.commands.output"
            for line, name in _prints(tree)
            if not (allowed and allowed.fullmatch(name))
        ]
    return found


def unit(module: str) -> str:
    """Return the package or module of its room that a module belongs to, by the table of the
    room.
    """
    home, inside = room(module), module.removesuffix(".__init__").split(".")[2:]
    names = [".".join(inside[:size]) for size in range(len(inside), 0, -1)]
    return next(
        (name for name in names if name in INSIDE[home]), names[-1] if names else "__init__"
    )


def _wrong_inside(module: str, home: str, one: Import) -> Iterator[str]:
    if home not in INSIDE or not f"{one.name}.".startswith(f"farm.{home}."):
        return
    levels, ours, theirs = INSIDE[home], unit(module), unit(one.name)
    if ours not in levels:
        yield f"{ours} is in no row of the table of {home}"
    elif ours != theirs and levels.get(theirs, 99) >= levels[ours]:
        yield f"{home}.{ours} may not import {home}.{theirs}"


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by others, as they load or
    later.
    """
    known = frozenset(name.removesuffix(".__init__") for name in sources)
    graph = {}
    for module, source in sources.items():
        its = imports(module, ast.parse(source), known)
        graph[module.removesuffix(".__init__")] = {
            one.name
            for one in its
            if one.name in known and one.name != "farm" and not one.for_types
        }
    reachable = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reachable[module] if module in reachable[other]))
        for module in graph
        if module in reachable[module]
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        more = graph[waiting.pop()] - found
        found |= more
        waiting += more
    return found


def _wrong_import(module: str, home: str, one: Import, slow: set[str]) -> Iterator[str]:
    top = one.name.split(".")[0]
    if top == "farm" and room(one.name) not in ("", home):
        other = room(one.name)
        if other == "zoo":
            yield "the zoo is imported by name only, from devices.toml"
        if LEVEL.get(other, 99) >= LEVEL.get(home, -1) and (home, other) != ("__init__", "api"):
            yield f"{home} may not import {other}"
    yield from _wrong_inside(module, home, one)
    if one.for_types:
        return
    if top == "subprocess" and module not in SUBPROCESS:
        yield "subprocess belongs in processes.subprocesses"
    if top == "rich" and home not in RICH:
        yield "rich belongs in dashboard, views and commands"
    if at_load(one) and home not in HEAVY_ROOMS and slow & chain(one.name):
        yield f"{one.name} is or brings in a heavy library as the module loads"


def _exits(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.exit", "exit", "quit"):
            yield node.lineno, ast.unparse(node.func)


def _prints(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield what writes to the terminal: calls, and imports that would make a call look like
    another.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and PRINTERS.fullmatch(name := ast.unparse(node.func)):
            yield node.lineno, name
        elif isinstance(node, ast.ImportFrom):
            taken = PRINTING_IMPORTS.get(node.module or "", set())
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in taken)


def ours() -> dict[str, str]:
    root = Path(farm.__file__).parent
    return {
        ".".join(("farm", *path.relative_to(root).with_suffix("").parts)): path.read_text("utf-8")
        for path in root.rglob("*.py")
    }


def test_every_module_keeps_to_its_layer_and_its_borders() -> None:
    sources = ours()
    assert len(sources) > 30
    assert violations(sources) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(ours()) == []


def test_a_planted_circle_is_found() -> None:
    sources = {
        "farm.a": "from farm import b",
        "farm.b": "def f():\n    from farm.c import x",
        "farm.c": "import farm.a",
        "farm.d": "import farm.a",
    }
    assert circles(sources) == [["farm.a", "farm.b", "farm.c"]]


def test_every_package_is_a_map_of_its_modules() -> None:
    missing = []
    for module, source in ours().items():
        if not module.endswith(".__init__") or module.count(".") < 3:
            continue
        folder = Path(farm.__file__).parent.joinpath(*module.split(".")[1:-1])
        names = {
            path.stem
            for path in folder.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        } - {"__init__"}
        text = ast.get_docstring(ast.parse(source)) or ""
        missing += [
            f"{module}: {name}"
            for name in sorted(names)
            if not re.search(rf"^\s*{name}\b", text, re.MULTILINE)
        ]
    assert missing == []


def _modules_run_by_python(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of commands whose Python would import modules of the working directory."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple)):
            words = [ast.unparse(word) for word in node.elts]
            at = words.index("'-m'") if "'-m'" in words else 0
            if at and words[at - 1] not in ("'-P'", "'-I'"):
                yield node.lineno


def test_no_program_takes_modules_from_the_working_directory() -> None:
    assert list(_modules_run_by_python(ast.parse("[sys.executable, '-m', 'ziglang']"))) == [1]
    found = [
        f"{module}:{line}"
        for module, source in ours().items()
        for line in _modules_run_by_python(ast.parse(source))
    ]
    assert found == []


def test_every_layer_and_exception_is_of_use() -> None:
    rooms = {room(module) for module in ours()}
    assert set(PRINTING) <= set(ours())
    assert (set(LEVEL) | HEAVY_ROOMS | RICH | EXITING) - rooms == set()


@pytest.mark.parametrize("package", ["farm.dashboard", "farm.pipeline", "farm.types"])
def test_each_name_that_a_package_imports_on_first_use_is_there(package: str) -> None:
    found = importlib.import_module(package)
    assert callable(found.__getattr__)
    assert [name for name in found.__all__ if not hasattr(found, name)] == []


def test_the_guide_shows_the_layers_as_they_are() -> None:
    guide = Path(farm.__file__).parents[1] / "CONTRIBUTING.md"
    rows = re.findall(r"^\| ([a-z_, ]+) \|", guide.read_text("utf-8"), re.MULTILINE)
    shown = [room for row in rows for room in re.findall(r"[a-z_]+", row)]
    assert [room for room in shown if room not in ("rooms", "then")] == [
        room for room in LEVEL if room != "__main__"
    ]


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("farm.types", "from farm import errors", "types may not import errors"),
        ("farm.types", "def f():\n    import farm.errors", "types may not import errors"),
        ("farm.config.load", "from farm.store import Store", "config may not import store"),
        ("farm.config.load", "from ..store import Store", "config may not import store"),
        ("farm.config.__init__", "from ..store import Store", "config may not import store"),
        ("farm.agent.build", "from farm.compiler.codegen.link import link", "agent may not import compiler"),  # noqa: E501
        ("farm.transports.ssh.transport", "if TYPE_CHECKING:\n    from farm import executor", "transports may not import executor"),  # noqa: E501
        ("farm.pipeline", "def f():\n    from farm.zoo import resnet18", "the zoo is imported by name only, from devices.toml"),  # noqa: E501
        ("farm.extra", "x = 1", "extra is in no layer"),
        ("farm.store.artifact_store", "import subprocess", "subprocess belongs in processes.subprocesses"),  # noqa: E501
        ("farm.store.artifact_store", "def f():\n    from subprocess import run", "subprocess belongs in processes.subprocesses"),  # noqa: E501
        ("farm.pipeline", "from rich.text import Text", "rich belongs in dashboard, views and commands"),  # noqa: E501
        ("farm.stats", "import torch.nn as nn", "torch.nn is or brings in a heavy library as the module loads"),  # noqa: E501
        ("farm.stats", "try:\n    from tvm import rpc\nexcept: pass", "tvm is or brings in a heavy library as the module loads"),  # noqa: E501
        ("farm.pipeline", "from farm.executor import execute", "farm.executor is or brings in a heavy library as the module loads"),  # noqa: E501
        ("farm.pipeline", "from farm import checked_model_import", "farm.checked_model_import is or brings in a heavy library as the module loads"),  # noqa: E501
        ("farm.store.artifact_store", "print(1)", "print prints past farm.commands.output"),
        ("farm.commands.devices.devices", "print(1)", "print prints past farm.commands.output"),
        ("farm.commands.devices.devices", "import click\nclick.echo(1)", "click.echo prints past farm.commands.output"),  # noqa: E501
        ("farm.commands.devices.devices", "def f():\n    click.secho(1)", "click.secho prints past farm.commands.output"),  # noqa: E501
        ("farm.commands.devices.devices", "from click import echo", "echo prints past farm.commands.output"),  # noqa: E501
        ("farm.commands.devices.devices", "from rich import print as show", "print prints past farm.commands.output"),  # noqa: E501
        ("farm.commands.devices.devices", "click.confirm(name)", "click.confirm prints past farm.commands.output"),  # noqa: E501
        ("farm.cli", "import sys\nsys.stderr.write(name)", "sys.stderr.write prints past farm.commands.output"),  # noqa: E501
        ("farm.cli", "sys.stdout.buffer.write(name)", "sys.stdout.buffer.write prints past farm.commands.output"),  # noqa: E501
        ("farm.cli", "os.write(1, name)", "os.write prints past farm.commands.output"),
        ("farm.views.tables", "from rich.console import Console\nConsole()", "Console prints past farm.commands.output"),  # noqa: E501
        ("farm.prompts", "print(name)", "print prints past farm.commands.output"),
        ("farm.store.artifact_store", "def f():\n    sys.exit(1)", "sys.exit belongs in commands and cli"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(module: str, source: str, words: str) -> None:
    others = dict.fromkeys(("farm.errors", "farm.store.__init__", "farm.zoo.__init__"), "")
    others |= {
        "farm.executor": "from farm import checked_model_import",
        "farm.checked_model_import": "from tvm import relax",
    }
    assert [one.partition(": ")[2] for one in violations({**others, module: source})] == [words]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("farm.pipeline", "from farm import __version__\nfrom farm.errors import FarmError"),
        ("farm.pipeline", "def f():\n    from farm.executor import execute\n    import tvm"),
        ("farm.stats", "if TYPE_CHECKING:\n    import torch\n    from subprocess import Popen"),
        ("farm.compiler.lower", "import tvm"),
        ("farm.compiler.lower", "from farm.compiler import relax_pipeline"),
        ("farm.compiler.cpu.winograd.compute", "import farm.compiler.cpu.conv_dense_compute"),
        ("farm.processes.subprocesses", "import subprocess"),
        ("farm.commands.devices.devices", "import sys\nfrom rich.table import Table\nsys.exit(0)"),
        ("farm.commands.output", "click.echo(1)\nConsole()"),
        ("farm.commands.devices.devices", "from farm.commands.output import echo\necho(1)"),
        ("farm.prompts", "os.write(1, b'')"),
        (
            "farm.dashboard.display",
            "from rich.console import Console\ndef f(console: Console): console.print(1)",
        ),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    assert violations({"farm.errors": "", "farm.executor": "import tvm", module: source}) == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """Their folders are all on the path of modules, where the second of a name would not be
    found.
    """
    names = Counter(
        path.stem for path in Path(__file__).parents[1].rglob("*.py") if path.stem != "conftest"
    )
    assert [name for name, count in names.items() if count > 1] == []
