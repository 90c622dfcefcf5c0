"""The command line, `streamer COMMAND`: the commands of daily use, and what they share with those of `tools/`.

Each command is one file, `*_command.py`. `main.py` lists them and runs the chosen one, `options.py` has the options
that several share, and all output goes through `terminal.py`. Heavy imports (rich, the engine, torch) are inside the
functions that need them, so that `streamer --help` answers quickly.
"""
