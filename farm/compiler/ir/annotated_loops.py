"""Replace annotated loops of a scheduled function, where TVM has no schedule primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

# Arguments: a loop, and the loops around it from the outermost to the innermost.
Change = Callable[[tirx.For, Sequence[tirx.For]], tirx.Stmt]


def rewrite_loops(function: tirx.PrimFunc, annotation: str, change: Change) -> tirx.PrimFunc:
    """Return the function with each annotated loop replaced; itself if there is none."""
    body = _visited(function.body, [], annotation, change)
    return function if body is None else function.with_body(body)


def copy_loop(
    loop: tirx.For, body: Sequence[tirx.Stmt], annotations: dict[str, object]
) -> tirx.For:
    """Return a copy of the loop with another body and other annotations."""
    return tirx.For(
        loop.loop_var,
        loop.min,
        loop.extent,
        loop.kind,
        tirx.stmt_seq(*body),
        loop.thread_binding,
        annotations,
        loop.step,
    )


def _visited(
    statement: tirx.Stmt, around: Sequence[tirx.For], annotation: str, change: Change
) -> tirx.Stmt | None:
    """Return the statement with its annotated loops replaced; None if there is none."""
    if isinstance(statement, tirx.For):
        if annotation in statement.annotations:
            return change(statement, around)
        body = _visited(statement.body, [*around, statement], annotation, change)
        return None if body is None else copy_loop(statement, [body], dict(statement.annotations))
    if isinstance(statement, tirx.SeqStmt):
        parts = [_visited(part, around, annotation, change) for part in statement.seq]
        return (
            tirx.SeqStmt([new or old for new, old in zip(parts, statement.seq, strict=True)])
            if any(parts)
            else None
        )
    if isinstance(statement, SBlockRealize) and not statement.block.iter_vars:  # the root
        block = statement.block
        body = _visited(block.body, around, annotation, change)
        return (
            None
            if body is None
            else SBlockRealize(statement.iter_values, statement.predicate, _block(block, body))
        )
    return None


def _block(block: SBlock, body: tirx.Stmt) -> SBlock:
    rest = (block.init, block.alloc_buffers, block.match_buffers, block.annotations)
    return SBlock(block.iter_vars, block.reads, block.writes, block.name_hint, body, *rest)
