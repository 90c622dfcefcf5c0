"""A decoder that gets no file or no memory: the error names the limit, and the sample does not count as damaged."""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamer.batches.skipping import may_skip
from streamer.decode import SampleDecoder
from streamer.decode.base import sample_errors
from streamer.errors import ConfigError, DecodeError, PackError
from streamer.formats.base import Field
from streamer.shards.outputs.columns import plain_values
from tests.descriptors import full_table


def decode_by_file(content: bytes) -> np.ndarray:
    """Decodes as users do whose library reads paths only."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return np.fromfile(file.name, "u1")


def take_memory(content: bytes) -> np.ndarray:
    # More than the addresses of a machine: numpy gets no memory, whatever the limits are.
    return np.zeros(1 << 58, "u1")


def test_a_decoder_that_can_open_no_file() -> None:
    """Too many open files in a user's decoder are a ConfigError that names the limit, not a damaged sample."""
    tempfile.gettempdir()
    decoder = SampleDecoder({"bin": decode_by_file})
    given = [Field("bin", memoryview(b"abc"))]
    assert decoder("k", given)["bin"].tolist() == [97, 98, 99]  # type: ignore[attr-defined]
    with full_table(), pytest.raises(ConfigError, match="ulimit -n") as caught:
        decoder("k", given)
    assert caught.value.details["field"] == "RLIMIT_NOFILE"
    assert isinstance(caught.value.__cause__, OSError)
    assert not may_skip(caught.value)
    with full_table(), pytest.raises(ConfigError, match="ulimit -n"), sample_errors("sample 3"):
        decode_by_file(b"")


DECODING = """
import resource, sys
from pathlib import Path
from streamer.decode import SampleDecoder
from streamer.errors import ConfigError
from streamer.formats.base import Field

path = Path(sys.argv[1])
name, given = path.suffix[1:], memoryview(path.read_bytes())
decoder = SampleDecoder()
decoder("k", [Field("png", memoryview(path.with_suffix(".png").read_bytes()))])
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
try:
    decoder("k", [Field(name, given)])
except ConfigError as error:
    print(error.details["field"])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(decoder("k", [Field(name, given)])[name].shape)
"""


@pytest.mark.process
@pytest.mark.parametrize("ending", ["gif", "tif", "bmp"])
def test_a_library_whose_modules_cannot_be_opened(tmp_path: Path, ending: str) -> None:
    """Too many open files while a library imports what it needs for an image are a ConfigError, and pass."""
    for name in ("png", ending):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / f"a.{name}")
    command = [sys.executable, "-c", DECODING, str(tmp_path / f"a.{ending}")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n") == ["RLIMIT_NOFILE", "(4, 4, 3)", ""]


def test_a_decoder_that_gets_no_memory() -> None:
    """A MemoryError of a decoder is raised as it is, names sample, field and decoder, and may not be skipped."""
    with pytest.raises(MemoryError, match="Unable to allocate") as caught:
        SampleDecoder({"bin": take_memory})("k", [Field("bin", memoryview(b""))])
    assert [note.endswith(" for field 'bin' of sample 'k'") for note in caught.value.__notes__] == [True]
    assert not may_skip(caught.value)
    with pytest.raises(MemoryError), sample_errors("sample 3"):
        take_memory(b"")


def npz(shape: tuple[int, ...]) -> bytes:
    """Returns an archive of an array of 100,000 numbers whose header says this shape."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<i8", "fortran_order": False, "shape": shape})
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.npy", head.getvalue() + bytes(800_000))
    return sink.getvalue()


def test_memory_for_a_shape_that_is_damaged() -> None:
    """An npz whose header asks for more memory than any machine has is a damaged sample, which may be skipped."""
    decoder = SampleDecoder()
    assert decoder("k", [Field("npz", memoryview(npz((100_000,))))])["npz"]["a"].shape == (100_000,)  # type: ignore[index]
    with pytest.raises(DecodeError, match=r"array 'a\.npy' would be int64 of shape \(1125899906842624,\)") as caught:
        decoder("k", [Field("npz", memoryview(npz((1 << 50,))))])
    assert may_skip(caught.value)


def test_an_error_of_ffmpeg_may_be_skipped() -> None:
    """FFmpeg's error of too little memory is a damaged sample: sizes that a file says wrongly cause it, too."""
    av = pytest.importorskip("av", reason="PyAV is not installed")

    def decode(content: bytes) -> object:
        return av.error.err_check(-12)

    with pytest.raises(DecodeError, match="Cannot allocate memory") as caught:
        SampleDecoder({"mp4": decode})("k", [Field("mp4", memoryview(b""))])
    assert may_skip(caught.value)
    assert may_skip(caught.value.__cause__)  # type: ignore[arg-type]


def test_a_pack_that_can_open_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little memory for a field of a packed sample is no PackError, which says that the field is damaged."""
    from streamer.shards.outputs import columns

    monkeypatch.setitem(columns._BY_ENDING, "npy", lambda content: take_memory(bytes(content)))
    with pytest.raises(MemoryError, match="Unable to allocate"):
        plain_values({"x.npy": b""})
    monkeypatch.undo()
    with pytest.raises(PackError, match=r"field 'x\.npy' is not what its name says"):
        plain_values({"x.npy": b""})
