"""Parts of the package ask a format's class what the format can do; none knows formats by their names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import streamer
from streamer.formats import BUILT_IN

ROOT = Path(streamer.__file__).parent
# Formats, the outputs of a pack, and what makes data of formats to measure and demonstrate.
HOMES = ("formats/", "tables/", "media/", "shards/outputs/", "tools/")
FILES = [path for path in sorted(ROOT.rglob("*.py")) if not str(path.relative_to(ROOT)).startswith(HOMES)]
QUOTED = re.compile(rf"""(["'])({"|".join(BUILT_IN)})\1""")
CLASSES = {row.class_name for row in BUILT_IN.values()}
MODULES = {row.module for row in BUILT_IN.values()}

# Words that are names of formats by chance, each with what it is here.
WORDS = {
    ("annotations/options.py", "jsonl"): "ending of a file of annotations",
    ("annotations/options.py", "parquet"): "ending of a file of annotations",
    ("annotations/parse.py", "parquet"): "ending of a file of annotations",
    ("base/extras.py", "hdf5"): "an extra of the distribution",
    ("base/extras.py", "parquet"): "an extra of the distribution",
    ("base/extras.py", "video"): "an extra of the distribution",
    ("base/extras.py", "zarr"): "an extra of the distribution",
    ("batches/rows/table.py", "tokens"): "a column of the table of rows",
    ("batches/rows/assemble.py", "tokens"): "a field",
    ("cli/cache_command.py", "folder"): "an argument of the command",
    ("cli/shards/pack_command.py", "parquet"): "an output of a pack, in the help, which loads no output",
    ("cli/shards/pack_command.py", "tokens"): "an output of a pack, in the help, which loads no output",
    ("cli/shards/pack_command.py", "webdataset"): "an output of a pack, in the help, which loads no output",
    ("cli/show_command.py", "audio"): "a field",
    ("decode/dispatch.py", "jsonl"): "ending of a field's name",
    ("decode/dispatch.py", "npy"): "ending of a field's name",
    ("decode/dispatch.py", "audio"): "a kind of fields",
    ("decode/values.py", "jsonl"): "advice in an error",
    ("shards/pack.py", "parquet"): "an output of a pack, in the documentation of the argument",
    ("shards/pack.py", "webdataset"): "an output of a pack, in the documentation of the argument",
    ("shards/pack.py", "tokens"): "an output of a pack, in the documentation of the argument",
    ("shards/values.py", "jsonl"): "ending of a field's name",
    ("shards/values.py", "npy"): "ending of a field's name",
}
IMPORTS = {
    ("cli/dataset.py", "Folder"): "--extensions is an option of it",
    ("cli/shards/pack_command.py", "Folder"): "--extensions is an option of it",
    ("shards/values.py", "streamer.formats.webdataset"): "names of files in tars are split as their reader does it",
}
# What has a `format` that is not the name of a dataset's format.
COMPARED = {
    "decode/images.py": "Pillow's name of an image's format",
    "decode/together.py": "albumentations' name of the format of boxes",
    "engine/manifests/manifests.py": "a request: whether it is for annotations, or for any format",
    "engine/manifests/table_logs.py": "a request: whether it is for any format",
    "recode/work.py": "a recoder's job: whether it is one of annotations",
}


def test_no_name_of_a_format_elsewhere() -> None:
    """No file outside the formats has a format's name in quotes, except for the listed words."""
    found = {(str(path.relative_to(ROOT)), match[2]) for path in FILES for match in QUOTED.finditer(path.read_text())}
    assert found == WORDS.keys()


def test_no_class_of_a_format_elsewhere() -> None:
    """No file outside the formats imports a format's class or module, except for the listed ones."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamer"):
                names = {alias.name for alias in node.names}
                from_formats = (node.module or "").startswith(("streamer.formats", "streamer.tables", "streamer.media"))
                found |= {(str(path.relative_to(ROOT)), name) for name in names & CLASSES if from_formats}
                if node.module in MODULES and not names & CLASSES:
                    found.add((str(path.relative_to(ROOT)), node.module))
            elif isinstance(node, ast.Import):
                found |= {(str(path.relative_to(ROOT)), alias.name) for alias in node.names if alias.name in MODULES}
    assert found == IMPORTS.keys()


def test_no_format_is_compared_elsewhere() -> None:
    """No file outside the formats compares a `format` attribute or looks something up by it, except for the listed."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            sides: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            elif isinstance(node, ast.Subscript):
                sides = [node.slice]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
                sides = node.args
            elif isinstance(node, ast.Match):
                sides = [node.subject]
            if any(isinstance(side, ast.Attribute) and side.attr == "format" for side in sides):
                found.add(str(path.relative_to(ROOT)))
    assert found == COMPARED.keys()
