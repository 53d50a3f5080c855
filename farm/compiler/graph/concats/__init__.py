"""Concatenations and splits of many tensors.

nested_concats  join the parts of nested concatenations at once
wide_concats    join many tensors in groups
wide_splits     take the pieces of a split into many by slices
"""
