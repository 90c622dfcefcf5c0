"""Files that are no tokens, told by their first bytes: any bytes would be read as tokens of some dtype."""

from __future__ import annotations

from streamer.formats.failures import refused
from streamer.manifest.model import ObjectRecord

_WRITE = "; streamer pack --format tokens makes files of tokens of its samples"
# Four bytes or more: tokens of two begin with the same ones less than once in 2**32 files.
_STARTS = {
    b"PAR1": f"is Parquet: format='parquet'{_WRITE}",
    b"ARROW1": f"is Arrow: format='arrow'{_WRITE}",
    b"\xff\xff\xff\xff\x10\0\0\0": f"is an Arrow stream: format='arrow'{_WRITE}",
    b"\x89HDF\r\n\x1a\n": "is HDF5: format=HDF5(datasets={'tokens': '/name'})",
    b"\x93NUMPY": "is an .npy file by another name: rename it, and Tokens(sequence_length=2048) reads it",
    b"MMIDIDX\0\0": "is an index file of Megatron: name the .bin beside it, or their folder",
    b"PK\x03\x04": "is a zip archive (.npz, a checkpoint of torch): save the tokens as .npy, or with array.tofile()",
    b"\x28\xb5\x2f\xfd": "is compressed (Zstandard): store it as it was",
    b"\xfd7zXZ\0": "is compressed (xz): store it as it was",
    b"\x1f\x8b\x08\0": "is compressed (gzip): store it as it was",
    b"\x1f\x8b\x08\x08": "is compressed (gzip): store it as it was",
}


def check_plain(record: ObjectRecord, content: memoryview) -> None:
    """Refuses a file whose first bytes say that it is something else, and names what reads it.

    Raises:
        ManifestError: it does.
    """
    start = bytes(content[:12])
    for magic, what in _STARTS.items():
        if start.startswith(magic):
            raise refused(record, what)
