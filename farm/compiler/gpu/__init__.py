"""Kernels for NVIDIA GPUs.

schedule      choose the schedule rule of each kernel
window_sums   sums over small windows: one thread for each result
tensor_cores  float16 products on tensor cores
"""
