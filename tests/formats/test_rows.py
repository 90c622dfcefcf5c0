"""Rows of `.npy` and of raw files meet the contract of the formats; what is read of headers, and which are refused."""

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
    """The survey of npy files reads all headers at once, and the index nothing more."""
    case = read_case(Npy(), "npy/images")
    found = find(case.format, case.objects)
    assert [len(asks) for asks in found.needs.values()] == [0, 0, 0]
    assert [len(ask) for ask in found.survey_needs] == [3]


def test_a_long_header_is_read_again():
    """Rows of npy files with headers of version 2, long ones too, are found."""
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
    """Files of .npy without plain rows are refused by name, and nothing is unpickled."""
    with pytest.raises(ManifestError, match=reason) as caught:
        find(Npy(), {"a.npy": content})
    assert "a.npy" in str(caught.value)


def test_rows_of_two_kinds():
    """Files of .npy whose rows differ in type are refused with both names."""
    with pytest.raises(ManifestError, match=r"b\.npy has rows of <f4\[2\], .*a\.npy of <f8\[2\]"):
        find(Npy(), {"a.npy": saved(np.zeros((3, 2))), "b.npy": saved(np.zeros((3, 2), "<f4"))})


def test_a_raw_file_of_another_length():
    """A raw file that is no multiple of its samples is refused with the bytes that are left over."""
    with pytest.raises(ManifestError, match=r"samples of 40 bytes \(<i2, shape \(4, 5\)\): 7 bytes are left"):
        find(RAW, {"a.bin": bytes(6 + 40 + 7)})
    with pytest.raises(ManifestError, match="header"):
        find(RAW, {"a.bin": bytes(5)})


@pytest.mark.parametrize(
    "options", [{"dtype": "O"}, {"dtype": "x7"}, {"shape": [0]}, {"shape": [-1]}, {"header_bytes": -1}, {"dtyp": "u1"}]
)
def test_options_without_meaning(options):
    """Options of raw files that have no meaning are a ConfigError."""
    with pytest.raises(ConfigError, match="raw"):
        find_format("raw", options)


def test_a_row_of_another_length():
    """A record of another length than a row is a DecodeError."""
    with pytest.raises(DecodeError, match="3 bytes are not a row"):
        RowOpener("<f4[2]").open(memoryview(b"abc"), SampleName())
    with pytest.raises(DecodeError, match="not a row of u1"):
        RawArrays().opener(Facts()).open(memoryview(b""), SampleName())
