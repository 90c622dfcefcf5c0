"""Tests of the spec that is made of what a user says about a mix: lanes, windows, epochs and refusals."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.order import OrderSpec
from streamer.order.mix import MixSource, MixSpec
from streamer.order.mix.request import MixStart
from tests.mixes import request, sources

SIZES = {"web": 300_000, "books": 75_000, "rare": 30_000}


def _spec(batch: int = 256, **said: object) -> MixSpec:
    return request(list(SIZES), **said).spec(sources(SIZES, 75), batch)


def test_lanes_and_windows_are_those_of_the_members_together() -> None:
    """Lanes of a mix follow from all chunks; of the window each member has its share, at least one chunk per lane."""
    spec = _spec(weights={"web": 0.90, "books": 0.09, "rare": 0.01})
    assert (spec.lanes, spec.slots, spec.window) == (8, 32, 16)
    assert [member.order.window for member in spec.members] == [224, 16, 8]


def test_a_window_that_is_said_is_shared_out() -> None:
    """A given window is shared out among the members, also beyond the limit of the automatic one."""
    spec = _spec(window=1024, weights={"web": 0, "books": 0.5, "rare": 0.5})
    assert [member.order.window for member in spec.members] == [8, 512, 512]


def test_a_member_keeps_the_window_of_its_largest_stage() -> None:
    """A member has the window of its largest stage, as the window cannot change inside a pass."""
    spec = _spec(window=512, weights=[(0, {"web": 1, "books": 0, "rare": 0}), (3, {"web": 1, "books": 1, "rare": 0})])
    assert [member.order.window for member in spec.members] == [512, 256, 8]


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_run_that_begins_in_a_later_stage_has_the_same_windows(epoch: int) -> None:
    """A run that begins in a later stage has the same windows.

    A state that goes on in the middle of a pass would begin another pass otherwise.
    """
    asked = request(
        list(SIZES),
        window=512,
        weights=[(0, {"web": 1, "books": 0, "rare": 0}), (3, {"web": 0, "books": 1, "rare": 0})],
    )
    members = asked.spec_from(sources(SIZES, 75), 256, MixStart(epoch)).members
    assert [member.order.window for member in members] == [512, 512, 8]


def test_one_member_has_the_geometry_of_the_dataset_alone() -> None:
    """A mix of one member has the lanes of the dataset alone, and as many chunks open per lane."""
    member = MixSource("web", "0" * 32, np.full(3000, 75), 5)
    alone = OrderSpec.auto("0" * 32, member.chunk_samples, 256, 5)
    mixed = request(["web"]).spec([member], 256)
    assert (mixed.lanes, mixed.members[0].order.lane_window) == (alone.lanes, alone.lane_window)


def test_epochs_by_weight_are_whole_batches() -> None:
    """An epoch by weights is rounded to whole batches, at least one."""
    even = dict.fromkeys(SIZES, 1)
    assert _spec(weights=even, epoch_samples=10_000).samples(0) == 39 * 256
    assert _spec(weights=even, epoch_samples=5).samples(0) == 256


def test_whole_passes_are_exact() -> None:
    """Whole passes of a member are exact in every epoch, also beside members with parts of a pass."""
    spec = _spec(repeat={"web": 1, "books": 2.5, "rare": 3})
    assert {spec.quotas(epoch)[0] for epoch in range(9)} == {300_000}
    assert {spec.quotas(epoch)[2] for epoch in range(9)} == {90_000}


def test_homogeneous_shares_are_whole_batches() -> None:
    """Homogeneous shares are whole batches.

    Those of whole passes are exact, with the last batch of a member filled up.
    """
    spec = _spec(batching="homogeneous", repeat=2.5)
    assert all(quota % 256 == 0 for epoch in range(5) for quota in spec.quotas(epoch))
    assert spec.places(3) == spec.quotas(3)
    spec = _spec(batching="homogeneous", repeat=1)
    assert spec.quotas(3) == tuple(SIZES.values())
    assert spec.places(3) == tuple(-(-samples // 256) * 256 for samples in SIZES.values())
    assert spec.samples(3) == sum(spec.places(3))


@pytest.mark.parametrize(("batch", "group", "lanes"), [(256, 32, 8), (256, 8, 32), (96, 32, 6), (256, 256, 8)])
def test_groups_of_a_batch_have_the_same_number_of_lanes(batch: int, group: int, lanes: int) -> None:
    """With groups the automatic lanes are as many as without, or one for each group."""
    spec = _spec(batch, batching="homogeneous", group=group)
    assert (spec.lanes, spec.groups) == (lanes, batch // group)


def test_a_run_keeps_its_groups_with_another_batch() -> None:
    """A resumed run keeps its groups with another batch; an order without groups does not name any in its parts."""
    saved = _spec(256, batching="homogeneous", group=32)
    assert request(list(SIZES), batching="homogeneous", group=32).spec(sources(SIZES, 75), 512, like=saved) == saved
    assert saved.order_id != _spec(256, batching="homogeneous").order_id
    assert "groups" not in _spec(256, batching="homogeneous", group=256).parts()


def test_what_a_state_brings_stays() -> None:
    """A state brings lanes, batch, windows and how far members are, unless the user gives another value."""
    saved = _spec(weights=dict.fromkeys(SIZES, 1))
    member = msgspec.structs.replace(saved.members[1], origin=800, turn=3)
    saved = msgspec.structs.replace(saved, members=(saved.members[0], member, saved.members[2]))
    asked = request(list(SIZES), weights=dict.fromkeys(SIZES, 1))
    assert asked.spec(sources(SIZES, 75), 4096, like=saved) == saved
    asked = request(list(SIZES), weights=dict.fromkeys(SIZES, 1), lanes=16)
    assert asked.spec(sources(SIZES, 75), 4096, like=saved).lanes == 16


def test_members_in_the_order_of_their_data_have_one_lane() -> None:
    """Members without shuffle have one lane, and a window of one chunk."""
    members = [MixSource(name, "0" * 32, np.full(9, 9), 0, "none") for name in SIZES]
    spec = request(list(SIZES)).spec(members, 64)
    assert (spec.lanes, spec.slots, [member.order.window for member in spec.members]) == (1, 64, [1, 1, 1])


def test_many_members_are_mixed_in_shorter_windows() -> None:
    """1,000 members are mixed in windows of 4 batches, so that the counts of a window stay below 8 MB."""
    names = {f"m{i}": 10 for i in range(1000)}
    assert request(list(names), lanes=256).spec(sources(names), 256).window == 4


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"lanes": 3, "batching": "homogeneous"}, ConfigError, "lanes that divide the global batch: 3 do not"),
        ({"batching": "homogeneous", "group": 48}, ConfigError, "group=48 does not divide the global batch, 256"),
        ({"batching": "homogeneous", "group": 512}, ConfigError, "group=512 does not divide the global batch, 256"),
        ({"batching": "homogeneous", "group": 16, "lanes": 8}, ConfigError, "16 groups .* divide the lanes, 8; pass"),
        ({"batching": "sorted"}, ConfigError, "batching='sorted' is not one of"),
        ({"lanes": 0}, ConfigError, "lanes=0 must be at least 1"),
        ({"window": -1}, ConfigError, "shuffle_window=-1 must be at least 1"),
    ],
)
def test_what_is_no_mix_is_refused(said: dict[str, object], error: type[Exception], message: str) -> None:
    """An argument of a mix that is outside the rules is refused with its name and value."""
    with pytest.raises(error, match=message):
        _spec(**said)


def test_members_must_have_samples_and_agree_on_shuffling() -> None:
    """Members without samples, with and without shuffle, or of one name are refused with their names."""
    empty = MixSource("void", "0" * 32, np.zeros(3, np.int64), 0)
    ordered = MixSource("ordered", "0" * 32, np.full(3, 9), 0, "none")
    with pytest.raises(ManifestError, match=r"member void: manifest 0+ has no samples"):
        request(["void"]).spec([empty], 4)
    with pytest.raises(ConfigError, match=r"members \['ordered'\] are not shuffled and the others are"):
        request(["ordered", "web"]).spec([ordered, *sources({"web": 9})], 4)
    with pytest.raises(ConfigError, match="lanes=2 and shuffle_window=None have no meaning with shuffle=False"):
        request(["ordered"], lanes=2).spec([ordered], 4)
    with pytest.raises(ConfigError, match="1 to 4096 members of different names"):
        request(["web"]).spec(sources({"web": 9}) * 2, 4)
