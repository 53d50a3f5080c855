"""Import ONNX files.

    load                    load a file into a Relax module, with ONNX Runtime as the reference
    runtime                 ONNX Runtime sessions
    layer_outputs           the output of every node in ONNX Runtime
    external_data_files     weights outside of the file
    input_shapes            the shape of each input: from the file, from the user, or an open batch
    inputs_to_initializers  inputs whose values the user states become initializers
    if_to_selection         an If between two computed values becomes a selection
    bounded_shapes          padded shapes and counts for data-dependent shapes
    exact_transforms        Fourier transforms that ONNX Runtime computes exactly, for the reference
    exact_products          products of few bits that ONNX Runtime computes exactly, likewise
    stable_example          example inputs on which rounding does not decide what is selected
    inferred_types          the types of a graph's values
    sort_nodes              put nodes into the order in which they can be computed
    simplify                fold known shapes and constants, inline functions, resolve branches
    known_sequences         the elements of sequences, by the names of their tensors
    node_evaluation         the outputs of a node of constants, and the types of outputs
    node_reading            attributes, inputs and subgraphs of nodes of any opset
    unroll                  the copies of the body of a Loop or Scan
    qlinear_to_qdq          rewrite QLinear operators to DequantizeLinear, operator, QuantizeLinear
    fold_narrow_weights     constant weights of few bits become the numbers that they stand for
    unfuse                  rewrite operators that ONNX Runtime's optimizer has fused
    unsupported             operators and attributes that TVM's importer converts incorrectly
    operator_support        operators that TVM's importer has no converter for
    summary                 a file's content, without importing it
    converters              converters of single operators

Call `load.load(model)` to import a file.
"""
