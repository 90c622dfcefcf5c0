"""The format "folder": every object is one sample, and its class is the first folder of its path.

`formats/registry.py` makes it for the name "folder", and `formats/detect.py` for files of no other format; commands
have options for its arguments. Unless the user gives extensions, `formats/detect.py` chooses the files that are
samples, by `class_folders`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import force_setattr

from streamer.errors import ConfigError, DecodeError
from streamer.formats import AUTO
from streamer.formats.base import Facts, Field, Format, SampleName
from streamer.formats.names import (
    AUDIO,
    COMPANIONS,
    IMAGES,
    OTHER_IMAGES,
    VIDEO,
    base_name,
    extension,
    field_name,
    find_folder_pairs,
)
from streamer.manifest.beside import POINTER_ADVICE, POINTER_BYTES, is_hidden, is_pointer
from streamer.manifest.columns import read_name, write_name
from streamer.manifest.protocols import Indexing, Source, Span


class Folder(Format, frozen=True, forbid_unknown_fields=True):
    """Takes each raw file as one sample.

        StreamingDataset(url, format=Folder(extensions=["jpg", "png"]))

    Attributes:
        extensions: extensions of the files that are samples; capitals do not matter, and jpeg is jpg. With None the
            index chooses (see `class_folders`): the commonest one if most files are in class folders, else all.
        metadata: path of the file of annotations among the files, which is not a sample, or "" if there is none. The
            index sets it.
        classes: names of the classes in the order of their numbers, such as `classes` of the training data. A
            validation set that lacks a class then has the same labels, and a folder with another name is an error.
            With None the classes are the folders, sorted.

    Raises:
        ConfigError: `extensions` or `classes` is empty or has something else than texts, or two classes are equal.
    """

    name = "folder"
    whole_objects = True
    extensions: str | Collection[str] | None = None
    metadata: str = ""
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        classes: object = self.classes
        if classes is not None:
            names = list(classes) if isinstance(classes, Iterable) and not isinstance(classes, str) else []
            if not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"classes={classes!r}: give a list of names, as train.classes", field="classes")
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ConfigError(f"classes= has {twice[0]!r} more than once; each has one number", field="classes")
            force_setattr(self, "classes", tuple(map(read_name, names)))
        if (given := self.extensions) is None:
            return
        several: object = [given] if isinstance(given, str) else given
        # The extensions are spelled as `names.extension` spells them.
        names = (
            [field_name(name.lstrip(".")) if isinstance(name, str) else "" for name in several]
            if isinstance(several, Iterable)
            else []
        )
        if not names or not all(names):
            raise ConfigError(f"extensions={given!r}: give a list as ['jpg', 'png']", field="extensions")
        force_setattr(self, "extensions", frozenset(names))

    @property
    def options(self) -> dict[str, Any]:
        """The file of annotations and the given classes. Extensions are not stored: the manifest lists the samples."""
        found: dict[str, Any] = {"metadata": self.metadata} if self.metadata else {}
        return found | ({"classes": list(map(write_name, self.classes))} if self.classes is not None else {})

    @property
    def class_names(self) -> Sequence[str] | None:
        """The given classes; see `Format.class_names`."""
        return self.classes

    @property
    def requested_name(self) -> str:
        """The name "auto" if extensions or classes are given, so that annotations beside the files are found."""
        return self.name if self.extensions is None and self.classes is None else AUTO

    @property
    def chosen_extensions(self) -> Collection[str] | None:
        """The given extensions; see `Format.chosen_extensions`."""
        return self.extensions

    @property
    def metadata_file(self) -> str:
        """The file of annotations among the files; see `Format.metadata_file`."""
        return self.metadata

    def accepts(self, key: str) -> bool:
        """Whether a file is a sample: it has one of the extensions, is not hidden and not the file of annotations."""
        if is_hidden(key) or key == self.metadata:
            return False
        return self.extensions is None or extension(key) in self.extensions

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Yields the only sample, which is the whole object. Reads nothing."""
        yield Span(0, source.record.size)

    def open(self, content: memoryview, name: SampleName) -> tuple[str, Sequence[Field]]:
        """Returns the path below the dataset's url as key, and one field, named by the extension (`names.extension`).

        Raises:
            DecodeError: the file is a pointer of Git LFS.
        """
        if len(content) < POINTER_BYTES and is_pointer(content):
            raise DecodeError(f"{name.object_key} {POINTER_ADVICE}")
        return name.object_key, [Field(extension(name.object_key), content)]


_IMAGES = IMAGES | OTHER_IMAGES
_MEDIA = (_IMAGES, AUDIO, VIDEO)
_ADVICE = (
    "for samples of several files write them as tars (streamer.pack, or tar --sort=name); Folder(extensions=...) "
    "takes files of one kind, annotations= joins a table to them"
)
_METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def metadata_of(keys: Sequence[str]) -> str:
    """Returns the file of annotations among files of a dataset, by the names of Hugging Face; "" if there is none.

    It is the only metadata.csv, metadata.jsonl or metadata.parquet at the dataset's url, beside images, audio files or
    videos.
    """
    found = [key for key in keys if key in _METADATA]
    media = _IMAGES | AUDIO | VIDEO
    return found[0] if len(found) == 1 and any(extension(key) in media for key in keys) else ""


def class_folders(keys: Sequence[str], on_note: Callable[[str], None]) -> Folder:
    """Returns the format with the extensions of the files that are samples.

    If most files are in folders, the samples are the files with the commonest extension. All images count as one
    extension, and so do all audio files and all videos; documents beside these do not count. Otherwise all files are
    samples, and the format has no extensions.

    Args:
        keys: paths of all files below the dataset's url.
        on_note: called with a line about files that are not samples, and with one about files that belong together.
    """
    files = [key for key in keys if not is_hidden(key)]
    is_flat = 2 * sum("/" in key for key in files) <= len(files)
    text = ""
    if is_flat:
        text = _describe_file_pairs(files)
    elif pairs := find_folder_pairs(files):
        what = "are classes here" if all(name.count("/") == 1 for name in pairs) else "hold files that belong together"
        text = f"{', '.join(pairs)} {what}, and each file a sample of its own; {_ADVICE}"
    if text:
        on_note(text)
    if is_flat:
        return Folder()
    # The samples are the files of the commonest kind.
    endings = Counter(map(extension, files))
    groups: Counter[frozenset[str]] = Counter()
    for ending, count in endings.items():
        groups[next((kind for kind in _MEDIA if ending in kind), frozenset([ending]))] += count
    if any(kind in groups for kind in _MEDIA):
        groups = Counter({kind: count for kind, count in groups.items() if not kind <= COMPANIONS})
    # Images are chosen if another kind has as many files. Among others the name decides, so that the choice follows
    # from the listing alone.
    chosen = max(groups, key=lambda kind: (groups[kind], kind is _IMAGES, sorted(kind)))
    if not endings.keys() <= chosen:
        others = [key for key in files if extension(key) not in chosen]
        on_note(
            f"{len(others)} of {len(files)} files are not samples ({count_endings(others)}): those in the class "
            f"folders are .{', .'.join(sorted(endings.keys() & chosen))}; Folder(extensions=...) chooses others"
        )
    return Folder(extensions=chosen)


def _describe_file_pairs(keys: Sequence[str]) -> str:
    """Returns a line about files that differ in the extension only ("a.jpg", "a.txt"), if they are at least half.

    Returns "" otherwise.
    """
    if len({key.rpartition(".")[2] for key in keys}) < 2:
        return ""
    stems = Counter(map(_stem, keys))
    if 2 * sum(count for count in stems.values() if count > 1) < len(keys):
        return ""
    first = min(stem for stem, count in stems.items() if count > 1)
    example = ", ".join(sorted(key for key in keys if _stem(key) == first))
    return f"each of {example}, as of all files of one name, is a sample of its own here; {_ADVICE}"


def _stem(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{name.partition('.')[0]}"


def count_endings(keys: Iterable[str]) -> str:
    """Returns a text with the five commonest extensions of files: "12 .json, 1 without extension"."""
    endings = Counter(f".{extension(key)}" if "." in base_name(key)[1:] else "without extension" for key in keys)
    return ", ".join(f"{count} {ending}" for ending, count in endings.most_common(5))
