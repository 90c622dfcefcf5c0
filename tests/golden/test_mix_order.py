"""The order of mixes: a change of any number here is another order, and needs another MIX_FORMAT.

Runs that were interrupted before the change could not be resumed after it. Never edit a digest without raising the
format.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest

from streamer.order import RankPlan
from streamer.order.adopt import adopt
from streamer.order.mix import MixOrder, MixSource
from streamer.order.mix.request import MixStart
from streamer.order.mix.spec import MIX_FORMAT
from streamer.order.state import State
from tests.mixes import order, request

# Sizes that no number of lanes divides; chunks written out as a rule and not drawn by a library.
MEMBERS = [
    MixSource("web", "0" * 32, np.array([(c * c * 7 + c * 31) % 97 for c in range(300)]), 17),
    MixSource("books", "1" * 32, np.array([(c * c * 5 + c * 3) % 41 for c in range(60)]), (1 << 64) - 1),
    MixSource("few", "2" * 32, np.array([9, 0, 4]), 0),
]
NAMES = [source.name for source in MEMBERS]
WEIGHTS = {"web": 0.7, "books": 0.2, "few": 0.1}


@dataclass(frozen=True)
class Golden:
    """A mix and what it gave when the format was fixed."""

    name: str
    said: dict[str, object]
    order_id: str
    quotas: list[tuple[int, ...]]
    digest: str

    def orders(self) -> list[MixOrder]:
        spec = request(NAMES, **self.said).spec(MEMBERS, 48)
        return [order(spec, MEMBERS, epoch) for epoch in range(3)]


GOLDEN: list[Golden] = [
    Golden(
        "whole passes",
        {},
        "aa2b0d7890c6311c1f1ad61c08ae063a",
        [(13214, 1218, 13), (13214, 1218, 13), (13214, 1218, 13)],
        "b75ddbdc4db7e500c7ffe888b454292c",
    ),
    Golden(
        "weights",
        {"weights": WEIGHTS, "epoch_samples": 9600, "lanes": 8},
        "d40e469ef80560852024c596ed00eb8c",
        [(6720, 1920, 960), (6720, 1920, 960), (6720, 1920, 960)],
        "7e185d368fcef51efb1f1d7567b17636",
    ),
    Golden(
        "random",
        {"weights": WEIGHTS, "batching": "random", "lanes": 8, "seed": 18446744073709551615},
        "30a70098fb792152755c86349c8b1756",
        [(10112, 2888, 1448), (10112, 2896, 1440), (10120, 2880, 1448)],
        "1636412a03bf67093dfdc8701d3f7e3b",
    ),
    Golden(
        "homogeneous",
        {"repeat": {"web": 1, "books": 2.5, "few": 3}, "batching": "homogeneous", "lanes": 8},
        "c8c114ae947f80c4489463165e4be8c8",
        [(13214, 3024, 39), (13214, 3024, 39), (13214, 3024, 39)],
        "46ffec7a1dec4aa4d364eab461401a35",
    ),
    Golden(
        "groups",
        {"repeat": {"web": 1, "books": 2.5, "few": 3}, "batching": "homogeneous", "lanes": 8, "group": 12},
        "0a88ffb0937d54420d6e7f9806839da9",
        [(13214, 3024, 39), (13214, 3024, 39), (13214, 3024, 39)],
        "0e10c710656e66dc248f18c0ece1ad5a",
    ),
    Golden(
        "stages",
        {
            "weights": [
                (0, {"web": 1, "books": 0, "few": 0}),
                (1, {"web": 1, "books": 1, "few": 0}),
                (2, {"web": 1, "books": 1, "few": 1}),
            ],
            "lanes": 6,
            "window": 60,
        },
        "3c6de7177ebc0fa9fdd625c52409fd97",
        [(14448, 0, 0), (7224, 7224, 0), (4818, 4818, 4812)],
        "0c0ef1ee3a749358a995bef3595538ec",
    ),
    Golden(
        "lanes that do not divide the batch",
        {"repeat": {"web": 0.5, "books": 2, "few": 1}, "lanes": 7},
        "1006189be3b4b4c38136f7ea34e385c5",
        [(6594, 2436, 13), (6594, 2436, 13), (6594, 2436, 13)],
        "4273f714e445640f233550fd6738904b",
    ),
]

# Of the mix that goes on: where its members are, and the samples of its first epoch.
PLACES = [(17598, 2), (1618, 4), (13, 0)]
CHANGED = "b9f01762a135cd98c6e88520fa968c93"
# Entries, and all columns.
SCHEDULE = (33, "57e9385c4c299d9c70928eddf59d61b4")
STATE: dict[str, object] = {
    "format": 1,
    "kind": "mix",
    "order_id": "d40e469ef80560852024c596ed00eb8c",
    "mix": {
        "members": [
            {
                "name": "web",
                "order": {
                    "manifest_digest": "00000000000000000000000000000000",
                    "seed": 17,
                    "shuffle": "block",
                    "lanes": 8,
                    "window": 8,
                    "cut": "fixed",
                },
                "samples": 13214,
                "passes": 0,
                "origin": 0,
                "turn": 0,
            },
            {
                "name": "books",
                "order": {
                    "manifest_digest": "11111111111111111111111111111111",
                    "seed": 18446744073709551615,
                    "shuffle": "block",
                    "lanes": 8,
                    "window": 8,
                    "cut": "fixed",
                },
                "samples": 1218,
                "passes": 0,
                "origin": 0,
                "turn": 0,
            },
            {
                "name": "few",
                "order": {
                    "manifest_digest": "22222222222222222222222222222222",
                    "seed": 0,
                    "shuffle": "block",
                    "lanes": 8,
                    "window": 8,
                    "cut": "fixed",
                },
                "samples": 13,
                "passes": 0,
                "origin": 0,
                "turn": 0,
            },
        ],
        "stages": [{"epoch": 0, "weights": [3006477107, 858993459, 429496730], "units": 1200}],
        "seed": 17,
        "batching": "stratified",
        "lanes": 8,
        "slots": 6,
        "window": 16,
        "origin_epoch": 0,
    },
    "epoch": 2,
    "position": 960,
    "global_batch": 48,
}


def _digest(orders: list[MixOrder]) -> str:
    codes = np.concatenate([one.ordinals(np.arange(one.samples)) for one in orders])
    return hashlib.sha256(codes.astype("<i8").tobytes()).hexdigest()[:32]


@pytest.mark.parametrize(
    ("group", "order_id", "digest"),
    [
        (None, "2f2860f44b192d68c3e350bd6cf5871d", "a9c4c8b71d17a095a09174e7abd9f905"),
        (12, "2e9076aa6f37d7b46d826b5161116ee3", "95ad95ecb71cdc3b9196b73e6f921307"),
    ],
)
def test_homogeneous_runs_from_before_batches_were_filled_up_go_on(
    group: int | None, order_id: str, digest: str
) -> None:
    """A homogeneous run saved before batches were filled up goes on in the order of the saved run:
    its state has shares in place of whole passes.
    """
    said = request(NAMES, repeat={"web": 1, "books": 2.5, "few": 3}, batching="homogeneous", lanes=8, group=group)
    saved = said.spec_from(MEMBERS, 48, MixStart(weighted=frozenset(NAMES)))
    state = State.from_dict(State(saved, 1, 96, 48).to_dict())
    found = said.spec(MEMBERS, 48, like=state.spec)
    state.check(found)
    assert (found.order_id, _digest([order(found, MEMBERS, epoch) for epoch in range(3)])) == (order_id, digest)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda g: g.name)
def test_the_order_is_the_one_that_was_fixed(golden: Golden) -> None:
    """The order of a mix has the id, the quotas, and the digest of three epochs' samples that were fixed for it."""
    orders = golden.orders()
    quotas = [one.spec.quotas(one.epoch) for one in orders]
    assert (orders[0].spec.order_id, quotas, _digest(orders)) == (golden.order_id, golden.quotas, golden.digest)


def test_a_changed_mix_goes_on_as_fixed() -> None:
    """A mix changed from whole passes to weights in mid-epoch takes over each member's place and lanes as fixed."""
    spec = request(NAMES).spec(MEMBERS, 48)
    saved = State(spec, 1, 4800, 48).to_dict()
    changed = adopt(saved, request(NAMES, weights=WEIGHTS), MEMBERS, 48).spec
    assert [(member.origin, member.turn) for member in changed.members] == PLACES
    assert _digest([order(changed, MEMBERS, 2)]) == CHANGED


def test_a_schedule_is_as_fixed() -> None:
    """The schedule of rank 1 of 3 for batches 20..59 of a mix has the fixed chunks, passes and batches."""
    plan = RankPlan(GOLDEN[1].orders()[2], 48, 3, 1)
    schedule = plan.schedule(20, 60)
    columns = [schedule.chunk, schedule.passes, schedule.first, schedule.last]
    found = hashlib.sha256(np.stack(columns).astype("<i8").tobytes()).hexdigest()[:32]
    assert (len(schedule), found) == SCHEDULE


def test_the_state_is_as_fixed() -> None:
    """The state of a mix is saved in checkpoints as this dictionary, and is restored from it."""
    assert MIX_FORMAT == 1
    saved = State(GOLDEN[1].orders()[0].spec, 2, 960, 48)
    assert saved.to_dict() == STATE
    assert State.from_dict(STATE) == saved
