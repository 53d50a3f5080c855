"""Hand-written TIR kernels that importers and compiler share.

    recurrent             all steps of an LSTM, GRU or RNN layer in one kernel
    recurrent_layer_cost  recognise that kernel and count its operations
    bounded_selection     NonZero, NonMaxSuppression and others with data-dependent shapes
    roi_align             RoiAlign that takes the weights of a sample once for all channels
    sort                  topk, sort and argsort, without functions that a board's runtime lacks
    reduce_max_min        max and min reductions that are correct for infinities
    vector_math           exp, sigmoid, tanh and erf of float32 in vectorizable arithmetic

Importers call `emit(builder, call)` of sort and minmax, and
`recurrent.emit_recurrent_layer(builder, layer, ...)`.
"""
