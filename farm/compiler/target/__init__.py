"""Models of the processors for which the compiler generates code.

cpu_model  vector width, registers, caches and instruction throughput of each CPU
"""
