"""One file a command: parse, call, print, exit. What they share is in `common`."""
