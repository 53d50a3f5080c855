"""Kernels for CPUs: which loops compute an operator, and how they are scheduled.

From operators to loops:
    legalize             choose the loops of each operator: farm's own or TVM's
    conv_dense_compute   convolutions and matrix products, with packed weights
    windows              depthwise convolutions and pools
    padding_taps         kernel taps that only touch padding
    dot_products         products of few rows with the rows of a tensor, such as a cache
    rows                 reductions, softmax, layer norm, and recurrent layers, row by row
    load_time_kernels    kernels that transform stored parameters when a model is loaded

From loops to a schedule:
    schedule             choose the schedule rule of each fused kernel
    conv_dense_schedule  register tiles for convolutions and matrix products
    phase_interleave     interleave the phases of a transposed convolution
    transposes           transposes by register tiles
    general_schedule     threads and vectors for kernels without a rule of their own
    traces               schedules that MetaSchedule found

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
