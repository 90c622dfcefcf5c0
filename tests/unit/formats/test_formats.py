from __future__ import annotations

import pytest

from streamer.errors import ConfigError
from streamer.formats.choosing import FORMATS, chooser, detect, find_format


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["a/0.tar", "a/1.TAR"], "webdataset"),
        (["a/0.tar.gz"], "webdataset"),
        (["n01/a.jpg", "n01/b.jpg"], "folder"),
        (["a.tar", ".DS_Store", "empty/"], "webdataset"),
        ([], "folder"),
    ],
)
def test_detect(keys, name):
    """Only tars: webdataset; none: folder; hidden files do not count."""
    assert detect(keys) == name
    assert chooser("auto")(keys).name == name


def test_a_mixture_says_what_was_found():
    """Tars among other files are a question for the user."""
    with pytest.raises(ConfigError, match=r"2 tars and other files \(2 \.json, 1 without extension\)") as caught:
        detect(["a.tar", "b.tar", "a.json", "b.json", "LICENSE"])
    assert (caught.value.details["tars"], caught.value.details["others"]) == (2, 3)


def test_a_named_format_is_taken_as_given():
    """No detection when the user says what it is."""
    assert chooser("folder")(["a.tar"]) is FORMATS["folder"]


def test_an_unknown_format_lists_the_known():
    """A misspelt name is answered with the choice."""
    with pytest.raises(ConfigError, match="folder, webdataset or auto"):
        find_format("tfrecord")
    with pytest.raises(ConfigError, match="tfrecord"):
        chooser("tfrecord")
