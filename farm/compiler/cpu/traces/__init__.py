"""Schedules that MetaSchedule has found, for kernels without a rule.

trace_grammar        what the trace of a schedule may hold: a record may be a stranger's
metaschedule_traces  apply a schedule that was found
"""
