"""Turns the fields of a sample from bytes into values, by their extension.

| extension | value |
| --- | --- |
| jpg png webp bmp gif tif ... | uint8 array, height x width x RGB, not turned by EXIF; `ImageDecoder` has other modes |
| cls cls2 index inx id | int |
| json jsn, jsonl | the JSON document; list of the lines |
| txt text transcript | str |
| npy, npz, safetensors | numpy array; dict of arrays (of npz at most 1 GiB) |
| wav flac mp3 ... | bytes; with `decode={"flac": AudioClip()}`: samples and their rate |
| numbers without a header | with `decode={"bin": ArrayDecoder("<f4", (64, 64))}`: numpy array |
| pt pth, pkl pickle | refused unless `decode=Decode(allow_pickle=True)` |
| txt.gz, json.gz, ... | decompressed (at most 1 GiB, JSON 64 MiB), then as the extension before .gz; others: bytes |
| any other | bytes |

`jpeg` counts as `jpg`, in rules and in names of fields.

Makers of samples decode with it (`batches/samples/maker.py`). Its decoders and transforms are public, for the options
`decode=` and `transform=` of a dataset. It imports neither torch nor a library for images until a field needs one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from streamer.decode.arrays import ArrayDecoder
from streamer.decode.dispatch import SampleDecoder
from streamer.decode.images import ImageDecoder, decode_image
from streamer.decode.masks import coco_masks
from streamer.decode.rule import Decode, DecodeRule, FieldDecoder
from streamer.decode.values import NestedDecoder

if TYPE_CHECKING:
    from streamer.media.decode.audio import AudioClip as AudioClip
    from streamer.media.decode.video import Frames as Frames
    from streamer.media.decode.video import VideoClip as VideoClip

__all__ = [
    "ArrayDecoder",
    "AudioClip",
    "Decode",
    "DecodeRule",
    "FieldDecoder",
    "Frames",
    "ImageDecoder",
    "NestedDecoder",
    "SampleDecoder",
    "VideoClip",
    "coco_masks",
    "decode_image",
]


# These names are imported at their first use, since most workers decode neither videos nor audio.
_MODULES = {
    "AudioClip": "streamer.media.decode.audio",
    "Frames": "streamer.media.decode.video",
    "VideoClip": "streamer.media.decode.video",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'streamer.decode' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
