"""Two layers as one kernel: a convolution, and the windows that slide over its result.

The windows are those of a depthwise convolution or of a pool.

followed_by_windows  find convolutions that may become one of a pair
merge     find pairs of kernels that gain by it, and merge them
plan      choose the register tile and the parts of the image
schedule  compute windows as soon as what they read is there
"""
