"""Extra builds that explain a model's results and speed.

guarded_memory        memory against a page that cannot be touched
guarded_run           run a model's kernels one by one in such memory
steps_of_main         read the calls of kernels in a module as steps
reference_kernels     a model's kernels as plain loops on this machine, to compare with
reference_run         run the reference kernels and keep what they compute
reference_steps       the steps of a model, and their values as files
steps_of_main         read the calls of kernels as steps over numbered tensors
guarded_memory        memory that ends at a page that cannot be touched
guarded_run           run a model's kernels one by one in guarded memory
roofline_probe        kernels that measure the peak of a CPU core
roofline_probe_gpu    kernels that measure the peak of a GPU
"""
