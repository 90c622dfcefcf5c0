"""Finds splits (train, test, val) and folders that belong together (images, masks) by their names. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

_TRAINING = frozenset(["training", "train", "trainset", "trainval"])
_OTHERS = frozenset(["testing", "test", "testset", "validation", "valid", "val", "valset", "dev", "eval", "evaluation"])
# A folder of such a name, or a file whose name begins so, is a split whatever lies beside it.
_PLAIN = re.compile(r"(training|train|testing|test|validation|valid|val|dev)(/|[-_.][^/]*)", re.IGNORECASE)
# "trainA", "train2017", "imagenet-train", "TRAIN_images", "leftImg8bit", "JPEGImages".
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NUMBERS = re.compile(r"\d+")


def splits_in(keys: Iterable[str], *, of_files: bool) -> list[str]:
    """Returns the names of the splits that objects are in, if one is for training and another is not; else [].

    A name says a split if it is the word, or has it among its words (`train_images`, `trainA`, `test2017`), as more
    than half of the names beside it do: of a thousand classes two may be called `train_station` and `test_tube`.

    Args:
        keys: paths of objects.
        of_files: whether the names of files count, too; else those of folders only.
    """
    found: set[str] = set()
    for names in _siblings(keys, of_files=of_files).values():
        words = {name: _split_word(name) for name in names}
        # Files have numbers; one of each kind is enough.
        kinds = {_NUMBERS.sub("0", name): word for name, word in words.items()}
        plain = {name for name in names if _PLAIN.fullmatch(name)}
        found |= plain
        if 2 * sum(word != "" for word in kinds.values()) > len(kinds):
            found |= {name for name, word in words.items() if word}
    said = {_split_word(name) for name in found}
    if not (said & _TRAINING and said & _OTHERS):
        return []
    return sorted({_shown(name) for name in found})


def paired_folders(keys: Iterable[str]) -> list[str]:
    """Returns folders of which some hold images and others what belongs to these, as masks; else []."""
    for parent, names in sorted(_siblings(keys, of_files=False).items()):
        words = {name: set(map(str.lower, _WORDS.findall(name))) for name in names}
        inputs = {name for name in names if words[name] & _INPUTS and not words[name] & _TARGETS}
        targets = {name for name in names if words[name] & _TARGETS}
        if inputs and targets:
            return sorted(f"{parent}{name}" for name in inputs | targets)
    return []


_INPUTS = frozenset(["images", "image", "imgs", "img"])
_TARGETS = frozenset(
    [
        *("masks", "mask", "labels", "label", "annotations", "annotation", "anns", "ann", "segmentations"),
        *("segmentation", "seg", "depths", "depth", "targets", "target", "gt", "disparity"),
    ]
)


def _siblings(keys: Iterable[str], *, of_files: bool) -> Mapping[str, set[str]]:
    """Returns the names in each folder, by the path of the folder; names of folders end in a slash."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    # Most of a million files are in few folders.
    known: set[str] = set()
    for key in keys:
        folder, slash, name = key.rpartition("/")
        if of_files:
            found[f"{folder}{slash}"].add(name)
        while slash and folder not in known:
            known.add(folder)
            above, slash, name = folder.rpartition("/")
            found[f"{above}{slash}"].add(f"{name}/")
            folder = above
    return found


def _split_word(name: str) -> str:
    """Returns the word of a name that says a split, that of training first; "" for none."""
    words = set(map(str.lower, _WORDS.findall(name)))
    return next(iter(sorted(words & _TRAINING) or sorted(words & _OTHERS)), "")


def _shown(name: str) -> str:
    """Shortens the names of files that differ in numbers: "train-*"."""
    if name.endswith("/"):
        return name
    plain = _PLAIN.fullmatch(name)
    return f"{plain[1]}{plain[2][:1]}*" if plain else _NUMBERS.sub("*", name)
