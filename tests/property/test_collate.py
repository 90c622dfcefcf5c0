"""The loader's collate against torch's own: same batch, or same error."""

from __future__ import annotations

import collections
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch.utils.data import default_collate

from streamer.batches.batch.collate import collate
from streamer.batches.batch.slot_layout import BatchReader, WritableBatch
from streamer.errors import ConfigError


class Point(NamedTuple):
    x: object
    y: object


class Texts(list):
    """A sequence type of the user's own."""


NUMPY_DTYPES = [
    "?",
    "u1",
    "i1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "M8[s]",
    "S3",
]

integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
scalars = st.one_of(
    st.booleans(),
    integers,
    floats,
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([np.float32(1.5), np.float64(2.5), np.int16(3), np.uint8(4), np.bool_(True), np.complex64(1j)]),
)
odd = st.sampled_from([None, 2**64, 1 + 2j, object, np.str_("s"), np.bytes_(b"b"), np.datetime64(1, "s"), {1, 2}])
arrays = npst.arrays(st.sampled_from(NUMPY_DTYPES), st.sampled_from([(), (0,), (3,), (2, 3), (2, 1, 2)]))
tensors = st.sampled_from([torch.ones(2), torch.zeros(2, 3, dtype=torch.bfloat16), torch.tensor(5), torch.ones(3, 2).T])


def alike(buffer: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    """A batch of one to four samples of the same structure, mostly of the same buffer type."""

    def build(values: list[object]) -> st.SearchStrategy[list[object]]:
        shapes = [
            lambda v: v,
            lambda v: {"a": v, "b": 1},
            lambda v: (v, "key"),
            lambda v: [v, [v, 2.0]],
            lambda v: Point(v, {"deep": (v,)}),
            lambda v: collections.OrderedDict(a=v),
            lambda v: collections.defaultdict(list, a=v),
            lambda v: collections.UserDict(a=v),
            lambda v: Texts([v, v]),
            lambda v: collections.deque([v]),
        ]
        return st.sampled_from(shapes).map(lambda shape: [shape(value) for value in values])

    same = buffer.flatmap(lambda value: st.lists(st.just(value), min_size=1, max_size=4))
    mixed = st.lists(buffer, min_size=1, max_size=4)
    return st.one_of(same, mixed).flatmap(build)


def through_a_slot(batch: object) -> object:
    packed = WritableBatch(batch)
    memory = np.full(packed.nbytes + 64, 0xDB, np.uint8)
    packed.write(memory[: packed.nbytes])
    assert (memory[packed.nbytes :] == 0xDB).all()
    return BatchReader(memory).read(packed.description)


def outcome(run: object) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run()
        except Exception as error:  # noqa: BLE001 - what is compared
            return type(error), str(error)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(ours: object, torchs: object) -> None:
    assert type(ours) is type(torchs)
    if isinstance(torchs, torch.Tensor):
        assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
        assert bits(ours) == bits(torchs)
    elif isinstance(torchs, np.ndarray):
        assert (ours.dtype, ours.shape, ours.tobytes()) == (torchs.dtype, torchs.shape, torchs.tobytes())
    elif isinstance(torchs, collections.abc.Mapping):
        assert list(ours) == list(torchs)
        for key in torchs:
            assert_same(ours[key], torchs[key])
    elif isinstance(torchs, (str, bytes, type)):
        assert ours == torchs
    elif isinstance(torchs, collections.abc.Iterable):
        assert len(ours) == len(torchs)
        for mine, other in zip(ours, torchs, strict=True):
            assert_same(mine, other)
    else:
        assert ours == torchs


@given(alike(st.one_of(scalars, arrays, tensors)))
@example([{"x": np.arange(6).reshape(2, 3)[:, ::-1]}] * 2)
@example(["", np.array(False)])
@example([1, 2.5])
@example([1.5, 2])
@example([True, 2])
@example([1, True])
@example([{"a": 1}, {"b": 1}])
@example([[1], [1, 2]])
@example(["\udc80", "ü"])
@example([range(2), range(2)])
@example([torch.ones(2, requires_grad=True)] * 2)
def test_same_batch_as_torch(samples: list[object]) -> None:
    """A batch that torch collates comes out of a slot with the same types, dtypes, shapes and values."""
    expected = outcome(lambda: default_collate(samples))
    ours = outcome(lambda: through_a_slot(collate(samples)))
    assert_same(ours, expected)


@given(alike(st.one_of(odd, scalars)))
@example([np.zeros(2), np.zeros(3)])
@example([np.zeros(2, np.float32), np.zeros(2, np.float64)])
@example([np.array(["a"])])
@example([np.array([None])])
def test_same_error_as_torch(samples: list[object]) -> None:
    """Samples that torch refuses are refused with torch's own error."""
    expected = outcome(lambda: default_collate(samples))
    ours = outcome(lambda: through_a_slot(collate(samples)))
    assert_same(ours, expected)


@given(npst.arrays(st.sampled_from([">f4", ">i2", ">u8", ">c8"]), st.sampled_from([(), (0,), (3,), (2, 3)])))
def test_arrays_of_another_byte_order_become_native_ones(array: np.ndarray) -> None:
    """An array whose bytes are in the other order, which torch refuses, is collated as the native array."""
    expected = default_collate([array.astype(array.dtype.newbyteorder("="))] * 2)
    assert_same(through_a_slot(collate([array] * 2)), expected)


@given(st.integers(2**63, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=3))
def test_whole_numbers_of_2_63_and_more_become_unsigned(large: int, others: list[int]) -> None:
    """Whole numbers of which one does not fit into int64, which torch refuses, are collated to a uint64 tensor."""
    numbers = [*others, large]
    assert_same(through_a_slot(collate(numbers)), torch.from_numpy(np.array(numbers, np.uint64)))


def test_samples_of_different_fields_are_named() -> None:
    """Samples of different fields are refused with an error that names two of them, their fields and the remedy:
    a stray file among images; torch's KeyError has neither the samples nor what to do.
    """
    samples = [{"__key__": "a/1.jpg", "jpg": 1, "label": 0}, {"__key__": "README.md", "md": b""}]
    with pytest.raises(KeyError):
        default_collate(samples)
    with pytest.raises(ConfigError, match=r"'a/1\.jpg' has jpg, label; 'README\.md' has md\. .*Folder\(extensions="):
        collate(samples)
    with pytest.raises(ConfigError, match=r"'README\.md' has md; 'a/1\.jpg' has jpg, label"):
        collate(samples[::-1])


def test_a_slot_too_small_is_seen() -> None:
    """Writing a batch into a slot that is one byte shorter than announced raises ValueError."""
    packed = WritableBatch(collate([np.ones(100)] * 3))
    with pytest.raises(ValueError, match="could not broadcast"):
        packed.write(np.zeros(packed.nbytes - 1, np.uint8))
