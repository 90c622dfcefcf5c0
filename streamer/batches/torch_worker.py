"""Says whether this process is a worker of torch's DataLoader, without importing torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo


def get_worker_info() -> WorkerInfo | None:
    """Returns number and dataset of the worker, or None in any other process.

    A worker has imported torch. Tasks of a pack have not, and begin seconds earlier.
    """
    data = sys.modules.get("torch.utils.data")
    found: WorkerInfo | None = None if data is None else data.get_worker_info()
    return found
