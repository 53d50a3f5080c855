"""Entry point of `farm` and of `python -m farm`."""

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line.

    Until it is loaded, there is nothing to clean up: Ctrl-C ends the process at once, without a
    traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:3] == ["lab", "door"] and sys.argv[3:4] != ["--help"]:
        from farm.lab.door.main import main as door  # for each session: without what cli imports

        raise SystemExit(door(sys.argv[3:]))
    # Loading modules makes no garbage, among which the collector would search again and again.
    gc.set_threshold(10_000)
    codes: list[int] = []
    atexit.register(_end_without_cleanup, codes)  # the first that is registered is called last
    from farm import cli

    try:
        cli.main()
    except SystemExit as end:
        if isinstance(end.code, int):
            codes.append(end.code)
        raise


def _end_without_cleanup(codes: list[int]) -> None:
    """End the process, where its exit code is known, without taking hundreds of modules apart.

    That would take a fifth of the time of a short command, and frees only memory. All threads have
    ended, and all other functions of atexit have run.
    """
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it as it ends
    if codes:
        os._exit(codes[0])


if __name__ == "__main__":
    main()
