"""Where a growing run is: the parts of its order, all admissions so far, and the position delivered."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from streamer.errors import StateError
from streamer.order.spec import OrderSpec
from streamer.order.state import STATE_FORMAT, State, check_format


class _Own(msgspec.Struct):
    reuse: int
    epoch_samples: int
    least: int
    admitted: tuple[int, ...]


class GrowingState(msgspec.Struct, frozen=True):
    """The state of a growing run, the same on all ranks, for any number of them.

    Holds the whole log of admissions, a number per round: any later run can repeat this one from its first batch.

    Attributes:
        place: order, epoch, and samples of the epoch delivered.
        reuse: k.
        epoch_samples: E, in whole global batches of the run.
        least: cohorts that a round trains at least.
        admitted: cohorts that each round has added.
    """

    place: State
    reuse: int
    epoch_samples: int
    least: int
    admitted: tuple[int, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for any checkpoint format."""
        own = {name: getattr(self, name) for name in _Own.__struct_fields__}
        return {**self.place.to_dict(), "kind": "growing", **own, "admitted": list(self.admitted)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, object]) -> GrowingState:
        """Reads what `to_dict` wrote.

        Raises:
            StateError: of another kind of dataset, another format, a field missing or of another type.
        """
        check_format(saved)
        if saved.get("kind") != "growing":
            raise StateError(
                f"the state is not of a growing dataset (format {STATE_FORMAT}, kind {saved.get('kind')!r}); construct "
                "the dataset as in the saved run",
                field="kind",
            )
        place = State.from_dict({name: value for name, value in saved.items() if name != "kind"})
        own = {name: saved.get(name) for name in _Own.__struct_fields__}
        try:
            return cls(place, **msgspec.structs.asdict(msgspec.convert(own, _Own)))
        except msgspec.ValidationError as error:
            raise StateError(f"state of a growing dataset: {error}", field="admitted") from error

    def check(self, spec: OrderSpec, reuse: int, epoch_samples: int) -> None:
        """Makes sure that the dataset in hand has the order of this state.

        Args:
            spec: of the dataset.
            reuse: of the dataset.
            epoch_samples: of the dataset, in whole global batches of the saved run.

        Raises:
            StateError: names the first part that differs, both values and what to do.
        """
        self.place.check(spec)
        for name, saved, found in (
            ("reuse", self.reuse, reuse),
            ("epoch_samples", self.epoch_samples, epoch_samples),
        ):
            if saved != found:
                raise StateError(
                    f"state does not fit: {name} was {saved} when it was saved and is {found} now; pass the {name} the "
                    "run began with",
                    field=name,
                    saved=saved,
                    found=found,
                )
