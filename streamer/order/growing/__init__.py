"""The order of a dataset that is trained on while it still arrives. Pure functions, no I/O.

options.py  how it grows, as its user says it
cohorts.py  the parts in which samples are admitted
log.py      which cohorts each round trains, and why uses stay level
order.py    positions to samples
"""

from streamer.order.growing.cohorts import CohortChunks, Cohorts
from streamer.order.growing.log import AdmissionLog, KnownRounds, Round, Rounds, rounds_between
from streamer.order.growing.options import Growing
from streamer.order.growing.order import GrowingOrder

__all__ = [
    "AdmissionLog",
    "CohortChunks",
    "Cohorts",
    "Growing",
    "GrowingOrder",
    "KnownRounds",
    "Round",
    "Rounds",
    "rounds_between",
]
