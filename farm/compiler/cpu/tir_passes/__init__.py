"""Passes over scheduled TIR functions, for what TVM's schedule primitives cannot express.

constant_lets               replace variables that are bound to constants by these
flatten_without_conditions  flatten indices of buffers where TVM would lose an offset
keep_wrapping_loops_scalar  keep LLVM from loops whose variable wraps around
load_fences          keep LLVM from reordering loads and multiply-adds on in-order ARM cores
load_fences_llvm     the LLVM functions that the fences call
prefetch             fetch the next block of a packed weight ahead
propagate_nan        let NaN pass through maxima and minima of elements
safe_loop_partition  keep TVM's LoopPartition to conditions on which it is sound
skip_padding_taps    skip, per output tile, kernel taps that only touch padding
vector_tails         handle channels that do not fill whole vectors
"""
