"""Makes the files of tests/formats/data/tfrecord with TensorFlow, and what TensorFlow reads of them.

pip install tensorflow-cpu tfrecord; PYTHONPATH=. python tests/formats/make/tfrecord.py [FOLDER] [RECORDS]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "tfrecord"


def example(number: int, drawn: random.Random) -> tf.train.Example:
    """Draws lists of every type and of many lengths; some are empty, or not there."""
    picture = tf.io.encode_jpeg(tf.constant(np.full((8, 8, 3), number % 256, np.uint8))).numpy()
    many = [drawn.choice([0, 1, -1, 127, 128, 2**31, -(2**63), 2**63 - 1]) for _ in range(number * 7 % 50)]
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[picture])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"Grüße {number}".encode() * (number % 9)])),
        "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"a", b"", b"bcd" * 60][: 2 + number % 2])),
        "score": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 7])),
        "box": tf.train.Feature(float_list=tf.train.FloatList(value=[0.25 * i for i in range(4 * (number % 3))])),
        "many": tf.train.Feature(int64_list=tf.train.Int64List(value=many)),
        "ü": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2])),
        "nothing": tf.train.Feature(),
    }
    return tf.train.Example(features=tf.train.Features(feature=features))


def told(record: bytes) -> dict[str, object]:
    """Returns a record, as TensorFlow's own classes read it."""
    values = {}
    for name, feature in tf.train.Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            found = list(feature.bytes_list.value)
            values[name] = found[0] if len(found) == 1 else found
        elif kind == "float_list":
            values[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            values[name] = np.array(feature.int64_list.value, np.int64)
        else:
            values[name] = None
    return values


def write(folder: Path, shards: list[list[bytes]], indexed: bool = False) -> list[bytes]:
    """Writes shards, and reads them again."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, records in enumerate(shards):
        path = folder / f"train-{number:05d}-of-{len(shards):05d}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        if indexed:
            tool = [sys.executable, "-m", "tfrecord.tools.tfrecord2idx"]
            subprocess.run([*tool, str(path), str(path.with_suffix(".idx"))], check=True)
    files = sorted(map(str, folder.glob("*.tfrecord")))
    return [record.numpy() for record in tf.data.TFRecordDataset(files)]


def main(root: Path, records: int) -> None:
    drawn = random.Random(3)
    examples = [example(number, drawn).SerializeToString() for number in range(records)]
    examples.append(tf.train.Example().SerializeToString())
    half = len(examples) // 2
    shards = [examples[:half], examples[half:]]
    for name in ("examples", "indexed"):
        write_expected(root / name, [told(record) for record in write(root / name, shards, name == "indexed")])
    bare = [drawn.randbytes(number * 53 % 700) for number in range(records)]
    write_expected(root / "records", [{"record": record} for record in write(root / "records", [bare])])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 30)
