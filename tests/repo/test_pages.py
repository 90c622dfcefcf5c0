"""The documentation pages agree with the code: names, errors, commands, arguments, links and tests exist."""

from __future__ import annotations

import ast
import functools
import pkgutil
import re
import tomllib
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from streamer import StreamingDataLoader, StreamingDataset, errors
from streamer.batches import torch_arguments
from streamer.cli.exit_codes import Exit
from streamer.cli.main import COMMANDS
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.stats import LoaderStats
from streamer.service.metrics import DEFINITIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("benchmarks", "deploy", "docs")
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
)

# Names that the pages have from other libraries, from Python, Linux, Kubernetes and the clouds.
_FOREIGN = """
Array2D CombinedStreamingDataset DeprecationWarning DistributedSampler GPTDataset MapDataset.mix
NO_PROXY S3Checkpoint S3IterableDataset S3MapDataset blend_epochized
data_collator data_seed dataloader_drop_last dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory
dataloader_prefetch_factor dmesg epoch_size eval_dataset get_eval_dataloader imagefolder
imagefs.available interleave_datasets max_size nodefs.available optimize remove_unused_columns repetitions
resume_from_checkpoint taskRoleArn train_dataset evaluate
train_sampling_strategy venv with_epoch write_ipc
BinPackCollator DynamicBucketingSampler DataCollatorWithFlattening SFTConfig packing_ratio reset_position_ids
sequence_id
blend cut.load_audio cuts.cut_into_windows torchaudio.load torchaudio.transforms.Resample
"""
FOREIGN = frozenset(_FOREIGN.split())
NAMED_IN = ("streamer/**/*.py", "examples/*.py", "docs/**/*.py", "deploy/**/*.yaml", "deploy/**/*.json", "*.toml")


def _tree(kind: type[errors.StreamerError]) -> set[str]:
    return {kind.__name__}.union(*(_tree(child) for child in kind.__subclasses__()))


def test_trouble_explains_every_error_and_no_other() -> None:
    """The trouble page has a row for each error class and no other."""
    rows = re.findall(r"^\| `(\w+Error)`", (DOCS / "trouble.md").read_text(), re.MULTILINE)
    ours = {name for name in _tree(errors.StreamerError) if hasattr(errors, name)}
    assert sorted(rows) == sorted(ours - {"StreamerError"})


# The texts that follow "waiting for", in the files that make them.
_WAITS = {
    "loader/feed/waits.py": (
        "the engine, to accept the session of this loader",
        "the data of",
        "worker processes, ",
        "they start",
        "a free slot for",
        ", which is made again: its worker ended",
        "a worker will make it",
        "has it and has not begun",
        "is at it, now at ",
    ),
    "loader/members/member.py": ("the engine of", "to start", "the engine to list and index", "columns to be read"),
    "loader/agreement.py": ("to compare their datasets", "rank 0, which compares the datasets of all ranks"),
    "loader/scan_reader.py": ("the chunks of a ",),
    "engine/manifests/manifests.py": ("the manifest at",),
    "client/launcher.py": ("the engine at",),
    "fetch/endpoint.py": ("which has served nothing",),
}


@pytest.mark.parametrize("file", _WAITS)
def test_trouble_explains_every_wait(file: str) -> None:
    """The trouble page has each text that the code writes after "waiting for"."""
    page = (DOCS / "trouble.md").read_text()
    (_, table) = page.split('## Lines that begin with "waiting for"')
    table = table.partition("\n## ")[0]
    source = (ROOT / "streamer" / file).read_text()
    assert [text for text in _WAITS[file] if text not in source or text.strip() not in table] == []


def test_waits_of_workers_are_listed() -> None:
    """Each text that `describe_wait` returns is among those that the trouble page explains."""
    tree = ast.parse((ROOT / "streamer" / "loader" / "feed" / "waits.py").read_text())
    (function,) = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "describe_wait"]
    returned = [ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Return)]
    assert len(returned) >= 9
    assert [text for text in returned if not any(known in text for known in _WAITS["loader/feed/waits.py"])] == []


def test_commands_are_all_named() -> None:
    """The commands page names all commands and exit codes."""
    text = (DOCS / "commands.md").read_text()
    assert [name for name in COMMANDS if f"`streamer {name}" not in text] == []
    codes = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE) for code in row.split(",")}
    assert codes == {int(code) for code in Exit}


def test_tuning_names_fields_that_there_are() -> None:
    """The tuning page names only figures that the loader has."""
    figure = r"`(?:stats\.)?(\w+_(?:seconds|batches|slots|bytes|faults|free|share)|skipped|rereads|respawns)`"
    named = set(re.findall(figure, (DOCS / "tuning.md").read_text()))
    arguments = [*signature(StreamingDataLoader).parameters, *signature(StreamingDataset).parameters]
    known = {field.name for field in fields(LoaderStats)} | {"wait_share", *arguments}
    assert named - known == set()
    assert {"wait_share", "decode_seconds", "spilled_batches"} <= named


def test_tuning_explains_every_bottleneck() -> None:
    """The tuning page has a row for each bottleneck except `nothing measured`."""
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "tuning.md").read_text(), re.MULTILINE)
    explained = {bottleneck for row in rows for bottleneck in row.split(", ")}
    assert [str(bottleneck) for bottleneck in Bottleneck if bottleneck not in explained] == ["nothing measured"]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_programs_are_python(page: Path) -> None:
    """Every Python program of a page compiles; `make test-pages` runs them."""
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        compile(block, str(page), "exec")


def test_every_argument_of_torchs_loader_has_its_row() -> None:
    """The migration page has torch's loader arguments in torch's order, and others only if the loader knows them."""
    text = (DOCS / "migrate" / "imagefolder.md").read_text().partition("## Arguments of the DataLoader")[2]
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    torchs = [name for name in signature(DataLoader.__init__).parameters if name != "self"]
    assert [name for name in rows if name in torchs] == torchs
    ours = {*signature(StreamingDataLoader).parameters, "pin_memory", "multiprocessing_context"}
    assert set(rows) <= {*torchs, *torch_arguments._INSTEAD}
    assert set(torchs) <= {*ours, *torch_arguments._INSTEAD}


def _text(page: Path) -> str:
    """Returns the page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Returns the anchors that headings get: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ +(.+)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links of a page name files that exist, and headings that these have."""
    for target in re.findall(r"\]\(([^)]+)\)", _text(ROOT / page)):
        if target.startswith(("http:", "https:")):
            continue
        path, _, heading = target.partition("#")
        linked = ROOT / page.parent / path if path else ROOT / page
        assert linked.exists(), target
        assert not heading or heading in _anchors(linked), target


# The field says video, image, slowest, fix and decompress.
HOUSE_WORDS = re.compile(r"\b(films?|pictures?|dearest|mend(?:s|ed)?|unpack(?:s|ed|ing)?)\b", re.IGNORECASE)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_words_are_those_of_the_field(page: Path) -> None:
    """The prose of the pages says video, image, slowest, fix and decompress, by which readers search."""
    text = re.sub(r"`[^`]*`", "", _text(ROOT / page))
    assert HOUSE_WORDS.findall(text) == []


def test_names_exist() -> None:
    """Each `name`, `name()` and `name=` of the pages is one of this repository, or a known foreign one."""
    files = [path for pattern in NAMED_IN for path in ROOT.glob(pattern)]
    words = {word for path in files for word in (path.stem, path.suffix[1:], *re.findall(r"\w+", path.read_text()))}
    words |= {f"STREAMER_{word.upper()}" for word in words} | {definition.name for definition in DEFINITIONS}
    named = {
        name
        for page in [ROOT / "README.md", *DOCS.rglob("*.md")]
        for name in re.findall(r"`([A-Za-z_][\w.]*\w)(?:\([^`]*\)|=)?`", _text(page))
    }
    assert {"StreamingDataset", "shuffle_window", "state_dict"} <= named
    missing = {name for name in named if not words.issuperset(name.split("."))}
    assert missing - FOREIGN == set()
    assert FOREIGN - missing == set(), "not mentioned any more, or ours by now"


def test_extras_are_asked_of_the_distribution_that_has_them() -> None:
    """Every `streamer...[extra]` in messages, pages and Dockerfiles names the distribution and extras that exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sources = [*ROOT.glob("*.md"), ROOT / "pyproject.toml", *DOCS.rglob("*.md"), *(ROOT / "docker").iterdir()]
    text = "\n".join(path.read_text() for path in [*sources, *(ROOT / "streamer").rglob("*.py")])
    named = re.findall(r"\b(streamer[\w-]*)\[([a-z0-9,]+)\]", text)
    assert {name for name, _ in named} == {project["name"]} == {"streamer-data"}
    assert {extra for _, extras in named for extra in extras.split(",")} <= set(project["optional-dependencies"])


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_results_that_are_named_exist(page: str) -> None:
    """Every result file that a page names for its figures exists."""
    named = set(re.findall(r"`([\w-]+-\d{4}-\d\d-\d\d\.\w+)`", (ROOT / page).read_text()))
    assert named
    assert [name for name in named if not (ROOT / "benchmarks" / "results" / name).exists()] == []


def test_every_benchmark_is_explained() -> None:
    """Each benchmark that keeps a result has a row in the benchmarks' README."""
    text = (ROOT / "benchmarks" / "README.md").read_text()
    programs = {path.name for path in (ROOT / "benchmarks").glob("*.py") if "kept(" in path.read_text()}
    assert {name for name in programs - {"report.py"} if f"\n| `{name}" not in text.replace(" bulk`", "`")} == set()


def test_the_reference_names_what_there_is() -> None:
    """Each `::: name` of the API reference can be imported."""
    names = re.findall(r"^::: ([\w.]+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert {"StallReport", "EngineView"} <= {name.rpartition(".")[2] for name in names}
    assert [name for name in names if pkgutil.resolve_name(name) is None] == []


def test_each_row_of_security_is_shown_by_tests_that_exist() -> None:
    """Each row of the security page names tests that exist."""
    table = (DOCS / "deploy" / "security.md").read_text().partition("## For operators")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    missing = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cells[-1])
        if len(cells) != 4 or not named:
            missing.append(row)
        missing += [f"{path}::{test}" for path, test in named if test not in _functions(ROOT / path)]
    assert missing == []
    assert len(rows) > 40


@functools.cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))
