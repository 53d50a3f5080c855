"""Winograd's convolution F(m x m, 3 x 3) (Lavin and Gray, 2016).

compute     transforms and products as loops
schedule    how those loops are scheduled
cost_model  where it is allowed, with which m, and its predicted cycles
"""
