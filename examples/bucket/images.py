"""Images that a small network can learn: 8 shapes in any place, size and colour, on a noisy ground."""

from __future__ import annotations

import colorsys
import io
import math
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from PIL import Image, ImageDraw

EDGE_PIXELS = 256
# Grain and quality make about 30 KB an image: 2,000 of them are over 200 chunks of 256 KiB.
JPEG_QUALITY = 88


class Point(NamedTuple):
    """Pixels, from the upper left corner."""

    x: float
    y: float


class DrawnImage(NamedTuple):
    """One image of the dataset."""

    key: str
    label: int
    jpeg: bytes


def _polygon(corners: int, inner: float = 1.0) -> Callable[[Point, float, float], list[Point]]:
    """Places corners on a circle; with `inner` < 1 every second one is closer to the middle by this factor."""

    def points(center: Point, radius: float, turn: float) -> list[Point]:
        radii = [radius * (inner if i % 2 else 1.0) for i in range(corners)]
        angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
        return [
            Point(center.x + r * math.cos(a), center.y + r * math.sin(a)) for r, a in zip(radii, angles, strict=True)
        ]

    return points


_POLYGONS = {
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _polygon(10, inner=0.4),
    "cross": _polygon(8, inner=0.25),
}
CLASSES = ("circle", "cross", "dots", "ring", "square", "star", "stripes", "triangle")


def draw_images(count: int, seed: int) -> Iterator[DrawnImage]:
    """Draws the images in order, 0.7 ms each (2026-11-20)."""
    return (draw(index, seed) for index in range(count))


def draw(index: int, seed: int) -> DrawnImage:
    """Draws image number `index`; its class is `index` modulo 8."""
    dice = random.Random(f"{seed}/{index}")
    label = index % len(CLASSES)
    image = Image.new("RGB", (EDGE_PIXELS, EDGE_PIXELS), _color(dice, 0.35))
    _shape(ImageDraw.Draw(image), CLASSES[label], dice)
    grainy = Image.blend(image, _grain(dice), 0.35)
    with io.BytesIO() as buffer:
        grainy.save(buffer, "JPEG", quality=JPEG_QUALITY)
        return DrawnImage(f"{index:06d}", label, buffer.getvalue())


def _grain(dice: random.Random) -> Image.Image:
    """Draws noise from the dice, not from Pillow's effect_noise, whose generator cannot be seeded."""
    edge = EDGE_PIXELS
    layer = Image.frombytes("L", (edge, edge), dice.randbytes(edge * edge))
    return Image.merge("RGB", (layer, layer.rotate(90), layer.rotate(180)))


def _color(dice: random.Random, lightness: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hls_to_rgb(dice.random(), lightness, 0.6)
    return int(255 * red), int(255 * green), int(255 * blue)


def _shape(pencil: ImageDraw.ImageDraw, name: str, dice: random.Random) -> None:
    radius = EDGE_PIXELS * dice.uniform(0.26, 0.4)
    center = Point(*(dice.uniform(radius, EDGE_PIXELS - radius) for _ in range(2)))
    color = _color(dice, 0.8)
    if name in _POLYGONS:
        pencil.polygon(_POLYGONS[name](center, radius, dice.uniform(0, 2 * math.pi)), fill=color)
    elif name == "circle":
        pencil.ellipse(_box(center, radius), fill=color)
    elif name == "ring":
        pencil.ellipse(_box(center, radius), outline=color, width=int(radius / 4))
    elif name == "dots":
        for spot in _polygon(6)(center, radius * 0.8, dice.uniform(0, 2 * math.pi)):
            pencil.ellipse(_box(spot, radius / 5), fill=color)
    else:  # stripes
        for i in range(-2, 3):
            x = center.x + i * radius / 2.5
            pencil.line([(x, center.y - radius), (x, center.y + radius)], fill=color, width=int(radius / 6))


def _box(center: Point, radius: float) -> tuple[float, float, float, float]:
    return center.x - radius, center.y - radius, center.x + radius, center.y + radius
