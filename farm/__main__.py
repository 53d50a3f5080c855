"""Entry point of `farm` and of `python -m farm`."""

import signal


def main() -> None:
    """Run the command line.

    Until it is loaded, there is nothing to clean up: Ctrl-C ends the process at once, without a
    traceback.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from farm import cli

    cli.main()


if __name__ == "__main__":
    main()
