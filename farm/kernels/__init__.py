"""Hand-written TIR kernels that importers and compiler share.

    recurrent             all steps of an LSTM, GRU or RNN layer in one kernel
    recurrent_layer_cost  recognise that kernel and count its operations
    bounded_selection     NonZero, NonMaxSuppression and others with data-dependent shapes
    block_quantized       products with weights of few bits, and rows of such weights
    grouped_product       rows times the matrices of their groups, as mixtures of experts have them
    roi_align             RoiAlign that takes the weights of a sample once for all channels
    fixed_extents         the shape of a tensor whose extents are all known
    grid_sample           grid sampling that takes the weights of a point once for all channels
    cumulative            cumulative sums and products along an axis that is not the last
    heap                  a binary heap of values and their indices
    top_k                 topk of few elements of many, by a heap
    sort                  topk, sort and argsort, without functions that a board's runtime lacks
    reduce_max_min        max and min reductions that are correct for infinities
    arg_reduction         argmax and argmin of numbers that are all the smallest or largest
    elementwise           elementwise functions of operands that TVM has no lowering for
    scatter               scatters of whole rows
    slice_scatter         scatters that write a slice
    partial_scatter       scatter_elements whose indices are shorter than the data
    vector_math           elementary functions of float32 in vectorizable arithmetic

Importers call `emit(builder, call)` of those modules that have a table EMIT, and functions such as
`recurrent.emit_recurrent_layer(builder, layer, ...)` and `block_quantized.emit_product`.
"""
