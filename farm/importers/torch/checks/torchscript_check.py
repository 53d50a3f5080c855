"""Check TorchScript files before torch reads them, and their graphs before they run.

A script is a program. Its source, in the archive's folder code/, has Python's grammar, and
`__setstate__` in it runs while the file is read. The check accepts only calls of operators that
compute and of functions and classes of the archive itself. It does not run the source.

Sources: torch/csrc/jit/serialization/import_source.cpp, torch/csrc/jit/frontend/sugared_value.cpp,
unpickler.cpp.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from farm.errors import ModelError
from farm.importers.archive_check import Archive, machine_memory_bytes
from farm.importers.torch.checks.allowed_operators import (
    OperatorOfPackage,
    check_not_of_nested_tensors,
    check_not_of_package,
    is_allowed,
)
from farm.importers.torch.checks.expressions import (
    ForbiddenExpression,
    SyntaxTree,
    parse_python_ast,
)
from farm.importers.torch.checks.pickle_check import (
    check_names,
    names_in_archived_pickle,
    names_in_pickle,
)

_SOURCE_BYTES = 16 << 20  # per file; the syntax tree takes a hundred times as much
_SOURCES_BYTES = 32 << 20
_TRACED_BYTES = 16 << 20
_DEEPEST = 150
_CLASSES = re.compile(
    r"__torch__\.torch\.classes\.(?:quantized\.(?:Conv[123]d|Linear|Embedding)PackedParamsBase|rnn\.CellParamsBase"
    r"|sparse\.LinearPackedParamsBase)"
)
_CLASS_METHODS = frozenset(("__getstate__", "__setstate__", "unpack", "bias", "weight", "forward"))
_PICKLED = re.compile(
    r"__torch__(?:\.\w+)*|torch\._utils\._rebuild_(?:tensor|tensor_v2|qtensor|parameter)|torch\.(?:storage\.)?\w*Storage"
    r"|torch\.jit\._pickle\.(?:build_(?:int|tensor|double|bool)list|restore_type_tag)|torch\.per_\w+|torch\.device|collections\.OrderedDict"
)
# Names besides the operators that torch's compiler of sources treats as built-in functions.
_FUNCTIONS = frozenset((
    "annotate", "uninitialized", "unchecked_cast", "fork", "awaitable", "bool", "int", "float",
    "complex", "str", "tuple", "list", "dict", "len", "range", "zip", "enumerate", "rangelist",
    "isinstance", "getattr", "hasattr", "min", "max", "abs", "round", "sum", "all", "any", "sorted",
    "reversed", "ord", "chr", "hex", "oct", "bin", "pow", "divmod", "hash", "id", "iter",
    "AssertionError", "Exception", "RuntimeError", "ValueError", "NotImplementedError",
    "IndexError", "KeyError", "TypeError", "List", "Tuple", "Dict", "Optional", "Union", "Final",
    "Future", "Tensor", "NoneType",
))  # fmt: skip
_FORBIDDEN = frozenset(("print", "exec", "eval", "open"))
_ROOTS = frozenset(("torch", "ops"))  # where torch's compiler of sources finds operators
# The calls in what torch computes while the file is read, before the graphs are checked: in a
# __setstate__, in which quantized layers pack their weights, and in values that are constants.
_WHILE_READ = re.compile(
    r"annotate|unchecked_cast|uninitialized|isinstance|float|complex|torch\.device|ops\.quantized\.(?:conv\dd|conv_transpose\dd|linear)_prepack(?:_fp16)?"
    r"|ops\.prim\.(?:RaiseException|unchecked_cast|unchecked_unwrap_optional)|torch\.(?:_unwrap_optional|__is__|__isnot__|eq|ne|len)"
)
_METHODS_WHILE_READ = frozenset(("__setstate__", "set_weight_bias"))
# Names of attributes, which torch writes between quotes.
_NAME = re.compile(r"[^\x00-\x1f\x7f\"'\\(){};]*")
_FIX = (
    "save it with torch.jit.save, of a module of torch's own operators; farm runs no code that "
    "does more than compute"
)
_FILES = frozenset(
    ("code", "data", "constants", "attributes", "data.pkl", "constants.pkl", "attributes.pkl")
)
_STATEMENTS = (
    ast.Module, ast.ClassDef, ast.FunctionDef, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.With,  # noqa: E501
    ast.Raise, ast.Assert, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Delete,
)  # fmt: skip
_EXPRESSIONS = (
    ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Dict, ast.List, ast.Tuple, ast.Compare, ast.Call, ast.Constant, ast.Attribute,  # noqa: E501
    ast.Subscript, ast.Starred, ast.Name, ast.Slice, ast.ListComp, ast.DictComp, ast.comprehension, ast.keyword, ast.arguments, ast.arg,  # noqa: E501
    ast.withitem, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_KNOWN = frozenset(
    kind
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, (*_STATEMENTS, *_EXPRESSIONS))
)
# Nodes of which the check notes something, and those that say what a function's variables are.
_NOTED = frozenset((ast.Attribute, ast.Call, ast.FunctionDef))
_SCOPED = frozenset((ast.FunctionDef, ast.Assign, ast.arg, ast.Name))
# Nodes of the other classes are allowed wherever they are.
_CHECKED = frozenset((
    ast.Call, ast.ClassDef, ast.FunctionDef, ast.Name, ast.Attribute, ast.Subscript, ast.arg,
))  # fmt: skip


def check_torchscript(path: Path) -> None:
    """Raise ModelError unless torch can read and run the script without doing more than compute."""
    with Archive(path) as archive:
        root = next(iter(archive.entries)).partition("/")[0]
        names = [name for name in archive.entries if not name.endswith("/")]
        if strangers := [
            name
            for name in names
            if not name.startswith(f"{root}/") or name == f"{root}/model.json"
        ]:
            raise _refusal(path, f"{strangers[0]!r} in it is nothing that torch writes since 1.4")
        for name in names:  # torch looks these names up case-insensitively
            folder, _, rest = name.removeprefix(f"{root}/").partition("/")
            if folder.lower() in _FILES and (
                folder not in _FILES or name != name.removesuffix(rest) + _lower_suffix(rest)
            ):
                raise _refusal(path, f"{name!r} in it is a name that torch does not write")
        sources = [
            name for name in names if name.startswith(f"{root}/code/") and name.endswith(".py")
        ]
        if sum(archive.entries[name].bytes for name in sources) > _SOURCES_BYTES:
            raise _refusal(path, f"its code has more than {_SOURCES_BYTES:,} bytes")
        parsed = {name: _parsed(path, archive, name) for name in sources}
        methods = frozenset[str]().union(*(source.methods for source in parsed.values()))
        for name, source in parsed.items():
            if objection := _objection(source, methods):
                place = f"{name.partition('/')[2]}, line {objection.line}"
                if objection.foreign is not None:
                    raise objection.foreign.as_model_error(path, place)
                raise _refusal(path, f"{place}: {objection.why}")
        for pickled, folder in (
            ("data.pkl", "data"),
            ("constants.pkl", "constants"),
            ("attributes.pkl", "attributes"),
        ):
            if f"{root}/{pickled}" in archive.entries:
                check_names(
                    names_in_archived_pickle(archive, pickled, folder, f"{path}: {pickled}"),
                    _PICKLED,
                    f"{path}: {pickled}",
                )
        # Its tensors have no records.
        if (traced := f"{root}/traced_inputs.pkl") in archive.entries:
            names_in_pickle(
                archive.read(traced, _TRACED_BYTES),
                lambda _: machine_memory_bytes(),
                f"{path}: traced_inputs.pkl",
            )


def check_graphs(graphs: Iterable[Any], what: str) -> None:
    """Raise ModelError for an operator in a script's graphs that does more than compute.

    `graphs` are those of all functions and methods that torch has compiled: its own reading of the
    source, independent of the check of the source.
    """
    for graph in graphs:
        for node in _nodes(graph):
            namespace, _, name = node.kind().partition("::")
            if not is_allowed(namespace, name):
                raise ModelError(
                    f"{what} could do more than compute, so it is not run",
                    f"it uses the operator {node.kind()}",
                    _FIX,
                )


def _nodes(block: Any) -> Iterator[Any]:
    """Yield the nodes of a graph or block, including nested blocks and graphs in attributes."""
    for node in block.nodes():
        yield node
        for name in node.attributeNames():
            if node.kindOf(name) == "g":
                yield from _nodes(node.g(name))
        for inner in node.blocks():
            yield from _nodes(inner)


def _refusal(path: Path, why: str) -> ModelError:
    """Return the ModelError that refuses the file."""
    return ModelError(f"{path} could do more than compute, so it is not read", why, _FIX)


def _lower_suffix(name: str) -> str:
    """Return the name with the suffix behind its last dot in lower case."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}{dot}{suffix.lower()}" if dot else name


def _parsed(path: Path, archive: Archive, name: str) -> _Source:
    """Return a source of the archive; raise ModelError if it cannot be parsed."""
    try:
        return _source(archive.read(name, _SOURCE_BYTES).decode())
    except (ForbiddenExpression, UnicodeDecodeError) as exc:
        raise _refusal(path, f"{name.partition('/')[2]}: {exc}") from exc


def _source(text: str) -> _Source:
    """Return the parsed source; raise ForbiddenExpression if it cannot be parsed."""
    return _Source(parse_python_ast(text, _SOURCE_BYTES, _DEEPEST, "exec"))


@dataclass(frozen=True, slots=True)
class _Objection:
    """Why a source is not allowed, and the line of it."""

    line: int
    why: str
    foreign: OperatorOfPackage | None = None  # if that is all


def _objection(source: _Source, methods: frozenset[str]) -> _Objection | None:
    """Return the first objection to a source; None if it is allowed.

    `methods` are those that all sources of the archive define.
    """
    check = _NodeCheck(source, methods)
    foreign: tuple[int, OperatorOfPackage] | None = None
    for node in source.nodes:
        line = getattr(node, "lineno", 0)
        try:
            if why := check.objection(node):
                return _Objection(line, why)
        except OperatorOfPackage as operator:
            foreign = foreign or (line, operator)
    return foreign and _Objection(foreign[0], str(foreign[1]), foreign[1])


class _Source:
    """A source of the archive: its syntax nodes, and what their check needs to know of them.

    The sets hold identities of nodes: `inner` those that are part of a path of names, `called` the
    paths that are called, `while_read` the calls in what is computed while the file is read: a
    __setstate__, the defaults of arguments, the constants of a class. `scopes` holds the functions
    around calls.
    """

    def __init__(self, tree: SyntaxTree) -> None:
        self.nodes = tree.nodes
        self.methods: set[str] = set()
        self.inner: set[int] = set()
        self.called: set[int] = set()
        self.while_read: set[int] = set()
        self.scopes: dict[int, _Scope] = {}
        # By the places of nodes: the outermost function around each, and whether it runs while the
        # file is read. A parent's place is before its children's.
        scopes: list[_Scope | None] = []
        read: list[bool] = []
        constants: set[int] = set()
        for node, parent in zip(tree.nodes, tree.parents, strict=True):
            scope = scopes[parent] if scopes else None
            runs = (read[parent] if read else False) or id(node) in constants
            constants |= set(map(id, _constants(node)))
            if type(node) not in _NOTED:
                pass
            elif isinstance(node, ast.Attribute):
                self.inner.add(id(node.value))
            elif isinstance(node, ast.Call):
                self.called.add(id(node.func))
                if scope is not None:
                    self.scopes[id(node)] = scope
                if runs:
                    self.while_read.add(id(node))
            elif isinstance(node, ast.FunctionDef):
                self.methods.add(node.name)
                scope = scope or _Scope()
                runs = runs or node.name in _METHODS_WHILE_READ
            if scope is not None and type(node) in _SCOPED:
                scope.add(node)
            scopes.append(scope)
            read.append(runs)


class _NodeCheck:
    """The check of a source's syntax nodes, given the methods that the archive defines."""

    def __init__(self, source: _Source, methods: frozenset[str]) -> None:
        self._source = source
        self._methods = methods

    def objection(self, node: ast.AST) -> str:
        """Return why a node is not allowed; "" if it is."""
        kind = type(node)
        if kind not in _KNOWN:
            return f"{kind.__name__} is nothing that torch writes"
        if kind not in _CHECKED:
            return ""
        if isinstance(node, ast.Call):
            return self._call(node) or self._call_while_read(node)
        if isinstance(node, ast.ClassDef) and any(_dotted(base) is None for base in node.bases):
            return f"class {node.name} is nothing that torch writes"
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.decorator_list:
            return f"{node.name} is decorated, as torch does not write it"
        if isinstance(node, ast.Name) and node.id in _FORBIDDEN:
            return f"it uses {node.id}"
        if isinstance(node, ast.Name) and node.id in _ROOTS and id(node) not in self._source.inner:
            return f"it uses {node.id} as a value"
        if isinstance(node, ast.Attribute):
            part = id(node) in self._source.inner or id(node) in self._source.called
            return "" if part else _attribute(node)
        if isinstance(node, ast.Subscript) and _dotted(node.value) == "__annotations__":
            return (
                ""
                if _is_name(node.slice)
                else "an attribute has a name that no module of torch has"
            )
        if isinstance(node, ast.arg) and (node.arg.startswith("__") or node.arg in _ROOTS):
            return f"{node.arg} is no name of an argument"
        return ""

    def _call(self, node: ast.Call) -> str:
        """Return why a call is not allowed; "" if it is."""
        path = _dotted(node.func)
        if path is None:
            return self._method(node)
        first, _, rest = path.partition(".")
        if not rest:
            return self._named(node, path)
        # torch.autograd.f is aten::f too, so longer paths are refused.
        if first == "torch":
            check_not_of_nested_tensors(rest)
            return "" if "." not in rest and is_allowed("aten", rest) else f"it calls aten::{rest}"
        if first == "ops":
            namespace, _, name = rest.partition(".")
            check_not_of_package(namespace, name)
            return (
                ""
                if "." not in name and is_allowed(namespace, name)
                else f"it calls {namespace}::{name}"
            )
        if path.startswith("__torch__."):
            return _qualified(path)
        return self._method(node)

    def _named(self, node: ast.Call, name: str) -> str:
        """Return why a call of a bare name is not allowed; "" if it is.

        A variable may stand for a function of the archive. It could stand for a method of a tensor,
        and so for any operator.
        """
        scope = self._source.scopes.get(id(node))
        if scope is not None and name in scope.values:
            return "" if scope.is_own(name) else f"it calls what is in the variable {name}"
        if name in ("getattr", "hasattr") and not (len(node.args) == 2 and _is_name(node.args[1])):
            return f"{name} has a name that no module of torch has"
        if name in ("fork", "awaitable") and not (
            scope is not None and node.args and scope.is_function(node.args[0])
        ):
            return f"{name} has what is no function of its own"
        return "" if name in _FUNCTIONS else f"it calls {name}"

    def _method(self, node: ast.Call) -> str:
        """Return why a method call is not allowed; "" if it is.

        It may be a method of a class of the archive. Otherwise torch takes it as an operator of
        aten or prim, with the value as its first argument.
        """
        if not isinstance(node.func, ast.Attribute):
            return "it calls what is no name"
        name = node.func.attr
        check_not_of_nested_tensors(name)
        if is_allowed("aten", name) or is_allowed("prim", name):
            return ""
        own = (name in self._methods or name in _CLASS_METHODS) and not _is_operator(name)
        return "" if own else f"it calls {name} of a value, which may be aten::{name}"

    def _call_while_read(self, node: ast.Call) -> str:
        """Return why a call is not allowed in what is computed while the file is read.

        "" if it is, or is elsewhere.
        """
        if id(node) not in self._source.while_read:
            return ""
        path = _dotted(node.func) or ""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else path
        if name in _METHODS_WHILE_READ or _WHILE_READ.fullmatch(path):
            return ""
        return f"it calls {path or name} while it is read"


class _Scope:
    """A function of the archive with those inside it: its variables and their values."""

    def __init__(self) -> None:
        self.values: dict[str, list[ast.AST | None]] = {}
        self._functions: set[str] = set()
        # What is assigned to a single target, by the identity of the target.
        self._simple: dict[int, ast.AST] = {}

    def add(self, node: ast.AST) -> None:
        """Note a node of the function, after the nodes around it."""
        if isinstance(node, ast.FunctionDef):
            self._functions.add(node.name)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._simple[id(node.targets[0])] = node.value
        elif isinstance(node, ast.arg):
            self.values.setdefault(node.arg, []).append(None)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            self.values.setdefault(node.id, []).append(self._simple.get(id(node)))

    def is_own(self, name: str) -> bool:
        """Return whether a variable holds only functions of the archive."""
        paths = [value and _dotted(value) for value in self.values.get(name, [None])]
        return all(
            path and path.startswith("__torch__.") and not _qualified(path) for path in paths
        )

    def is_function(self, node: ast.AST) -> bool:
        """Return whether a node is a function that the archive defines."""
        path = _dotted(node) or ""
        if path in self.values:
            return self.is_own(path)
        return path in self._functions or (path.startswith("__torch__.") and not _qualified(path))


def _constants(node: ast.AST) -> list[ast.expr]:
    """Return the values that a node gives to arguments by default, or to the names of a class."""
    if isinstance(node, ast.arguments):
        return [*node.defaults, *filter(None, node.kw_defaults)]
    if isinstance(node, ast.ClassDef):
        assigned = (one for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign)))
        return [one.value for one in assigned if one.value is not None]
    return []


@lru_cache(4096)
def _is_operator(name: str) -> bool:
    """Return whether the installed torch has an operator of this name for values."""
    import torch

    return any(
        torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
        for namespace in ("aten", "prim")
    )


def _qualified(path: str) -> str:
    """Return why a class or function of the archive, or a class of torch, is not allowed."""
    if not path.startswith("__torch__.torch.classes."):
        return ""
    bare = path.rpartition(".")[0] if path.rpartition(".")[2] in _CLASS_METHODS else path
    return "" if _CLASSES.fullmatch(bare) else f"it makes a {path.removeprefix('__torch__.')}"


def _attribute(node: ast.Attribute) -> str:
    """Return why a whole path that is not called is not allowed; "" if it is.

    torch writes operators only where it calls them.
    """
    path = _dotted(node) or ""
    return f"it uses {path} as a value" if path.partition(".")[0] in _ROOTS else ""


def _dotted(node: ast.AST) -> str | None:
    """Return the path of names of a node, a.b.c; None for other nodes."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _is_name(node: ast.AST) -> bool:
    """Return whether a node is a string that is safe between quotes."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _NAME.fullmatch(node.value) is not None
    )
