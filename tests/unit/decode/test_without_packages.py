"""Decoders without the packages that they need: a ConfigError with what to install, and no error of each sample."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from PIL import Image

from streamer.base.extras import EXTRAS
from streamer.decode import ArrayDecoder, AudioClip, Frames, ImageDecoder, VideoClip
from streamer.decode.base import library
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.masks import coco_masks
from streamer.errors import ConfigError
from streamer.formats.base import Facts, Field, FieldSpec
from streamer.formats.registry import find_format
from tests.recordings import mp3
from tests.videos import made


@pytest.fixture(autouse=True)
def _forget_libraries() -> Iterator[None]:
    """Forgets which libraries of images were found."""
    library.cache_clear()
    yield
    library.cache_clear()


def encoded(name: str) -> bytes:
    """Returns a small image."""
    sink = io.BytesIO()
    Image.new("RGB", (4, 3)).save(sink, name)
    return sink.getvalue()


def of_field(name: str, content: bytes, kind: str = "", *, allow_pickle: bool = False, rule: object = "auto") -> object:
    """Decodes a sample of one field."""
    decoder = SampleDecoder(rule, allow_pickle=allow_pickle)  # type: ignore[arg-type]
    return decoder("k", [Field(name, memoryview(content), kind)])


def import_scipy(content: bytes) -> object:
    """Stands for a user's decoder that imports a package."""
    import scipy  # type: ignore[import-not-found,import-untyped]

    return scipy


GIF = encoded("GIF")
PNG = encoded("PNG")
MP3 = mp3(1)
MP4 = made("mpeg4.mp4")
MASK = {"segmentation": [], "height": 1, "width": 1}
PIXELS = np.array([4, 3, 1], "<u4").tobytes() + b"1" + bytes(12)
CASES: list[tuple[str, Callable[[], object]]] = [
    ("av", lambda: VideoClip(2)(MP4)),
    ("av", lambda: VideoClip(2)(MP4.replace(b"ftyp", b"uuid"))),
    ("av", lambda: of_field("x.mp4", MP4, rule={"mp4": VideoClip(2)})),
    ("av", lambda: SampleDecoder().check([FieldSpec("frames", "clip")])),
    ("av", lambda: SampleDecoder({"x": Frames()}).check([], ["h264"])),
    ("av", lambda: AudioClip()(MP3)),
    ("av", lambda: SampleDecoder().check([FieldSpec("audio", "audio")], ["flac"])),
    ("PIL", lambda: of_field("x.gif", GIF, rule={"gif": ImageDecoder(mode="stored")})),
    ("PIL", lambda: of_field("x", PIXELS, "pil")),
    ("cramjam", lambda: packed_items().opener(FACTS)),
    ("cramjam", lambda: packed_items().recoder(Facts([], {"layout": "frames", "sample_bytes": 0}))),
    ("pycocotools", lambda: coco_masks(MASK)),
    ("torch", lambda: of_field("x.pt", b"", allow_pickle=True)),
]
FACTS = Facts([FieldSpec("x", "bytes")], {"layout": "packed items", "whole": False})


def packed_items() -> object:
    """Returns the format whose items may be compressed one by one."""
    return find_format("litdata", {})


@pytest.mark.parametrize(("package", "work"), CASES)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, package: str, work: Callable[[], object]) -> None:
    """Without its package a decoder raises ConfigError with the package and the extra that installs it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package} in .*pip install 'streamer-data\[{EXTRAS[package]}\]'"):
        work()


def test_a_package_of_the_user_is_missing_for_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's decoder that imports what is not installed raises ConfigError with the field and the module."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ConfigError, match=r"decoding field 'x\.mat' with .* needs a module .*import of scipy halted"):
        of_field("x.mat", b"", rule={"mat": import_scipy})


def test_what_needs_no_package_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any package of images numbers and text are decoded."""
    for name in ("PIL", "PIL.Image", "cv2", "simplejpeg", "av"):
        monkeypatch.setitem(sys.modules, name, None)
    assert np.array_equal(ArrayDecoder("<i4")(np.arange(3, dtype="<i4").tobytes()), np.arange(3))
    assert of_field("x.txt", b"a") == {"__key__": "k", "x.txt": "a"}
    with pytest.raises(ConfigError, match="no image decoder is installed"):
        of_field("x.png", PNG)
