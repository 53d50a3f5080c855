"""Import TFLite files.

    load              load a file into a Relax module, with LiteRT as the reference
    tflite_file       the operators and tensors of a file
    corrected         converters of operators that TVM's importer lacks or converts incorrectly
    converter         the conversion of a file: quantized tensors, states, complex numbers, names
    recurrent         the converter of LSTMs
    unroll            copies of the bodies of loops
    summary           a file's content, without importing it
    flatbuffer_check  check offsets and sizes before LiteRT reads a file

Call `load.load(model)` to import a file.
"""
