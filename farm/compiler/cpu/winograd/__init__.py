"""Winograd's convolution F(m x n, r x s), of images and signals (Lavin and Gray, 2016).

compute         transforms and products as loops
schedule        how those loops are scheduled
weight_transform_kernel  the transform of weights, which a library runs when it is loaded
cost_model      where it is allowed, with which m, and its predicted cycles
"""
