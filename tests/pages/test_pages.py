"""The blocks of the pages run as printed, in an environment that the README's install line made from a wheel.

Other libraries of a page are the real ones; buckets are those of an S3 server on this machine.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages.conftest import Place
from tests.pages.environments import ROOT
from tests.pages.library_data import PICTURES

pytestmark = [pytest.mark.pages, pytest.mark.timeout(1800)]

DOCS = ROOT / "docs"
EPILOGUE = "\nimport streamer\nassert 'site-packages' in streamer.__file__, streamer.__file__\n"


# 300 pictures of one size.
DRAWN = """
import numpy as np
from pathlib import Path
from PIL import Image
for number in range(300):
    path = Path("images", ("cats", "dogs")[number % 2], f"{number:03}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), number % 256, np.uint8)).save(path)
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def program(page: str, *kinds: str) -> str:
    """Returns the blocks of a page that say nothing about what they are for, and those of some kinds ("after")."""
    return "\n".join(
        block
        for block in blocks(page)
        if not block.startswith("# ") or block.split("\n")[0] in [f"# {kind}" for kind in kinds]
    )


def seen(printed: str) -> int:
    """Counts samples in the shapes of batches that a page prints, a shape a line."""
    return sum(
        int(first) for first in re.findall(r"^(?:torch\.Size\(\[|\()(\d+), \d+, \d+, \d+", printed, re.MULTILINE)
    )


def python_pages() -> set[str]:
    """Returns all pages with a block of Python."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}


@pytest.mark.parametrize("url", ["s3://bucket/train/", "images/"])
def test_the_readme_trains(place: Place, fresh: Path, url: str) -> None:
    """The README's program trains as printed, on a bucket and on a local folder."""
    (block,) = blocks("README.md")
    place.run(fresh, DRAWN)
    place.upload(place.folder / "images", "train")
    printed = place.run(fresh, block.replace("sys.argv[1]", repr(url)) + EPILOGUE)
    lines = [f"epoch {epoch}: {300 * (epoch + 1)} images so far, torch.uint8 (224, 224, 3)" for epoch in range(3)]
    assert printed.splitlines()[:3] == lines


def test_the_quickstart_runs(place: Place, fresh: Path) -> None:
    """The quickstart's blocks run one after the other in an installed environment."""
    printed = place.run(fresh, program("docs/index.md") + EPILOGUE)
    assert printed.splitlines()[0] == "64 ['cats', 'dogs']"
    assert printed.splitlines()[-2:] == ["64 samples", "64 samples, no other process"]


def test_the_page_about_mixing(place: Place, fresh: Path) -> None:
    """The page about mixing runs on data that it makes in local folders."""
    printed = place.run(fresh, program("docs/mixing.md") + EPILOGUE).splitlines()
    assert printed[:3] == ["0 18 2", "1 18 2", "web 360 samples drawn, 0.9 passes"]


def test_imagefolder(place: Place, fresh: Path, libraries: Path) -> None:
    """Programs before and after a migration from ImageFolder see the same samples, with torchvision's transforms too.

    400 samples in batches of 16 have no rest.
    """
    page, written = "docs/migrate/imagefolder.md", place.write(libraries, "raw")
    (place.folder / "images").mkdir()
    written.rename(place.folder / "images" / "train")
    place.upload(place.folder / "images" / "train", "train")
    before = place.run(libraries, program(page, "before"))
    after = place.run(fresh, program(page, "after") + EPILOGUE)
    stays = place.run(libraries, program(page, "after, with torchvision") + EPILOGUE)
    assert [seen(printed) for printed in (before, after, stays)] == [PICTURES] * 3
    assert before.splitlines()[-1] == after.splitlines()[-1] == "['cats', 'dogs']"


def test_webdataset(place: Place, fresh: Path, libraries: Path) -> None:
    """Programs before and after a migration from webdataset read its own shards; the first goes over ten batches."""
    page = "docs/migrate/webdataset.md"
    place.upload(place.write(libraries, "tars"), "")
    assert place.run(libraries, program(page, "before")).count("(") == 10
    assert seen(place.run(fresh, program(page, "after") + EPILOGUE)) == PICTURES


def test_huggingface(place: Place, libraries: Path) -> None:
    """Programs before and after a migration from Hugging Face's datasets see all samples of its own Parquet.

    datasets 5.2 hands s3fs 2026.9 a block_size, which it refuses: the data of the first are local.
    """
    page, written = "docs/migrate/huggingface.md", place.write(libraries, "parquet")
    place.upload(written, "data")
    before = program(page, "before").replace("s3://bucket/data", str(written)).replace("storage_options=options", "")
    assert seen(place.run(libraries, before + EPILOGUE)) == PICTURES
    assert seen(place.run(libraries, program(page, "after") + EPILOGUE)) == PICTURES


def test_mosaicml(place: Place, fresh: Path, libraries: Path) -> None:
    """Programs before and after a migration from MosaicML Streaming see all samples of its own shards."""
    page = "docs/migrate/mosaicml.md"
    place.upload(place.write(libraries, "mds"), "mds")
    assert seen(place.run(libraries, program(page, "before"))) == PICTURES
    assert seen(place.run(fresh, program(page, "after") + EPILOGUE)) == PICTURES


def test_litdata(place: Place, fresh: Path, libraries: Path) -> None:
    """Programs before and after a migration from LitData see its own chunks, without what is left of batches of 64.

    LitData 0.2.76 has https alone: its chunks are local here.
    """
    page, written = "docs/migrate/litdata.md", place.write(libraries, "optimized")
    place.upload(written, "optimized")
    before = program(page, "before").replace("s3://bucket/optimized", str(written))
    assert seen(place.run(libraries, before)) == PICTURES - PICTURES % 64
    place.upload(place.write(libraries, "tokens"), "tokens")
    assert place.run(fresh, program(page, "tokens") + EPILOGUE) == "(2048,)\n"
    assert seen(place.run(fresh, program(page, "after") + EPILOGUE)) == PICTURES - PICTURES % 64


def test_s3torchconnector(place: Place, fresh: Path, libraries: Path) -> None:
    """Programs before and after a migration from s3torchconnector read objects that its own client wrote."""
    page, written = "docs/migrate/s3torchconnector.md", place.write(libraries, "raw")
    upload = f"""
from pathlib import Path
from s3torchconnector import S3Checkpoint
store = S3Checkpoint("us-east-1", endpoint={place.endpoint!r})
for path in Path({str(written)!r}).rglob("*.*"):
    with store.writer(f"s3://bucket/raw/{{path.relative_to({str(written)!r})}}") as file:
        file.write(path.read_bytes())
"""
    place.run(libraries, upload)
    before = program(page, "before").replace('region="us-east-1"', f'region="us-east-1", endpoint={place.endpoint!r}')
    assert seen(place.run(libraries, before)) == PICTURES
    assert seen(place.run(fresh, program(page, "after") + EPILOGUE)) == PICTURES


COUNTED = """
import os
from collections import Counter

SEEN = Counter()


def count(module, arguments, named):
    SEEN.update(named.pop("number").tolist())
    return arguments, named


model.register_forward_pre_hook(count, with_kwargs=True)
"""


def test_the_trainer(place: Place, libraries: Path) -> None:
    """Hugging Face's Trainer trains two epochs by the page's program in one process."""
    place.upload(place.write(libraries, "raw"), "train")
    text = program("docs/migrate/hf-trainer.md")
    printed = place.run(libraries, text + EPILOGUE + "print(trainer.state.global_step)\n")
    assert printed.splitlines()[-1] == str(2 * PICTURES // 16)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_trainer_resumes_at_the_sample(place: Place, libraries: Path, ranks: int) -> None:
    """Hugging Face's Trainer, stopped in its first epoch, resumes by the page's second way at the sample.

    Each sample comes twice in two epochs, but for those that fill a batch.
    """
    place.upload(place.write(libraries, "raw"), "train")
    common, _, several = blocks("docs/migrate/hf-trainer.md")
    number = '"labels": sample["label"], "number": int(sample["__key__"].rpartition("/")[2].split(".")[0])}'
    common = common.replace('"labels": sample["label"]}', number) + COUNTED
    train = 'train = StreamingDataset("s3://bucket/train/", transform=prepare)\n'
    stop = """
class Stop(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop = not Path("stopped").exists()


"""
    several = several.replace("callbacks=[SaveLoader()]", "callbacks=[SaveLoader(), Stop()]")
    several = several.replace(
        "arguments = TrainingArguments(", f"{stop}arguments = TrainingArguments(use_cpu=True, output_dir="
    )
    several = several.replace(
        'report_to="none",', 'report_to="none", ddp_backend="gloo" if "RANK" in os.environ else None,'
    )
    end = """
import torch
if torch.distributed.is_initialized():
    torch.distributed.barrier()
Path("stopped").touch()
with open(f"seen-{os.environ.get('RANK', 0)}", "a") as file:
    print(*SEEN.elements(), file=file)
"""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
    for _ in range(2):
        place.run(libraries, common + train + several + end + EPILOGUE, *launcher)
    numbers = [int(word) for path in place.folder.glob("seen-*") for word in path.read_text().split()]
    assert sorted(set(numbers)) == list(range(PICTURES))
    repeats = 2 * (-PICTURES % (16 * ranks))
    assert len(numbers) == 2 * PICTURES + repeats
    assert sum(numbers.count(number) == 2 for number in range(PICTURES)) >= PICTURES - repeats


# What the reader of a page has, of which it shows a part.
AROUND_ORDER = """
import torch
from torch.utils.data import DataLoader
from streamer import StreamingDataset
right = 0
def predict(batch): return batch["label"]
"""
AROUND_TUNING = """
from streamer import StreamingDataLoader, StreamingDataset
class wandb:
    log = print
def train(batch): pass
data = StreamingDataset("s3://bucket/val/")
"""


@pytest.mark.parametrize(
    ("page", "around", "end"),
    [
        ("docs/order.md", AROUND_ORDER, "assert right == 300, right\n"),
        ("docs/tuning.md", AROUND_TUNING, "loader.close()\n"),
    ],
)
def test_parts_of_programs(place: Place, fresh: Path, page: str, around: str, end: str) -> None:
    """Parts of programs on the pages about order and tuning run with what is around them in their reader's program.

    The last, incomplete batch counts no sample twice.
    """
    place.run(fresh, DRAWN)
    place.upload(place.folder / "images", "val")
    place.run(fresh, around + program(page) + end + EPILOGUE)


def test_the_page_about_growing(place: Place, fresh: Path) -> None:
    """The page about growing datasets runs on blocks that it writes itself."""
    printed = place.run(fresh, program("docs/growing.md") + EPILOGUE).splitlines()
    assert [line for line in printed if line.endswith("True")] == ["0 20 True", "1 20 True", "2 20 True"]


def test_the_pages_about_rows(place: Place, fresh: Path) -> None:
    """The page about rows writes its texts itself, which the page about other packers then packs in its own way."""
    assert "300 documents in 67 rows; (4, 1024)" in place.run(fresh, program("docs/sequences.md") + EPILOGUE)
    (place.folder / "costs.npy").unlink()
    place.run(fresh, program("docs/migrate/packers.md") + "loader.close()\n" + EPILOGUE)


def test_the_pages_about_audio_and_video(place: Place, fresh: Path) -> None:
    """The pages about audio and video run: windows of wav need no other library, and other datasets are not opened."""
    assert "12 (4, 1, 160000) 16000" in place.run(fresh, program("docs/audio.md") + EPILOGUE)
    place.run(fresh, program("docs/video.md") + EPILOGUE)


TEXTS = """
import json
from pathlib import Path
import streamer
lines = (json.dumps({"text": "x" * length}) for length in range(900, 1100))
Path("texts.jsonl").write_text("\\n".join(lines))
dataset = streamer.StreamingDataset("texts.jsonl")
"""


def test_the_page_about_choosing(place: Place, fresh: Path) -> None:
    """The page about choosing samples runs: conditions are parsed where they are written, without opening datasets.

    Lengths are counted once, and choose the samples.
    """
    conditions, counting = blocks("docs/select.md")
    opened = "from streamer import StreamingDataset\ndataset = StreamingDataset('images/')\n"
    place.run(fresh, opened + conditions + EPILOGUE)
    printed = place.run(fresh, TEXTS + counting + "print(len(short))\n" + EPILOGUE)
    assert printed.split() == ["101"]


SIDES = """
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

for folder in ("shards", "metadata", "latents"):
    Path(folder).mkdir()
picture, latent = io.BytesIO(), io.BytesIO()
Image.new("RGB", (8, 8)).save(picture, "jpeg")
np.save(latent, np.ones(4, np.float32))
with tarfile.open("shards/0.tar", "w") as shards, tarfile.open("latents/0.tar", "w") as latents:
    for number in range(300):
        uid = json.dumps({"uid": f"u{number}"}).encode()
        members = [(shards, "jpg", picture.getvalue()), (shards, "json", uid)]
        for tar, extension, content in [*members, (latents, "latent.npy", latent.getvalue())]:
            member = tarfile.TarInfo(f"{number:03}.{extension}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
numbers = list(range(299, -1, -1))
pq.write_table(pa.table({"uid": [f"u{n}" for n in numbers], "score": numbers}), "metadata/0.parquet")
seen = {}
"""


def test_the_page_about_joins(place: Place, libraries: Path) -> None:
    """The page about joins gives each sample the score of its uid, on local folders in place of its buckets."""
    text, choosing = blocks("docs/joins.md")
    text = text.replace(', storage_options={"profile": "other"}', "")
    for url, folder in (
        ("s3://bucket/datacomp/shards/", "shards/"),
        ("s3://bucket/datacomp/metadata/", "metadata/"),
        ("s3://other/latents/", "latents/"),
    ):
        text = text.replace(url, folder)
    check = """
    seen |= dict(zip(batch["json"]["uid"], batch["score"].tolist()))
    assert batch["latent.npy"].shape[1:] == (4,)
assert seen == {f"u{number}": number for number in range(300)}
captions = scores  # not opened
"""
    place.run(libraries, SIDES + text + check + choosing + EPILOGUE)


EPISODES = """
from pathlib import Path

import h5py
import numpy as np

Path("episodes").mkdir()
for number in range(4):
    with h5py.File(f"episodes/{number}.h5", "w") as file:
        file["action"] = np.ones((140, 7), np.float32)
"""


def test_the_page_about_formats(place: Place, libraries: Path) -> None:
    """The options on the page about formats are accepted without opening data, and its windows have their shape."""
    text = program("docs/formats.md").replace("s3://bucket/episodes/", "episodes/")
    assert "[32, 16, 7]" in place.run(libraries, EPISODES + text + EPILOGUE)


AROUND_SCALE_OUT = """
import torch.distributed as dist
from streamer import Order, StreamingDataLoader, StreamingDataset
"""
COUNT_KEYS = """
with open(f"keys-{dist.get_rank()}", "w") as file:
    for batch in loader:
        print(*batch["__key__"], sep="\\n", file=file)
loader.close()
dist.destroy_process_group()
"""


def test_the_page_about_shared_caches(place: Place, fresh: Path) -> None:
    """The page about shared caches trains on two ranks: each image at least once, and no more than fill a batch.

    torchrun starts them with gloo instead of NCCL.
    """
    page = "docs/scale-out.md"
    place.run(fresh, DRAWN)
    place.upload(place.folder / "images", "train")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    place.run(fresh, AROUND_SCALE_OUT + program(page).replace('"nccl"', '"gloo"') + COUNT_KEYS + EPILOGUE, *launcher)
    keys = [key for path in place.folder.glob("keys-*") for key in path.read_text().split()]
    assert len(set(keys)) == 300
    assert len(keys) <= 512


def test_every_page_with_a_program_is_run() -> None:
    """Every page with a Python block has a test that runs it."""
    tested = (Path(__file__)).read_text()
    assert [page for page in python_pages() if page.rpartition("/")[2].removesuffix(".md") not in tested] == []
