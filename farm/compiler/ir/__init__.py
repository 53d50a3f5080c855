"""Helpers for TVM's two intermediate representations, which know nothing of models and operators.

relax_rewriter   rewrite Relax graphs by a rule for each operator; look up producers and consumers
constants        read the values of constants in Relax graphs
annotations      annotations by which a kernel's definition tells its schedule what was configured
blocks           questions about the blocks and loops of a kernel
dynamic_extents  extents that are unknown until a model runs, as expressions of the batch
checked_kernels  mark the kernels that check their arguments in a build for a device
annotated_loops  put statements into loops that a schedule annotated
unchecked_schedule  TVM's Schedule without its checks of argument types
"""
