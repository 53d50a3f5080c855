"""Windows that slide over each channel of an image: depthwise convolutions and pools.

depthwise_pool       their loops, and the rule that schedules them
depthwise_row_tiles  depthwise convolutions for in-order ARM cores, several rows at once
"""
