"""What an imported model's operators compute in."""

from __future__ import annotations

from tvm import relax

from farm.compiler import relax_pipeline


def types_of(imported, operator):
    """The types of the data and of the results of all calls of an operator, as they will be loop
    nests.
    """
    found = []

    def look(call):
        if isinstance(call, relax.Call) and getattr(call.op, "name", "") == operator:
            found.append((str(call.args[0].ty.dtype), str(call.ty.dtype)))

    relax.analysis.post_order_visit(
        relax_pipeline.run_passes_before_legalization(
            relax_pipeline.bind_weights(imported.module, imported.weights)
        )["main"],
        look,
    )
    return found
