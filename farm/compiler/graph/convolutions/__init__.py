"""Passes that rewrite convolutions and pools as ones with fast schedules.

conv1d_conv3d_to_conv2d  rewrite 1D and 3D convolutions and pools as 2D ones
fold_padding             fold paddings of zeros into convolutions and max pools
conv_of_concat           split a 1 x 1 convolution of a concatenation into a sum over its parts
transposed_conv          rewrite transposed convolutions as ordinary ones of their phases
trim_padding_taps        remove kernel taps that only touch padding
planar_images            let convolutions of images read channels-first input without a transpose
"""
