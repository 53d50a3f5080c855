"""Rewrite an ONNX model as one that computes the same and can be imported.

`load` applies them in this order:

    sort_nodes              put nodes into the order in which they can be computed
    inputs_to_initializers  inputs whose values the user states become initializers
    unfuse                  rewrite operators that ONNX Runtime's optimizer has fused
    qlinear_to_qdq          rewrite QLinear operators to DequantizeLinear, operator, QuantizeLinear
    few_bit_products        products with constant weights of 4 or 8 bits become MatMulNBits
    fold_narrow_weights     other constant weights of few bits become the floats they stand for
    simplify                fold known shapes and constants, inline functions, resolve branches
    masked_fill             one number that is written where a mask is true: a Where
    known_sequences         for simplify: the elements of sequences, by the names of their tensors
    unroll                  for simplify: the copies of the body of a Loop or Scan
"""
