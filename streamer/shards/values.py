"""Converts fields of samples to values of a shard, and values to files of a tar or JSON; never to a pickle.

The outputs of shards use it (`outputs/`). `value_of` reads fields of a source for tars and Parquet, `files_of` and
`key_of` make the files of a tar, and `json_of` makes JSON for both.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np

from streamer.decode.dispatch import find_decoder_of_kind
from streamer.decode.values import encode_json_tree
from streamer.errors import PackError
from streamer.formats.base import Field
from streamer.formats.webdataset import split_name
from streamer.manifest.model import NESTED

Content = bytes | memoryview

Sample = Mapping[str, object]
Files = list[tuple[str, Content]]

KEY = "__key__"
# A str in a field with one of these extensions keeps its name; other names get `.txt`.
_TEXTS = frozenset(
    [
        *("txt", "text", "transcript", "json", "jsn", "jsonl", "csv", "tsv", "xml", "html", "md", "cls"),
        *("srt", "vtt", "yaml"),
    ]
)
_CLASS_NAMES = ("label", "cls")
_KIND_EXTENSIONS = ("json", "jsonl", "txt", "npy", "npz", "jpg", "png", "webp", "cls", "safetensors")
_MAGIC = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp", b"II*\0": "tif"}


def copy_view(value: object) -> object:
    """Returns the bytes of a view of a user's memory, which may be used again; other values as they are."""
    return bytes(value) if isinstance(value, memoryview) else value


def copy_sample(sample: Sample) -> Sample:
    """Returns a sample with copies of all values that may change, also in lists and dicts.

    Raises:
        PackError: a value is nested too deeply.
    """
    copied: dict[str, object] = {}
    for name, value in sample.items():
        is_array = hasattr(value, "__array__") and not isinstance(value, np.generic)
        try:
            copied[name] = np.array(value) if is_array else _copy_value(value)
        except RecursionError as error:
            raise PackError(f"field {name!r} is nested too deeply; give bytes, or fewer lists in lists") from error
    return copied


def _copy_value(value: object) -> object:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: _copy_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        # Lists of tokens are long: their numbers are not looked at one by one.
        return list(value) if set(map(type, value)) <= {int, float, str} else [_copy_value(each) for each in value]
    return value


def value_of(field: Field) -> tuple[str, object]:
    """Returns name and value of a field of a source.

    Bytes of a file kind, such as a JPEG, stay bytes, and the name gets the extension of the kind if it lacks it; images
    whose first bytes are not known keep their name. Nested values become JSON. Bytes whose kind has no decoder stay as
    they are. Other kinds are decoded.

    Raises:
        DecodeError, ValueError: the decoder of the kind refuses the bytes.
    """
    name = field.name
    kind = field.kind
    content = field.content
    if kind == "image":
        ending = next((ending for magic, ending in _MAGIC.items() if content[: len(magic)] == magic), "")
        return (f"{name}.{ending}" if ending and not _has_extension(name, ending) else name), content
    if kind in _KIND_EXTENSIONS:
        return (name if _has_extension(name, kind) else f"{name}.{kind}"), content
    if kind == NESTED:
        return (name if _has_extension(name, "json") else f"{name}.json"), encode_json_tree(content)
    reader = find_decoder_of_kind(kind) if kind and kind != "bytes" else None
    return name, content if reader is None else reader(content)


def files_of(sample: Sample) -> Files:
    """Returns the files of a sample: name (the part after the key, in lower case) and content.

    bytes are written as they are, str as `name.txt` unless the name has an extension of text, an int named label or cls
    as `cls`, arrays as `name.npy`. All other numbers, None, lists and dicts are written together as `json`, by name, or
    each as `name.json` where the sample has a `json` already or the name ends in `.json`. Names that begin with two
    underscores are left out.

    Raises:
        PackError: a value has another type or is a text that is not Unicode, two fields would have the same name, a
            name is not a text or cannot be one in a tar, or there are no fields.
    """
    files: Files = []
    others: dict[str, object] = {}
    for name, value in sample.items():
        if not isinstance(name, str):
            raise PackError(f"a field is named by {name!r}, which is not a text")
        if name.startswith("__"):
            continue
        found = _file_of(name, value)
        if found is None:
            others[name] = value
        else:
            files.append(found)
    if others and any(name.lower() == "json" for name, _ in files):
        # The sample has a json of its own.
        files += [(f"{name}.json", json_of(name, value)) for name, value in others.items()]
    elif others:
        files.append(("json", json_of("json", others["json"] if others.keys() == {"json"} else others)))
    if not files:
        raise PackError("it has no fields")
    # Names are in lower case, as readers of WebDataset return them; each may occur once.
    seen: dict[str, str] = {}
    for name, _ in files:
        lower = name.lower()
        if lower in seen:
            raise PackError(f"fields {seen[lower]!r} and {name!r} would both be the file {lower!r}; rename one")
        is_name = _is_text_of_tar(name) and name.strip(".") == name != ""
        if not is_name or split_name(f"key.{name}") != ("key", lower):
            raise PackError(f"a field cannot be named {name!r}")
        seen[lower] = name
    return [(name.lower(), content) for name, content in files]


def key_of(sample: Sample, ordinal: int) -> str:
    """Returns the key of a sample: its `__key__`, with "_" for the dots of its last part, or nine digits of `ordinal`.

    Raises:
        PackError: the key is not a text, or cannot be a name in a tar.
    """
    key = sample.get(KEY)
    if key is None:
        return f"{ordinal:09d}"
    if not isinstance(key, str):
        raise PackError(f"{KEY} is {key!r}, which is not a text")
    folder, slash, name = key.rpartition("/")
    tidy = f"{folder}{slash}{name.replace('.', '_')}"
    is_path = _is_text_of_tar(tidy) and not tidy.startswith("/") and ".." not in folder.split("/")
    if not is_path or split_name(f"{tidy}.x") != (tidy, "x"):
        raise PackError(f"{KEY} {key!r} cannot be the name of a file in a tar; give it another")
    return tidy


def _is_text_of_tar(name: str) -> bool:
    """Whether a name can be stored in a tar: without zeros, and in UTF-8 but for bytes that were no UTF-8 in a tar."""
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return "\0" not in name


def _file_of(name: str, value: object) -> tuple[str, Content] | None:
    """Returns the file of a value, or None if the value goes into the common json; raises PackError."""
    if isinstance(value, bytes | memoryview):
        return name, value
    if isinstance(value, bytearray):
        return name, bytes(value)
    if isinstance(value, str):
        return (name if name.rpartition(".")[2].lower() in _TEXTS else f"{name}.txt"), encode_text(name, value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and name in _CLASS_NAMES:
        return "cls", b"%d" % int(value)
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and not isinstance(value, np.generic)):
        buffer = io.BytesIO()
        try:
            np.save(buffer, np.asarray(value), allow_pickle=False)
        except ValueError as error:
            raise PackError(f"field {name!r} is an array of Python objects; give numbers, or a list") from error
        return (name if _has_extension(name, "npy") else f"{name}.npy"), buffer.getvalue()
    return (name, json_of(name, value)) if name.endswith(".json") else None


def encode_text(name: str, text: str) -> bytes:
    """Returns a text of a field in UTF-8; raises PackError if it has half a character (a lone surrogate)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PackError(
            f"field {name!r} is not valid Unicode: character {error.start} is {text[error.start]!a}, half of a "
            "character; correct it in a transform (text.encode('utf-8', 'replace').decode()), or give bytes"
        ) from error


def json_of(name: str, value: object) -> bytes:
    """Returns a value of a field as JSON; `name` is for messages.

    Raises:
        PackError: JSON cannot represent the value.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PackError(
            f"field {name!r} cannot be written: {error}; give bytes, text, numbers, arrays, or lists and dicts of "
            "text, numbers and arrays"
        ) from error


def _plain(value: object) -> object:
    """Returns a number or array of numpy as Python has it; raises TypeError for another type."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.tolist()
    what = (
        "bytes in a list or dict"
        if isinstance(value, bytes | memoryview)
        else f"a value of type {type(value).__name__}"
    )
    raise TypeError(what)


def _has_extension(name: str, ending: str) -> bool:
    return name.rpartition(".")[2].lower() == ending
