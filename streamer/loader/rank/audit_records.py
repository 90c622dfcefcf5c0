"""What a rank has delivered, as records in its states and its log; `streamer audit` reads them."""

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
    """Keeps the records of one loader. Used by the trainer's thread.

    Kept are those of the epoch that runs and of the one before it: 200 bytes each, and 30 per member of a mix.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        # Whether the last one is of this loader, and goes on.
        self._open = False
        self._logged: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"AuditRecords({self._records})"

    def note(self, stream: RankStream, delivery: Delivery, skipped: Sequence[Skipped]) -> None:
        """Adds a batch that the trainer has."""
        epoch = delivery.epoch
        batch = delivery.batch
        start = stream.position(epoch, batch)
        last = self._records[-1] if self._open else None
        if last is None or (last.epoch, last.stop) != (epoch, start):
            # Positions that are delivered again, as by a second `iter()` of an epoch, replace those before.
            before = [
                one for one in self._records if one.epoch == epoch - 1 or (one.epoch == epoch and one.stop <= start)
            ]
            last = stream.record(epoch, batch)
            self._records = [*before, last]
            self._open = True
        last.add(stream.position(epoch, batch + 1), delivery.tallies, [one.place for one in skipped])

    def load(self, state: Mapping[str, object]) -> None:
        """Goes on from a state: its records stay as they are, and new ones follow."""
        self._records = read_records(state)
        self._open = False

    def save(self, state: dict[str, object]) -> dict[str, object]:
        """Returns the loader's state with the records."""
        return {**state, **write_records(self._records)}

    def log(self, state: dict[str, object], position: tuple[int, int]) -> None:
        """Writes the state at a position to the log, once."""
        if self._open and self._logged != position and logger.isEnabledFor(logging.INFO):
            self._logged = position
            logger.info("%s%s", LOG_MARK, json.dumps(self.save(state)))
