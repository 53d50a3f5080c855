"""Import PyTorch models.

    load                              detect the format of torch's files
    exported_program                  .pt2 files of torch.export.save
    torchscript                       TorchScript files
    torchscript_numbers               numbers that a TorchScript file derives from shapes
    torchscript_traced_inputs         the input shapes that a TorchScript file was traced with
    torchscript_non_tensor_arguments  arguments of a TorchScript file that are no tensors
    state_dict                        files of weights, for a module that a function returns
    python_function                   functions that return a module and example inputs
    checks                            refuse files that could do more than compute
    python_source_dependencies        record the files that such a function depends on
    convert                           convert an exported program to a Relax module
    type_promotion                    the type that an operator computes in
    rewriting                         forms of operators that TVM reads wrongly
    random_numbers                    programs whose answer depends on random numbers
    dtypes                            element types of torch and numpy
    intermediates                     the result of every operation in torch
    pytree_stand_ins                  stand-ins for classes of packages that are not installed
    decompositions                    operators by others, where torch has no decomposition
    converters                        converters of single operators

Call `load.load(model)` for a file, `python_function.load(model)` for a `python:` source.
"""
