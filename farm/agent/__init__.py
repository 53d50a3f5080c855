"""The native device agent: its C++ sources, and how they are built for a device's architecture.

Modules:
    recipe         targets, flags, sources, and the digest of all of them
    build          build the executable, or find it prebuilt or in the cache
    zig_cache      let each zig of one version reuse what another has compiled
    src            the agent's C++ sources
    tvm_stand_ins  replacements for headers that the TVM wheels leave out
"""
