"""Passes over a model's Relax graph, from one graph to an equivalent one.

`farm.compiler.relax_pipeline` has their order.

Constants and shapes:
    constant_folding  compute constant expressions and shape arithmetic in numpy
    boolean_logic     rewrite comparisons and arithmetic of booleans as logic
    clamp_indices     keep indices that come from an input within their tensor

Convolutions:
    conv1d_conv3d_to_conv2d  rewrite 1D and 3D convolutions and pools as 2D ones
    conv_of_concat           split a 1 x 1 convolution of a concatenation into a sum over its parts
    transposed_conv          rewrite transposed convolutions as ordinary ones of their phases
    trim_padding_taps        remove kernel taps that only touch padding
    pad_group_channels       fill the channels of each group of a convolution up to whole vectors

Normalisation and layout:
    group_norm       compute group norms from sums per channel
    sink_transposes  move transposes towards the end until they cancel
    fusion_barriers  keep kernels apart that are slower when fused

Precision:
    fp16_weights          keep weights in float16 and compute in float32
    fp16_arithmetic       compute in float16 on NVIDIA GPUs
    qdq_to_float          read scales and zero points; rewrite the remaining quantize and dequantize
    qdq_to_int8           compute quantized models in integers
    quantized_arithmetic  rescale sums of integers, the same to the bit on every machine
    round_clamp           round to integers within bounds

    layer_names  map each step of a built model to operators of its source
"""
