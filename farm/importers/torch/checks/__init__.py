"""Check what a stranger's file could make torch do, before torch reads it and while it runs.

pickle_callables         names in a pickle that is not a file of weights
pickle_check             pickles: the classes that they may name
exported_program_check   .pt2 archives: content that could carry code
exported_program_schema  the structure of a .pt2 archive
expressions              a grammar for expressions in a .pt2 archive
torchscript_check        the code and the graph of TorchScript
allowed_operators        the operators that a program may call
checked_arguments        arguments that torch's operators trust
"""
