"""Rows of `.npy` and of raw files meet the contract of the formats; and what must be said of other files."""

from __future__ import annotations

import io

import numpy as np
import pytest

from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Facts, SampleName
from streamer.formats.registry import find_format
from streamer.tables.npy import Npy, RawArrays, RowOpener
from tests.formats.cases import Case, find, read_case
from tests.formats.contract import FormatContract

RAW = RawArrays("<i2", (4, 5), 6)


class TestNpy(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(Npy(), f"npy/{name}") for name in ("images", "numbers", "swapped")]


class TestRawArrays(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        return [read_case(RAW, "raw")]


def saved(array: np.ndarray, **options: object) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, array, **options)
    return sink.getvalue()


def test_nothing_but_headers_is_read():
    """One request for each file, all of them at once."""
    case = read_case(Npy(), "npy/images")
    found = find(case.format, case.objects)
    assert [len(asks) for asks in found.needs.values()] == [0, 0, 0]
    assert [len(ask) for ask in found.survey_needs] == [3]


def test_a_long_header_is_read_again():
    """Version 2, and one that was written with a long padding."""
    array = np.arange(12, dtype="<i4").reshape(4, 3)
    content = saved(array, version=(2, 0))
    padding = 3000
    length = int.from_bytes(content[8:12], "little")
    head = content[12 : 12 + length - 1] + b" " * padding + b"\n"
    long = content[:8] + len(head).to_bytes(4, "little") + head + array.tobytes()
    for raw in (content, long):
        ((_, spans),) = find(Npy(), {"a.npy": raw}).items
        assert [raw[span.start : span.stop] for span in spans] == [row.tobytes() for row in array]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (saved(np.asfortranarray(np.zeros((3, 2)))), "Fortran order"),
        (saved(np.array([{}], object), allow_pickle=True), "pickles"),
        (saved(np.zeros(3, "U5")), "not plain numbers"),
        (saved(np.float32(3)), "has no rows"),
        (saved(np.zeros((3, 0))), "has no rows"),
        (saved(np.zeros((3, 2)))[:-1], "has 47 bytes of numbers"),
        (saved(np.zeros((3, 2))) + b"x", "has 49 bytes of numbers"),
        (b"", "has no bytes"),
        (b"\x93NUMPY\x01\x00", "cut off in its header"),
        (b"PK\x03\x04" + bytes(100), "not an .npy file"),
        (saved(np.zeros(3)).replace(b"'shape'", b"'shApe'"), "not an .npy file"),
        (saved(np.zeros(3))[:6] + b"\x01\x00\xff\xff" + bytes(100), "cut off in its header"),
    ],
)
def test_files_that_have_no_rows(content, reason):
    """Are refused by name, with what to do; nothing is unpickled."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(Npy(), {"a.npy": content})
    assert "a.npy" in str(caught.value)


def test_rows_of_two_kinds():
    """Both are named."""
    with pytest.raises(ManifestError, match=r"b\.npy has rows of <f4\[2\], .*a\.npy of <f8\[2\]"):
        find(Npy(), {"a.npy": saved(np.zeros((3, 2))), "b.npy": saved(np.zeros((3, 2), "<f4"))})


def test_a_raw_file_of_another_length():
    """Says what is left over, and what to give."""
    with pytest.raises(ManifestError, match=r"samples of 40 bytes \(<i2, shape \(4, 5\)\): 7 bytes are left"):
        find(RAW, {"a.bin": bytes(6 + 40 + 7)})
    with pytest.raises(ManifestError, match="header"):
        find(RAW, {"a.bin": bytes(5)})


@pytest.mark.parametrize(
    "options", [{"dtype": "O"}, {"dtype": "x7"}, {"shape": [0]}, {"shape": [-1]}, {"header_bytes": -1}, {"dtyp": "u1"}]
)
def test_options_without_meaning(options):
    """Are a ConfigError, from the trainer and from the engine."""
    with pytest.raises(ConfigError, match="raw"):
        find_format("raw", options)


def test_a_row_of_another_length():
    """Cannot come from an index of these files."""
    with pytest.raises(DecodeError, match="3 bytes are not a row"):
        RowOpener("<f4[2]").open(memoryview(b"abc"), SampleName())
    with pytest.raises(DecodeError, match="not a row of u1"):
        RawArrays().opener(Facts()).open(memoryview(b""), SampleName())
