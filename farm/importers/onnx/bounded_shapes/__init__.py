"""Give tensors with data-dependent shapes a padded shape, and counts of their valid elements.

rewrite           the pass over a model
extent            extents as sums of constants and counts; which axes a reshape joins
graph_writer      the graph that is written, and what is known of extents
shape_data_rules  the arithmetic around shapes, computed with extents
layout_rules      operators that move elements
arithmetic_rules  operators that compute each element, row or image, and reductions
selection_rules   operators that select elements, and scatters
branches          an If whose results have dynamic extents
"""
