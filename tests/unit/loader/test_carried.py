"""An object that carries samples over batches resumes with the loader; a state that would lose them is refused."""

from __future__ import annotations

import json

import pytest

from streamer import StreamingDataset
from streamer.config import RankConfig
from streamer.errors import ConfigError, StateError
from streamer.loader.carried import Carried
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset


class Packer:
    """Makes rows of 7 numbers, whatever the batches are."""

    def __init__(self) -> None:
        self.rest: list[int] = []

    def add(self, batch: dict) -> list[list[int]]:
        self.rest += batch["x"].tolist()
        rows = []
        while len(self.rest) >= 7:
            rows.append(self.rest[:7])
            self.rest = self.rest[7:]
        return rows

    def state_dict(self) -> dict[str, object]:
        return {"rest": list(self.rest)}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        self.rest = list(state["rest"])


def loader_of(packer: object, **options: object) -> StreamingDataLoader:
    dataset = FakeDataset(100, lambda epoch, ordinal: {"x": ordinal})
    return StreamingDataLoader(dataset, 5, reports=None, stateful=packer, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", range(1, 20))
def test_a_packer_resumes_at_the_exact_sample(stop):
    """Through JSON, in another process' objects: the rows of both runs together are those of one."""
    packer = Packer()
    with loader_of(packer) as loader:
        whole = [row for batch in loader for row in packer.add(batch)]
    first, rows = Packer(), []
    with loader_of(first) as loader:
        for number, batch in enumerate(loader, 1):
            rows += first.add(batch)
            if number == stop:
                state = json.loads(json.dumps(loader.state_dict()))
                break
    second = Packer()
    with loader_of(second) as loader:
        loader.load_state_dict(state)
        rows += [row for batch in loader for row in second.add(batch)]
    assert rows == whole
    assert second.rest == packer.rest


def test_a_state_whose_part_would_be_lost_is_refused():
    """In both directions; it says how to go on without it."""
    with loader_of(Packer()) as loader:
        carried = loader.state_dict()
    with loader_of(None) as loader:
        plain = loader.state_dict()
        with pytest.raises(StateError, match="would be lost: give the loader stateful="):
            loader.load_state_dict(carried)
        del carried["stateful"]
        loader.load_state_dict(carried)
    assert carried == plain
    carried = {**plain, "stateful": {}}
    with pytest.raises(StateError, match="load it into a StreamingDataLoader with stateful="):
        StreamingDataset("s3://bucket/data/").load_state_dict(carried)
    with loader_of(Packer()) as loader, pytest.raises(StateError, match="saved without stateful="):
        loader.load_state_dict(plain)


@pytest.mark.parametrize("place", [(1, 2), (0, 4)])
def test_what_a_rank_carries_is_its_own(place):
    """Another rank, or another number of them, would train on samples twice and lose others."""

    def stream(rank: int, world_size: int) -> RankConfig:
        return RankConfig(rank=rank, world_size=world_size)

    packer = Packer()
    packer.rest = [1, 2]
    state = Carried(packer).save({"epoch": 3}, stream(0, 2))
    assert Carried(Packer()).check(state, stream(0, 2)) == {"epoch": 3}
    with pytest.raises(StateError, match=f"on rank 0 of 2, and this is rank {place[0]} of {place[1]}"):
        Carried(Packer()).check(state, stream(*place))


def test_an_object_without_a_state():
    """Is no such object."""
    with pytest.raises(ConfigError, match=r"stateful=object: it needs state_dict\(\) and load_state_dict\(\)"):
        loader_of(object())
