"""The inputs of an order: manifest, seed, shuffle, lanes, window. Not ranks, nodes, workers, cache."""

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

# The cuts by what decides about the lanes, as users write it.
CUTS: dict[LanesBy, Cut] = {"seed": "fixed", "key": "by_key", "epoch": "redrawn"}
_LANES_BY: dict[Cut, LanesBy] = {cut: lanes_by for lanes_by, cut in CUTS.items()}

# The name of a cut by key in states and digests; states of earlier versions have it.
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
    """The parts of an order; equal parts give the same order on any machines, for every epoch.

    Attributes:
        manifest_digest: digest of the manifest or selection the ordinals count in.
        seed: 0 <= seed < 2**64.
        shuffle: "block" (chunks and windows of chunks), "sample" (over one-sample chunks), "none".
        lanes: L, the canonical streams of an epoch, >= 1; 1 when "none".
        window: K, chunks open together over all nodes, >= 1; 1 when "none".
        cut: "fixed": a chunk stays in its lane for the whole run, so node caches stay useful; "by_key": in the same
            lane for all seeds, because its key decides; "redrawn": dealt to the lanes anew in every epoch, where nodes
            share caches.
        rows: what fixes the rows, where these are the samples; left out of the parts of all other orders.
        balance: what fixes which rows share a batch, where their costs decide it; left out likewise.

    Raises:
        ConfigError: a part outside of these rules.
    """

    # The name of this kind of order in a state, and in messages.
    kind: ClassVar[str] = ""
    words: ClassVar[str] = "a single dataset"
    # The advice of messages where a state differs, and where it is of another kind.
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
        """Chooses lanes and window from the manifest and the global batch, and from nothing else.

        Facts of one node (free disk, cache size, ranks) must not enter: nodes would silently
        disagree on the order. To resume with another global batch, pass the state's lanes and
        window.

        Args:
            manifest_digest: identity of the manifest or selection.
            chunk_samples: (M,) samples per chunk; empty chunks do not count.
            batch_size: the global batch B, samples over all ranks.
            seed: 0 <= seed < 2**64.
            shuffle: Shuffle as users write it.
            lanes: overrides L.
            window: overrides K.
            cut: see the class.
            rows: see the class.
            balance: see the class.

        Raises:
            ConfigError: a value outside its rule.
            ManifestError: no samples.
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
        """The pieces open together in one lane, k >= 1."""
        return max(1, self.window // self.lanes)

    @property
    def orders(self) -> tuple[OrderSpec, ...]:
        """The order of each member: of one dataset its own."""
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
        """Returns, for each member, the codes of a pass and of an epoch; see `streamer.order.audit.Codes`.

        Args:
            epoch: its number.
            own: returns the number of codes of a dataset alone.
        """
        return [(count := own(), count)]

    def samples_in(self, epoch: int, counts: Sequence[int]) -> int:
        """Samples of an epoch, over all ranks, without repeats.

        Args:
            epoch: its number.
            counts: samples, or rows, of each member.
        """
        (samples,) = counts
        return samples

    def facts(self) -> dict[str, str | int]:
        """All parts, by which ranks and states are compared, in the words of users."""
        parts = self.parts()
        del parts["cut"]
        return {**parts, "lanes_by": self.lanes_by}

    @property
    def lanes_by(self) -> LanesBy:
        """The cut as users write it."""
        return _LANES_BY[self.cut]

    def to_state_parts(self) -> tuple[dict[str, object], dict[str, object]]:
        """Returns what a state keeps before its place, and after it."""
        return dict(self.parts()), {}

    def parts(self) -> dict[str, str | int]:
        """The parts by name, plain values."""
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
    """The cut that a state has stored."""
    return "by_key" if stored == _STORED_BY_KEY else stored


def auto_lanes(chunks: int, batch_size: int) -> int:
    """Returns L, the largest divisor of B with at least ~32 chunks per lane, at most 256.

    Up to 8 lanes for any batch, then one per 64 samples: each lane splits over no more than one
    node, and 32 chunks are what a lane's own window needs to mix.
    """
    limit = min(max(8, min(256, batch_size // 64)), max(1, chunks // 32))
    return max(d for d in range(1, limit + 1) if batch_size % d == 0)


def auto_window(chunks: int, batch_size: int) -> int:
    """Returns K: as many chunks as the batch has samples, in 64..1024, at most a 16th of the dataset."""
    return min(max(batch_size, 64), 1024, max(1, chunks // 16))


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name}={value} must be at least 1", field=name)
