"""Kernels over the rows of a tensor: along its last axes, or step by step.

row_reductions      sums, products, means, maxima and minima of the last axes
softmax_layer_norm  softmax, its logarithm, and layer norm over the last axis
recurrent_rows      sequences of a recurrent layer that are computed together
"""
