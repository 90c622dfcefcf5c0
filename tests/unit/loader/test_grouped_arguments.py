"""Grouped arguments (Order, Growing, Index, Skip, Decode, Homogeneous, Folder): checked when made, shown as written."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from streamer import Decode, Growing, Homogeneous, Index, MixedDataset, Order, Skip, StreamingDataset
from streamer.errors import ConfigError
from streamer.formats import Folder


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Order, {"lanes": 0}, "lanes=0 is below 1"),
        (Order, {"lanes": "8"}, "lanes='8' is not a whole number"),
        (Order, {"shuffle_window": -1}, "shuffle_window=-1 is below 1"),
        (Order, {"lanes_by": "common"}, "lanes_by='common' .*'seed', 'key', 'epoch'"),
        (Order, {"last_batch": "pad"}, "last_batch='pad' .*'fill', 'short', 'drop'"),
        (Order, {"peers": "all"}, "peers='all'"),
        (Order, {"name": 3}, "name=3 is not a text"),
        (Index, {"url": 7}, "manifest=7 is not a path"),
        (Index, {"max_seconds": "9"}, "max_seconds='9' is not a number of seconds"),
        (Index, {"max_seconds": -1}, "max_seconds=-1 is not a number of seconds"),
        (Index, {"max_seconds": float("nan")}, "max_seconds=nan is not a number of seconds"),
        (Index, {"damaged": "ignore"}, "damaged='ignore'"),
        (Index, {"on_change": "ignore"}, "on_change='ignore'"),
        (Growing, {"reuse": 2, "epoch_samples": 8, "round_bytes": 1.5}, 'round_bytes= must be "auto"'),
        (Growing, {"reuse": 2, "epoch_samples": 8, "round_bytes": None}, 'round_bytes= must be "auto"'),
        (Skip, {"budget": -1}, "budget=-1 is below 0"),
        (Decode, {"rule": "pil"}, "decode='pil'"),
        (Decode, {"allow_pickle": "no"}, "allow_pickle='no' is neither True nor False"),
        (Homogeneous, {"group": 0}, "group=0 is not a whole number of at least 1"),
        (Homogeneous, {"group": "4"}, "group='4' is not a whole number of at least 1"),
        (Folder, {"extensions": []}, r"extensions=\[\]: give a list as"),
        (Folder, {"extensions": ["jpg", 3]}, "extensions=.*: give a list as"),
        (Folder, {"extensions": 3}, "extensions=3: give a list as"),
    ],
)
def test_what_cannot_be_is_refused_at_once(kind: type, options: dict[str, object], message: str) -> None:
    """A grouped argument that cannot be is a `ConfigError` with its name and value when it is made."""
    with pytest.raises(ConfigError, match=message):
        kind(**options)


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (Order(lanes=8), "Order(lanes=8, shuffle_window=None, lanes_by=None, last_batch=None, name='')"),
        (Index("s3://b/m"), "Index(url='s3://b/m', max_seconds=600.0, damaged='raise', on_change='raise')"),
        (Skip(), "Skip(budget=100)"),
        (Decode(allow_pickle=True), "Decode(rule='auto', allow_pickle=True)"),
        (Homogeneous(4), "Homogeneous(group=4)"),
    ],
)
def test_they_are_shown_compared_and_pickled(made: object, shown: str) -> None:
    """Grouped arguments are values: they have a `repr`, are equal after pickling, and take no other attribute."""
    assert repr(made) == shown
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(AttributeError, match="cannot assign to field 'extra'"):
        made.extra = 1  # type: ignore[attr-defined]


def test_the_short_form_is_the_same() -> None:
    """The short form of an argument is the same as its object: a url, a rule, "skip", or nothing for an `Order`."""
    short = StreamingDataset("/data", manifest="/m", decode={"bin": None}, on_error="skip")._opening.options
    whole = StreamingDataset(
        "/data", manifest=Index(Path("/m")), decode=Decode({"bin": None}), on_error=Skip(100), order=Order()
    )._opening.options
    assert (short.manifest, short.decode, short.order) == (whole.manifest, whole.decode, whole.order)
    assert short.skip_rules == whole.skip_rules


def test_a_homogeneous_batch_needs_no_group() -> None:
    """`batching="homogeneous"` and `Homogeneous()` ask for the same order."""
    requests = [
        MixedDataset({"a": StreamingDataset("/data")}, batching=batching)._options.request
        for batching in ("homogeneous", Homogeneous())
    ]
    assert requests[0] == requests[1]
