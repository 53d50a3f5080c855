"""Code generation: from a scheduled module to a shared library.

executable           plan memory and generate machine code
loop_nest_pipelines  TVM's passes for loop nests, and farm's among them
parallel_codegen     lower, compile and emit the kernels on all cores
stack_tiles          keep register tiles on the stack, so that LLVM puts them into registers
link                 link object code without any library of the system
cuda_driver_stub     build a stub of NVIDIA's driver library, for machines without one
nvrtc                compile CUDA code to device binaries on a machine without a GPU
"""
