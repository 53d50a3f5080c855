"""TVM's Schedule without its checks of argument types.

They resolve the type hints of each primitive anew in each call, which took a tenth of the time of
lowering. The rules that farm applies have their types checked by mypy.
"""

from __future__ import annotations

from tvm.s_tir import Schedule


class UncheckedSchedule(Schedule):  # type: ignore[misc]
    """A Schedule whose primitives do not check the types of their arguments."""


# TVM's decorator `type_checked` keeps the function that it checks in `__wrapped__`
for _name, _primitive in vars(Schedule).items():
    if hasattr(_primitive, "__wrapped__"):
        setattr(UncheckedSchedule, _name, _primitive.__wrapped__)
