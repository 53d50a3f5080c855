"""Kernels for CPUs: which loops compute an operator, and how they are scheduled.

From operators to loops:
    legalize             choose the loops of each operator: farm's own or TVM's
    conv_dense_compute   convolutions and matrix products, with packed weights
    depthwise_pool       depthwise convolutions and pools
    depthwise_row_tiles  depthwise convolutions for in-order ARM cores, several rows at once
    padding_taps         kernel taps that only touch padding
    softmax_layer_norm   softmax, its logarithm, and layer norm over the last axis
    dot_products         products of few rows with the rows of a tensor, such as a cache
    recurrent_rows       sequences of a recurrent layer that are computed together
    row_reductions       sums, means, maxima and minima of the last axes
    block_transform_kernel  what divides a weight into blocks when a model is loaded

From loops to a schedule:
    schedule             choose the schedule rule of each fused kernel
    conv_dense_schedule  register tiles for convolutions and matrix products
    phase_interleave     interleave the phases of a transposed convolution
    transposes           transposes by register tiles
    general_schedule     threads and vectors for kernels without a rule of their own
    trace_grammar        what the trace of a schedule may hold: a record may be a stranger's
    metaschedule_traces  apply a schedule that MetaSchedule found

Which configuration is best:
    kernel_config         what may be configured, and who decides: a record, or the cost model
    cost_model            predicted cycles of each configuration
    register_tiles        tile sizes that keep all sums in registers
    predicted_peak_share  the predicted share of the peak, and why a kernel is slow

    attention    attention as one kernel
    block_quantized  products with weights of few bits
    depth_first  a convolution, and windows over its result, as one kernel
    int8         kernels of 8-bit integers
    winograd     Winograd's convolution
    tir_passes   passes over scheduled functions
"""
