"""Products with weights of few bits on CPUs, see farm.kernels.block_quantized.

rewrite    replace the imported kernels by those of this package, by the number of rows
few_rows   a code becomes a float in a register, where it is multiplied
many_rows  codes become floats in the L1 cache, and all rows are multiplied by them
tiles      what both do with rows, and with loops
"""
