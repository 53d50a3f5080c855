"""Builds of a model's kernels in several variants, for a search that measures them.

tasks                the tuning tasks of a model: kernels that can be configured or searched
metaschedule_search  propose new schedules with MetaSchedule
batch_build          build several variants into one library
batch_code           find tasks and generate the code of variants, which a sandbox may run
"""
