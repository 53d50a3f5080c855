"""Check the expressions in exported programs, which torch evaluates.

torch evaluates extents of axes by sympy's parser, which calls Python's eval, and writes guards into
the source of a function. Only the forms that torch's own printers write are accepted: numbers,
symbols, arithmetic, comparisons, and calls of the functions listed here. Nothing is evaluated here.

Sources: torch/_export/serde/serialize.py (`_print_sympy`, `_parse_sym_expr`),
torch/export/_unlift.py (`_convert_guards_code_to_fn`).
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache

_LONGEST = 20_000  # characters
_DEEPEST = 100
_MOST_BITS = 4096  # of a constant expression's value, so that 9**9**9 is not computed
_LARGEST_EXPONENT = 64
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT = re.compile(r"[A-Za-z0-9_ .:/-]*")  # keys of inputs: no character that could end a string
_ASSUMPTIONS = frozenset((
    "commutative", "complex", "extended_negative", "extended_nonnegative", "extended_nonpositive",
    "extended_nonzero", "extended_positive", "extended_real", "finite", "hermitian", "imaginary",
    "infinite", "integer", "irrational", "negative", "noninteger", "nonnegative", "nonpositive",
    "nonzero", "odd", "even", "positive", "prime", "rational", "real", "zero",
))  # fmt: skip
_TORCHS = frozenset((
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt",
    "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv",
    "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
    "RoundDecimal", "ToFloat", "Identity",
))  # fmt: skip
_SYMPYS = frozenset((
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Abs", "Mod",
    "floor", "ceiling", "sqrt", "Piecewise", "ExprCondPair", "Eq", "Ne", "Lt", "Le", "Gt", "Ge",
    "Equality", "Unequality", "LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan",
    "And", "Or", "Not", "Xor", "ITE",
))  # fmt: skip
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow", "LShift", "RShift"))
_CONSTANTS = frozenset(("oo", "zoo", "nan", "int_oo", "true", "false", "pi", "E"))
_GUARD_FUNCTIONS = frozenset(
    ("max", "min", "abs", "int", "float", "bool", "round", "IsNonOverlappingAndDenseIndicator")
)
_GUARD_METHODS = frozenset(("size", "stride", "storage_offset", "dim", "numel"))
_GUARD_MODULES = {
    "math": frozenset(("floor", "ceil", "trunc", "sqrt", "log", "log2", "exp", "isnan", "fabs")),
    "torch": frozenset(
        ("sym_ite", "sym_max", "sym_min", "sym_not", "sym_float", "sym_int", "sym_sqrt", "sym_sum")
    ),
}
_GUARD_NUMBERS = {"math": frozenset(("inf", "nan", "pi"))}
_OPERATORS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor,  # noqa: E501
    ast.UAdd, ast.USub, ast.Invert, ast.Not, ast.And, ast.Or,
    ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Load,
)  # fmt: skip


class ForbiddenExpression(ValueError):
    """The text is not an expression that torch writes."""


@lru_cache(maxsize=4096)  # a program repeats the same few extents for all of its tensors
def check_symbolic_extent(text: str) -> None:
    """Raise ForbiddenExpression unless the text is an extent as torch writes it for sympy."""
    _check(text, _allowed_in_symbolic)


def check_guard(text: str) -> None:
    """Raise ForbiddenExpression unless the text is a guard as torch writes it.

    A guard is a condition on the inputs' shapes and numbers.
    """
    _check(text, _allowed_in_guard)


def is_quotable_key(text: str) -> bool:
    """Return whether an input's key can be quoted in the source of a function."""
    return _TEXT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """The syntax tree of a text: its root, and all nodes, the outer ones first.

    `parents` holds the place in `nodes` of each node's parent; that of the root is 0.
    """

    root: ast.AST
    nodes: list[ast.AST]
    parents: list[int]


def parse_python_ast(text: str, longest: int, deepest: int, mode: str = "eval") -> SyntaxTree:
    """Return the syntax tree of a text.

    Raises ForbiddenExpression if the text cannot be parsed, is longer than `longest` characters or
    nested deeper than `deepest`.
    """
    if len(text) > longest:
        raise ForbiddenExpression(
            f"it has {len(text):,} characters, and farm reads up to {longest:,}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of unusual literals
            root = ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise ForbiddenExpression(f"it cannot be parsed: {exc}") from exc
    nodes: list[ast.AST] = [root]
    parents, begins = [0], 0
    for _ in range(deepest):
        ends = len(nodes)
        for place in range(begins, ends):
            children = _children(nodes[place])
            nodes += children
            parents += [place] * len(children)
        if len(nodes) == ends:
            return SyntaxTree(root, nodes, parents)
        begins = ends
    raise ForbiddenExpression(f"it is nested more than {deepest} deep")


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes as ast.iter_child_nodes yields them, in half of its time."""
    found: list[ast.AST] = []
    for field in node._fields:
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [one for one in value if isinstance(one, ast.AST)]
    return found


def _check(text: str, allowed: object) -> None:
    """Check a text: its characters, its syntax nodes by `allowed`, and the size of its numbers."""
    if not text.isascii() or "\n" in text or "\r" in text or "#" in text:
        raise ForbiddenExpression(f"{_shown(text)} has characters that torch does not write")
    tree = parse_python_ast(text, _LONGEST, _DEEPEST)
    assert isinstance(tree.root, ast.Expression) and callable(allowed)
    for node in tree.nodes[1:]:
        if not isinstance(
            node,
            (
                *_OPERATORS,
                ast.Name,
                ast.Call,
                ast.Constant,
                ast.Attribute,
                ast.Subscript,
                ast.keyword,
            ),
        ):
            raise ForbiddenExpression(f"{_shown(text)} holds {type(node).__name__}")
    _walk(tree.root.body, allowed, text)
    _bits(tree.root.body, text)


def _walk(node: ast.AST, allowed: object, text: str) -> None:
    """Check a node by `allowed`, and recursively the child nodes that `allowed` returns."""
    assert callable(allowed)
    below = allowed(node)
    if below is None:
        raise ForbiddenExpression(f"{_shown(text)} is no expression that torch writes")
    for child in below:
        _walk(child, allowed, text)


def _allowed_in_symbolic(node: ast.AST) -> list[ast.AST] | None:
    """Return the child nodes that remain to be checked; None for a node that is not allowed."""
    if isinstance(node, ast.Call):
        return _symbolic_call(node)
    if isinstance(node, ast.Name):
        return [] if node.id in _CONSTANTS or _is_symbol(node.id) else None
    if isinstance(node, ast.Constant):
        return [] if isinstance(node.value, (bool, int, float)) else None
    return list(ast.iter_child_nodes(node)) if isinstance(node, _OPERATORS) else None


def _symbolic_call(node: ast.Call) -> list[ast.AST] | None:
    """Return the arguments that remain to be checked; None for a call that is not allowed."""
    if not isinstance(node.func, ast.Name) or node.func.id not in _TORCHS | _SYMPYS:
        return None
    if node.func.id == "Symbol":
        name = (
            node.args[0].value
            if len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
            else None
        )
        fits = all(
            word.arg in _ASSUMPTIONS and isinstance(word.value, ast.Constant)
            for word in node.keywords
        )
        bools = all(
            isinstance(word.value, ast.Constant) and isinstance(word.value.value, bool)
            for word in node.keywords
        )
        return [] if isinstance(name, str) and _is_symbol(name) and fits and bools else None
    if node.func.id == "Float":
        return [] if _is_float(node) else None
    return list(node.args) if not node.keywords else None


def _is_float(node: ast.Call) -> bool:
    """Return whether a call is Float('1.5', precision=53), as sympy writes it, or Float(1.5)."""
    value = (
        node.args[0].value
        if len(node.args) == 1 and isinstance(node.args[0], ast.Constant)
        else None
    )
    number = isinstance(value, (int, float)) or (
        isinstance(value, str) and re.fullmatch(r"[-+]?[0-9.]{1,40}([eE][-+]?[0-9]{1,4})?", value)
    )
    words = all(
        word.arg == "precision" and isinstance(word.value, ast.Constant) and word.value.value == 53
        for word in node.keywords
    )
    return bool(number) and words


def _is_symbol(name: str) -> bool:
    """Return whether sympy's parser takes a name as a symbol.

    Names that it would look up as functions of Python or sympy are not symbols.
    """
    return (
        _SYMBOL.fullmatch(name) is not None and not name.startswith("__") and not name[:1].isupper()
    )


def _allowed_in_guard(node: ast.AST) -> list[ast.AST] | None:
    """Return the child nodes that remain to be checked; None for a node that is not allowed."""
    if isinstance(node, ast.Call):
        return _guard_call(node)
    if isinstance(node, ast.Name):
        return [] if node.id == "inf" else None
    if isinstance(node, ast.Constant):
        return (
            []
            if isinstance(node.value, (bool, int, float))
            or (isinstance(node.value, str) and is_quotable_key(node.value))
            else None
        )
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return [] if node.attr in _GUARD_NUMBERS.get(node.value.id, ()) else None
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return _of_inputs(node)
    return list(ast.iter_child_nodes(node)) if isinstance(node, _OPERATORS) else None


def _of_inputs(node: ast.AST) -> list[ast.AST] | None:
    """Return [] for an input, a part of it, or an extent; None for any other node.

    The forms: L['x'], L['x'][0].y, L['x'].size()[0].
    """
    while not (isinstance(node, ast.Name) and node.id == "L"):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
            if type(key) is not int and not (isinstance(key, str) and is_quotable_key(key)):
                return None
            node = node.value
        elif isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _GUARD_METHODS
        ):
            if node.args or node.keywords:
                return None
            node = node.func.value
        else:
            return None
    return []


def _guard_call(node: ast.Call) -> list[ast.AST] | None:
    """Return the arguments that remain to be checked; None for a call that is not allowed."""
    function = node.func
    if node.keywords:
        return None
    if isinstance(function, ast.Name):
        return list(node.args) if function.id in _GUARD_FUNCTIONS else None
    if not isinstance(function, ast.Attribute):
        return None
    if isinstance(function.value, ast.Name) and function.value.id in _GUARD_MODULES:
        return list(node.args) if function.attr in _GUARD_MODULES[function.value.id] else None
    return _of_inputs(node)


def _bits(node: ast.AST, text: str) -> int:
    """Return a bound of the bits of a constant expression's value.

    Raises ForbiddenExpression if it is too large, or if an exponent is not a small constant: its
    evaluation might not end.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value.bit_length()
    power = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift, ast.RShift))
    operands: list[ast.AST] = []
    if isinstance(node, ast.Call):
        power = isinstance(node.func, ast.Name) and node.func.id in _POWERS
        operands = list(node.args)
    elif isinstance(node, ast.BinOp):
        operands = [node.left, node.right]
    elif isinstance(node, (ast.UnaryOp, ast.BoolOp, ast.Compare)):
        operands = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    counts = [_bits(operand, text) for operand in operands]
    if power:
        exponent = _exponent(operands[1]) if len(operands) == 2 else None
        if exponent is None or abs(exponent) > _LARGEST_EXPONENT:
            raise ForbiddenExpression(f"{_shown(text)} has a power that is not a small number")
        bits = counts[0] * max(1, int(abs(exponent)) + 1)
    else:
        bits = sum(counts)
    if bits > _MOST_BITS:
        raise ForbiddenExpression(f"{_shown(text)} makes too large a number")
    return max(bits, 1)  # a symbol's power is computed too, once the symbol has a value


def _exponent(node: ast.AST) -> float | None:
    """Return the value of a constant as Python or sympy writes it; None for other nodes.

    The forms: 2, -1, Integer(-1), Rational(1, 2).
    """
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _exponent(node.operand)
        return None if value is None else -value
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Integer", "Rational", "Float")
        and node.args
    ):
        return _exponent(node.args[0])
    return (
        node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
        else None
    )


def _shown(text: str) -> str:
    """Return the text's repr, shortened to 120 characters."""
    return repr(text if len(text) <= 120 else f"{text[:117]}...")
