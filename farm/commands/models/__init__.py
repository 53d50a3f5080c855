"""Commands of the group "Models" of `farm --help`.

Modules:
    check      what a model needs, and whether it is imported right
    compile    build a model for a profile or a device
    quantize   int8 and float16 of a model
    export     a folder that runs without farm
    cache      show, fetch and prune the cache of builds
"""
