"""The compiler: from a model's Relax module to an artifact that a board can run.

Modules:
    build                 build a prepared model for a profile, or take the artifact from the store
    artifact              read what a build left in the store
    build_digests         digests that name builds: of sources, versions, CPU and model
    lower                 imported module -> scheduled module and its parameters, for one target
    relax_pipeline        the ordered list of graph passes
    winograd_weights      the transform of Winograd's weights, in numpy
    weight_transforms     all transforms of weights, in numpy
    equal_arrays          find arrays with the same numbers
    load_time_transforms  what a library makes of its parameters when it is loaded
    execution_graph       the steps and tensors of a built model as data
    parameter_files       parameters as files that every TVM runtime can load
    host_run              build a model for this machine and run it in this process
    import_check_linker   link what the check of an import generated, for the check to run it

Packages:
    target  models of the CPUs: vector width, registers, caches, throughput
    ir      helpers for Relax and TIR that know nothing of models and operators
    graph   passes over the Relax graph
    cpu     loops and schedules of kernels for CPUs
    cpu.int8           kernels of 8-bit integers
    cpu.winograd       Winograd's convolution
    cpu.tir_passes     passes over scheduled TIR functions
    gpu          schedules of kernels for NVIDIA GPUs
    codegen      memory planning, machine code, linking, CUDA binaries
    tuning       variants of a model's kernels, for a search that measures them
    diagnostics  reference kernels and roofline probes, to explain results and speed

Stages of a build. farm/checked_model_import.py does the first two once per model, for all boards:
    1 import           farm/importers/: model file -> Relax module and weights
    2 check            host_run.py, or build.py where that build is kept: build for this machine,
                       compare with the reference's outputs
build.py does the others once per (model, profile):
    3 resolve          lower.py: the profile's target; target/cpu_model.py: the model of its CPU
    4 graph passes     relax_pipeline.py `run_passes_before_legalization`: fold
                       constants, choose layouts, rewrite to int8; the passes are in graph/
    5 legalize, fuse   relax_pipeline.py `legalize_and_fuse`: operators -> TIR loops
                       (cpu/legalize.py, gpu/schedule.py), in the configuration that
                       cpu/kernel_config.py selects, then fused into kernels
    6 schedule         cpu/schedule.py or gpu/schedule.py: tiles, vectors and threads of each
                       kernel; then cpu/tir_passes/
    7 parameters       relax_pipeline.py `lift_constants_into_tuple`: constants -> parameters,
                       out of the code
    8 machine code     codegen/executable.py: plan memory, then TVM's and LLVM's code generation;
                       codegen/nvrtc.py for CUDA
    9 link, store      codegen/link.py: library; parameter_files.py: parameters;
                       execution_graph.py: graph.json; build.py: metadata.json

A prepared model and an artifact are kept in the store under the digest of everything that
determines them. Both are made in worker processes. This module does not import TVM; the modules
below do.
"""
