"""Finds the format of a dataset: by the name that the user gives, or under "auto" by the names of the objects.

The engine (`engine/manifests/manifests.py`), indexes without an engine (`indexing/source.py`) and the end of a pack
(`shards/finish.py`) call `chooser`. The build of a manifest calls its result with the names in the listing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from streamer.errors import ConfigError
from streamer.formats import AUTO, BUILT_IN
from streamer.formats.base import Format
from streamer.formats.folder import Folder, class_folders, count_endings, metadata_of
from streamer.formats.names import COMPANIONS, base_name, extension, is_common, is_shard, splits_in
from streamer.formats.registry import find_format
from streamer.formats.table.layouts import has_table, refuse_table
from streamer.formats.tar import INDEX_ENDINGS
from streamer.formats.webdataset import WebDataset
from streamer.manifest.beside import is_hidden, is_hidden_folder

# Titles of formats that are not read, by ending of a file.
_NOT_READ = {
    **dict.fromkeys(["nc", "nc4"], "NetCDF"),
    **dict.fromkeys(["array_record", "arrayrecord"], "ArrayRecord"),
    "lance": "Lance",
    "beton": "FFCV",
    "avro": "Avro",
    "orc": "ORC",
}
# The name of a built-in format, or the title of one that is not read, by ending of a file.
_ENDINGS = _NOT_READ | {ending: name for name, row in BUILT_IN.items() for ending in row.endings}
_FILES = {file: name for name, row in BUILT_IN.items() for file in row.files}
# Blocks of N5 have numbers for names, and files with this name describe them.
_N5 = "attributes.json"
# Datasets of LeRobot are Parquet and mp4, and have these files.
_LEROBOT_INFO = "meta/info.json"
_LEROBOT_TASKS = frozenset(["meta/tasks.parquet", "meta/tasks.jsonl"])
_TABLES = frozenset(["csv", "tsv"])
_DOCUMENTS = frozenset(["txt", "json", "xml"])
# Formats whose files also accompany other data.
_COMPANIONS_OF_OTHERS = frozenset(["jsonl"])
_ZARR_CHUNK = re.compile(r"(?:c\.)?\d+(?:\.\d+)*")
_PACKED = re.compile(r"\.(zstd|zst|gz|gzip|snappy|br|brotli|bz2|lz4|xz)$")
_LITDATA = re.compile(r"chunk-\d+-\d+(\.[\w:]+)?\.bin")
# Names of shards: "train.tfrecord-00000-of-00010", and "train-00000-of-01024" in TensorFlow's ImageNet.
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}")
_TABLE_STARTS = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",
    b"Obj\x01": "Avro",
    b"ORC": "ORC",
}
_IDX = re.compile(r".+[-.]idx\d-ubyte")


def chooser(
    name: str,
    options: Mapping[str, object] | None = None,
    *,
    extensions: Iterable[str] | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Callable[[Iterable[str]], Format]:
    """Returns a function by which the builder of a manifest gets the format from the paths of all objects.

    That function raises ConfigError if no file has the extensions. Under "auto" it also does so for a table with a log
    (Delta Lake), and unless extensions are given for several splits, several formats, and one that is not read. A named
    format is not compared with the objects. With extensions the format is a `Folder`, whatever the name is.

    Args:
        name: name of a format, or "auto" to find it from the paths of the objects.
        options: options of the named format. With "auto" only `classes` of a `Folder` count.
        extensions: extensions of the raw files that are samples. With None `folder.class_folders` chooses them.
        on_note: called with a line about files that are not samples, or about splits.

    Raises:
        ConfigError: no format has this name and such options.
    """
    fixed = None if name == AUTO else find_format(name, options)
    # The client gives the extensions and classes of a Folder under "auto", so that a file of annotations is found.
    if fixed is not None:
        classes = fixed.class_names
    else:
        given = (options or {}).get("classes")
        classes = None if given is None else Folder(classes=given).classes  # type: ignore[arg-type]

    def choose(keys: Iterable[str]) -> Format:
        names = list(keys)
        if fixed is None and (table := has_table(names)) is not None:
            raise ConfigError(refuse_table(*table), field="format", found=table[0])
        visible = [key for key in names if not is_hidden(key) or _is_mark(key)]
        names = visible if visible or len(names) != 1 else [base_name(names[0]).lstrip(".")]
        metadata = metadata_of(names) if fixed is None else ""
        names = [key for key in names if key != metadata] if metadata else names
        if extensions is not None:
            chosen = Folder(frozenset(extensions), metadata, classes)
            if not any(map(chosen.accepts, names)):
                wanted = ", ".join(sorted(chosen.extensions or ()))
                raise ConfigError(
                    f"extensions={wanted}: none of the {len(names)} files has one ({count_endings(names)})",
                    field="extensions",
                )
            return chosen
        found = fixed or (Folder(classes=classes) if classes else find_format(detect(names)))
        if isinstance(found, Folder):
            found = replace(class_folders(names, on_note), metadata=metadata, classes=classes)
        if isinstance(found, WebDataset) and fixed is None:
            indexes = tuple(f".{ending.rpartition('.')[2]}" for ending in INDEX_ENDINGS)
            beside = [
                key for key in names if not found.accepts(key) and not key.endswith(indexes) and not is_hidden(key)
            ]
            if beside:
                on_note(f"{len(beside)} files beside the tars are not samples ({count_endings(beside)})")
        if splits := splits_in(filter(found.accepts, names), of_files=not found.whole_objects):
            _check_splits(splits, None if fixed is None else on_note)
        return found

    return choose


def _check_splits(splits: Sequence[str], on_note: Callable[[str], None] | None) -> None:
    """Raises ConfigError for splits below one url. If the format is named, `on_note` is given, and called instead."""
    text = f"below one url are the splits {', '.join(splits)}"
    if on_note is not None:
        on_note(f"{text}: they are one dataset here; name the url of each for datasets of their own")
        return
    raise ConfigError(
        f"{text}; name the url of one of them (.../{splits[-1]}), or those of several in a list to take them together",
        field="urls",
        splits=len(splits),
    )


def _is_mark(key: str) -> bool:
    """Whether a file has a name that alone tells a format (`BuiltIn.files`), and is in no hidden folder."""
    folder, _, name = key.rpartition("/")
    return name.lower() in _FILES and not (folder and is_hidden_folder(folder))


def detect(keys: Sequence[str]) -> str:
    """Returns the name of the format that files with these paths have, by their endings.

    Tars, with documents and index files beside them or not, are "webdataset". Files of no other format are "folder".
    Hidden files do not count.

    Raises:
        ConfigError: there are tars and other files, files of a format among others, or a dataset of a format that is
            not read. The text says how many there are of each.
    """
    if _LEROBOT_INFO in keys and not _LEROBOT_TASKS.isdisjoint(keys):
        return "lerobot"
    tars = WebDataset()
    tar_keys = [key for key in keys if not is_common(key) and tars.accepts(key)]
    if tar_keys:
        # Files with the name of a tar beside them do not count: `0.parquet` and `0.tar.md5` beside `0.tar`.
        taken = set(tar_keys)
        stems = taken | {key[: key.lower().rfind(".tar")] for key in taken}
        keys = [
            key
            for key in keys
            if key in taken or key.rpartition(".")[0] not in (stems if extension(key) in _SIDECARS else taken)
        ]
    if found := _special_format(keys):
        return found
    others = [key for key in keys if not _belongs_to_tars(key, tars)] if tar_keys else []
    if others:
        raise ConfigError(
            f"format='auto' found {len(tar_keys)} tars and other files ({count_endings(others)}); name the format: "
            "'webdataset' takes the tars only, 'folder' the files; Folder(extensions=...) says which of them",
            field="format",
            tars=len(tar_keys),
            others=len(others),
        )
    return "webdataset" if tar_keys else "folder"


def _belongs_to_tars(key: str, tars: WebDataset) -> bool:
    """Whether a file is a tar, or may lie beside tars: a document, a list of checksums, `_SUCCESS`."""
    if is_hidden(key) or tars.accepts(key) or key.lower().endswith(INDEX_ENDINGS[0]):
        return True
    name = base_name(key)
    return "." not in name or extension(key) in COMPANIONS


# Extensions of files that may lie beside each tar: the table of its samples (img2dataset), or documents about it.
_SIDECARS = COMPANIONS | {"parquet", "pq"}


def _special_format(keys: Sequence[str]) -> str:
    """Returns the name of the built-in format of which most objects are by their names; "" for tars and raw files.

    Documents beside the data (README.md, index.json) do not count.

    Raises:
        ConfigError: most objects are of a format that is not read, or there are other files among those of a format.
    """
    found: Counter[str] = Counter()
    example: dict[str, str] = {}
    odd = [key for key in keys if not is_common(key)]
    others = len(keys) - len(odd)
    chunks = 0
    marked = ""
    indexes = {key[:-4] for key in odd if key.endswith(".idx")}
    for key in odd:
        name = base_name(key).lower()
        kind = _FILES.get(name) or _kind(name) or ("tokens" if key.endswith(".bin") and key[:-4] in indexes else "")
        if kind:
            found[kind] += 1
            example.setdefault(kind, key)
            marked = marked or (kind if name in _FILES else "")
        elif _ZARR_CHUNK.fullmatch(name):
            chunks += "." in name
        elif not is_hidden(key) and "." in name and name.rpartition(".")[2] not in COMPANIONS:
            others += 1
    others += chunks if marked != "zarr" else 0
    kind = marked or max(found, key=found.__getitem__, default="")
    if not kind and len(odd) == len(keys) and (refusal := _companions(odd)):
        raise ConfigError(refusal, field="format")
    if not kind or (not marked and found[kind] <= others) or (others and kind in _COMPANIONS_OF_OTHERS):
        return ""
    title = BUILT_IN[kind].title if kind in BUILT_IN else kind
    what = f"{title} ({found[kind]} such objects, the first is {example[kind]})"
    if kind not in BUILT_IN:
        raise ConfigError(_not_read(what), field="format", found=title, objects=found[kind])
    if others:
        raise ConfigError(
            f"format='auto' found {what} and {others} other files; name the format: {kind!r} takes the former "
            "only, 'folder' each file as a sample",
            field="format",
            found=title,
            objects=found[kind],
        )
    return kind


def _not_read(what: str) -> str:
    """Returns the text that refuses a dataset in a format that is not read."""
    return (
        f"this is a dataset in {what}, which streamer does not read; write it as WebDataset tars, or pass "
        "format='folder' to get each file as one sample of bytes"
    )


def _companions(keys: Sequence[str]) -> str:
    """Returns the text that refuses a dataset of N5, CSV or one JSON document.

    Returns "" for others, and if any file is not of a kind that accompanies data (text, CSV, JSON).
    """
    visible = [key for key in keys if not is_hidden(key)]
    blocks = sum(base_name(key).isdecimal() for key in visible)
    if any(base_name(key) == _N5 for key in visible) and 2 * blocks >= len(visible):
        return _not_read(f"N5 ({blocks} blocks, the first object is {visible[0]})")
    # Names without an extension, such as LICENSE, tell nothing.
    named = [key for key in visible if "." in base_name(key)]
    endings = [_PACKED.sub("", base_name(key).lower()).rpartition(".")[2] for key in named]
    if not COMPANIONS.issuperset(endings):
        return ""
    tables = [key for key, ending in zip(named, endings, strict=True) if ending in _TABLES]
    documents = sum(ending in _DOCUMENTS for ending in endings)
    if tables and len(tables) >= documents:
        return (
            f"this is a dataset in CSV ({len(tables)} such objects, the first is {tables[0]}), of whose rows streamer "
            "reads no samples; write it as Parquet or JSON lines, join it to other files by annotations=, or pass "
            "format='folder' to get each file as one sample of bytes"
        )
    if endings == ["json"]:
        return (
            f"{named[0]} is one JSON document, or lines of JSON: format='jsonl' reads a value from each line, "
            "format='folder' takes it as the only sample; write the objects of a list on lines of their own"
        )
    return ""


def _kind(name: str) -> str:
    """Returns the format that a file name tells: the name of a built-in one, or the title of one that is not read.

    Returns "" if the name tells none.
    """
    bare = _PACKED.sub("", name)
    ending = bare.rpartition(".")[2] if "." in bare else ""
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if ending == "json" and is_shard(bare):
        return "jsonl"
    if ending == "bin" and _LITDATA.fullmatch(bare):
        return "litdata"
    if _IDX.fullmatch(bare):
        return "IDX (MNIST)"
    if "-of-" in bare and (shard := _SHARD.fullmatch(bare)):
        return _ENDINGS.get(shard[1].rpartition(".")[2], "tfrecord")
    return ""


def bare_file(keys: Sequence[str]) -> int | None:
    """Returns the place in `keys` of the first file whose name has no extension, if most names have none; else None.

    The builder then reads the first bytes of the file, which may tell its format (`check_bare_file`).
    """
    bare = [place for place, key in enumerate(keys) if "." not in base_name(key) and not is_hidden(key)]
    return bare[0] if bare and 2 * len(bare) > len(keys) else None


def check_bare_file(url: str, start: bytes) -> None:
    """Raises ConfigError if a file without an extension is a table by its first bytes: Parquet, Arrow, Avro or ORC."""
    if (kind := next((kind for magic, kind in _TABLE_STARTS.items() if start.startswith(magic)), "")) == "":
        return
    known = kind.lower() in BUILT_IN
    remedy = f"format={kind.lower()!r} reads their rows" if known else "streamer does not read it"
    raise ConfigError(
        f"{url} is {kind}, by its first bytes, and its name does not say so: {remedy}; format='folder' gives each file "
        "as one sample of bytes",
        field="format",
        found=kind,
    )
