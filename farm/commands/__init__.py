"""Commands of the command line, one per module: parse arguments, call farm, print, exit.

    accuracy, baseline, bench, bisect, check, compare, compile, completion, deploy, deployments,
    devices, doctor, export, history, profile, provision, quantize, records, report, run, runs,
    schema, serve, tune   the commands; deployments also holds rollback and undeploy, and serve
                          holds agent and tracker

    common                the session that every command receives, its options, writing files
    options               options shared by several commands, and their types
    model_options         --shape, --value, --dtype, --module, --trust
    thread_options        --threads, --cores, --pinned
    engine_option         --against
    baseline_comparison   shared by compare, bench and report: baselines, comparisons, regressions
    doctor_output         shared by doctor and provision: findings as lines and JSON
    output                print to the terminal; no other command prints
    colours               the colours of the output
    progress              the spinner of commands with a single task

A new command is a module here, and a line in `farm.cli`.
"""
