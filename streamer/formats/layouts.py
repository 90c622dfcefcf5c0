"""Layouts of raw files and shards that are no dataset of one kind: splits, files that belong together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

# Below a folder of such a name, or in files whose names begin so.
_SPLIT = re.compile(r"(?:^|/)(training|train|testing|test|validation|valid|val|dev)(/|[-_.][^/]*$)", re.IGNORECASE)
_TRAINING = frozenset(["training", "train"])
_INPUTS = frozenset(["images", "image", "imgs", "img"])
_TARGETS = frozenset(["masks", "mask", "labels", "label", "annotations", "segmentations", "depths", "depth", "targets"])
_ADVICE = (
    "for samples of several files write them as tars (streamer.pack, or tar --sort=name); Folder(extensions=...) "
    "takes files of one kind, annotations= joins a table to them"
)


def splits_in(keys: Iterable[str], *, of_files: bool) -> list[str]:
    """The names of the splits that objects are in, if one is for training and another is not; else none.

    Args:
        keys: of the samples.
        of_files: whether the names of files say it, too, as those of shards do.
    """
    # Of a million files most are in few folders.
    names = set(keys) if of_files else {f"{key.rpartition('/')[0]}/" for key in keys if "/" in key}
    matches = (_SPLIT.search(name) for name in names)
    found = {
        (match[1].lower(), match[1] + ("/" if match[2] == "/" else match[2][:1] + "*")) for match in matches if match
    }
    splits = {name for name, _ in found}
    return sorted({text for _, text in found}) if splits & _TRAINING and splits - _TRAINING else []


def paired_folders(keys: Sequence[str]) -> str:
    """What is to be said of folders of images and of masks, which would be classes; "" for nothing.

    Args:
        keys: of the visible files.
    """
    tops = {key.partition("/")[0] for key in keys if "/" in key}
    lower = {top.lower() for top in tops}
    if not (lower & _INPUTS and lower & _TARGETS):
        return ""
    return (
        f"{', '.join(f'{top}/' for top in sorted(tops))} are classes here, and each file a sample of its own; {_ADVICE}"
    )


def paired_files(keys: Sequence[str]) -> str:
    """What is to be said where at least half of the files have others of their name beside them; "" for nothing.

    Args:
        keys: of the visible files.
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
