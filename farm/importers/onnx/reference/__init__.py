"""Compute the answers of ONNX Runtime that farm's are judged by.

runtime           ONNX Runtime sessions
layer_outputs     the output of every node
exact_transforms  Fourier transforms by operators that ONNX Runtime computes exactly
exact_products    products with weights of few bits, in the type of their inputs
stable_example    example inputs on which rounding does not decide what is selected
"""
