"""Import ONNX files.

    load                 load a file into a Relax module, with ONNX Runtime as the reference
    summary              a file's content, without importing it
    external_data_files  weights outside of the file
    input_shapes         the shape of each input: from the file, from the user, or an open batch
    extent_expressions   extents that are computed from those of other axes
    inputs               the inputs that a caller feeds, and those that are constants
    rewrites             the same model in a form that can be imported
    bounded_shapes       padded shapes and counts for data-dependent shapes
    converters           converters of single operators
    if_to_selection      an If between two computed values becomes a selection
    reference            what ONNX Runtime makes of a model, and of which inputs
    unsupported          operators and attributes that TVM's importer converts incorrectly
    operator_support     operators that TVM's importer has no converter for
    inferred_types       the types of a graph's values
    contributed_types    the types that operators of ONNX Runtime give
    node_evaluation      the outputs of a node of constants, and the types of outputs
    node_reading         attributes, inputs and subgraphs of nodes of any opset

Call `load.load(model)` to import a file.
"""
