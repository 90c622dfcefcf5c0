"""Makes `python -m streamer` the same as the command `streamer` (`cli/main.py`)."""

import sys

from streamer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
