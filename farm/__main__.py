"""Entry point of `farm` and of `python -m farm`."""

import atexit
import os
import signal
import sys

_exit_codes: list[int] = []


def main() -> None:
    """Run the command line.

    Until it is loaded, there is nothing to clean up: Ctrl-C ends the process at once, without a
    traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # OpenBLAS, which numpy starts, has a thread for each core. Until there is work, a thread waits
    # by spinning for 2 to this power of cycles; by default 25 ms.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    if sys.argv[1:3] == ["lab", "door"] and sys.argv[3:4] != ["--help"]:
        from farm.lab.door.main import main as door  # for each session: without what cli imports

        raise SystemExit(door(sys.argv[3:]))
    from farm.processes.garbage import collect_garbage_less_often

    collect_garbage_less_often()
    from farm import cli

    try:
        cli.main()
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit_codes.append(end.code)
        raise


def _end_without_cleanup() -> None:
    """End the process, where its exit code is known, without taking hundreds of modules apart.

    That would take a fifth of the time of a short command, and frees only memory. All threads but
    daemons have ended, and all other functions of atexit have run. A command that failed keeps its
    exit code if its output cannot be written: the interpreter would end with one of its own.
    """
    written = True
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            written = False
    if _exit_codes and (written or _exit_codes[0]):
        os._exit(_exit_codes[0])  # else the interpreter reports what is not written, as it ends


# The first function that is registered is called last. If Python's start-up files have registered
# one, such as coverage's, it would not be called: Python then ends as usual.
if not atexit._ncallbacks():
    atexit.register(_end_without_cleanup)

if __name__ == "__main__":
    main()
