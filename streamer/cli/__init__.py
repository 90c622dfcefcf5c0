"""The command line: `streamer COMMAND`.

One file per command; `main.py` lists them, and only `terminal.py` writes. Heavy imports (rich, the engine, torch)
happen inside the command that needs them: `streamer --help` takes under 150 ms.
"""
