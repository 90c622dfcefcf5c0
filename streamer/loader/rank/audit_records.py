"""Keeps records of what a rank has delivered, in its states and its log; `streamer audit` reads them.

`loader/dataloader.py` has an `AuditRecords` for each loader.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from streamer.batches.skipping import Skipped
from streamer.loader.delivery import Delivery
from streamer.loader.rank.rank_stream import RankStream
from streamer.order.audit import LOG_MARK, Record, read_records, write_records

logger = logging.getLogger(__name__)


class AuditRecords:
    """Keeps the records of one loader, of the running epoch and the one before it. Used by the trainer's thread.

    A record takes 200 bytes, and 30 for each member of a mix.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        # Whether the last record is of this loader, so that further batches are added to it.
        self._open = False
        self._logged: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"AuditRecords({self._records})"

    def note(self, stream: RankStream, delivery: Delivery, skipped: Sequence[Skipped]) -> None:
        """Adds a batch that the trainer has received.

        Args:
            stream: Stream of the loader.
            delivery: The batch.
            skipped: Samples of the batch that were skipped.
        """
        epoch = delivery.epoch
        batch = delivery.batch
        start = stream.position(epoch, batch)
        last = self._records[-1] if self._open else None
        if last is None or (last.epoch, last.stop) != (epoch, start):
            # Records of positions that are delivered again, as by a second `iter()` of an epoch, are dropped.
            before = [
                one for one in self._records if one.epoch == epoch - 1 or (one.epoch == epoch and one.stop <= start)
            ]
            last = stream.record(epoch, batch)
            self._records = [*before, last]
            self._open = True
        last.add(stream.position(epoch, batch + 1), delivery.tallies, [one.place for one in skipped])

    def load(self, state: Mapping[str, object]) -> None:
        """Replaces the records by those of a state; the next batch begins a new one. An empty mapping has none.

        Raises:
            StateError: the records are malformed.
        """
        self._records = read_records(state)
        self._open = False

    def save(self, state: dict[str, object]) -> dict[str, object]:
        """Returns the loader's state with the records added."""
        return {**state, **write_records(self._records)}

    def log(self, state: dict[str, object], position: tuple[int, int]) -> None:
        """Writes the loader's state with the records to the log, at level INFO and once for a position.

        Does nothing before the loader has delivered a batch since `load`.

        Args:
            state: State of the loader.
            position: Epoch, and number of the batch that is delivered next.
        """
        if self._open and self._logged != position and logger.isEnabledFor(logging.INFO):
            self._logged = position
            logger.info("%s%s", LOG_MARK, json.dumps(self.save(state)))
