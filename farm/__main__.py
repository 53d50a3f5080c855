"""The program: `farm`, or `python -m farm`."""

import signal


def main() -> None:
    """Until the command line has loaded, there is nothing to clean up: Ctrl-C ends us at once, without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from farm import cli

    cli.main()


if __name__ == "__main__":
    main()
