"""Clips of films: what index, chunk files, decoding and loading cost, beside PyAV and torchcodec on local files.

    python benchmarks/video.py [--keep FOLDER] [--only files] [--clips 24]

Two films, encoded by x264 with the key frames that it chooses: 640x272 at 24 frames a second and 0.7 Mbit/s, of a
minute and repeated to ten minutes and to an hour; and an hour of 1280x720 at 1.6 Mbit/s with sound. Index and chunk
files: bytes of the format over the file, in this process. Decoding: records to RGB, in turns with `av.open` of the
local file for each clip, a torchcodec `VideoDecoder` for each clip, and one that is kept; medians of the rounds.
Loading: clips in random order at full size, two workers, warm, beside a torch `DataLoader` whose workers decode the
local file with torchcodec. First batch: of the hour of 1280x720 behind a simulated S3 (30 ms to the first byte, 90 MB/s
a connection), from the constructor on, without an index; what the trainer waited for; and what PyAV takes to decode the
same clips out of the local file, which is the bound of the worker that makes the batch. The engine goes on fetching
meanwhile, so bytes sent before the batch are those of the time that decoding takes. torchcodec is left out where it is
not installed. Results are kept in benchmarks/results/.

Chunk files have more than the packets: on average half a clip is in two blocks at their border. Blocks of 8 MiB of the
film of ten minutes have 86 s, and clips of 64 frames, every second one, 5.3 s: 2.6 / 86 = 3.1 % more; of 16 frames
0.8 %.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import msgspec
import numpy as np
from av.video.reformatter import Interpolation
from bounds import Bounds, least_cpu
from bytecode import compile_streamer
from report import kept
from s3sim import S3_PROFILE, simulator
from video_films import repeat_film, with_torchcodec, write_film

from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.decode import Frames
from streamer.formats import Video
from streamer.formats.base import Block, Facts, Need, Source
from streamer.formats.chunkfile import encode_table
from streamer.manifest.model import ObjectRecord
from streamer.manifest.table import Manifest
from streamer.media.containers.movie import VIDEO, Movie, read_movie
from streamer.media.containers.records import open_record
from streamer.media.containers.tables import Packets
from tests.formats.cases import URL, Found, block_bytes, recode, run

EVERY, COUNT = 2, 16
CHUNK_BYTES = 8 << 20
CLIPS = Video(COUNT, num_indices_between_frames=EVERY)
OPTIONS = json.dumps({"num_frames_per_clip": COUNT, "num_indices_between_frames": EVERY})
# How films are cut, what their chunk files may have over the packets, and what may be fetched over the file.
CUTS = (
    ("16 frames", CLIPS, 1.02, 1.05),
    ("64 frames", Video(64, num_indices_between_frames=EVERY), 1.02, 1.10),
    ("a clip per frame", Video(1, num_indices_between_clip_starts=1), 1.10, 1.05),
)
SPARSE = Video(31, seconds_between_clip_starts=10)
SMALL, MIDDLE, LONG, LARGE = "small.mp4", "small_ten_minutes.mp4", "small_hour.mp4", "large_hour.mp4"
MINUTE, HOUR, RATE = 60, 3600, 24
PARTS = ("files", "decoding", "loading", "first_batch")


def length(need: Need) -> int:
    return need.stop - need.start


def record_of(content: memoryview) -> ObjectRecord:
    return ObjectRecord(f"{URL}a.mp4", len(content), "etag:1")


def indexed(content: memoryview, chosen: Video) -> tuple[list[Need], list[Block]]:
    """What an index asks for, and its blocks."""
    source = msgspec.structs.replace(Source(record_of(content)), chunk_bytes=CHUNK_BYTES, key="a.mp4")
    asked, found = list[tuple[Need, ...]](), list[Block]()
    run(chosen.index(source, Facts()), {"a.mp4": content}, source.record, asked, found.append)
    return list(itertools.chain(*asked)), found


def movie_of(content: memoryview) -> Movie:
    return run(read_movie(record_of(content)), {"a.mp4": content}, record_of(content), [], print)


def packets_of(content: memoryview) -> Packets:
    movie = movie_of(content)
    return movie.packets(movie.track(VIDEO))


# ---------------------------------------------------------------- index and chunk files


def report_index(name: str, path: Path, most_milliseconds: float, bounds: Bounds) -> None:
    """What the index of a film takes."""
    content = memoryview(path.read_bytes())
    asked, blocks = indexed(content, CLIPS)
    spent = least_cpu(lambda: movie_of(content), 5)
    whole = least_cpu(lambda: indexed(content, CLIPS), 3)
    print(
        f"{name}: {len(content) / 1e6:.1f} MB; index: {len(asked)} requests, {sum(map(length, asked)):,} bytes, "
        f"{spent * 1e3:.1f} ms, with clips, {len(blocks)} blocks and their hints {whole * 1e3:.1f} ms"
    )
    bounds.add(f"{name}, requests of the index", len(asked), 3)
    bounds.add(f"{name}, CPU of the index", spent * 1e3, most_milliseconds, " ms")


def report_stored(path: Path, bounds: Bounds) -> None:
    """What ways to cut clips fetch and keep."""
    content = memoryview(path.read_bytes())
    packets = packets_of(content)
    total = int(packets.size.sum())
    for name, chosen, most_kept, most_fetched in CUTS:
        _, blocks = indexed(content, chosen)
        held, recoder = [memoryview(block_bytes(block, content)) for block in blocks], chosen.recoder(Facts())
        heads, parts, tables, samples = 0, 0, 0, 0
        for view, block in zip(held, blocks, strict=True):
            made = recoder.recode(view, block.samples, block.hint)
            heads += int(made.lengths.sum())
            parts += int(made.part_lengths.sum())
            # The table, and a checksum for each entry.
            tables += len(encode_table(made.lengths, made.part_lengths, made.part_ranges))
            tables += 4 * (block.samples + len(made.part_lengths) + 1)
            samples += block.samples
        size, hints = sum(map(len, held)), sum(len(block.hint) for block in blocks)
        spent = least_cpu(
            lambda held=held, blocks=blocks, recoder=recoder: [
                recoder.recode(view, block.samples, block.hint) for view, block in zip(held, blocks, strict=True)
            ],
            3,
        )
        print(
            f"{name}: {samples} clips in {len(blocks)} blocks; recoding {spent / size * 1e9:.2f} s/GB, "
            f"{spent / len(packets) * 1e6:.1f} us a packet; chunk files over the packets: parts {parts / total:.4f}, "
            f"heads {heads / total:.4f}, tables and checksums {tables / total:.4f}"
        )
        bounds.add(f"{name}, fetched per epoch over the file", size / len(content), most_fetched)
        bounds.add(f"{name}, chunk files over the packets", (heads + parts + tables) / total, most_kept)
        bounds.add(f"{name}, hints per packet", hints / len(packets), 2.5, " bytes")
        bounds.add(f"{name}, recoding over its bound", spent / max(1.5 * size / 1e9, 6e-6 * len(packets)), 1.0)
    _, blocks = indexed(content, SPARSE)
    needed, size = 0, sum(block.fetch_bytes for block in blocks)
    for block in blocks:
        made = SPARSE.recoder(Facts()).recode(memoryview(block_bytes(block, content)), block.samples, block.hint)
        needed += int(made.part_lengths.sum())
    print(f"31 frames every 10 s: {size / len(content):.3f} of the file is fetched")
    bounds.add("a clip per 10 s, fetched over what its clips need", size / needed, 1.1)


# ---------------------------------------------------------------- decoding


def decoded_by_av(path: Path, seconds: Sequence[float]) -> np.ndarray:
    """The frames shown at these times, with PyAV, the file opened for them."""
    with av.open(str(path)) as box:
        stream = box.streams.video[0]
        stream.codec_context.thread_count = 1
        wanted = {round(each / stream.time_base) for each in seconds}
        box.seek(min(wanted), stream=stream)
        found = []
        for frame in box.decode(stream):
            if frame.pts in wanted:
                found.append(frame.to_ndarray(format="rgb24", interpolation=Interpolation.BICUBIC))
                if len(found) == len(wanted):
                    return np.moveaxis(np.stack(found), -1, 1)
    raise ValueError(f"{path} has no frames at {seconds}")


class Clips:
    """Clips of a local film by number, as each way to read them gives them."""

    def __init__(self, path: Path, rate: int) -> None:
        self.path, self.rate, self._kept = path, rate, None
        self.count = (packets_of(memoryview(path.read_bytes())).shown.sum() - 1) // (EVERY * COUNT)

    def by_av(self, number: int) -> np.ndarray:
        """With PyAV, the file opened for the clip."""
        first = number * EVERY * COUNT
        return decoded_by_av(self.path, [each / self.rate for each in range(first, first + EVERY * COUNT, EVERY)])

    def by_torchcodec(self, number: int) -> np.ndarray:
        """With a torchcodec decoder for the clip, exact."""
        from torchcodec.decoders import VideoDecoder

        return self._taken(VideoDecoder(str(self.path), num_ffmpeg_threads=1), number)

    def by_kept_torchcodec(self, number: int) -> np.ndarray:
        """With the torchcodec decoder of the process."""
        from torchcodec.decoders import VideoDecoder

        self._kept = self._kept or VideoDecoder(str(self.path), num_ffmpeg_threads=1)
        return self._taken(self._kept, number)

    def _taken(self, decoder: object, number: int) -> np.ndarray:
        first = number * EVERY * COUNT
        return decoder.get_frames_at(list(range(first, first + EVERY * COUNT, EVERY))).data.numpy()  # type: ignore[attr-defined]

    def records(self) -> list[bytes]:
        """The records, as a worker reads them."""
        content = memoryview(self.path.read_bytes())
        blocks = indexed(content, CLIPS)[1]
        return [each for block in blocks for each in recode(CLIPS, Found(None), block, block_bytes(block, content))]


def has_torchcodec(clips: Clips) -> bool:
    try:
        clips.by_torchcodec(0)
    except (ImportError, RuntimeError):
        return False
    return True


def report_decoding(
    name: str, clips: Clips, chosen: Sequence[int], rounds: int, bounds: Bounds, *, is_long: bool
) -> None:
    """CPU per clip of each way to get RGB."""
    records, decoder = clips.records(), Frames()
    ways: dict[str, Callable[[int], np.ndarray]] = {
        "streamer": lambda n: decoder.decode(memoryview(records[n])),
        "av.open": clips.by_av,
    }
    if has_torchcodec(clips):
        ways |= {"torchcodec": clips.by_torchcodec, "torchcodec, kept": clips.by_kept_torchcodec}
    for number in chosen[:3]:
        assert all(np.array_equal(ways["streamer"](number), way(number)) for way in ways.values())
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            spent[way].append(least_cpu(lambda call=call: [call(n) for n in chosen], 1) / len(chosen))
    found = {way: statistics.median(each) for way, each in spent.items()}
    opened = least_cpu(lambda: [open_record(memoryview(records[n])) for n in chosen], 5) / len(chosen)
    print(
        f"{name}, CPU per clip of {len(chosen)}: " + ", ".join(f"{n} {v * 1e3:.1f} ms" for n, v in found.items())
        + f"; to open a record of {np.mean([len(records[n]) for n in chosen]) / 1e3:.0f} KB: {opened * 1e6:.0f} us"
    )  # fmt: skip
    bounds.add(f"{name}, CPU per clip over av.open", found["streamer"] / found["av.open"], 0.95)
    if "torchcodec" in found:
        most = 0.5 if is_long else 1.05
        bounds.add(f"{name}, CPU per clip over torchcodec", found["streamer"] / found["torchcodec"], most)
    bounds.add(f"{name}, opening a record", opened * 1e6, 50, " us")


# ---------------------------------------------------------------- loading


class LocalClips:
    """A dataset for torch's DataLoader: clips of a local film, decoded by torchcodec."""

    def __init__(self, clips: Clips, chosen: Sequence[int], *, keeps: bool) -> None:
        self.clips, self.chosen, self.keeps = clips, chosen, keeps

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, place: int) -> object:
        import torch

        way = self.clips.by_kept_torchcodec if self.keeps else self.clips.by_torchcodec
        return torch.from_numpy(way(self.chosen[place]))


def epochs(loader: object, samples: int, count: int, take: Callable[[object], int]) -> list[float]:
    """Clips a second of some epochs."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        assert sum(map(take, loader)) == samples  # type: ignore[call-overload]
        found.append(samples / (time.perf_counter() - begun))
    return found


def report_loading(folder: Path, clips: Clips, samples: int, bounds: Bounds) -> None:
    """Clips a second with two workers, in turns; what was fetched; what reading records takes."""
    import torch.utils.data

    from streamer import StreamingDataLoader, StreamingDataset
    from streamer.client.connection import read_statistics
    from streamer.client.settings import ClientSettings

    chosen = np.sort(np.random.default_rng(0).permutation(int(clips.count))[:samples]).tolist()
    films, cache, manifest = folder / "films", folder / "cache", folder / "manifest"
    films.mkdir(exist_ok=True)
    (films / "a.mp4").hardlink_to(clips.path)
    index = ("index", f"{films}/", "--format", "video", "--format-options", OPTIONS, "--out", str(manifest))
    subprocess.run(
        [sys.executable, "-m", "streamer", *index, "--cache-dir", str(cache)], check=True, capture_output=True
    )
    opened = Manifest.open(manifest)
    data = StreamingDataset(films, format=CLIPS, manifest=manifest, cache_dir=cache, cache_bytes="4GB")
    found: dict[str, list[float]] = {}
    with StreamingDataLoader(data.select(indices=chosen), 8, 2, report_every=None) as loader:
        # The same engine has made the index; its manifest is read with requests, too, here.
        assert len(loader) == -(-samples // 8)
        settings = dataclasses.replace(ClientSettings.from_environment(), cache_dir=cache)
        begun = int(str((read_statistics(settings, 60.0) or {}).get("store_requests", 0)))
        cold = epochs(loader, samples, 1, lambda batch: len(batch["frames"]))  # type: ignore[index]
        before = read_statistics(settings, 60.0) or {}
        found["streamer"] = epochs(loader, samples, 2, lambda batch: len(batch["frames"]))  # type: ignore[index]
        after = read_statistics(settings, 60.0) or {}
    taken = int(str(before["store_requests"])) - begun
    used = len(np.unique(opened.locate(np.array(chosen))[0]))
    print(
        f"loading {samples} of {opened.samples} clips: {used} chunks, {taken} requests in the first "
        f"epoch, at {cold[0]:.1f} clips/s"
    )
    bounds.add("requests of the first epoch over the chunks", taken / used, 1.0)
    again = int(str(after["store_requests"])) - int(str(before["store_requests"]))
    bounds.add("requests of two warm epochs", again, 0)
    if has_torchcodec(clips):
        for name, keeps in (("a decoder per clip", False), ("a decoder kept", True)):
            local = LocalClips(clips, chosen, keeps=keeps)
            stock = torch.utils.data.DataLoader(local, 8, shuffle=True, num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
            found[name] = epochs(stock, samples, 3, len)[1:]  # type: ignore[arg-type]
            del stock
    for name, rates in found.items():
        print(f"  warm, 2 workers, {name}: {', '.join(f'{rate:.1f}' for rate in rates)} clips/s")
    for name in ("a decoder per clip", "a decoder kept"):
        if name in found:
            ratio = statistics.mean(found["streamer"]) / statistics.mean(found[name])
            bounds.add(f"clips/s over DataLoader and torchcodec, {name}", ratio, 1.0, least=True)
    _report_reading(opened, cache, chosen, bounds)
    data.close()


def _report_reading(manifest: Manifest, cache: Path, chosen: Sequence[int], bounds: Bounds) -> None:
    reader, spent, nbytes = ChunkReader([cache]), 0.0, 0
    for ordinal, [chunk] in zip(chosen, manifest.locate(np.array(chosen))[0][:, None].tolist(), strict=True):
        key, samples = manifest.chunk_keys[chunk].tobytes(), int(manifest.chunk_samples[chunk])
        place = ordinal - int(manifest.chunk_first[chunk])
        lengths = reader.records(key, samples).bounds
        wanted = WantedSample(place, int(lengths[place]), int(lengths[place + 1]))
        buffer = memoryview(bytearray(wanted.stop - wanted.start))
        spent += least_cpu(lambda key=key, samples=samples, wanted=wanted, buffer=buffer: reader.read_records(
            key, samples, [(wanted, [buffer])]), 2)  # fmt: skip
        nbytes += len(buffer)
    bounds.add("reading records from chunk files", spent * 1e3 / (nbytes / 1e6), 1.0, " ms/MB")


# ---------------------------------------------------------------- the first batch

TRAINER = """
import json, sys, time
import torch
import streamer
from streamer.formats import Video
told = json.loads(sys.argv[1])
begun = time.perf_counter()
dataset = streamer.StreamingDataset("s3://bucket/films/", format=Video(**json.loads(told["clips"])),
    cache_dir=told["cache"], storage_options=told["options"])
with streamer.StreamingDataLoader(dataset, 8, 2, report_every=None) as loader:
    batches = iter(loader)
    entered = time.perf_counter() - begun
    batch = next(batches)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "entered": entered, "shape": list(batch["frames"].shape),
        "pts": batch["pts_seconds"].tolist(), "waiting": loader.stats().waiting}), flush=True)
    sys.stdin.read(1)
dataset.close()
"""


def report_first_batch(folder: Path, path: Path, bounds: Bounds) -> None:
    """From the constructor to the first batch, without an index and with an empty cache."""
    bucket = folder / "root" / "bucket" / "films"
    bucket.mkdir(parents=True)
    (bucket / "a.mp4").hardlink_to(path)
    seconds, sent = [], []
    with simulator(folder / "root", *S3_PROFILE) as server:
        for turn in range(3):
            server.statistics(reset=True)
            told = {"clips": OPTIONS, "cache": str(folder / f"first{turn}"), "options": server.options}
            with subprocess.Popen(
                [sys.executable, "-c", TRAINER, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "STREAMER_RUNTIME_DIR": str(folder / f"run{turn}")},
            ) as process:
                found = json.loads(process.stdout.readline())  # type: ignore[union-attr]
                counted = server.statistics()
                process.stdin.close()  # type: ignore[union-attr]
            seconds.append(found["seconds"])
            sent.append(int(str(counted["body_bytes_sent"])))
            clips = found["pts"]
            alone = least_cpu(lambda clips=clips: [decoded_by_av(path, clip) for clip in clips], 1)
            waited = ", ".join(f"{cause} {each:.2f}" for cause, each in found["waiting"].items() if each >= 0.005)
            print(
                f"first batch: {seconds[-1]:.2f} s; start and index {found['entered']:.2f}, waiting for {waited}; "
                f"PyAV alone decodes its clips with {alone:.2f} s of CPU; {sent[-1] / 1e6:.1f} MB sent"
            )
    print(f"of an hour of {path.stat().st_size / 1e6:.0f} MB, batches of {found['shape']}")
    bounds.add("first batch behind 30 ms and 90 MB/s", statistics.median(seconds), 2.5, " s")
    asked, _ = indexed(memoryview(path.read_bytes()), CLIPS)
    most = 3 * 2 * CHUNK_BYTES + sum(map(length, asked))
    bounds.add("MB sent before it", statistics.median(sent) / 1e6, most / 1e6, " MB")


def make_films(folder: Path) -> None:
    """Encodes what is not there."""
    folder.mkdir(exist_ok=True)
    if not (folder / LARGE).exists():
        write_film(folder / SMALL, (640, 272), RATE, MINUTE, 700_000, sound=False)
        repeat_film(folder / SMALL, folder / MIDDLE, 10 * MINUTE)
        repeat_film(folder / SMALL, folder / LONG, HOUR)
        write_film(folder / "large.mp4", (1280, 720), 25, MINUTE // 4, 1_600_000, sound=True)
        repeat_film(folder / "large.mp4", folder / LARGE, HOUR)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the films, kept for the next run")
    parser.add_argument("--only", choices=PARTS, help="one part, whose result has a name of its own")
    parser.add_argument("--clips", type=int, default=24, help="that are decoded; ten times as many are loaded")
    arguments = parser.parse_args()
    with_torchcodec(Path(tempfile.gettempdir()) / "streamer-ffmpeg-links")
    chosen = (arguments.only,) if arguments.only else PARTS
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        compile_streamer()
        films, bounds = arguments.keep or folder / "made", Bounds()
        make_films(films)
        stack.enter_context(kept("-".join(["video", *filter(None, [arguments.only])]), f"PyAV {av.__version__}"))
        if "files" in chosen:
            report_index("a minute", films / SMALL, 1.5, bounds)
            report_index("an hour", films / LARGE, 15, bounds)
            report_stored(films / MIDDLE, bounds)
        if "decoding" in chosen:
            for name, path, rounds in (("a minute", SMALL, 3), ("an hour", LONG, 1)):
                clips = Clips(films / path, RATE)
                taken = np.linspace(0, clips.count - 1, arguments.clips).astype(int).tolist()
                report_decoding(name, clips, taken, rounds, bounds, is_long=path == LONG)
        if "loading" in chosen:
            report_loading(folder, Clips(films / LONG, RATE), 10 * arguments.clips, bounds)
        if "first_batch" in chosen:
            report_first_batch(folder, films / LARGE, bounds)
        bounds.report()


if __name__ == "__main__":
    main()
