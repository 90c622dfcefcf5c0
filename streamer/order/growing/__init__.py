"""Orders a dataset that is trained on while it still arrives: it is admitted in cohorts and trained on in rounds.

Used by `loader/`, where `loader/kinds/growing/` decides what each round admits, by `batches/samples/`, and by
`order/kinds/growing.py`. Pure functions, no I/O.

options.py  how a dataset grows, as its user says it
spec.py     what fixes the order
cohorts.py  the parts in which samples are admitted
log.py      which cohorts each round trains, and why uses stay level
order.py    positions to samples
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamer.order.growing.cohorts import CohortChunks, Cohorts
    from streamer.order.growing.log import AdmissionLog, KnownRounds, Round, Rounds, rounds_between
    from streamer.order.growing.options import NOT_GROWING, AnyGrowing, Growing, read_growing
    from streamer.order.growing.order import GrowingOrder
    from streamer.order.growing.spec import GrowingSpec

__all__ = [
    "NOT_GROWING",
    "AdmissionLog",
    "AnyGrowing",
    "CohortChunks",
    "Cohorts",
    "Growing",
    "GrowingOrder",
    "GrowingSpec",
    "KnownRounds",
    "Round",
    "Rounds",
    "read_growing",
    "rounds_between",
]

# The modules are imported at the first use of one of their names: all datasets look at the options, and few grow.
_MODULES = {
    "cohorts": ("CohortChunks", "Cohorts"),
    "log": ("AdmissionLog", "KnownRounds", "Round", "Rounds", "rounds_between"),
    "options": ("NOT_GROWING", "AnyGrowing", "Growing", "read_growing"),
    "order": ("GrowingOrder",),
    "spec": ("GrowingSpec",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
