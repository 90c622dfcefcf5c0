"""The samples of a shard's task: fields that are damaged raise errors that name the sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from streamer.decode.rule import StoredSample
from streamer.errors import DecodeError
from streamer.formats.base import Field
from streamer.shards.outputs.registry import OUTPUTS
from streamer.shards.task import Recipe, _Making

WHERE = "sample 3 of s3://b/a.parquet"


class Taken:
    """Collects samples instead of a shard."""

    def __init__(self) -> None:
        self.samples: list[Mapping[str, Any]] = []

    def add(self, sample: Mapping[str, Any], ordinal: int) -> None:
        self.samples.append(sample)

    def flush(self) -> None:
        """Has nothing to write."""


def make(field: Field, output: str = "parquet") -> list[Mapping[str, Any]]:
    """Returns the sample with one field that a task makes for an output, with a transform that changes nothing."""
    recipe = Recipe(source=None, fields=None, transform=dict, out_storage_options={})  # type: ignore[arg-type]
    taken = Taken()
    stored = StoredSample(ordinal=3, where=WHERE, key="k", fields=[(field.name, field)], is_file=False)
    _Making(recipe, OUTPUTS[output], taken).add_all([stored])  # type: ignore[arg-type]
    return taken.samples


@pytest.mark.parametrize("content", [b"{", b'"\xff"', b"[" * 100_000])
def test_damaged_json_names_the_sample(content: bytes) -> None:
    """A transform gets JSON decoded; damaged JSON raises DecodeError that names sample and field."""
    assert make(Field("meta", memoryview(b'{"a": 1}'), "json")) == [{"__key__": "k", "meta": {"a": 1}}]
    with pytest.raises(DecodeError, match=f"{WHERE}: field 'meta' is damaged JSON"):
        make(Field("meta", memoryview(content), "json"))


@pytest.mark.parametrize("kind", ["mds-ndarray", "litdata-numpy", "litdata-json", "pil", "<f4[3]"])
@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 20])
def test_other_damaged_bytes_name_the_sample(kind: str, content: bytes) -> None:
    """Whatever a decoder raises for damaged bytes, a pack raises DecodeError that names the sample."""
    field = Field("x", memoryview(content), kind)
    with pytest.raises(DecodeError, match=WHERE):
        make(field, "webdataset")
