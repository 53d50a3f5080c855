"""Kernels for NVIDIA GPUs.

schedule          choose the schedule rule of each kernel
short_reductions  sums over small windows: one thread for each result
tensor_cores      float16 products on tensor cores
"""
