"""Convolutions and matrix products of 8-bit integers with sums of 32 bits.

legalize          choose the loops of an int8 operator
compute           the loops
int8_register_tiles  register tiles with their predicted cycles
dot_instructions  the CPU's instructions for integer dot products, as tensor intrinsics
"""
