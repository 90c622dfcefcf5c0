"""The command line: `streamer demo | serve | index`.

One file per command; `main.py` finds them, `terminal.py` is the only one that writes. Heavy imports (rich, the
engine, torch) happen inside the command that needs them: `streamer --help` takes under 150 ms.
"""
