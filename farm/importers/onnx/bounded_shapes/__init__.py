"""Give tensors whose extents depend on values fixed extents, and counts beside them.

rewrite           the pass: a model with NonZero or NonMaxSuppression as one of fixed extents
extent            extents as sums of constants and counts; which axes a reshape joins
graph_writer      the graph that is written, and what is known of extents
number_rules      the arithmetic around shapes, computed with extents
layout_rules      operators that move elements
arithmetic_rules  operators that compute each element, row or image, and reductions
selection_rules   operators that select elements, or write to places
branches          an If whose results have counted extents
node_reading      attributes and inputs of nodes of any opset
"""
