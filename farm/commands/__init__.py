"""Commands of the command line: parse arguments, call farm, print, exit.

The packages are the groups of `farm --help`, with one module a command:

    measure, judge, models, devices, servers

Modules:
    completion     the command of the name: completion of a shell
    schema         the command of the name: JSON schemas of what `--json` prints
    common         the session that every command receives, its options, writing files
    options        options shared by several commands, and their types
    model_options  --shape, --value, --dtype, --module, --trust
    thread_options --threads, --cores, --pinned
    engine_option  --against
    reservation_option  --reservation
    output         print to the terminal; no other command prints
    rich_theme     the colours of the output
    progress       the spinner of commands with a single task

A new command is a module of its group's package, and a line in `farm.cli`.
"""
