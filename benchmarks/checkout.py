"""Makes the checkout's `tests` importable: the benchmarks share its fakes and simulations. Import it before them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
