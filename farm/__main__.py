"""Entry point of `farm` and of `python -m farm`."""

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
    from farm import cli

    cli.main()


if __name__ == "__main__":
    main()
