"""Convert torch operators that TVM's importer lacks or converts incorrectly.

    operators        reductions, views, upsampling and others
    norms            norms of float64, and group norms without a weight
    pools            maxima of windows, and where they are
    elementwise      elementwise operators
    products         sums of products of other types than float32
    complex_numbers  operators on complex numbers, and Fourier transforms
    indexing         indexing by tensors
    recurrent        LSTM, GRU and RNN layers
    experts          products with the matrices of groups
    pt2e             quantize and dequantize operators of PT2E

Each module's `converters()` returns a table for `custom_convert_map` of TVM's importer.
"""
