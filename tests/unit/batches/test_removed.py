"""Tests of names and arguments of earlier versions: an error or a warning that says what to write now."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module

import pytest

import streamer
from streamer import (
    Annotations,
    Balance,
    Buckets,
    DevicePrefetcher,
    Estimate,
    Growing,
    Index,
    MixedDataset,
    Order,
    Packing,
    StreamingDataLoader,
    StreamingDataset,
    Weights,
    measure_lengths,
)
from streamer.batches.rows.options import read_packing
from streamer.decode import VideoClip
from streamer.errors import ConfigError
from streamer.formats import Audio, Video
from streamer.formats.registry import find_format
from streamer.removed import NAMES
from streamer.shards.settle import PackResult
from tests.fake_dataset import FakeDataset

OF_BOTH = {
    "lanes": "order=Order(lanes=...)",
    "shuffle_window": "order=Order(shuffle_window=...)",
    "last_batch": "order=Order(last_batch=...)",
    "drop_last": 'order=Order(last_batch="drop")',
    "stream": "order=Order(name=...)",
    "error_budget": "on_error=Skip(budget=...)",
}
OF_THE_DATASET = {
    **OF_BOTH,
    "cut": 'order=Order(lanes_by=...), where "fixed" is called "seed", "common" "key"',
    "peers": "share_caches=",
    "index_limit": "manifest=Index(max_seconds=...)",
    "index_errors": "manifest=Index(damaged=...)",
    "on_change": "manifest=Index(on_change=...)",
    "extensions": 'format=Folder(extensions=["jpg", "png"])',
    "allow_pickle": "decode=Decode(allow_pickle=True)",
}
OF_THE_MIX = {
    **OF_BOTH,
    "temperature": "weights=Weights(temperature=...)",
    "unit": "weights=Weights(..., unit=...)",
    "epoch_samples": "weights=Weights(..., epoch_samples=...)",
    "stop": "weights=Weights(..., stopping_strategy=...)",
    "group": "batching=Homogeneous(group=...)",
}
OF_THE_LOADER = {
    "last_batch": "order=Order(last_batch=...) of the dataset",
    "on_error": "on_error= of the dataset",
    "error_budget": "on_error=Skip(budget=...) of the dataset",
    "worker_start": 'multiprocessing_context="forkserver" or "spawn"',
    "pin": "pin_memory=..., where True, an error if it fails, is called",
    "report_seconds": "report_every=, seconds or None",
}


@pytest.mark.parametrize(("name", "now"), OF_THE_DATASET.items())
def test_of_the_dataset(name: str, now: str) -> None:
    """An argument of `StreamingDataset` of earlier versions is a `ConfigError` that says what to write now."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataset("/data", **{name: None})
    assert f"{name}= of StreamingDataset is now {now}" in str(caught.value)
    assert caught.value.details["field"] == name


@pytest.mark.parametrize(("name", "now"), OF_THE_MIX.items())
def test_of_the_mix(name: str, now: str) -> None:
    """An argument of `MixedDataset` of earlier versions is a `ConfigError` that says what to write now."""
    with pytest.raises(ConfigError) as caught:
        MixedDataset({"a": StreamingDataset("/data")}, **{name: None})
    assert f"{name}= of MixedDataset is now {now}" in str(caught.value)


@pytest.mark.parametrize(("name", "now"), OF_THE_LOADER.items())
def test_of_the_loader(name: str, now: str) -> None:
    """An argument of `StreamingDataLoader` of earlier versions is a `ConfigError` that says what to write now."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataLoader(FakeDataset(8, lambda epoch, ordinal: ordinal), 4, **{name: None})
    assert f"{name}= of StreamingDataLoader is now {now}" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [StreamingDataset, lambda url, **more: MixedDataset({"a": StreamingDataset(url)}, **more)],
    ids=["dataset", "mix"],
)
def test_what_no_version_had_is_a_type_error(make: Callable[..., object]) -> None:
    """An argument that no version had is a `TypeError` with Python's own message."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'transfrom'"):
        make("/data", transfrom=None)


OPTIONS = {
    Packing: ({"length": 64}, {"set_rows": ("rows_per_set", 8)}),
    Buckets: (
        {"max_tokens": 64},
        {
            "budget": ("max_tokens", 64),
            "most": ("max_samples", 2),
            "cost": ("lengths", "a.npy"),
            "set_rows": ("rows_per_set", 8),
        },
    ),
    Index: ({}, {"limit_seconds": ("max_seconds", 7)}),
    Order: ({}, {"cut": ("lanes_by", "key"), "stream": ("name", "mine")}),
    Balance: ({"rows_per_rank": 2}, {"rows": ("rows_per_rank", 2), "cost": ("coefficients", (1, 0))}),
    Estimate: ({"bytes_per_token": 4}, {"safety": ("margin", 0.1)}),
    Growing: ({"reuse": 2, "epoch_samples": 8}, {"grow": ("round_bytes", "20GB")}),
    Weights: (
        {"weights": {"a": 1}},
        {"values": ("weights", {"a": 1}), "stop": ("stopping_strategy", "all_exhausted")},
    ),
}


@pytest.mark.parametrize(
    ("kind", "usual", "old", "new", "value"),
    [(kind, usual, old, *now) for kind, (usual, names) in OPTIONS.items() for old, now in names.items()],
)
def test_an_old_option_is_an_error_that_says_the_new_one(
    kind: type, usual: dict[str, object], old: str, new: str, value: object
) -> None:
    """An old name of an option is a `ConfigError` that says the new one, and the new one is taken."""
    with pytest.raises(ConfigError, match=rf"^{old}= of {kind.__name__} is now {new}=") as caught:
        kind(**{name: given for name, given in usual.items() if name != new}, **{old: value})
    assert caught.value.details["field"] == old
    kind(**{**usual, new: value})


def test_the_cost_of_packing_is_taken_with_a_warning() -> None:
    """`cost=` of `Packing`, which many programs have, is taken with a warning; both names at once are an error."""
    with pytest.warns(FutureWarning, match=r"^cost= of Packing is now lengths=; ") as warned:
        packing = Packing(64, cost="a.npy")
    assert packing == Packing(64, lengths="a.npy")
    assert [one.filename for one in warned] == [__file__]
    with pytest.raises(ConfigError, match=r"both lengths= and its old name cost=: give lengths= alone"):
        Packing(64, cost="a.npy", lengths="b.npy")


def test_the_errors_of_an_index_are_taken_with_a_warning() -> None:
    """`on_error=` of `Index` is taken as `damaged=` with a warning."""
    with pytest.warns(FutureWarning, match=r"^on_error= of Index is now damaged=; ") as warned:
        index = Index(on_error="skip")
    assert index == Index(damaged="skip")
    assert [one.filename for one in warned] == [__file__]


def test_the_peers_of_an_order_are_taken_with_a_warning() -> None:
    """`peers=` of `Order` is taken as `share_caches=` of the dataset with a warning; a mix has none."""
    with pytest.warns(FutureWarning, match=r"^peers= of Order is now share_caches= of the dataset; ") as warned:
        order = Order(peers="auto")
    assert [one.filename for one in warned] == [__file__]
    assert StreamingDataset("/data", order=order)._member.options.share_caches == "auto"
    with pytest.raises(ConfigError, match=r"share_caches= is for a dataset alone"):
        MixedDataset({"a": StreamingDataset("/data")}, order=order)


def test_missing_values_have_one_name() -> None:
    """Old values of `missing=` of annotations and joins are taken as "none" with a warning."""
    with pytest.warns(FutureWarning, match=r"^missing='empty' of Annotations is now missing='none'; ") as warned:
        annotations = Annotations("a.csv", missing="empty")
    assert annotations == Annotations("a.csv", missing="none")
    left = StreamingDataset("/left")
    right = StreamingDataset("/right")
    with pytest.warns(FutureWarning, match=r"^missing='null' of StreamingDataset.join is now missing='none'; ") as more:
        joined = left.join(right, on="k", missing="null")
    assert [join.missing for join in joined._member.joins] == ["none"]
    assert {one.filename for one in (*warned, *more)} == {__file__}


def test_how_a_join_is_made_is_called_validate() -> None:
    """`how=` of `join` is a `ConfigError` that says `validate=`, as `how` of pandas says which samples are left."""
    left = StreamingDataset("/left")
    right = StreamingDataset("/right")
    with pytest.raises(ConfigError, match=r'^how= of StreamingDataset.join is now validate=, .*"many_to_many"'):
        left.join(right, on="k", how="many")
    joined = left.join(right, on="k", validate="many_to_many")
    assert [join.validate for join in joined._member.joins] == ["many_to_many"]


def test_measure_is_measure_lengths(make_dataset, folder, tmp_path) -> None:
    """`streamer.measure` takes its old arguments with a warning, and its numbers are those of `measure_lengths`."""
    with pytest.warns(FutureWarning, match=r"^measure\(.*\) is now measure_lengths\(path=") as warned:
        old = streamer.measure(make_dataset(folder), "txt", to=tmp_path / "old.npy")
    assert [one.filename for one in warned] == [__file__]
    new = measure_lengths(make_dataset(folder), "txt", path=tmp_path / "new.npy", resume_from=tmp_path / "old.npy")
    assert old.tolist() == new.tolist()
    with pytest.raises(ConfigError, match=r"^to= of measure_lengths is now path="):
        measure_lengths(make_dataset(folder), "txt", to=tmp_path / "new.npy")


@pytest.mark.parametrize(
    ("reports", "every", "call"),
    [(None, None, None), (5, 5, None), (print, 30.0, print), (streamer.Reports(5, print), 5, print)],
)
def test_the_reports_of_a_loader_are_taken_with_a_warning(reports: object, every: float | None, call: object) -> None:
    """`reports=` of a loader, seconds, a function or both, is taken with a warning.

    Beside `report_every=` it is an error.
    """
    dataset = FakeDataset(8, lambda epoch, ordinal: ordinal)
    with (
        pytest.warns(
            FutureWarning, match=r"^reports= of StreamingDataLoader is now report_every=, .* on_report="
        ) as warned,
        StreamingDataLoader(dataset, 4, reports=reports) as loader,
    ):
        assert (loader._settings.report_every, loader._settings.on_report) == (every, call)
    assert [one.filename for one in warned] == [__file__]
    with pytest.raises(ConfigError, match="give report_every= alone"):
        StreamingDataLoader(dataset, 4, reports=None, report_every=5)


def test_no_report_has_no_function() -> None:
    """`on_report=` with `report_every=None` is a `ConfigError`, as it would never be called."""
    with pytest.raises(ConfigError, match=r"on_report= with report_every=None: no report is made"):
        StreamingDataLoader(FakeDataset(8, lambda epoch, ordinal: ordinal), 4, report_every=None, on_report=print)


@pytest.mark.parametrize("kind", [Packing, Buckets])
def test_fields_that_are_a_mapping_are_an_error_that_says_pad(kind: type) -> None:
    """`fields=` as a mapping is a `ConfigError` that says `pad=`, which is for fields that are named."""
    with pytest.raises(ConfigError, match=r"what fields are padded with is pad=\{'tokens': 7\}"):
        kind(64, fields={"tokens": 7})
    assert kind(64, pad={"tokens": 7}).find_pad("tokens") == 7
    with pytest.raises(ConfigError, match=r"'other' is not in fields=\('tokens',\)"):
        kind(64, fields=["tokens"], pad={"other": 7})


def test_the_options_of_a_file_are_refused_by_their_new_names() -> None:
    """Mappings in place of options are refused by their old names, with the new ones."""
    with pytest.raises(ConfigError, match=r"budget= of Buckets is now max_tokens="):
        read_packing({"budget": 64})
    with pytest.raises(ConfigError, match=r"safety= of Estimate is now margin="):
        read_packing({"length": 64, "lengths": {"bytes_per_token": 4, "safety": 0.1}})


def test_checked_classes_show_their_own_arguments() -> None:
    """The signature of a class whose old names are checked has its own arguments."""
    assert list(inspect.signature(Growing).parameters) == ["reuse", "epoch_samples", "round_bytes"]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [(module, old, new) for module, names in NAMES.items() for old, new in names.items() if old != "Packed"],
)
def test_an_old_name_is_an_import_error_that_says_the_new_one(module: str, old: str, new: str) -> None:
    """The import of an old name is an `ImportError` that says the new one, which is there."""
    with pytest.raises(ImportError, match=rf"^{module}\.{old} is now {module}\.{new}$"):
        getattr(import_module(module), old)
    assert getattr(import_module(module), new).__name__ == new


def test_the_result_of_a_pack_is_imported_with_a_warning() -> None:
    """The old name of `PackResult` is imported with a warning, and is the same class."""
    with pytest.warns(FutureWarning, match=r"^streamer.shards.settle.Packed is now .*PackResult; ") as warned:
        from streamer.shards.settle import Packed
    assert Packed is PackResult
    assert [one.filename for one in warned] == [__file__]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source_format": "mds"}, r"source_format= of pack is now format="),
        ({"format_options": {}}, r"format_options= of pack is now format="),
        ({"extensions": ["jpg"]}, r"extensions= of pack is now format=Folder\(extensions="),
        ({"vocabulary": 7}, r"vocabulary= of pack is now vocab_size="),
        ({"on": "processes"}, r"on= of pack is now executor="),
        ({"format": "tar"}, r"the shards have output_format='webdataset'"),
        ({"format": "tar", "output_format": "parquet"}, r"the shards have output_format='webdataset'"),
        ({"format": "parquet"}, r"the shards have output_format='parquet'. A source of this format needs both"),
        ({"format": "tokens"}, r"the shards have output_format='tokens'"),
        ({"format": 7}, r"format=7: give a name, or a format with options"),
    ],
)
def test_the_options_of_a_pack(options: dict[str, object], said: str, folder, tmp_path) -> None:
    """An old argument of `pack`, or a format of the shards as that of the source, is a `ConfigError`.

    Nothing is written.
    """
    with pytest.raises(ConfigError, match=said):
        streamer.pack(folder, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"format": "mds"}, {"manifest": "/m"}])
def test_an_iterable_has_no_format(options: dict[str, object], tmp_path) -> None:
    """`format=` and `manifest=` are refused for an iterable that is packed.

    Regression: they were left out without a word.
    """
    with pytest.raises(ConfigError, match=r"format= and manifest= are of a url that is packed"):
        streamer.pack([{"txt": "a"}], tmp_path / "out", **options)


@pytest.mark.parametrize(("kind", "value"), [(Video, "repeat_last"), (Audio, "pad"), (VideoClip, "repeat_last")])
def test_what_becomes_of_the_end_is_at_end(kind: type, value: str) -> None:
    """`policy=` of video, audio and clips is a `ConfigError` that says `at_end=`, as `policy` is an option of rows."""
    with pytest.raises(ConfigError, match=rf"^policy= of {kind.__name__} is now at_end="):
        kind(policy=value)
    assert kind(at_end=value).at_end == value


@pytest.mark.parametrize(("name", "value"), [("video", "repeat_last"), ("audio", "pad")])
def test_manifests_keep_the_name_of_the_end(name: str, value: str) -> None:
    """Manifests keep the option `policy`, and a format takes it by either name."""
    made = find_format(name, {"at_end": value})
    assert made.options == {"policy": value}
    assert find_format(name, made.options) == made


def test_find_is_index_of() -> None:
    """`find` of a dataset is an error that says `index_of`, as a list has it."""
    with pytest.raises(ConfigError, match=r"StreamingDataset\.find is not there any more: StreamingDataset\.index_of"):
        StreamingDataset("/data").find("a")


def test_the_field_of_annotations_and_the_depth_of_a_prefetcher() -> None:
    """Old names of arguments of annotations and of a prefetcher are refused with the new ones.

    They are `sample_field=`, `depth=` and `device=`.
    """
    with pytest.raises(ConfigError, match=r"on= of Annotations is now sample_field="):
        Annotations.parse({"url": "a.csv", "on": "name"})
    assert Annotations("a.csv", sample_field="name").sample_field == "name"
    with pytest.raises(ConfigError, match=r"ahead= of DevicePrefetcher is now depth="):
        DevicePrefetcher([], None, ahead=1)
    with pytest.raises(ConfigError, match=r"mover= of DevicePrefetcher is now chosen by device="):
        DevicePrefetcher([], None, mover=None)
    assert list(DevicePrefetcher([1], None, depth=1)) == [1]
