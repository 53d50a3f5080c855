"""From a model to an artifact: import -> check -> graph passes -> CPU schedules -> code -> linked library.

`prepare` does once per model what every board shares; `build` does the rest, once per (model, profile). Both keep what they make in the
store, named by the digest of everything that matters, and both run in worker processes. TVM is imported in the modules below, not here.
"""
