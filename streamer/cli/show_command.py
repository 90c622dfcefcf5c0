"""Implements `streamer show`, which reads one sample and shows its fields. `main.py` runs it."""

from __future__ import annotations

import argparse
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.base.extras import require_extra
from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_dataset, parse_url_or_options
from streamer.cli.terminal import Terminal
from streamer.config import format_bytes
from streamer.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from streamer.annotations.join import JoinRules
    from streamer.batches.samples.maker import SampleLocation
    from streamer.client.engine_client import EngineClient
    from streamer.manifest.table import Manifest

HELP = "look at one sample: its fields, where it lies, its image or audio"

DESCRIPTION = """\
Reads one sample with a small ranged request, wherever it lies, and prints its fields as training gets them. On a
terminal its first image is drawn; --out writes it, all frames of a clip, or its audio, to a file.
"""

EXAMPLES = """\
examples:
  streamer show s3://bucket/train/ --sample 17
  streamer show s3://bucket/train/ --sample -1 --out last.png
  streamer show ./images/ --key dogs/0001.jpg
  # names and sizes of the fields, nothing decoded
  streamer show s3://bucket/train/ --sample 17 --raw
  # a window of a recording, the frames of a clip
  streamer show s3://bucket/talks/ --format audio --sample 17 --out window.wav
  streamer show s3://bucket/videos/ --format video --sample 17 --out clip.png
  # with labels of a file
  streamer show ./train2017/ --sample 17 --annotations ./train2017.json
  streamer show ./images/ --sample 17 \\
    --annotations '{"url": "labels.csv", "key": "image"}'
"""

NOTES = """\
The dataset is indexed first if it has no index. Of a clip of a video it also says how many packets are decoded for it.
"""

# Letters of a text, and numbers of an array, that are shown.
_TEXT_SHOWN = 200
_NUMBERS_SHOWN = 8
# Lines of the terminal that a drawing takes, at most.
_DRAWN_LINES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add_dataset(parser)
    chosen = parser.add_argument_group("sample")
    which = chosen.add_mutually_exclusive_group(required=True)
    which.add_argument("--sample", type=int, metavar="N", help="its number in the manifest; negative: from the end")
    which.add_argument(
        "--key",
        metavar="KEY",
        help="the first one of this __key__ (reads tars from the start, unless `streamer index --columns __key__` has)",
    )
    chosen.add_argument(
        "--annotations",
        type=parse_url_or_options,
        metavar="URL",
        help="a file with labels, boxes or texts, joined by key; or JSON with url, key, fields, sample_field",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the image or the frames of the clip there (.png, .jpg, ...), or the audio (.wav)",
    )
    output.add_argument("--raw", action="store_true", help="decode nothing: print names and sizes of the fields")
    add_cache_dir(parser.add_argument_group("machine"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Reads the sample, shows it, and writes --out.

    Raises:
        ConfigError: an option is invalid, there is no such sample, or its image or audio cannot be written.
        StreamerError: the dataset cannot be indexed, or the sample cannot be read or decoded.
    """
    import numpy as np

    from streamer.batches.samples.maker import SampleMaker, SampleRules
    from streamer.cli.dataset import client_settings, open_manifest
    from streamer.client.engine_client import EngineClient
    from streamer.loader.members.single_reads import StreamedBytes

    with EngineClient(client_settings(arguments)) as client:
        manifest = open_manifest(client, arguments, terminal)
        content = StreamedBytes(client, manifest)
        joined = _find_annotations(arguments, manifest, client)
        rules = SampleRules(decode=None if arguments.raw else "auto", joined=joined)
        maker = SampleMaker(manifest, content, rules)
        if arguments.key is None:
            ordinal = _ordinal(arguments.sample, manifest.samples)
        else:
            ordinal = _find_sample(arguments.key, manifest, client)
        (place,) = maker.places(np.array([ordinal], np.int64))
        sample = maker.decode(place, content.read(place))
    for line in (*describe_sample(sample, place, manifest), *_describe_decode(place, manifest)):
        terminal.line(line)
    _draw(sample, arguments.out, terminal)
    return Exit.DONE


def describe_sample(sample: dict[str, object], place: SampleLocation, manifest: Manifest) -> list[str]:
    """Returns lines that describe a sample: its number and key, its place in the store, and each field.

    Args:
        sample: fields by name, with `__key__`.
        place: its ordinal and its chunk.
        manifest: manifest of the dataset.
    """
    rest = {name: value for name, value in sample.items() if name != "__key__"}
    width = max((len(name) for name in rest), default=0)
    extent = manifest.extent_of(place.ordinal)
    among = f"one of {manifest.chunk_samples[place.chunk]:,} samples in " if manifest.recoded else ""
    return [
        f"sample {place.ordinal:,} of {manifest.samples:,}: {sample['__key__']}",
        f"  in {extent.object.url}, {among}{extent.length:,} bytes from {extent.start:,} on, chunk {place.chunk:,}",
        *(f"  {name:<{width}}  {value_text(value)}{_class_of(name, value, manifest)}" for name, value in rest.items()),
    ]


def _describe_decode(place: SampleLocation, manifest: Manifest) -> list[str]:
    """Returns lines that say what decoding a sample costs, and what would cost less; none if its format cannot tell."""
    from streamer.formats.registry import restore_format

    if (cost := restore_format(manifest).find_decode_cost(manifest, place.ordinal)) is None:
        return []
    return [f"decoding: {cost}", *([f"  cheaper: {cost.cheaper}"] if cost.cheaper else [])]


def value_text(value: object) -> str:
    """Describes a value in one line: type, size, and its content or a summary of it."""
    import numpy as np

    match value:
        case np.ndarray():
            shape = " x ".join(map(str, value.shape)) or "scalar"
            text = f"{value.dtype} {shape}, {format_bytes(value.nbytes)}"
            if value.size == 0 or value.dtype.kind not in "iufb":
                return text
            if value.size <= _NUMBERS_SHOWN:
                return f"{text}: {value.tolist()}"
            return f"{text}: {value.min():g} to {value.max():g}, mean {value.mean():.4g}"
        case bytes():
            return f"{format_bytes(len(value))}, begins {value[:16].hex(' ')}" if value else "no bytes"
        case dict() | list():
            return f"{type(value).__name__} of {len(value)}: {_cut(repr(value))}"
        case _:
            return f"{type(value).__name__} {_cut(repr(value))}"


def _find_annotations(arguments: argparse.Namespace, manifest: Manifest, client: EngineClient) -> JoinRules | None:
    """Returns the rules of the annotations that are named, or that lie beside the files; None if there are none.

    A file beside the data that does not name the samples is not used, which is logged.
    """
    from streamer.annotations.join import JoinRules, annotations_of, pass_over
    from streamer.annotations.options import Annotations
    from streamer.loader.options.dataset_options import table_request

    named = Annotations.parse(arguments.annotations)
    if (found := annotations_of(manifest, named, arguments.urls)) is None:
        return None
    try:
        table = client.manifest(table_request(found))
    except ConfigError as error:
        pass_over(error, named, found)
        return None
    return JoinRules.make(table, replace(found, missing="none"), manifest)


def _find_sample(key: str, manifest: Manifest, client: EngineClient) -> int:
    """Returns the ordinal of the first sample with a key; ConfigError if there is none."""
    from streamer.batches.scan import KEY
    from streamer.client.engine_client import EngineClient
    from streamer.loader.members.connections import EngineConnections
    from streamer.loader.members.keys import KeyReader, find_key

    with closing(EngineConnections(lambda: EngineClient(client.settings))) as connections:
        try:
            return find_key(KeyReader(manifest, connections, KEY, fallback_dir=client.fallback_dir), key)
        except KeyError:
            raise ConfigError(f"no sample has the key {key!r}", field="key") from None


def _ordinal(number: int, samples: int) -> int:
    if not -samples <= number < samples:
        raise ConfigError(f"--sample {number}: there are {samples:,} samples, 0 to {samples - 1:,}", field="sample")
    return number % samples


def _class_of(name: str, value: object, manifest: Manifest) -> str:
    return f" ({manifest.classes[value]})" if name == "label" and isinstance(value, int) and manifest.classes else ""


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}..."


def _draw(sample: dict[str, object], out: Path | None, terminal: Terminal) -> None:
    """Writes the sample's audio, clip or first image to the file, or draws the first image on a terminal.

    Without a file, and not on a terminal, it does nothing.

    Raises:
        ConfigError: the sample has nothing of this kind, or the file cannot be written.
    """
    if out is not None and out.suffix.lower() == ".wav":
        _save_audio(sample, out)
        terminal.line(f"written: {out}")
        return
    clip = _clip(sample)
    image = _first_image(sample) if clip is None else clip[0]
    if out is not None:
        if image is None:
            raise ConfigError("--out: the sample has no image", field="out")
        _save(image, out, clip, sample.get("pts_seconds"))
        terminal.line(f"written: {out}")
    elif image is not None and terminal.out.isatty():
        from streamer.cli.images import half_blocks

        size = shutil.get_terminal_size()
        for line in half_blocks(image, size.columns, min(size.lines - 2, _DRAWN_LINES)):
            terminal.draw(line)


def _first_image(sample: dict[str, object]) -> npt.NDArray[np.uint8] | None:
    """Returns the first field that is an RGB image, uint8 (height, width, 3); None without one."""
    import numpy as np

    for value in sample.values():
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3:
            return value
    return None


def _clip(sample: dict[str, object]) -> npt.NDArray[np.uint8] | None:
    """Returns the frames of the first field with a clip or several, (frames, height, width, 3); None without one."""
    import numpy as np

    for value in sample.values():
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in {4, 5} and value.shape[-3] == 3:
            return np.moveaxis(value.reshape(-1, *value.shape[-3:]), 1, -1)
    return None


def _save(
    image: npt.NDArray[np.uint8], out: Path, clip: npt.NDArray[np.uint8] | None = None, times: object = None
) -> None:
    """Writes an image, or the frames of a clip with their times, in the format of the file's extension.

    Raises:
        ConfigError: Pillow is not installed, or the file cannot be written.
    """
    import numpy as np

    with require_extra("--out", field="out"):
        from PIL import Image

        from streamer.cli.images import contact_sheet

        if clip is not None:
            image = contact_sheet(clip, times.ravel().tolist() if isinstance(times, np.ndarray) else ())
    try:
        Image.fromarray(image).save(out)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--out {out}: {error}", field="out") from error


def _save_audio(sample: dict[str, object], out: Path) -> None:
    """Writes the sample's audio as a .wav file with 16 bits a number; ConfigError if it has none."""
    import wave

    import numpy as np

    audio = sample.get("audio")
    rate = sample.get("sample_rate")
    if not isinstance(audio, np.ndarray) or not isinstance(rate, int):
        raise ConfigError("--out: the sample has no audio; --format audio cuts windows out of recordings", field="out")
    numbers = np.clip(np.round(audio * 32768), -32768, 32767).astype("<i2")
    try:
        with wave.open(str(out), "wb") as file:
            file.setparams((len(numbers), numbers.itemsize, rate, numbers.shape[1], "NONE", ""))
            file.writeframes(numbers.T.tobytes())
    except OSError as error:
        raise ConfigError(f"--out {out}: {error}", field="out") from error
