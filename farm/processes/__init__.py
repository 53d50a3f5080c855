"""Processes and threads: start them, end them in time, and leave nothing behind.

Modules:
    deadline      the time until which something must be done
    cancellation  end the work of a thread from outside
    at_exit       what runs when a worker process ends, or is told to
    garbage       how often a process looks for garbage
    output_end    the end of what programs write
    subprocesses  start other programs; the only use of subprocess
    signals       Ctrl-C and the other signals
    worker_main   the program of a worker process
    workers       the pool of workers, processes and threads
"""
