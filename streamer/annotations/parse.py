"""Makes the content of a table (see `table.py`) of a file of annotations: CSV, TSV, JSON, JSON lines or Parquet.

`recode/work.py` calls it in a recoder, so that the engine parses nothing of a user's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.annotations.options import NO_KEY, USUAL_KEY, Parsed, TableOptions, choose_fields, find_extension
from streamer.annotations.table import MOST_ENDINGS, AnnotationHead, TableBuffers, hash_of
from streamer.errors import ConfigError, RecodeError, StreamerError
from streamer.formats.base import Records
from streamer.formats.table.rows import explain_bad_json, field_of, read_rows, texts_of
from streamer.formats.table.writer import write_records
from streamer.manifest.beside import POINTER_ADVICE, is_pointer

# Characters of an extension, as in "jpeg2000": longer endings are none.
_LONGEST_ENDING = 8
# The byte order mark of UTF-8.
_MARK = b"\xef\xbb\xbf"
_UTF_16 = {b"\xff\xfe", b"\xfe\xff"}
_MAX_INT32 = 2**31 - 1


class AnnotationRecoder:
    """Makes the buffers of a table of one file: one record for each field of `TableBuffers`."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Parses the whole file and returns the six buffers of its table.

        Args:
            content: bytes of the file.
            samples: not used. A recoder of a format gets the number of samples here.
            hint: not used. A recoder of a format gets what the index has noted of a block here.

        Raises:
            RecodeError: the file cannot be read, has no rows, or two of its rows have the same key.
            ConfigError: it lacks the column of keys or a field that the user names, has one of them twice, or is
                COCO's and another key is named.
        """
        if is_pointer(content):
            raise RecodeError(f"it {POINTER_ADVICE}")
        ending = find_extension(self._options.url)
        try:
            # Programs for Windows write a mark, and no reader of JSON takes it.
            has_mark = ending not in {"parquet", "pq"} and bytes(content[:3]) == _MARK
            text = content[3:] if has_mark else content
            if bytes(text[:2]) in _UTF_16:
                raise RecodeError("it is UTF-16; write it as UTF-8")
            if ending == "json" and bytes(text[:1000]).lstrip().startswith(b"{"):
                from streamer.annotations.coco import parse_coco

                parsed = parse_coco(text, self._options)
            else:
                parsed = _parse_rows(text, ending, self._options)
            return _table(self._options.url, parsed)
        except (StreamerError, MemoryError):
            raise
        except Exception as error:  # pyarrow has its own, and OSError, and those of Python
            why = explain_bad_json(content) if ending == "json" else ""
            raise RecodeError(f"cannot be read: {type(error).__name__}: {error}{why}") from error


def _parse_rows(content: memoryview, ending: str, options: TableOptions) -> Parsed:
    """Parses a file with a row for each sample; raises RecodeError, and ConfigError if it lacks a column."""
    key = options.key or USUAL_KEY
    fields: Sequence[str] = ()

    def choose(columns: Sequence[str]) -> list[str]:
        nonlocal fields
        if key not in columns:
            raise ConfigError(
                f"annotations={options.url!r} {NO_KEY}, {key!r}; key= names the column with the keys of the "
                f"samples, one of {', '.join(columns)}",
                field="key",
            )
        if doubled := [name for name, count in Counter(columns).items() if count > 1]:
            taken = [name for name in doubled if name == key or options.fields is None or name in options.fields]
            if taken:
                raise ConfigError(
                    f"annotations={options.url!r} has several columns of the name {taken[0]!r}; rename them, or "
                    "choose others: Annotations(url, fields=[...])",
                    field="fields",
                )
        chosen = choose_fields(options, columns, [name for name in columns if name != key])
        wanted = list(dict.fromkeys([key, *chosen]))
        fields = wanted if key in chosen else wanted[1:]
        return wanted

    table = read_rows(content, ending, choose)
    found = [field_of(table, name) for name in fields]
    keys = texts_of(table, key, "the key of its sample")
    return Parsed(keys, [spec for spec, _ in found], [column for _, column in found])


def _table(url: str, parsed: Parsed) -> Records:
    """Returns the buffers of a table by hash of the keys; raises RecodeError without rows or for a key of two rows."""
    if not parsed.keys:
        raise RecodeError("it has no rows")
    keys = [key.removeprefix("./") for key in parsed.keys]
    folders = {key.rpartition("/")[0] for key in keys}
    prefix = ""
    if len(folders) > 1:
        # The prefix is the folder that contains all keys. Paths are compared name by name: as texts, "img-2" lies
        # between "img" and "img/sub".
        paths = [folder.split("/") for folder in folders]
        first, last = min(paths), max(paths)
        shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
        prefix = "/".join(name for name, _ in shared)
    names = [key.encode("utf-8", "surrogateescape") for key in keys]
    hashes = np.fromiter(map(hash_of, names), np.int64, len(names))
    order = np.argsort(hashes, kind="stable")
    _refuse_doubles(hashes, order, keys)
    records = write_records(parsed.fields, parsed.columns, len(names))
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    key_offsets, key_content = _reorder_texts(lengths, b"".join(names), order)
    row_offsets, row_content = _reorder_texts(records.lengths, records.parts[0], order)
    head = AnnotationHead(
        url=url,
        fields=tuple(parsed.fields),
        classes=parsed.classes,
        in_folders=folders != {""},
        folder=folders.pop() if len(folders) == 1 else "",
        endings=_endings(keys),
        prefix=prefix,
    )
    buffers = TableBuffers[NDArray[np.uint8] | bytes](
        hashes=hashes[order].view(np.uint8),
        key_offsets=key_offsets.view(np.uint8),
        row_offsets=row_offsets.view(np.uint8),
        keys=key_content.view(np.uint8),
        rows=row_content.view(np.uint8),
        head=head.encode(),
    )
    parts = list(buffers)
    return Records(parts, np.array(list(map(len, parts)), np.int64))


def _refuse_doubles(hashes: NDArray[np.int64], order: NDArray[np.int64], keys: Sequence[str]) -> None:
    """Raises RecodeError if two rows have the same key; `order` sorts `hashes`."""
    same = np.flatnonzero(np.diff(hashes[order]) == 0)
    suspects = Counter(keys[place] for place in {*order[same].tolist(), *order[same + 1].tolist()})
    doubled = sorted(key for key, count in suspects.items() if count > 1)
    if not doubled:
        return
    places = [place for place, key in enumerate(keys) if key == doubled[0]]
    others = f" ({len(doubled)} keys have several)" if len(doubled) > 1 else ""
    raise RecodeError(
        f"rows {places[0]} and {places[1]} have the same key {doubled[0]!r}{others}; each sample has one row: join the "
        "rows of one key into lists, or take the doubled ones out",
        key=doubled[0],
        keys=len(doubled),
    )


def _endings(keys: Sequence[str]) -> tuple[str, ...]:
    """Returns the extensions of the keys, the commonest first.

    The result is empty if there are more than `MOST_ENDINGS`, or if two keys differ in their extensions only.
    """
    stems = set[str]()
    endings = Counter[str]()
    for key in keys:
        stem, dot, ending = key.rpartition(".")
        if dot and "/" not in ending and len(ending) <= _LONGEST_ENDING:
            endings[f".{ending}"] += 1
            stems.add(stem)
    if len(endings) > MOST_ENDINGS or len(stems) < endings.total():
        return ()
    return tuple(sorted(endings, key=lambda ending: (-endings[ending], ending)))


def _reorder_texts(
    lengths: NDArray[np.int64], content: object, order: NDArray[np.int64]
) -> tuple[NDArray[np.int32] | NDArray[np.int64], NDArray[np.uint8]]:
    """Returns the offsets and the content of byte strings in another order; offsets are int32 if they fit."""
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    strings = pa.Array.from_buffers(pa.large_binary(), len(lengths), [None, pa.py_buffer(edges), pa.py_buffer(content)])
    _, offsets, taken = strings.take(pa.array(order)).buffers()
    found = np.frombuffer(offsets, np.int64)[: len(lengths) + 1]
    data = np.frombuffer(taken, np.uint8)[: int(found[-1])] if taken is not None else np.empty(0, np.uint8)
    return (found.astype(np.int32) if found[-1] <= _MAX_INT32 else found), data
