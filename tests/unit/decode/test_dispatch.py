"""`SampleDecoder`: which decoder a field gets, and how failures name it; decoders are the real ones."""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from streamer.decode import ImageDecoder, SampleDecoder, dispatch
from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Field, FieldSpec


def field(name: str, content: bytes) -> Field:
    return Field(name, memoryview(content))


def test_auto_goes_by_the_last_extension(image, encode):
    """The automatic decoder goes by the last extension, in any case and behind any dots; other fields stay bytes."""
    fields = [
        field("jpg", encode(image, "JPEG")),
        field("mask.PNG", encode(image, "PNG")),
        field("cls", b"3"),
        field("json", b'{"a": 1}'),
        field("txt", b"hello"),
        field("npy", _npy(np.arange(3))),
        field("weird", b"\x00\x01"),
    ]
    sample = SampleDecoder()("k", fields)
    assert list(sample) == ["__key__", "jpg", "mask.PNG", "cls", "json", "txt", "npy", "weird"]
    assert sample["__key__"] == "k"
    assert isinstance(sample["jpg"], np.ndarray)
    assert np.array_equal(np.asarray(sample["mask.PNG"]), image)
    assert (sample["cls"], sample["json"], sample["txt"]) == (3, {"a": 1}, "hello")
    assert sample["weird"] == b"\x00\x01"
    assert isinstance(sample["weird"], bytes)


@pytest.mark.parametrize("name", ["jpg", "JPEG"])
def test_rules_know_jpeg_and_jpg_as_one(name):
    """A rule for jpg or JPEG is for fields of either name."""
    decode = SampleDecoder({name: len})
    assert decode("k", [field("jpg", b"12345"), field("jpeg", b"1")]) == {"__key__": "k", "jpg": 5, "jpeg": 1}


def test_a_rule_for_a_field_goes_before_one_for_its_extension():
    """A rule for a field precedes one for its extension and is for that field only, as for images beside masks."""
    fields = [field("png", b"1"), field("seg.PNG", b"22"), field("nii.gz", b"333")]
    rule = {"seg.png": len, ".png": None, "nii.gz": len}
    assert SampleDecoder(rule)("k", fields) == {"__key__": "k", "png": b"1", "seg.PNG": 2, "nii.gz": 3}


def test_a_image_that_is_refused_is_named(encode):
    """An image that is refused is named with sample, field and mode to write; with mode="stored" it fills its row."""
    deep = encode(np.array([[0, 300]], np.uint16), "PNG")
    refusal = r"sample 'k': field 'depth.png' .* ImageDecoder\(mode='stored'\) keeps them, mode='rgb8' makes RGB"
    with pytest.raises(DecodeError, match=refusal):
        SampleDecoder()("k", [field("depth.png", deep)])
    decode = SampleDecoder({"depth.png": ImageDecoder(mode="stored")})
    row = {"depth.png": np.zeros((1, 2), np.uint16)}
    assert decode("k", [field("depth.png", deep)], row)["depth.png"] is row["depth.png"]
    assert row["depth.png"].tolist() == [[0, 300]]


def test_gz_is_unpacked_and_decoded_by_the_extension_before():
    """A .gz field is decompressed and decoded by the extension before, as WebDataset does, under its whole name."""
    fields = [
        field("txt.gz", gzip.compress(b"hel") + gzip.compress(b"lo")),
        field("json.gz", gzip.compress(b'{"a": 1}')),
        field("depth.npy.GZ", gzip.compress(_npy(np.arange(3)))),
        field("nii.gz", gzip.compress(b"volume") + bytes(7)),
        field("gz", gzip.compress(b"alone")),
    ]
    sample = SampleDecoder()("k", fields)
    assert (sample["txt.gz"], sample["json.gz"]) == ("hello", {"a": 1})
    assert np.array_equal(np.asarray(sample["depth.npy.GZ"]), np.arange(3))
    assert (sample["nii.gz"], sample["gz"]) == (b"volume", b"alone")
    assert SampleDecoder(None)("k", fields[:1])["txt.gz"] == bytes(fields[0].content)


def test_rules_reach_into_gz():
    """A rule for the extension before .gz gets decompressed bytes, one for gz the compressed; pickles stay refused."""
    packed = field("txt.gz", gzip.compress(b"hello"))
    assert SampleDecoder({"txt": lambda content: content[:2]})("k", [packed])["txt.gz"] == b"he"
    assert SampleDecoder({"gz": None})("k", [packed])["txt.gz"] == bytes(packed.content)
    with pytest.raises(ConfigError, match="allow_pickle"):
        SampleDecoder()("k", [field("pkl.gz", gzip.compress(pickle.dumps(1)))])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b"hello")[:-1], "cut off"),
        (gzip.compress(bytes(60)) + gzip.compress(bytes(60)), "decompresses to more than 100 bytes"),
        (b"hello" * 10, "cannot be decompressed at byte 0"),
    ],
    ids=["cut", "large", "no gzip"],
)
def test_bad_gz_is_refused(content, reason, monkeypatch):
    """A .gz field that is damaged, cut off or larger than the limit raises DecodeError with the sample's name."""
    monkeypatch.setattr(dispatch, "MAX_BYTES", 100)
    with pytest.raises(DecodeError, match=rf"sample 'k': field 'txt.gz' .* by gunzip \+ decode_text: .*{reason}"):
        SampleDecoder()("k", [field("txt.gz", content)])
    assert SampleDecoder()("k", [field("txt.gz", gzip.compress(b"x" * 100))])["txt.gz"] == "x" * 100


def test_none_gives_bytes():
    """`decode=None` returns the bytes of every field, also of those that could be decoded."""
    sample = SampleDecoder(None)("k", [field("cls", b"3"), field("jpg", b"no image")])
    assert sample == {"__key__": "k", "cls": b"3", "jpg": b"no image"}
    assert type(sample["cls"]) is bytes


def test_a_function_is_given_name_and_bytes():
    """A function as the rule gets name and bytes of every field."""
    decode = SampleDecoder(lambda name, content: (name, type(content), len(content)))
    assert decode("k", [field("a.b", b"123")])["a.b"] == ("a.b", bytes, 3)


def test_a_dict_replaces_some_decoders():
    """A dict as the rule replaces decoders by extension, None means bytes, and others stay automatic."""
    decode = SampleDecoder({"JPG": lambda content: len(content), "txt": None})
    sample = decode("k", [field("jpg", b"12345"), field("txt", b"x"), field("cls", b"4")])
    assert sample == {"__key__": "k", "jpg": 5, "txt": b"x", "cls": 4}


def test_an_image_decoder_in_a_dict_reads_the_buffer_itself(encode):
    """An ImageDecoder in a dict decodes at its scale."""
    content = encode(np.zeros((400, 400, 3), np.uint8), "JPEG")
    sample = SampleDecoder({"jpg": ImageDecoder(100, 100)})("k", [field("jpg", content)])
    assert np.shape(sample["jpg"]) == (100, 100, 3)


def test_pickles_need_permission():
    """Pickles are refused by default with ConfigError, and read with allow_pickle."""
    content = field("pkl", pickle.dumps({"a": 1}))
    with pytest.raises(ConfigError, match="allow_pickle"):
        SampleDecoder()("k", [content])
    assert SampleDecoder(allow_pickle=True)("k", [content])["pkl"] == {"a": 1}


def test_a_failure_names_sample_field_and_decoder():
    """A DecodeError names sample, field, length and decoder, and has the decoder's own error as its cause."""
    with pytest.raises(DecodeError, match=r"sample 'a/7'.*field 'cls' \(3 bytes\).*decode_class") as caught:
        SampleDecoder()("a/7", [field("cls", b"dog")])
    assert caught.value.details == {"sample": "a/7", "field": "cls", "field_bytes": 3, "decoder": "decode_class"}
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_users_decoder_fails_the_same_way():
    """An error of a user's decoder becomes a DecodeError that names the user's function, whatever it raises."""

    def mine(content: bytes) -> object:
        raise KeyError("no such thing")

    for rule in ({"bin": mine}, lambda name, content: mine(content)):
        with pytest.raises(DecodeError, match="no such thing") as caught:
            SampleDecoder(rule)("k", [field("bin", b"")])
        named = mine if isinstance(rule, dict) else rule
        assert caught.value.details["decoder"] == named.__qualname__
        assert f"is refused by {named.__qualname__}: KeyError" in str(caught.value)


@pytest.mark.parametrize("rule", ["pil", 7, {"jpg": "pil"}])
def test_what_is_no_rule_is_refused(rule):
    """A value that is no rule raises ConfigError when the decoder is made."""
    with pytest.raises(ConfigError, match="decode"):
        SampleDecoder(rule)


@pytest.mark.process
def test_the_room_brings_neither_torch_nor_decoders():
    """Importing streamer.decode imports neither torch nor any image library, so workers start in milliseconds."""
    code = (
        "import sys, streamer.decode, streamer.decode.transforms;"
        "print([m for m in ('torch', 'cv2', 'PIL', 'simplejpeg') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def _npy(array: np.ndarray) -> bytes:
    import io

    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.process
def test_the_log_of_opencv_is_silent(image, encode):
    """OpenCV writes nothing to stderr for a damaged image, and the error that is raised names the sample."""
    content = encode(image, "TIFF", compression="tiff_lzw")
    program = (
        "import sys\nfrom streamer.decode import SampleDecoder\nfrom streamer.formats.base import Field\n"
        "try:\n    SampleDecoder()('a/7', [Field('tif', memoryview(sys.stdin.buffer.read()))])\n"
        "except Exception as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENCV_LOG_LEVEL"}
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=content[: len(content) // 2],
        capture_output=True,
        check=True,
        env=environment,
    )
    assert ended.stdout.startswith(b"sample 'a/7': field 'tif'")
    assert ended.stderr == b""


def test_damage_that_a_decoder_passes_over_is_told_with_its_sample(image, encode, caplog):
    """Damage that a decoder passes over is one line of the log with the sample, and the image is decoded."""
    jpeg = encode(image, "JPEG")
    sample = SampleDecoder()("a/7", [field("jpg", jpeg[:-2] + bytes([0, 1, 2]) * 10 + jpeg[-2:])])
    assert np.asarray(sample["jpg"]).shape == image.shape
    (text,) = caplog.messages
    assert text.startswith("sample 'a/7': field 'jpg' is decoded, but simplejpeg: Corrupt JPEG data: ")


def test_a_gz_that_says_it_is_too_long_is_not_unpacked(monkeypatch):
    """A .gz whose stored length exceeds the limit is not decompressed.
    JSON has a smaller limit, because its objects are larger."""
    monkeypatch.setattr(dispatch, "MAX_JSON_BYTES", 50)
    assert SampleDecoder()("k", [field("txt.gz", gzip.compress(b" " * 60))])["txt.gz"] == " " * 60
    with pytest.raises(DecodeError, match="decompresses to more than 50 bytes"):
        SampleDecoder()("k", [field("json.gz", gzip.compress(b"1" + b" " * 60))])
    monkeypatch.setattr("streamer.formats.compressed.decompress", None)
    monkeypatch.setattr(dispatch, "MAX_BYTES", 100)
    with pytest.raises(DecodeError, match="decompresses to more than 100 bytes"):
        SampleDecoder()("k", [field("txt.gz", gzip.compress(bytes(2000)))])


def test_a_rule_that_no_field_has_is_named(caplog):
    """A rule that no field has is one warning with the fields; names, endings and kinds of fields are known."""
    fields = [FieldSpec("audio.bytes", "bytes"), FieldSpec("mask.PNG", "image"), FieldSpec("text", "txt")]
    rule = {"audio": None, "audio.bytes": None, "png": None, "txt": None, "image": None, "mask.png": None}
    SampleDecoder(rule).check(fields)
    (said,) = caplog.messages
    assert "decode='audio' has no effect" in said
    assert said.endswith("the fields are audio.bytes, mask.PNG, text")
    caplog.clear()
    SampleDecoder(rule).check([])
    assert not caplog.messages
