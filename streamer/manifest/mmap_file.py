"""Maps files without keeping a descriptor open for each.

Used by `manifest/table.py`, `manifest/keys.py`, `manifest/arrow_ipc/reader.py` and `client/held_files.py`.

Python's `mmap.mmap` keeps a duplicate of the descriptor as long as the mapping exists (`trackfd=False` exists only from
Python 3.13 on). A manifest of 10^9 samples has 400 files, and every process of a node maps them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int64),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
# Shorter files are read, which takes a third of the time, and less memory than the pages of a mapping.
_MAPPED_BYTES = 16384


def map_file(path: Path) -> memoryview:
    """Returns the content of a file as a read-only view.

    A file of 16 KiB or more is mapped: processes share its memory, and it stays mapped until the last view is gone. A
    shorter one is read.

    Raises:
        OSError: the file cannot be opened or mapped, or is empty.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if 0 < length < _MAPPED_BYTES:
            return memoryview(os.read(descriptor, length))
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    owner = (ctypes.c_ubyte * length).from_address(address)
    # Nothing is unmapped at exit: views may still be in use, and the kernel unmaps what is left.
    weakref.finalize(owner, _libc.munmap, address, length).atexit = False
    return memoryview(owner).cast("B").toreadonly()
