"""Tests of what a worker process holds: a recipe that is sent to it, and a reader that makes samples.

The recipe is pickled and opened in the same process, on chunks that a fake engine has made local.
"""

from __future__ import annotations

import cloudpickle
import numpy as np
import pytest

from streamer.batches.samples import seeding
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.samples.maker import takes
from streamer.batches.samples.recipe import StreamReader
from streamer.batches.samples.seeding import SampleDraws
from streamer.errors import DecodeError, ManifestError


@pytest.fixture
def everything_local(fake_engine):
    """Makes every chunk of the manifest local."""

    def fetch(prepared):
        for chunk in range(prepared.members.each[0].manifest.chunks):
            fake_engine.make_local(chunk)
        return prepared

    return fetch


def test_a_recipe_travels_and_opens_the_same_samples(make_dataset, folder, everything_local):
    """A recipe that was pickled, with a lambda, opens the batches and samples of the dataset that it was made of."""
    dataset = make_dataset(folder, transform=lambda sample: (sample["__key__"], sample["txt"]))
    prepared = everything_local(dataset._get_opening().prepare(7, "fill"))
    reader = cloudpickle.loads(cloudpickle.dumps(prepared.recipe())).open()
    for batch in (0, 14):
        ordinals, repeated = reader.batch(1, batch)
        assert ordinals.tolist() == prepared.ordinals(1, batch).tolist()
        assert repeated.sum() == (5 if batch == 14 else 0)
        for ordinal in ordinals.tolist():
            key, text = reader.load(1, ordinal)
            assert (folder / key).read_text() == text
            assert key == prepared.members.each[0].manifest.name(ordinal).object_key
    read, decode, transform = reader.stage_nanoseconds()
    assert min(read, decode, transform) > 0


def test_a_selections_batches_have_the_manifests_numbers(make_dataset, folder, everything_local):
    """Batches of a selection have the ordinals of the manifest, which alone the engine and the files know."""
    dataset = make_dataset(folder).select(labels=["class2"])
    prepared = everything_local(dataset._get_opening().prepare(33))
    reader: StreamReader = cloudpickle.loads(cloudpickle.dumps(prepared.recipe())).open()
    ordinals, _ = reader.batch(0, 0)
    assert set(prepared.members.each[0].manifest.labels[ordinals].tolist()) == {2}
    assert {reader.load(0, ordinal)["label"] for ordinal in ordinals.tolist()} == {2}


def test_a_chunk_that_is_not_there_is_named_by_number(make_dataset, folder):
    """A chunk that is not there is an error with its number, so that the rank can lease it again."""
    prepared = make_dataset(folder)._get_opening().prepare(7)
    reader = prepared.recipe().open()
    ordinal = int(prepared.ordinals(0, 0)[0])
    with pytest.raises(ChunkUnreadableError, match="missing") as caught:
        reader.load(0, ordinal)
    assert caught.value.chunk == prepared.members.each[0].manifest.locate(np.array([ordinal]))[0][0]
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_users_file_not_found_is_the_users(make_dataset, folder, everything_local):
    """A `FileNotFoundError` of a transform is not taken for a lost chunk."""

    def transform(sample):
        raise FileNotFoundError("my labels.csv")

    reader = everything_local(make_dataset(folder, transform=transform)._get_opening().prepare(7)).recipe().open()
    with pytest.raises(FileNotFoundError, match=r"labels\.csv"):
        reader.load(0, 3)


def test_an_empty_sample_needs_no_chunk(make_dataset, folder):
    """A sample of 0 bytes is made without a chunk, as nothing of it is ever requested."""
    prepared = make_dataset(folder)._get_opening().prepare(1)
    reader = prepared.recipe().open()
    starts = prepared.members.each[0].manifest.locate(np.arange(100))
    (empty,) = np.flatnonzero(starts[1] == starts[2]).tolist()
    assert reader.load(0, empty) == {"__key__": "class0/042.txt", "txt": "", "label": 0}


def test_a_manifest_that_is_gone_is_an_error(make_dataset, folder):
    """A recipe whose manifest is gone is a `ManifestError` when it is opened."""
    recipe = make_dataset(folder)._get_opening().prepare(7).recipe()
    (recipe.members[0].manifest_path / "root.json").unlink()
    with pytest.raises(ManifestError, match=r"no manifest|root\.json"):
        recipe.open()


def test_a_broken_member_of_a_tar_is_found_in_its_object(make_dataset, tars, everything_local):
    """An error of decoding a member of a tar has its range in the object, not in the chunk."""
    content = (tars / "1.tar").read_bytes()
    place = content.index(b'{"n": 44}')
    (tars / "1.tar").write_bytes(content.replace(b'{"n": 44}', b'{"n": 44!'))
    reader = everything_local(make_dataset(tars)._get_opening().prepare(7)).recipe().open()
    with pytest.raises(DecodeError, match=r"'044'.*decode_json.*1\.tar \[\d+, \d+\)") as caught:
        reader.load(0, 44)
    where = str(caught.value.details["object"])
    start, stop = (int(text) for text in where.rpartition("[")[2].rstrip(")").split(", "))
    assert start < place < stop
    assert caught.value.details["ordinal"] == 44


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (lambda sample: 0, False),
        (lambda sample, rng: 0, True),
        (lambda sample, *, rng=None: 0, True),
        (lambda sample, **rest: 0, False),
        (dict, False),
        (None, False),
    ],
)
def test_only_a_parameter_called_rng_asks_for_randomness(function, wants):
    """A function gets `rng` if a parameter has this name; a catch-all parameter does not count."""
    assert takes(function, "rng") is wants


def test_each_samples_draws_are_its_own():
    """A sample's generator draws what a new generator of its key would, whatever other samples drew."""
    draws = SampleDraws(17)
    first = draws.find_generator(3, 5).random(4).tolist()
    draws.find_generator(3, 6).integers(0, 7, 3, dtype=np.int32)
    assert draws.find_generator(3, 6).random(4).tolist() != first
    assert draws.find_generator(4, 5).random(4).tolist() != first
    assert draws.find_generator(3, 5).random(4).tolist() == first
    key = [seeding.fold(17, seeding.TAG_TRANSFORM, 3), 5]
    fresh = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
    assert fresh.random(4).tolist() == first


def test_the_first_draws_are_these():
    """The first numbers that a sample draws never change, since a resumed run would augment its images otherwise."""
    draws = SampleDraws(17)
    assert draws.find_generator(0, 0).integers(0, 1000, 4).tolist() == GOLDEN_DRAWS


GOLDEN_DRAWS = [702, 124, 418, 385]
