"""Tests of `StreamingDataset` in one process, on a fake engine that keeps exactly what is leased.

Construction, iteration, epochs, states, damaged chunks and samples, selections and refreshes; formats, manifests and
chunk files are the real ones.
"""

from __future__ import annotations

import errno
import pickle
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from streamer import Growing, Index, Order, Skip, StreamingDataLoader
from streamer.batches.samples.cached_bytes import REREADS
from streamer.errors import ConfigError, DecodeError, IntegrityError, StateError
from streamer.formats import Folder
from streamer.loader.dataset import StreamingDataset
from streamer.loader.members import member


def numbers(samples: Iterable[dict[str, object]]) -> list[int]:
    """The number that each text begins with; the empty file is 42."""
    return [int((str(sample["txt"]) or "42").split()[0]) for sample in samples]


# ---------------------------------------------------------------- construction


def test_constructing_does_no_io(fake_engine, tmp_path):
    """Constructing a dataset asks the engine for nothing, not even for a url that does not exist."""
    StreamingDataset(tmp_path / "nothing")
    assert fake_engine.requests == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"format": "lance"}, "format"),
        ({"batch_size": 0}, "batch_size"),
        ({"order": Order(lanes_by="key"), "growing": Growing(2, 100)}, "lanes_by"),
        ({"share_caches": "auto", "growing": Growing(2, 100)}, "share_caches"),
        ({"manifest": Index(on_change="refresh"), "growing": Growing(2, 100)}, "growing"),
        ({"shuffle": "rows"}, "shuffle"),
        ({"seed": -1}, "seed"),
        ({"cache_bytes": "much"}, "cache_bytes"),
        ({"decode": "pil"}, "decode"),
        ({"transform": 7}, "transform"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_once(options, field):
    """An argument of a dataset that cannot be is a `ConfigError` with the field's name when it is constructed."""
    with pytest.raises(ConfigError, match=field) as caught:
        StreamingDataset("s3://bucket/", **options)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("url", ["", [], ["s3://a", ""]])
def test_no_url_is_refused(url):
    """A dataset without a url, or with an empty one, which would list the current folder, is refused."""
    with pytest.raises(ConfigError, match="url"):
        StreamingDataset(url)


def test_the_engine_gets_what_the_user_passed(fake_engine, make_dataset, folder, tmp_path, monkeypatch):
    """The engine gets urls from the root on, format and limits as the user passed them.

    Relative paths are made absolute, as they would mean another folder in the engine.
    """
    monkeypatch.chdir(folder.parent)
    dataset = make_dataset(
        "data/",
        cache_dir="mine",
        cache_bytes="2GB",
        storage_options={"anon": True},
        manifest=Index(max_seconds=7),
        format="folder",
    )
    assert dataset.samples == 100
    (request,) = fake_engine.requests
    assert request.urls == [f"{folder}/"]
    assert (request.format, request.limit_seconds, request.build) == ("folder", 7, True)
    settings = dataset._opening.connections.take().settings
    assert settings.cache_dir == tmp_path / "mine"
    assert (settings.cache_bytes, settings.storage_options) == (2 * 10**9, {"anon": True})
    assert settings.job.startswith("pid-")


def test_only_the_first_node_builds(fake_engine, make_dataset, folder, monkeypatch):
    """Only the first node builds a manifest, and the others ask for it without building."""
    monkeypatch.setenv("STREAMER_NODE", "1")
    assert make_dataset(folder, manifest="s3://b/m").samples == 100
    assert (fake_engine.requests[0].build, fake_engine.requests[0].manifest) == (False, "s3://b/m")


def test_the_urls_are_listed_once_for_all_processes(fake_engine, make_dataset, folder):
    """Copies of a dataset and selections take the manifest that was found.

    One that has been deleted is asked for again.
    """
    dataset = make_dataset(folder)
    assert dataset.samples == 100
    assert pickle.loads(pickle.dumps(dataset)).samples == 100
    assert dataset.select(fraction=(0, 0.5)).samples < 100
    assert len(fake_engine.requests) == 1
    shutil.rmtree(fake_engine.manifest.path)
    fake_engine.manifest = None
    assert pickle.loads(pickle.dumps(dataset)).samples == 100
    assert len(fake_engine.requests) == 2


# ---------------------------------------------------------------- iteration


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": 7}, {"shuffle": False}, {"order": Order(lanes=4, shuffle_window=8)}]
)
def test_every_sample_comes_once(fake_engine, make_dataset, folder, options):
    """Every sample comes once in an epoch, each chunk is fetched once, and only what is leased is read."""
    dataset = make_dataset(folder, **options)
    found = Counter(numbers(dataset))
    assert set(found) == set(range(100))
    assert found.total() == len(dataset) == 100
    assert sorted(fake_engine.fetched) == list(range(fake_engine.manifest.chunks)), "each chunk once"
    assert all(session.closed for session in fake_engine.sessions)


def test_drop_last_leaves_the_incomplete_batch_out(make_dataset, folder):
    """`last_batch="drop"` leaves the incomplete batch out: of 100 samples by 7 it gives 98, none twice."""
    dataset = make_dataset(folder, batch_size=7, order=Order(last_batch="drop"))
    found = numbers(dataset)
    assert len(found) == len(set(found)) == len(dataset) == 98


def test_the_last_batch_is_filled_where_that_is_asked_for(make_dataset, folder):
    """`last_batch="fill"` gives 15 batches of 7 for 100 samples; `repeated` marks the 5 repeats in the last one."""
    dataset = make_dataset(folder, batch_size=7, order=Order(last_batch="fill"))
    found = numbers(dataset)
    assert len(found) == len(dataset) == 105
    masks = [dataset.repeated(step) for step in range(15)]
    assert sorted(number for number, repeat in zip(found, np.concatenate(masks), strict=True) if not repeat) == [
        *range(100)
    ]
    assert [int(mask.sum()) for mask in masks] == [0] * 14 + [5]
    with pytest.raises(IndexError, match="batch 15 is not in"):
        dataset.repeated(15)
    with pytest.raises(ConfigError, match="batch_size"):
        make_dataset(folder).repeated(0)


def test_a_last_batch_that_cannot_be_is_refused(make_dataset, folder):
    """`last_batch="short"` is refused on several ranks, which would make different numbers of steps."""
    with pytest.raises(ConfigError, match=r"last_batch='short' on 2 ranks"):
        len(make_dataset(folder, order=Order(last_batch="short"), rank=0, world_size=2))


@pytest.mark.parametrize(("taken", "ranks"), [(98, 1), (99, 1), (100, 1), (98, 2), (100, 2)])
def test_a_state_in_or_after_a_short_batch_goes_on(make_dataset, folder, taken, ranks):
    """A state before, inside or after a short batch goes on with the rest of the epoch, then with the next epoch.

    One rank or two may resume it; the short batch itself only one.
    """
    whole = make_dataset(folder, batch_size=14)
    first, second = numbers(whole), numbers(whole)
    before = make_dataset(folder, batch_size=14)
    numbers(islice(iter(before), taken))
    after = [make_dataset(folder, batch_size=14 // ranks, rank=rank, world_size=ranks) for rank in range(ranks)]
    for dataset in after:
        dataset.load_state_dict(before.state_dict())
    if taken < 100:
        rest = [number for dataset in after for number in numbers(dataset)]
        assert set(rest) == set(first[taken:])
        assert ranks > 1 or rest == first[taken:]
    assert {number for dataset in after for number in numbers(dataset)} == set(second)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_samples(fake_engine, make_dataset, folder, world_size):
    """Ranks have equal numbers of samples, all samples together, and repeats only to fill the last batch."""
    ranks = [
        numbers(make_dataset(folder, batch_size=4, rank=rank, world_size=world_size)) for rank in range(world_size)
    ]
    assert len({len(found) for found in ranks}) == 1
    total = Counter(number for found in ranks for number in found)
    assert set(total) == set(range(100))
    assert total.total() - 100 == (-100 % (4 * world_size) if world_size > 1 else 0)


def test_without_shuffle_the_order_is_the_manifests(make_dataset, tars):
    """Without shuffle samples of tars come in the order of their keys."""
    assert [sample["__key__"] for sample in make_dataset(tars, shuffle=False)] == [f"{n:03d}" for n in range(90)]


def test_samples_have_the_trades_keys(make_dataset, folder, tars):
    """A sample of a tar has its fields by extension, decoded, and its key."""
    (tar,) = islice(make_dataset(tars, shuffle=False), 12, 13)
    assert tar == {"__key__": "012", "txt": "12 " + "y" * 12, "cls": 5, "json": {"n": 12}}


def test_folder_samples_have_a_label(make_dataset, folder):
    """The label of a sample is its class folder's place in the order of names, as by torchvision's ImageFolder."""
    dataset = make_dataset(folder)
    assert dataset.classes == ["class0", "class1", "class2"]
    assert dataset.class_to_idx["class2"] == 2
    for sample in dataset:
        number = int(str(sample["__key__"]).rpartition("/")[2][:3])
        assert sample["label"] == number % 3
        assert sample["__key__"] == f"class{number % 3}/{number:03d}.txt"


def test_decode_none_gives_the_stored_bytes(make_dataset, folder):
    """`decode=None` gives the bytes of each file as they are stored."""
    found = {str(sample["__key__"]): sample["txt"] for sample in make_dataset(folder, decode=None)}
    assert found == {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.txt")}


def test_a_transform_gets_the_sample_and_its_rng(make_dataset, folder):
    """What a transform draws from its `rng` depends on seed, epoch and sample, not on order or batch size."""

    def draw(sample, *, rng):
        return str(sample["__key__"]), float(rng.random())

    epochs = [dict(make_dataset(folder, transform=draw, **o)) for o in ({}, {"shuffle": False}, {"batch_size": 9})]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(set(epochs[0].values())) == 100
    dataset = make_dataset(folder, transform=draw)
    first, second = dict(dataset), dict(dataset)
    assert first == epochs[0]
    assert set(first.values()).isdisjoint(second.values())
    assert dict(make_dataset(folder, transform=draw, seed=3)) != first


def test_shuffle_by_sample_asks_for_a_chunk_each(fake_engine, make_dataset, folder):
    """`shuffle="sample"` asks for chunks of 1 KiB, and is refused with its price where samples are small."""
    dataset = make_dataset(folder, shuffle="sample")
    with pytest.raises(ConfigError, match="USD"):
        len(dataset)
    assert fake_engine.requests[0].chunk_bytes == 1024


def test_the_order_is_explained_once(make_dataset, folder, caplog, monkeypatch):
    """The order is explained once, on the first rank; two nodes that share the only lane are a warning."""
    monkeypatch.setenv("STREAMER_NODES", "2")
    caplog.set_level("INFO")
    for rank in (0, 1):
        dataset = make_dataset(folder, batch_size=4, rank=rank, world_size=2)
        list(dataset), list(dataset), dataset._get_opening().prepare(4)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "opening" in record.name]
    explained = [text for level, text in said if "mixing" in text]
    assert len(explained) == 1
    assert "shuffle_window" in explained[0]
    assert [level for level, text in said if "nodes share the lanes" in text and level == "WARNING"] == ["WARNING"]


# ---------------------------------------------------------------- epochs


def test_every_iter_is_the_next_epoch(make_dataset, folder):
    """Every `iter()` is the next epoch in another order; the same epoch has the same order."""
    dataset = make_dataset(folder)
    first, second = numbers(dataset), numbers(dataset)
    assert first != second
    dataset.set_epoch(0)
    assert dataset.epoch == 0
    assert numbers(dataset) == first
    assert dataset.epoch == 1
    assert numbers(dataset) == second


def test_a_loop_that_is_left_counts_as_an_epoch(fake_engine, make_dataset, folder):
    """A loop that is left counts as an epoch, and its session is closed with the iterator."""
    dataset = make_dataset(folder)
    next(iter(dataset))
    assert dataset.epoch == 1
    assert fake_engine.sessions[0].closed


def test_a_requested_epoch_is_taken_once(make_dataset, folder):
    """An epoch set with `set_epoch` is handed to a loader once."""
    dataset = make_dataset(folder)
    assert dataset._get_opening().take_epoch() is None
    dataset.set_epoch(4)
    assert [dataset._get_opening().take_epoch(), dataset._get_opening().take_epoch()] == [4, None]


def test_a_negative_epoch_is_refused(make_dataset, folder):
    """A negative epoch is refused at once, as it would fail much later, in a worker."""
    with pytest.raises(ConfigError, match="epoch"):
        make_dataset(folder).set_epoch(-1)


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("taken", [0, 7, 28, 98, 105])
def test_a_state_goes_on_where_it_was_taken(make_dataset, folder, taken):
    """A state in a new dataset gives the rest of the epoch, then the next epoch."""
    options = {"batch_size": 7}
    whole = make_dataset(folder, **options)
    first, second = numbers(whole), numbers(whole)
    before = make_dataset(folder, **options)
    iterator = iter(before)
    numbers(islice(iterator, taken))
    state = before.state_dict()
    after = make_dataset(folder, **options)
    after.load_state_dict(state)
    assert after.state_dict() == state
    if taken < len(first):
        assert numbers(after) == first[taken:]
    assert numbers(after) == second


def test_a_state_inside_a_batch_goes_on_at_the_sample(make_dataset, folder):
    """A state of a loop that was left inside a batch goes on at the next sample."""
    first = numbers(make_dataset(folder, batch_size=7))
    before, after = make_dataset(folder, batch_size=7), make_dataset(folder, batch_size=7)
    numbers(islice(before, 10))
    after.load_state_dict(before.state_dict())
    assert numbers(after) == first[10:]


def test_a_state_goes_on_with_other_ranks_and_batches(make_dataset, folder):
    """After 3 batches of two ranks by 6, three ranks by 8 see exactly the rest of the epoch."""
    seen, states = [], []
    for rank in range(2):
        dataset = make_dataset(folder, batch_size=6, rank=rank, world_size=2)
        seen += numbers(islice(dataset, 18))
        states.append(dataset.state_dict())
    assert states[0]["position"] == states[1]["position"] == 36
    for rank in range(3):
        dataset = make_dataset(folder, batch_size=8, rank=rank, world_size=3)
        dataset.load_state_dict(states[0])
        seen += numbers(dataset)
    assert set(seen) == set(range(100))
    assert len(seen) - 100 == -64 % 24, "only the last batch is filled up"


@pytest.mark.parametrize(("options", "field"), [({"seed": 1}, "seed"), ({"shuffle": False}, "shuffle")])
def test_a_state_that_does_not_fit_names_the_field(make_dataset, folder, options, field):
    """A state of another seed or shuffle is a `StateError` with the field's name when the next iteration begins."""
    saved = make_dataset(folder, batch_size=5)
    next(iter(saved))
    other = make_dataset(folder, batch_size=5, **options)
    other.load_state_dict(saved.state_dict())
    with pytest.raises(StateError, match=field) as caught:
        iter(other)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("before", [True, False])
def test_a_state_of_another_shuffle_is_named_as_it_was_passed(make_dataset, tmp_path, before):
    """A state of another shuffle is refused by the argument that was passed.

    Lanes and a window that were chosen automatically are not named.
    """
    for number in range(100):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / "many" / f"{number}.bin").write_bytes(bytes(1500))
    saved = make_dataset(tmp_path / "many", shuffle=before)
    assert before is False or saved.state_dict()["window"] > 1
    other = make_dataset(tmp_path / "many", shuffle=not before)
    other.load_state_dict(saved.state_dict())
    message = f"shuffle was {before} when it was saved and is {not before} now; pass the shuffle the run began with"
    with pytest.raises(StateError, match=message):
        iter(other)


def test_set_epoch_drops_a_loaded_state(make_dataset, folder):
    """`set_epoch` after `load_state_dict` drops the loaded state."""
    dataset = make_dataset(folder)
    first = numbers(dataset)
    dataset.load_state_dict(dataset.state_dict())
    dataset.set_epoch(0)
    assert numbers(dataset) == first


# ---------------------------------------------------------------- which samples, in which order


def test_without_shuffle_files_come_by_their_keys(make_dataset, folder):
    """Without shuffle files come in the order of their keys, by loop, by index and in a selection.

    With shuffle they are packed by a hash, which mixes the classes of a chunk.
    """
    dataset = make_dataset(folder, shuffle=False)
    keys = [sample["__key__"] for sample in dataset]
    assert keys == sorted(keys) == [dataset[number]["__key__"] for number in range(100)]
    assert len(dataset._member.open().manifest.chunk_samples) > 3
    with closing(dataset.select(labels=[1])) as part:
        assert [sample["__key__"] for sample in part] == [key for key in keys if key.startswith("class1/")]


def test_without_shuffle_several_urls_keep_their_order(make_dataset, folder):
    """Without shuffle several urls give samples in the order in which the user lists them."""
    names = [f"class{number % 3}/{number:03d}.txt" for number in (40, 7, 99, 3)]
    dataset = make_dataset([folder / name for name in names], shuffle=False)
    assert [Path(dataset[number]["__key__"]).name for number in range(4)] == [Path(name).name for name in names]
    assert numbers(dataset) == [40, 7, 99, 3]


def test_strays_are_counted_and_left_out(make_dataset, folder, caplog):
    """Files with other extensions than the samples in class folders are left out, and the log counts them once."""
    (folder / "README.md").write_text("about")
    (folder / "class1" / "notes.CSV").write_text("a,b")
    assert set(numbers(make_dataset(folder))) == set(range(100))
    assert [r.message for r in caplog.records if "samples (" in r.message] == [
        "2 of 102 files are not samples (1 .md, 1 .csv): those in the class folders are .txt; Folder(extensions=...) "
        "chooses others"
    ]


def test_a_second_rank_does_not_repeat_it(make_dataset, folder, caplog):
    """Files that are left out are logged on the first rank only, as eight ranks would say it eight times."""
    (folder / "README.md").write_text("about")
    assert make_dataset(folder, rank=1, world_size=2).samples == 100
    assert "samples (" not in caplog.text


def test_extensions_are_told_in_one_spelling(fake_engine, make_dataset, folder):
    """Extensions may be given with or without a dot, in capitals, or one alone; the engine gets one spelling."""
    (folder / "class1" / "picture.JPEG").write_bytes(b"x")
    dataset = make_dataset(folder, format=Folder(extensions=[".JPEG", "csv", "jpg"]), decode=None)
    assert [sample["__key__"] for sample in dataset] == ["class1/picture.JPEG"]
    assert fake_engine.requests[-1].extensions == ["csv", "jpg"]
    fake_engine.manifest = None
    assert make_dataset(folder, format=Folder(extensions="txt")).samples == 100
    assert fake_engine.requests[-1].extensions == ["txt"]


# ---------------------------------------------------------------- faults


def test_a_damaged_chunk_is_leased_again(fake_engine, make_dataset, folder):
    """A chunk with a wrong byte, a torn header or no file is rejected once, then read."""
    damage = {0: lambda p: _flip(p, 80), 1: lambda p: _flip(p, 3), 2: lambda p: p.unlink()}
    fake_engine.spoil = lambda chunk, path: damage.pop(chunk, lambda p: None)(path)
    assert set(numbers(make_dataset(folder, batch_size=10))) == set(range(100))
    assert sorted(chunk for chunk, _ in fake_engine.rejects) == [0, 1, 2]
    assert {reason.partition(":")[0] for _, reason in fake_engine.rejects} == {"wrong bytes", "missing"}


def test_a_chunk_that_stays_damaged_is_an_error(fake_engine, make_dataset, folder):
    """A chunk that stays damaged is rejected three times, then raised with the reader's own error."""
    fake_engine.spoil = lambda chunk, path: _flip(path, 80) if chunk == 1 else None
    with pytest.raises(IntegrityError, match="checksum"):
        numbers(make_dataset(folder))
    assert [chunk for chunk, _ in fake_engine.rejects] == [1] * REREADS


def test_an_undecodable_sample_is_an_error_with_its_place(make_dataset, folder):
    """A sample that cannot be decoded is a `DecodeError` with its key, decoder, object and range."""
    bad = folder / "class1" / "004.txt"
    bad.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DecodeError, match=r"class1/004\.txt.*decode_text.*\[0, 3\)") as caught:
        numbers(make_dataset(folder))
    assert caught.value.details["sample"] == "class1/004.txt"
    assert str(caught.value.details["object"]).startswith(str(bad))


def test_an_empty_file_is_an_error_with_its_own_name(make_dataset, tmp_path):
    """An empty file is an error with its own name, not with that of the file behind it in the chunk."""
    (tmp_path / "a").mkdir()
    for number in range(6):
        (tmp_path / "a" / f"{number}.npy").write_bytes(b"")
    dataset = make_dataset(tmp_path / "a")
    for number in range(6):
        with pytest.raises(
            DecodeError, match=rf"sample '{number}\.npy'.* \(dataset\[\d\], \S*/{number}\.npy \[0, 0\)\)"
        ):
            dataset.get(f"{number}.npy")


def test_skip_fills_the_place_from_the_same_batch(make_dataset, folder, caplog):
    """`on_error="skip"` fills the place of a damaged sample from the same batch.

    Positions do not move, and the sample is listed with its cause.
    """
    whole = numbers(make_dataset(folder, batch_size=10))
    spoilt = folder / "class1" / "004.txt"
    spoilt.write_bytes(b"\xff" * spoilt.stat().st_size)
    dataset = make_dataset(folder, batch_size=10, on_error="skip")
    found = numbers(dataset)
    place = whole.index(4)
    batch = whole[place // 10 * 10 : place // 10 * 10 + 10]
    assert found[:place] + found[place + 1 :] == whole[:place] + whole[place + 1 :]
    assert found[place] in set(batch) - {4}
    (skipped,) = dataset.skipped
    assert dataset._member.open().manifest.name(skipped.ordinal).object_key == skipped.key == "class1/004.txt"
    assert "decode_text" in skipped.cause
    assert "class1/004.txt" in caplog.text


def test_skip_ends_with_its_budget(make_dataset, folder):
    """`Skip(budget=2)` skips two damaged samples, and the third one is an error."""
    for number in (1, 4, 7):
        (folder / "class1" / f"{number:03d}.txt").write_bytes(b"\xff")
    with pytest.raises(DecodeError, match=r"Skip\(budget=2\) is spent, 3 samples"):
        numbers(make_dataset(folder, batch_size=10, on_error=Skip(budget=2)))


def test_skip_gives_up_when_a_whole_batch_is_unreadable(make_dataset, tmp_path):
    """A batch of which no sample can be decoded is an error with `on_error="skip"`, too, as nothing can fill it."""
    (tmp_path / "bad").mkdir()
    for number in range(3):
        (tmp_path / "bad" / f"{number}.txt").write_bytes(b"\xff")
    with pytest.raises(DecodeError) as caught:
        numbers(make_dataset(tmp_path / "bad", batch_size=3, on_error="skip"))
    assert caught.value.__notes__ == ["and no other sample of its batch can be made"]


def test_skip_does_not_hide_a_transform_that_always_fails(make_dataset, folder):
    """A transform that always fails raises its own error with `on_error="skip"`, too."""

    def broken(sample):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        numbers(make_dataset(folder, transform=broken, on_error="skip"))


# ---------------------------------------------------------------- looking and choosing


def test_single_samples_are_read_without_a_session(fake_engine, make_dataset, folder, tars):
    """`dataset[i]` and `get(key)` give single samples, decoded as in training, without a session."""
    dataset = make_dataset(folder)
    sample = dataset.get("class0/042.txt")
    assert sample == {"__key__": "class0/042.txt", "txt": "", "label": 0}
    assert {dataset[i]["__key__"] for i in range(100)} == {s["__key__"] for s in make_dataset(folder)}
    assert dataset[-1] == dataset[99]
    assert len(fake_engine.sessions) == 1


def test_a_sample_of_a_container_is_found_by_key(make_dataset, tars):
    """A sample of a tar is found by its key, although the manifest does not know its name."""
    dataset = make_dataset(tars)
    assert dataset.get("077")["json"] == {"n": 77}
    assert dataset[5]["json"] == {"n": 5}
    with pytest.raises(KeyError, match="nope"):
        dataset.get("nope")


@pytest.mark.parametrize("index", [100, -101])
def test_an_index_outside_is_an_error(make_dataset, folder, index):
    """An index outside of the dataset is an `IndexError`, so that the old iteration protocol ends, too."""
    with pytest.raises(IndexError, match="of 100"):
        make_dataset(folder)[index]


def test_what_cannot_be_removed_stops_no_job(fake_engine, make_dataset, folder, monkeypatch, caplog, tmp_path):
    """A dataset opens although what was made of an earlier manifest cannot be removed, and says so."""

    def refuse(*_: object) -> None:
        """Stands for a folder from which this user may not remove."""
        raise PermissionError(errno.EACCES, "Permission denied")

    dataset = make_dataset(folder)
    monkeypatch.setattr(member, "remove_orphans", refuse)
    monkeypatch.setattr(member.DatasetMember, "_fallback_dir", tmp_path)
    assert len(dataset) == 100
    assert "earlier manifests stays" in caplog.text
    caplog.clear()  # its record holds the error, and so the dataset


def test_select_is_a_dataset_of_its_own(fake_engine, make_dataset, folder):
    """A selection is a dataset with its own length, order and epochs; the dataset it is made from stays as it is."""
    dataset = make_dataset(folder)
    some = dataset.select(labels=["class1"], min_bytes=100, max_bytes=300)
    expected = {n for n in range(1, 100, 3) if 100 <= len(f"{n} ") + n * 37 % 500 <= 300}
    assert set(numbers(some)) == expected
    assert len(some) == some.samples == len(expected)
    assert dataset.samples == 100
    assert (some.epoch, dataset.epoch) == (1, 0)
    assert {some[i]["__key__"] for i in range(len(some))} == {s["__key__"] for s in some}


def test_selections_count_in_each_other(make_dataset, folder):
    """Indices of a selection of a selection count what the one before left."""
    some = make_dataset(folder).select(labels=[0]).select(indices=[0, 2, -1]).select(indices=slice(1, None))
    of_class = make_dataset(folder).select(labels=[0])
    assert [some[i] for i in range(2)] == [of_class[2], of_class[33]]
    assert some.select(keys="class0/*").samples == 2
    assert of_class.select(indices=np.arange(34) % 2 == 0).samples == 17


@pytest.mark.parametrize(("kind", "samples"), [("folder", 100), ("tars", 90)])
def test_a_split_has_every_sample_once(make_dataset, request, kind, samples):
    """Selections by adjoining fractions share no sample and miss none."""
    dataset = make_dataset(request.getfixturevalue(kind))
    parts = [{s["__key__"] for s in dataset.select(fraction=f)} for f in ((0, 0.7), (0.7, 1))]
    assert len(parts[0]) + len(parts[1]) == samples
    assert parts[0].isdisjoint(parts[1])


def test_a_selection_of_nothing_is_an_error(make_dataset, folder):
    """A selection without a sample is an error at its first use."""
    with pytest.raises(ConfigError, match="the selection has none of the 100 samples"):
        len(make_dataset(folder).select(min_bytes=10**9))


def _flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


# ---------------------------------------------------------------- what changes between epochs


def grow(fake_engine, folder):
    """Adds ten texts, which the engine finds when it is asked again."""
    for number in range(100, 110):
        (folder / "class0" / f"{number:03d}.txt").write_text(f"{number} ")
    fake_engine.manifest = None


def test_what_was_there_at_first_is_the_dataset_for_good(fake_engine, make_dataset, folder):
    """Without `refresh` a dataset has the samples of its first listing, whatever was added later."""
    dataset = make_dataset(folder)
    first = sorted(numbers(dataset))
    grow(fake_engine, folder)
    assert len(dataset) == 100
    assert len(fake_engine.requests) == 1
    assert first == list(range(100))


def test_refresh_makes_the_next_epoch_of_what_is_there(fake_engine, make_dataset, folder):
    """With `on_change="refresh"` new samples are in the next epoch, each once."""
    dataset = make_dataset(folder, manifest=Index(on_change="refresh"))
    assert sorted(numbers(dataset)) == list(range(100))
    before = dataset._member.open().manifest.digest
    assert sorted(numbers(dataset)) == list(range(100)), "nothing changed: the same manifest"
    assert dataset._member.open().manifest.digest == before
    grow(fake_engine, folder)
    assert sorted(numbers(dataset)) == list(range(110))
    assert (len(dataset), dataset.epoch) == (110, 3)


def test_refresh_with_a_loader_of_its_own_for_each_epoch(fake_engine, make_dataset, folder, monkeypatch):
    """A new loader for each epoch refreshes a dataset like one loader does.

    One that resumes has the data of its state.
    """
    dataset = make_dataset(folder, manifest=Index(on_change="refresh"))
    for count in (100, 110, 110):
        with StreamingDataLoader(dataset, 5, report_every=None) as loader:
            assert sum(len(batch["__key__"]) for batch in loader) == count
            state = loader.state_dict()
        if count == 100:
            grow(fake_engine, folder)
    listed: list[str] = []
    monkeypatch.setattr(dataset._opening, "refresh", lambda: listed.append(""))
    with StreamingDataLoader(dataset, 5, report_every=None) as loader:
        loader.load_state_dict(state)
        for count in (0, 1):
            assert sum(len(batch["__key__"]) for batch in loader) == 110
            assert len(listed) == count


def test_refresh_by_hand(fake_engine, make_dataset, folder):
    """`refresh()` says whether the data has changed; the first look is no change."""
    dataset = make_dataset(folder)
    assert not dataset.refresh()
    assert not dataset.refresh()
    grow(fake_engine, folder)
    assert dataset.refresh()
    assert dataset.samples == 110


def test_questions_go_around_the_lines_of_sessions(fake_engine, make_dataset, folder, monkeypatch):
    """Questions to the engine do not use the connection of an open session.

    A loader's thread listens on it, and the two would take each other's answers.
    """
    dataset = make_dataset(folder)
    samples = iter(dataset)
    next(samples)
    (busy,) = dataset._opening.connections._all

    def taken(*question: object) -> None:
        raise AssertionError("asked on the line of a session")

    for question in ("manifest", "read", "roots", "open_session"):
        monkeypatch.setattr(busy, question, taken)
    grow(fake_engine, folder)
    assert dataset.refresh()
    assert dataset.samples == 110
    assert dataset[3] == dataset[3]
    assert dataset._get_opening().prepare(8).session(0, 0).close() is None
    assert len(dataset._opening.connections._all) == 2, "what was asked on is asked on again"
    samples.close()


def test_a_rank_that_never_looked_takes_part_in_a_refresh(make_dataset, folder, monkeypatch):
    """A rank compares manifests at `refresh()` although it has opened none before, as the others would wait in vain."""
    asked = []
    monkeypatch.setattr(
        "streamer.loader.members.member.gather_for", lambda rank_config: lambda text: asked.append(text) or [text]
    )
    monkeypatch.setattr("streamer.loader.members.member.agree", lambda gather, facts, failure: None)
    dataset = make_dataset(folder)
    assert not dataset.refresh()
    assert asked == [dataset._member.open().manifest.digest]


def test_a_state_to_resume_is_not_refreshed_away(fake_engine, make_dataset, folder):
    """A state must fit the first manifest of a resumed run; data that has changed since is a `StateError`."""
    dataset = make_dataset(folder, manifest=Index(on_change="refresh"))
    list(islice(dataset, 10))
    state = dataset.state_dict()
    grow(fake_engine, folder)
    other = make_dataset(folder, manifest=Index(on_change="refresh"))
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"manifest was '.*' when it was saved"):
        iter(other)


def test_ranks_that_see_different_listings_keep_what_they_have(fake_engine, make_dataset, folder, monkeypatch, caplog):
    """Ranks that find different listings at `refresh()` keep the manifest that they have, and the log says so."""
    dataset = make_dataset(folder)
    assert dataset.samples == 100
    monkeypatch.setattr(
        "streamer.loader.members.member.gather_for", lambda rank_config: lambda text: [text, "x" + text[1:]]
    )
    monkeypatch.setattr("streamer.loader.members.member.agree", lambda gather, facts, failure: None)
    grow(fake_engine, folder)
    assert not dataset.refresh()
    assert dataset.samples == 100
    assert "2 different listings" in caplog.text
