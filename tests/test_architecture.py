"""The layers of ARCHITECTURE and its four borders, checked over the syntax tree: `violations` is a function of sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import farm

# A room may import rooms of the rows above its own; rooms of one row are peers and do not know each other.
LAYERS = """
    types deadline clock turns asking lightly
    errors
    process stats interrupts worker
    parallel words metrics
    comparison
    config store
    importers zoo compiler transports agent
    data
    quantize
    prepare releases
    executor export
    pipeline tracker
    api
    dashboard views plugin
    commands
    cli
    __main__
""".strip().splitlines()
LEVEL = {room: level for level, row in enumerate(LAYERS) for room in row.split()}

HEAVY = {"tvm", "tvm_ffi", "torch", "torchvision", "onnx", "onnxruntime", "sqlalchemy"}
# Rooms whose modules may import the heavy libraries as they load; others may import such a module inside a function only.
HEAVY_ROOMS = {"store", "compiler", "importers", "zoo", "prepare", "executor", "quantize"}
SUBPROCESS = {"farm.process"}
RICH = {"dashboard", "views", "commands"}
SPEAKING = {"commands", "cli"}


@dataclass(frozen=True, slots=True)
class Import:
    """A module that another imports: when it is loaded, inside a function only, or for the type checker only."""

    line: int
    name: str
    inside: bool
    for_types: bool


def imports(module: str, tree: ast.AST, known: frozenset[str], inside: bool = False, for_types: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, inside, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            base = ".".join([*parts[: -node.level], node.module or ""]).strip(".") if node.level else node.module or ""
            for alias in node.names:  # `from farm import x` imports the module farm.x where there is one
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
        more = {module for module, its in found.items() if any(at_load(one) and names & chain(one.name) for one in its)} - names
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
    """What is wrong in a package: `sources` are its modules by name ("farm.store.files"; a package by "farm.store.__init__")."""
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
            found += [f"{module}:{one.line}: {words}" for words in _wrong_import(module, home, one, slow)]
        if home not in SPEAKING:
            found += [f"{module}:{line}: {call} belongs in commands and cli" for line, call in _speaks(tree)]
    return found


def _wrong_import(module: str, home: str, one: Import, slow: set[str]) -> Iterator[str]:
    top = one.name.split(".")[0]
    if top == "farm" and room(one.name) not in ("", home):
        other = room(one.name)
        if other == "zoo":
            yield "the zoo is imported by name only, from devices.toml"
        if LEVEL.get(other, 99) >= LEVEL.get(home, -1) and (home, other) != ("__init__", "api"):
            yield f"{home} may not import {other}"
    if one.for_types:
        return
    if top == "subprocess" and module not in SUBPROCESS:
        yield "subprocess belongs in process"
    if top == "rich" and home not in RICH:
        yield "rich belongs in dashboard, views and commands"
    if at_load(one) and home not in HEAVY_ROOMS and slow & chain(one.name):
        yield f"{one.name} is or brings in a heavy library as the module loads"


def _speaks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit", "exit", "quit"):
            yield node.lineno, ast.unparse(node.func)


def ours() -> dict[str, str]:
    root = Path(farm.__file__).parent
    return {".".join(("farm", *path.relative_to(root).with_suffix("").parts)): path.read_text("utf-8") for path in root.rglob("*.py")}


def test_every_module_keeps_to_its_layer_and_its_borders() -> None:
    sources = ours()
    assert len(sources) > 30
    assert violations(sources) == []


def test_every_layer_and_exception_is_of_use() -> None:
    rooms = {room(module) for module in ours()}
    assert (set(LEVEL) | HEAVY_ROOMS | RICH | SPEAKING) - rooms == set()


def test_the_guide_shows_the_layers_as_they_are() -> None:
    guide = Path(farm.__file__).parents[1] / "CONTRIBUTING.md"
    rows = re.findall(r"^\| ([a-z, ]+) \|", guide.read_text("utf-8"), re.MULTILINE)
    shown = [room for row in rows for room in re.findall(r"[a-z]+", row)]
    assert [room for room in shown if room not in ("rooms", "then")] == [room for room in LEVEL if room != "__main__"]


@pytest.mark.parametrize(
    ("module", "source", "words"),
    [
        ("farm.types", "from farm import errors", "types may not import errors"),
        ("farm.types", "def f():\n    import farm.errors", "types may not import errors"),
        ("farm.config.load", "from farm.store import Store", "config may not import store"),
        ("farm.config.load", "from ..store import Store", "config may not import store"),
        ("farm.config.__init__", "from ..store import Store", "config may not import store"),
        ("farm.agent.build", "from farm.compiler.link import link", "agent may not import compiler"),
        ("farm.transports.ssh", "if TYPE_CHECKING:\n    from farm import executor", "transports may not import executor"),
        ("farm.pipeline", "def f():\n    from farm.zoo import resnet18", "the zoo is imported by name only, from devices.toml"),
        ("farm.extra", "x = 1", "extra is in no layer"),
        ("farm.store.files", "import subprocess", "subprocess belongs in process"),
        ("farm.store.files", "def f():\n    from subprocess import run", "subprocess belongs in process"),
        ("farm.pipeline", "from rich.text import Text", "rich belongs in dashboard, views and commands"),
        ("farm.stats", "import torch.nn as nn", "torch.nn is or brings in a heavy library as the module loads"),
        ("farm.stats", "try:\n    from tvm import rpc\nexcept: pass", "tvm is or brings in a heavy library as the module loads"),
        ("farm.pipeline", "from farm.executor import execute", "farm.executor is or brings in a heavy library as the module loads"),
        ("farm.pipeline", "from farm import prepare", "farm.prepare is or brings in a heavy library as the module loads"),
        ("farm.store.files", "print(1)", "print belongs in commands and cli"),
        ("farm.store.files", "def f():\n    sys.exit(1)", "sys.exit belongs in commands and cli"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(module: str, source: str, words: str) -> None:
    others = dict.fromkeys(("farm.errors", "farm.store.__init__", "farm.zoo.__init__"), "")
    others |= {"farm.executor": "from farm import prepare", "farm.prepare": "from tvm import relax"}
    assert [one.partition(": ")[2] for one in violations({**others, module: source})] == [words]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("farm.pipeline", "from farm import __version__\nfrom farm.errors import FarmError"),
        ("farm.pipeline", "def f():\n    from farm.executor import execute\n    import tvm"),
        ("farm.stats", "if TYPE_CHECKING:\n    import torch\n    from subprocess import Popen"),
        ("farm.compiler.lower", "import tvm"),
        ("farm.compiler.lower", "from farm.compiler import passes"),
        ("farm.process", "import subprocess"),
        ("farm.commands.devices", "import sys\nfrom rich.table import Table\nprint(1)\nsys.exit(0)"),
    ],
)
def test_what_is_allowed_is_not_reported(module: str, source: str) -> None:
    assert violations({"farm.errors": "", "farm.executor": "import tvm", module: source}) == []
