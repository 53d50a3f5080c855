"""Read inputs that users feed to a model: arrays, images and labels.

    read      read files and check them against the inputs of a model
    images    decode, orient, resize, crop, scale and normalise images
    quantize  convert numbers for an input that is quantized

Call `read.read_inputs(path, inputs, preprocess)` for the inputs of one inference.
"""
