"""Boxes from COCO's JSON, joined to images of a folder or of tars; batches of images with different numbers of them.

    python examples/coco_detection.py
    python examples/coco_detection.py --images s3://bucket/train2017/ --annotations s3://bucket/instances_train2017.json

Without arguments it draws squares of two colours, and learns which cells of the image are inside of which. The JSON is
parsed once per machine; workers look the boxes of their samples up in a mapped table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamer import Annotations, StreamingDataLoader, StreamingDataset
from streamer.decode.transforms import resize

EDGE, CELL = 64, 8
COLOURS = {"red": (255, 40, 40), "blue": (40, 40, 255)}


def make_data(folder: Path, count: int) -> None:
    """Noise with up to three squares, and their boxes as COCO writes them: x, y, width, height."""
    from PIL import Image

    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images, objects = [], []
    for number in range(count):
        picture = rng.integers(0, 120, (EDGE, EDGE, 3), np.uint8)
        for _ in range(int(rng.integers(0, 4))):
            x, y, side = (int(value) for value in (*rng.integers(0, EDGE - 24, 2), rng.integers(12, 24)))
            category = int(rng.integers(1, 3))
            picture[y : y + side, x : x + side] = COLOURS["red" if category == 1 else "blue"]
            box = {"bbox": [x, y, side, side], "area": side * side, "iscrowd": 0}
            objects.append({"id": len(objects), "image_id": number, "category_id": category, **box})
        name = f"{number:012}.png"
        Image.fromarray(picture).save(folder / "images" / name)
        images.append({"id": number, "file_name": name, "height": EDGE, "width": EDGE})
    categories = [{"id": number, "name": name} for number, name in enumerate(COLOURS, 1)]
    content = {"images": images, "annotations": objects, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(content))


def scaled(sample: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The image in the size of the model, and its boxes with it."""
    picture = sample["jpg"] if "jpg" in sample else sample["png"]
    height, width, _ = picture.shape
    scale = np.array([EDGE / width, EDGE / height] * 2, np.float32)
    return {"image": resize(picture, EDGE, EDGE), "boxes": sample["boxes"] * scale, "labels": sample["labels"]}


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The boxes of all images one after the other, and how many each image has."""
    return {
        "image": np.stack([s["image"] for s in samples]),
        "boxes": np.concatenate([s["boxes"] for s in samples]),
        "labels": np.concatenate([s["labels"] for s in samples]),
        "count": np.array([len(s["boxes"]) for s in samples]),
    }


def targets(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The label of each cell plus one, 0 outside of all boxes; what comes later in the file is drawn on top."""
    cells = torch.zeros(len(batch["count"]), EDGE // CELL, EDGE // CELL, dtype=torch.long)
    image = torch.repeat_interleave(torch.arange(len(batch["count"])), batch["count"])
    boxes = (batch["boxes"] / CELL).round().int()
    for number, (x1, y1, x2, y2), label in zip(image, boxes, batch["labels"], strict=True):
        cells[number, y1:y2, x1:x2] = label + 1
    return cells


def run(images: str, annotations: str, cache: Path, arguments: argparse.Namespace) -> None:
    dataset = StreamingDataset(
        images,
        annotations=Annotations(annotations, missing="none"),
        transform=scaled,
        cache_dir=cache,
        cache_bytes=arguments.cache_bytes,
    )
    classes = dataset.annotation_classes
    model = nn.Sequential(nn.Conv2d(3, 16, CELL, stride=CELL), nn.ReLU(), nn.Conv2d(16, len(classes) + 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    loading = StreamingDataLoader(dataset, batch_size=16, num_workers=arguments.workers, collate_fn=collate)
    with loading as loader:
        for epoch in range(arguments.epochs):
            boxes, right, cells = 0, 0, 0
            # The workers need no torch; here no byte is copied.
            for batch in ({name: torch.from_numpy(each) for name, each in arrays.items()} for arrays in loader):
                found, wanted = model(batch["image"].permute(0, 3, 1, 2) / 255), targets(batch)
                loss = nn.functional.cross_entropy(found, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                boxes += len(batch["boxes"])
                right += int((found.argmax(1) == wanted).sum())
                cells += wanted.numel()
            print(f"epoch {epoch}: {boxes} boxes of {', '.join(classes)}, {100 * right / cells:.1f}% of cells right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="folder or tars; default: made here")
    parser.add_argument("--annotations", help="COCO's JSON of them")
    parser.add_argument("--count", type=int, default=256, help="how many images to make (default: 256)")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cache-bytes", default="auto", help='limit of the cache, e.g. "500GB" (default: auto)')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        images, annotations = arguments.images, arguments.annotations
        if images is None:
            make_data(Path(scratch), arguments.count)
            images, annotations = f"{scratch}/images/", f"{scratch}/instances.json"
        run(images, annotations, Path(scratch) / "cache", arguments)


if __name__ == "__main__":
    main()
