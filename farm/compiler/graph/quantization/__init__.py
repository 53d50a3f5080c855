"""Passes over quantized models, which keep their arithmetic exact.

qdq_to_float          read scales and zero points; rewrite the remaining quantize and dequantize
qdq_to_int8           compute quantized models in integers
quantized_arithmetic  rescale sums of integers, the same to the bit on every machine
round_clamp           round to integers within bounds
"""
