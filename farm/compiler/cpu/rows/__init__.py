"""Kernels that compute each row of a tensor by itself.

row_reductions      sums, products, means, maxima and minima of the last axes
softmax_layer_norm  softmax, its logarithm, and layer norm over the last axis
recurrent_rows      sequences of a recurrent layer that are computed together
"""
