"""COCO's JSON and masks compared with pycocotools: boxes, labels, areas; and what a table costs in time and memory."""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask
from pycocotools.coco import COCO

from streamer.decode import coco_masks
from streamer.errors import DecodeError
from tests.annotations.test_parsing import table

CATEGORIES = [{"id": number, "name": f"c{number}", "supercategory": "x"} for number in range(1, 91) if number % 7]


def instances(images: int, objects: int) -> dict[str, Any]:
    """Draws random boxes; a tenth of the objects are crowds, with run lengths, of which half are compressed strings."""
    drawn = np.random.default_rng(images)
    found = []
    for number in range(objects):
        crowd = number % 10 == 0
        points = np.round(drawn.random(2 * int(drawn.integers(3, 30))) * 40, 2).tolist()
        runs: dict[str, Any] = {"size": [40, 40], "counts": [100, 50, 1450]}
        if number % 20 == 0:
            runs = mask.frPyObjects(runs, 40, 40)
            runs["counts"] = runs["counts"].decode()
        found.append(
            {
                "id": number,
                "image_id": int(drawn.integers(images)) * 3,
                "category_id": CATEGORIES[int(drawn.integers(len(CATEGORIES)))]["id"],
                "bbox": np.round(drawn.random(4) * 300, 2).tolist(),
                "area": float(np.round(drawn.random() * 1e4, 4)),
                "iscrowd": int(crowd),
                "segmentation": runs if crowd else [points],
            }
        )
    names = [{"id": 3 * n, "file_name": f"{n:012}.jpg", "height": 40, "width": 40, "license": 1} for n in range(images)]
    return {"info": {}, "images": names, "annotations": found, "categories": CATEGORIES[::-1]}


def read_by_pycocotools(path: Path) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(path)


@pytest.mark.parametrize(("images", "objects"), [(30, 200), pytest.param(30_000, 215_000, marks=[pytest.mark.formats])])
def test_every_object_is_that_of_pycocotools(tmp_path: Path, images: int, objects: int) -> None:
    """A COCO table has pycocotools' boxes and labels; a large one takes 10 CPU s and 300 bytes an image (point 18)."""
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances(images, objects)))
    content = path.read_bytes()
    begun = time.process_time()
    joiner = table(tmp_path, str(path), content)
    seconds = time.process_time() - begun
    size = sum(file.stat().st_size for file in joiner.table.path.iterdir())
    coco = read_by_pycocotools(path)
    categories = sorted(coco.cats)
    for image in coco.imgs.values():
        found: dict[str, Any] = joiner.values(image["file_name"], ())
        wanted = coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))
        boxes = np.array([each["bbox"] for each in wanted], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        assert np.array_equal(found["boxes"], boxes.astype(np.float32))
        assert found["labels"].tolist() == [categories.index(each["category_id"]) for each in wanted]
        assert found["iscrowd"].tolist() == [each["iscrowd"] for each in wanted]
        assert np.array_equal(found["area"], np.array([each["area"] for each in wanted], np.float32))
        assert (found["image_id"], found["height"], found["width"]) == (image["id"], 40, 40)
    print(f"{seconds:.1f} CPU s, {size / images:.0f} bytes an image")
    if images > 1000:  # of a few, the list of classes is most of it
        assert seconds < 10
        assert size < 300 * images


# Of pycocotools 2.0.11 itself, with numpy 2.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_masks_are_those_of_pycocotools(tmp_path: Path) -> None:
    """`coco_masks` makes pycocotools' masks of polygons, run lengths as numbers, and compressed ones."""
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(instances(20, 100)))
    joiner = table(tmp_path, str(path), path.read_bytes(), fields=("segmentation", "height", "width"))
    coco, compared = read_by_pycocotools(path), 0
    for image in coco.imgs.values():
        found = coco_masks(joiner.values(image["file_name"], ()))
        wanted = [coco.annToMask(each) for each in coco.loadAnns(coco.getAnnIds(imgIds=[image["id"]]))]
        assert np.array_equal(found, np.array(wanted, np.uint8).reshape(-1, 40, 40))
        compared += len(wanted)
    assert compared == 100


def test_a_segmentation_without_area_is_an_empty_mask() -> None:
    """A polygon of two points, which pycocotools refuses, is an empty mask; an image without objects has no mask."""
    sample = {"segmentation": [[[1, 1, 2, 2]]], "height": 3, "width": 4}
    assert not coco_masks(sample).any()
    assert coco_masks(sample | {"segmentation": []}).shape == (0, 3, 4)


@pytest.mark.parametrize("absent", [{}, {"segmentation": []}, {"segmentation": None}])
def test_an_object_without_a_segmentation_has_no_mask(tmp_path: Path, absent: dict[str, object]) -> None:
    """`coco_masks` refuses an object without a segmentation by its number, and makes no mask of zeros of it."""
    document = instances(1, 3)
    del document["annotations"][1]["segmentation"]
    document["annotations"][1] |= absent
    content = json.dumps(document).encode()
    joiner = table(tmp_path, "instances.json", content, fields=("segmentation", "height", "width"))
    with pytest.raises(DecodeError, match=r"1 of 3 objects have no segmentation \(the first is number 1\)"):
        coco_masks(joiner.values(document["images"][0]["file_name"], ()))


@pytest.mark.slow
def test_the_memory_of_a_reader_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Reading 100,000 of a table's million rows grows the memory of a process's own by less than 1 MiB."""
    rows = "".join(f"c{n % 1000}/{n:09}.jpg,{n},a caption of some length, number {n}\n" for n in range(1_000_000))
    joiner = table(tmp_path, "x.csv", b"file_name,label,caption,number\n" + rows.encode())
    joiner.values("c0/000000000.jpg", ())
    before = anonymous_bytes()
    for number in range(0, 1_000_000, 10):
        assert joiner.values(f"c{number % 1000}/{number:09}.jpg", ())["label"] == number
    grown = anonymous_bytes() - before
    print(f"{grown} bytes of {sum(file.stat().st_size for file in joiner.table.path.iterdir())}")
    assert grown < 1 << 20


def anonymous_bytes() -> int:
    """Returns the bytes of memory of this process that are no pages of a file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")


def masked(segmentation: object, height: int, width: int) -> np.ndarray:
    """Returns the mask of one object."""
    return coco_masks({"segmentation": [segmentation], "height": height, "width": width})[0]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@settings(max_examples=100, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 99), share=st.floats(0, 1))
def test_run_lengths_of_any_size_are_those_of_pycocotools(height: int, width: int, seed: int, share: float) -> None:
    """Run lengths as string, bytes or numbers make the mask that pycocotools encoded, single pixels and rows too."""
    truth = (np.random.default_rng(seed).random((height, width)) < share).astype(np.uint8)
    runs = mask.encode(np.asfortranarray(truth))
    flat = truth.ravel("F")
    changes = np.flatnonzero(np.diff(flat, prepend=0))
    counts = np.diff([0, *changes, flat.size]).tolist()
    for given_counts in (runs["counts"], runs["counts"].decode(), counts):
        assert np.array_equal(masked({"size": [height, width], "counts": given_counts}, height, width), truth)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        ({"size": [1, 1], "counts": [0, 1]}, r"a mask of \[1, 1\], the image is \[4, 5\]"),
        ({"size": [5, 4], "counts": [0, 20]}, r"a mask of \[5, 4\]"),
        ({"size": [4, 5], "counts": [3, 4]}, "add up to 7 pixels, the image has 20"),
        ({"size": [4, 5], "counts": [3, 40]}, "add up to 43"),
        ({"size": [4, 5], "counts": [-3, 23]}, "integers of at least 0"),
        ({"size": [4, 5], "counts": [3.5, 16.5]}, "integers"),
        ({"size": [4, 5], "counts": "34"}, "add up to"),
        ({"size": [4, 5], "counts": "o"}, "cut off inside of a number"),
        ({"size": [4, 5], "counts": "3 4"}, "letter ' '"),
        ({"counts": [0, 20]}, "neither a list of polygons nor run lengths"),
        ([1.0, 1, 3, 1, 3, 3], "has no len"),
        ([[1.0, 1, 3, float("nan"), 3, 3]], "coordinates are not numbers from"),
        ([[1.0, 1, 3e9, 1, 3, 3]], "coordinates are not numbers from"),
    ],
)
def test_masks_that_do_not_fit_their_image_are_refused(segmentation: object, message: str) -> None:
    """Masks of another size than their image, and coordinates that are no numbers, are refused with the object.

    Regression: one of 1 x 1 filled the image, and lengths that end early left memory that was never written.
    """
    with pytest.raises(DecodeError, match=rf"segmentation of object 0 of 1 is refused: .*{message}"):
        masked(segmentation, 4, 5)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_cut_run_lengths_are_never_half_a_mask() -> None:
    """Each cut of a string of run lengths is refused; each changed letter is a mask of 0 and 1, or a refusal."""
    truth = (np.random.default_rng(0).random((30, 40)) < 0.4).astype(np.uint8)
    counts = mask.encode(np.asfortranarray(truth))["counts"].decode()
    for cut in range(0, len(counts), 7):
        with pytest.raises(DecodeError, match="refused"):
            masked({"size": [30, 40], "counts": counts[:cut]}, 30, 40)
    for at in range(0, len(counts), 7):
        changed = counts[:at] + chr(ord(counts[at]) ^ 1) + counts[at + 1 :]
        with contextlib.suppress(DecodeError):
            assert masked({"size": [30, 40], "counts": changed}, 30, 40).max() <= 1


WIDE = {"segmentation": [[[1, 1, 3, 1, 3, 2]], {"size": [4, 5], "counts": [3, 5, 12]}], "height": 4, "width": 5}


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("as_side", [float, np.float64, np.float32, np.int32])
def test_sides_that_are_whole_numbers_of_another_type(as_side: Any) -> None:
    """A height and width from a table of floats, and run lengths with such a size, give the masks of integers."""
    wanted = coco_masks(WIDE)
    assert wanted.any(axis=(1, 2)).all()
    sides = {"height": as_side(4), "width": as_side(5)}
    assert np.array_equal(coco_masks(WIDE | sides), wanted)
    packed: Any = mask.frPyObjects(WIDE["segmentation"][1], 4, 5)  # type: ignore[index]
    for counts in (packed["counts"], packed["counts"].decode()):
        runs = {"size": [as_side(4), as_side(5)], "counts": counts}
        assert np.array_equal(coco_masks(WIDE | sides | {"segmentation": [runs]}), wanted[1:])


@pytest.mark.parametrize("side", [480.5, float("nan"), float("inf"), "4", True, 0, -4, 1 << 40, [4], np.zeros(2)])
@pytest.mark.parametrize("name", ["height", "width"])
def test_a_side_that_is_no_number_of_pixels(name: str, side: object) -> None:
    """A height or width that is no whole number of pixels is a DecodeError with its field, and not another error."""
    with pytest.raises(DecodeError, match=rf"coco_masks: '{name}' is .* not a whole number of pixels") as caught:
        coco_masks(WIDE | {name: side, "__key__": "7"})
    assert caught.value.details == {"sample": "7", "field": name}


@pytest.mark.parametrize("given", [7, {"size": [4, 5], "counts": [20]}, "abc", np.zeros((2, 6)), {1, 2}])
def test_a_segmentation_that_is_no_list(given: object) -> None:
    """Segmentations that are no list are a DecodeError that names their type."""
    with pytest.raises(DecodeError, match=rf"'segmentation' is of type {type(given).__name__}, not a list"):
        coco_masks(WIDE | {"segmentation": given})


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    "given", [7, 0, "abc", [7], [None], [["a"] * 6], {"size": 5, "counts": [20]}, {"size": [4, 5], "counts": None}]
)
def test_an_object_whose_segmentation_is_of_another_type(given: object) -> None:
    """An object whose segmentation has values of other types is refused by its number."""
    with pytest.raises(DecodeError, match="the segmentation of object 1 of 2 is refused"):
        coco_masks(WIDE | {"segmentation": [[[1, 1, 3, 1, 3, 2]], given]})
    with pytest.raises(DecodeError, match="the segmentation of object 0 of 1 is refused"):
        coco_masks(WIDE | {"segmentation": [np.zeros((2, 6))]})
