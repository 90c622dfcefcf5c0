"""`python benchmarks/peers`: see compare.py."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Beside what this folder has: the other benchmarks' modules, and what makes the peers' environment.
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

if __name__ == "__main__":
    from compare import main

    main()
