"""Defines what fixes the order of one dataset: manifest, seed, shuffle, lanes and window, not ranks, nodes or cache.

`loader/kinds/` makes an `OrderSpec` of the user's options, which `loader/options/` reads by `shuffle_mode`;
`order/epoch.py` orders by it, and `order/state.py` keeps it. `tools/` and `batches/rows/explain.py` make one to
predict. Specs of a mix and of a growing dataset contain it, and answer the same questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias, get_args

import msgspec
import numpy as np

from streamer.errors import ConfigError, ManifestError
from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec, level_of
from streamer.order.rows.spec import RowSpec, row_spec_of

Shuffle: TypeAlias = Literal["block", "sample", "none"]
Cut: TypeAlias = Literal["fixed", "by_key", "redrawn"]
LanesBy: TypeAlias = Literal["seed", "key", "epoch"]

# The cuts by what decides about the lanes of chunks, as users write it (`Order(lanes_by=)`).
CUTS: dict[LanesBy, Cut] = {"seed": "fixed", "key": "by_key", "epoch": "redrawn"}
_LANES_BY: dict[Cut, LanesBy] = {cut: lanes_by for lanes_by, cut in CUTS.items()}

# The name of the cut "by_key" in states and digests, which states of earlier versions have, too.
_STORED_BY_KEY = "common"

# Raised whenever the same parts would give another order; part of every order_id.
ORDER_FORMAT = 1


def shuffle_mode(shuffle: bool | str) -> Shuffle:
    """Reads `shuffle=` as users write it: True is "block", False is "none".

    Raises:
        ConfigError: another word.
    """
    if isinstance(shuffle, bool):
        return "block" if shuffle else "none"
    for mode in get_args(Shuffle):
        if shuffle == mode:
            return mode  # type: ignore[no-any-return]
    raise ConfigError(f'shuffle={shuffle!r} is not one of True, False, "block", "sample", "none"', field="shuffle")


class OrderSpec(msgspec.Struct, frozen=True, dict=True):
    """The parts of an order. Equal parts give the same order on any machines, for every epoch.

    Attributes:
        manifest_digest: digest of the manifest, or of the selection whose samples are ordered.
        seed: a number of 0..2**64-1.
        shuffle: "block" shuffles chunks, and samples within windows of chunks. "sample" is the same for chunks of one
            sample. "none" keeps the order of the manifest.
        lanes: number of lanes of an epoch, at least 1, and 1 with "none".
        window: number of chunks that are open together over all nodes, at least 1, and 1 with "none".
        cut: what decides in which lane a chunk is. "fixed": the seed, so a chunk stays in its lane for the whole run
            and caches of nodes stay useful. "by_key": the chunk's key, so it is in the same lane for all seeds.
            "redrawn": seed and epoch, so it changes its lane, for nodes that share caches.
        rows: what fixes the rows, where documents are packed, else `UNSET`, which is left out of the parts.
        balance: what fixes which rows or samples share a batch, where their costs decide it, else `UNSET`, likewise.

    Raises:
        ConfigError: a part outside of these rules.
    """

    # The name of this kind of order in a state, and its name in messages.
    kind: ClassVar[str] = ""
    words: ClassVar[str] = "a single dataset"
    # Advice of messages if a state differs in a part, and if it is of another kind, by the name of that kind.
    advice: ClassVar[str] = ""
    remedies: ClassVar[dict[str, str]] = {}
    # Whether an epoch has every sample once.
    each_once: ClassVar[bool] = True

    manifest_digest: str
    seed: int
    shuffle: Shuffle
    lanes: int
    window: int
    cut: Cut = "fixed"
    rows: RowSpec | msgspec.UnsetType = msgspec.UNSET
    balance: BalanceSpec | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        shuffle_mode(self.shuffle)
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed={self.seed} is not in 0..2**64-1", field="seed")
        if self.cut not in get_args(Cut):
            raise ConfigError(f'cut={self.cut!r} must be "fixed", "by_key" or "redrawn"', field="cut")
        _check_positive("lanes", self.lanes)
        _check_positive("shuffle_window", self.window)
        if self.shuffle == "none" and (self.lanes, self.window, self.cut) != (1, 1, "fixed"):
            raise ConfigError(
                f"lanes={self.lanes}, shuffle_window={self.window} and lanes_by={self.lanes_by!r} have no meaning with "
                "shuffle=False; leave them out",
                field="lanes",
            )

    @classmethod
    def auto(
        cls,
        manifest_digest: str,
        chunk_samples: Integers,
        batch_size: int,
        seed: int,
        shuffle: bool | str = "block",
        *,
        lanes: int | None = None,
        window: int | None = None,
        cut: Cut = "fixed",
        rows: RowSpec | msgspec.UnsetType = msgspec.UNSET,
        balance: BalanceSpec | msgspec.UnsetType = msgspec.UNSET,
    ) -> OrderSpec:
        """Returns a spec whose lanes and window follow from the manifest and the global batch, and from nothing else.

        Facts of one node (free disk, size of the cache, ranks) must not enter, or nodes would disagree on the order. To
        resume with another global batch, pass the state's lanes and window.

        Args:
            manifest_digest: see the class.
            chunk_samples: (M,) samples of each chunk; empty chunks do not count.
            batch_size: samples of the global batch, over all ranks.
            seed: see the class.
            shuffle: the shuffle as users write it.
            lanes: number of lanes. None chooses it.
            window: number of open chunks. None chooses it.
            cut: see the class.
            rows: see the class.
            balance: see the class.

        Raises:
            ConfigError: a value outside its rule, or lanes that do not divide a batch of equal cost.
            ManifestError: there are no samples.
        """
        _check_positive("batch_size", batch_size)
        mode = shuffle_mode(shuffle)
        chunks = int(np.count_nonzero(chunk_samples))
        if chunks == 0:
            raise ManifestError(
                f"manifest {manifest_digest} has no samples in {len(chunk_samples)} chunks; "
                "check the url and the selection",
                manifest=manifest_digest,
            )
        if mode == "none":
            return cls(
                manifest_digest=manifest_digest,
                seed=seed,
                shuffle=mode,
                lanes=lanes or 1,
                window=window or 1,
                cut=cut,
                rows=rows,
                balance=balance,
            )
        level = level_of(balance)
        lanes = auto_lanes(chunks, level.count_units(batch_size)) if lanes is None else lanes
        level.check_lanes(lanes, batch_size)
        window = auto_window(chunks, batch_size) if window is None else window
        return cls(
            manifest_digest=manifest_digest,
            seed=seed,
            shuffle=mode,
            lanes=lanes,
            window=window,
            cut=cut,
            rows=rows,
            balance=balance,
        )

    @cached_property
    def order_id(self) -> str:
        """The digest of all parts and of the format of the order: 32 hex characters."""
        text = json.dumps({"order": ORDER_FORMAT, **self.parts()}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def lane_window(self) -> int:
        """Number of chunks that are open together in one lane, at least 1."""
        return max(1, self.window // self.lanes)

    @property
    def orders(self) -> tuple[OrderSpec, ...]:
        """The order of each member of the stream: a dataset alone is its only member."""
        return (self,)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the members of a mix: none."""
        return ()

    @property
    def counted_only(self) -> str:
        """What an audit can only count, in words; "" where it can name the samples."""
        return row_spec_of(self.rows).counted_only

    def code_ranges(self, epoch: int, own: Callable[[], int]) -> list[tuple[int, int]]:
        """Returns, for each member, how many codes a pass and an epoch have; see `streamer.order.audit.Codes`.

        Args:
            epoch: number of the epoch.
            own: returns the number of codes of a dataset alone.
        """
        return [(count := own(), count)]

    def samples_in(self, epoch: int, counts: Sequence[int]) -> int:
        """Returns the samples, or rows, of an epoch, over all ranks, without padding.

        Args:
            epoch: number of the epoch.
            counts: number of samples, or rows, of each member.
        """
        (samples,) = counts
        return samples

    def facts(self) -> dict[str, str | int]:
        """Returns the parts by which ranks and states are compared, in the words of users."""
        parts = self.parts()
        del parts["cut"]
        return {**parts, "lanes_by": self.lanes_by}

    @property
    def lanes_by(self) -> LanesBy:
        """The cut as users write it in `Order(lanes_by=)`."""
        return _LANES_BY[self.cut]

    def to_state_parts(self) -> tuple[dict[str, object], dict[str, object]]:
        """Returns the fields that a state has before epoch and position, and those that it has after them (none)."""
        return dict(self.parts()), {}

    def parts(self) -> dict[str, str | int]:
        """Returns the parts as plain values, by the names that states and `order_id` use."""
        return {
            "manifest": self.manifest_digest,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "lanes": self.lanes,
            "window": self.window,
            "cut": _STORED_BY_KEY if self.cut == "by_key" else self.cut,
            **row_spec_of(self.rows).parts(),
            **level_of(self.balance).parts(),
        }


def read_cut(stored: str) -> str:
    """Returns the cut from its name in a state."""
    return "by_key" if stored == _STORED_BY_KEY else stored


def auto_lanes(chunks: int, batch_size: int) -> int:
    """Returns the number of lanes: the largest divisor of the global batch within some limits.

    A lane has 32 chunks at least, which its own window needs to mix. A batch has at most 8 lanes, or one per 64 samples
    and at most 256, if that is more: so each lane is split over no more than one node.

    Args:
        chunks: number of chunks with samples.
        batch_size: samples of the global batch.
    """
    limit = min(max(8, min(256, batch_size // 64)), max(1, chunks // 32))
    return max(d for d in range(1, limit + 1) if batch_size % d == 0)


def auto_window(chunks: int, batch_size: int) -> int:
    """Returns the number of open chunks: one per sample of a batch, but 64 to 1024, at most a 16th of all chunks."""
    return min(max(batch_size, 64), 1024, max(1, chunks // 16))


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name}={value} must be at least 1", field=name)
