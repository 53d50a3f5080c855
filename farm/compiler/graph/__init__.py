"""Passes over a model's Relax graph, from one graph to an equivalent one.

`farm.compiler.relax_pipeline` has their order.

Constants and shapes:
    constant_folding  compute constant expressions and shape arithmetic in numpy
    constant_evaluation
                      evaluate more operators on constants, before they become loops
    boolean_logic     rewrite comparisons and arithmetic of booleans as logic
    empty_tensors     replace tensors without elements, and what is computed from them
    clamp_indices     keep indices that come from an input within their tensor
    concats           concatenations and splits of many tensors
    scattered_rows    write scatters with one index for a whole row as scatters of rows
    slice_scatters    write scatters into a slice as kernels without indices
    cumulative_kernels
                      compute cumulative sums and products on CPUs by farm's kernel

Convolutions, normalisation and layout:
    convolutions     rewrite convolutions as ones with fast schedules
    group_norm       compute group norms from sums per channel
    sink_transposes  move transposes towards the end until they cancel
    fusion_barriers  keep kernels apart that are slower when fused

Products:
    attention            find attention, which becomes one kernel
    broadcast_matrices   multiply a batch by one matrix, not by copies of it
    loop_input_products  multiply all steps of a loop's input by a weight at once

Elementwise operators:
    decomposed_activations  recognise GELU and SiLU where they are written as several operators
    constant_divisors       multiply by reciprocals of constants

Precision:
    precision     float16 and bfloat16
    quantization  passes over quantized models

    operator_fusion  fuse operators into kernels
    layer_names      map each step of a built model to operators of its source
"""
