"""Commands of the group "Judge and show" of `farm --help`.

Modules:
    history              runs of a model on a device over time
    compare              compare two runs, or two sets of runs
    baseline             name runs as the ones to compare with
    baseline_comparison  shared by compare, bench and report: comparisons with a baseline
    report               a page or a comment of runs
    runs                 export and import stored runs
    records              the fastest measured configuration of each kernel
"""
