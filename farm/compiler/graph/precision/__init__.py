"""Types of fewer bits: what is kept in them, and what is computed in them.

fp16_weights     keep weights in float16 and compute in float32
bf16_weights     the same for bfloat16, which becomes float32 when a build is loaded
fp16_arithmetic  compute in float16 on NVIDIA GPUs
fp32_arithmetic  compute models of float16 or bfloat16 in float32 on CPUs
"""
