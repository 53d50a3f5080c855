"""Two layers as one kernel: a convolution, and the windows that slide over its result.

The windows are those of a depthwise convolution or of a pool.

merge     find pairs of kernels that gain by it, and merge them
plan      choose the register tile and the parts of the image
schedule  compute windows as soon as what they read is there
"""
