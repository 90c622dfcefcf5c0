"""TFRecord meets the contract of the formats, on files of TensorFlow's writer; features, index files and refusals."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from streamer.decode.dispatch import SampleDecoder
from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Facts, SampleName
from streamer.formats.registry import find_format
from streamer.tables.tfrecord import TFRecord, sum_lengths
from tests.formats.cases import Case, contents_of, find, read_case, samples_in
from tests.formats.contract import FormatContract

NUMBERS = ("image/class/label", "many", "ü")
SHARD = "train-00000-of-00002.tfrecord"


class TestTFRecord(FormatContract):
    @classmethod
    def cases(cls) -> list[Case]:
        raw = ["image/encoded"]
        return [
            read_case(TFRecord(), "tfrecord/examples", raw=raw, copied=NUMBERS),
            read_case(TFRecord(), "tfrecord/indexed", raw=raw, copied=NUMBERS),
            read_case(TFRecord(example=False), "tfrecord/records"),
        ]


@pytest.fixture
def examples() -> Case:
    return read_case(TFRecord(), "tfrecord/examples")


@pytest.fixture
def indexed() -> Case:
    return read_case(TFRecord(), "tfrecord/indexed")


def first_frame(case: Case) -> memoryview:
    return memoryview(contents_of(case.format, find(case.format, case.objects), case.objects)[3][0])


def decoded(features: dict[str, str], content: memoryview) -> dict[str, object]:
    facts = Facts(notes={"lists": ["words"]})
    _, fields = TFRecord(features=features).opener(facts).open(content, SampleName())
    return SampleDecoder()("", fields)


@pytest.mark.parametrize("length", range(1, 16))
def test_files_shorter_than_a_record_are_refused(examples, length):
    """A file that ends within its first record is refused as one that was cut off."""
    objects = {name: content[:length] for name, content in examples.objects.items()}
    with pytest.raises(ManifestError, match=r"cut off|ends within|bytes"):
        find(examples.format, objects)


def test_features_have_types_and_shapes(examples):
    """`features=` gives types and shapes to features of an Example; the others are as they were found."""
    content = first_frame(examples)
    found = decoded({"image/class/label": "int", "score": "float", "box": "float[-1,2]", "text": "txt"}, content)
    assert found["image/class/label"] == 3
    assert found["score"] == pytest.approx(3 / 7)
    assert found["box"].shape == (0, 2)
    assert found["text"] == "Grüße 3" * 3
    assert found["ü"].tolist() == [1, 2]
    assert found["words"] == [b"a", b"", b"bcd" * 60]
    assert found["nothing"] is None
    assert found["image/encoded"].shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("features", "what"),
    [
        ({"score": "int"}, "'score' has numbers of type '<f4'"),
        ({"words": "txt"}, "'words' has 3 byte strings"),
        ({"many": "int"}, "many"),
        ({"box": "float[5]"}, "box"),
    ],
)
def test_a_feature_of_another_type(examples, features, what):
    """A feature of another type or shape than `features=` says is a DecodeError that names it."""
    with pytest.raises(DecodeError, match=what):
        decoded(features, first_frame(examples))


def test_a_rule_without_meaning():
    """A rule of `features=` without a meaning is a ConfigError."""
    with pytest.raises(ConfigError, match="features"):
        TFRecord(features={"a": ""}).opener(Facts())
    with pytest.raises(ConfigError, match="features"):
        find_format("tfrecord", {"features": {"a": 5}})


def test_index_files_are_read_instead(indexed):
    """TFRecord's index file is read in place of the records, with the headers of the first and of the last one."""
    found = find(indexed.format, indexed.objects)
    assert [len(asks) for asks in found.needs.values()] == [2, 2]
    assert [sum(map(len, asks)) for asks in found.needs.values()] == [3, 3]
    assert sum(n.stop - n.start for asks in found.needs.values() for ask in asks for n in ask) < 400


def test_an_index_file_of_several_shards_is_none(indexed):
    """An index file `a.idx` beside several shards of the name is not read, because its shard is unknown."""
    shards = [indexed.objects[name] for name in sorted(indexed.objects) if name.endswith(".tfrecord")]
    names = [f"a.tfrecord-{number:05d}-of-00002" for number in range(2)]
    found = find(indexed.format, {**dict(zip(names, shards, strict=True)), "a.idx": b"?"})
    assert [source.sidecar for source, _ in found.items] == [None, None]


@pytest.mark.parametrize(
    "lines", [b"0 16\n", b"a b\n", b"0\n", b"\n", b"0 16031 0\n", b"0 16000\n16000 31\n", b"-16 32\n16 16015\n"]
)
def test_an_index_file_of_another_file(indexed, lines):
    """A TFRecord index file that does not tile its file, or is none, is refused with what to do."""
    with pytest.raises(ManifestError, match=r"\.idx is not an index of .*\.tfrecord .*write it again, or delete it"):
        find(indexed.format, {**indexed.objects, SHARD.replace("tfrecord", "idx"): lines})


@pytest.mark.parametrize(
    ("damage", "reason", "place"),
    [
        (
            lambda whole, second: whole[: second + 2] + b"\x01" + whole[second + 3 :],
            "not a TFRecord frame",
            lambda whole, second: second,
        ),
        (lambda whole, second: whole[:-1], "needs 1 more bytes", None),
        (lambda whole, second: whole + b"abc", "3 bytes", lambda whole, second: len(whole)),
        (lambda whole, second: b"\xff" * 40, "not a TFRecord frame", lambda whole, second: 0),
    ],
    ids=["length", "cut off", "rest", "no record"],
)
def test_damage_is_told_with_its_place(examples, damage, reason, place):
    """A damaged TFRecord file is refused with the reason and its offset, and can be left out."""
    whole = examples.objects[SHARD]
    second = 16 + int.from_bytes(whole[:8], "little")
    with pytest.raises(ManifestError, match=reason) as caught:
        find(examples.format, {**examples.objects, SHARD: damage(whole, second)})
    assert place is None or caught.value.details["offset"] == place(whole, second)
    assert "reason" in caught.value.details


@pytest.mark.parametrize("name", [SHARD, f"{SHARD}.zlib"])
def test_compressed_files_are_named(examples, name):
    """A compressed TFRecord that is named as a plain one, or for zlib, is refused as compressed."""
    content = b"\x1f\x8b\x08" + bytes(100)
    with pytest.raises(ManifestError, match="is compressed"):
        find(examples.format, {name: content})


def test_what_is_no_example():
    """A SequenceExample, and a payload that is none, is a DecodeError with what to do."""
    payload = b"\x12\x00"
    frame = len(payload).to_bytes(8, "little") + bytes(4) + payload + bytes(4)
    with pytest.raises(DecodeError, match=r"SequenceExample.*example=False"):
        TFRecord().opener(Facts()).open(memoryview(frame), SampleName())
    with pytest.raises(DecodeError, match="7 bytes of payload in 16"):
        TFRecord().opener(Facts()).open(memoryview(b"\x07" + bytes(15)), SampleName())


def written(*records: dict[str, list[bytes]]) -> bytes:
    """Returns Examples of lists of byte strings, as records."""

    def part(number: int, content: bytes) -> bytes:
        length, rest = b"", len(content)
        while rest >= 0x80:
            length, rest = length + bytes([rest & 0x7F | 0x80]), rest >> 7
        return bytes([number << 3 | 2]) + length + bytes([rest]) + content

    found = b""
    for features in records:
        pairs = [
            part(1, part(1, name.encode()) + part(2, part(1, b"".join(part(1, each) for each in values))))
            for name, values in features.items()
        ]
        body = part(1, b"".join(pairs))
        length = np.array([len(body)], "<u8")
        found += length.tobytes() + sum_lengths(length).astype("<u4").tobytes() + body + bytes(4)
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("counts", [(3, 1, 2), (1, 3, 1), (0, 1), (1, 0)])
def test_a_list_is_one_in_each_sample(counts: tuple[int, ...], packed: bool):
    """A feature that is a list in one Example is a list in each, also of one byte string or none."""
    content = written(*({"steps/image": [b"\x89PNG%d" % n for n in range(count)], "id": [b"x"]} for count in counts))
    objects = {"a.tfrecord.gz": gzip.compress(content)} if packed else {"a.tfrecord": content}
    found = samples_in(TFRecord(), objects)
    assert [len(each["steps/image"]) for each in found] == list(counts)
    assert all(type(each["steps/image"]) is list for each in found)
    assert [each["id"] for each in found] == [b"x"] * len(counts)


def test_a_list_that_comes_late_is_refused():
    """A list that the first shard does not show is a DecodeError, which says what to write in `features=`."""
    content = written({"a": [b"x" * 1000]}, *[{"a": [b"y"]}] * 3)
    many = written({"a": [b"1", b"2"]})
    with pytest.raises(DecodeError, match=r"'a' has 2 byte strings.*TFRecord\(features=\{'a': 'bytes\[\]'\}\)"):
        samples_in(TFRecord(), {"0.tfrecord": content, "1.tfrecord": many})
    found = samples_in(TFRecord(features={"a": "txt[]"}), {"0.tfrecord": content, "1.tfrecord": many})
    assert [each["a"] for each in found] == [["x" * 1000], ["y"], ["y"], ["y"], ["1", "2"]]


@pytest.mark.parametrize(
    ("names", "accepted"),
    [
        (
            [
                *("a.tfrecord", "x/a.TFRECORDS", "train.tfrecord-00000-of-00010", "train-00000-of-01024", "a.tfrec"),
                *("a.tfrecords.gz", "mnist-train.tfrecord-00000-of-00001"),
            ],
            True,
        ),
        (["a.idx", "a.tfrecord.idx", "README.md", "a-00000-of-00002.parquet", "features.json"], False),
    ],
    ids=["records", "others"],
)
def test_names(names, accepted):
    """TFRecord accepts the names that TensorFlow and its users give, and no index files or documents."""
    assert {name: TFRecord().accepts(name) for name in names} == dict.fromkeys(names, accepted)


def test_checksums_of_many_lengths():
    """`sum_lengths` gives the masked CRC-32C of each length."""
    lengths = [0, 1, 2**63, 2**64 - 1, int.from_bytes(b"12345678", "little")]
    sums = sum_lengths(np.array(lengths, "<u8")).tolist()
    assert sums == [_masked(length.to_bytes(8, "little")) for length in lengths]


def _masked(content: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in content:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_array_record_is_called_what_it_is():
    """Files of ArrayRecord, numbered as TFRecord's, are refused as ArrayRecord or Riegeli, and not as damaged."""
    begin = "83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9"
    with pytest.raises(ManifestError, match="is ArrayRecord or Riegeli, which streamer does not read") as caught:
        find(TFRecord(), {"ds-train-00000-of-00002": bytes.fromhex(begin) + bytes(200)})
    assert "damaged" not in str(caught.value)
