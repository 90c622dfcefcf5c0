"""Imports of optional packages: a missing one must be an error that names what to install."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import streamer
from streamer.base.extras import EXTRAS

PACKAGE = Path(streamer.__file__).parent
# Where the package is imported without a guard of its own, and what has asked for it before.
ASKED_BEFORE = {
    # by `require_extra` where the module is imported
    "annotations/parse.py": "recode/work.py, shards",
    "executors/on_ray.py": "executors/runner.py",
    "formats/table/rows.py": "recode/work.py",
    "formats/table/writer.py": "the recoders of tables",
    "media/containers/segment_table.py": "media/containers/recode.py",
    "media/lerobot/recode.py": "media/lerobot/format.py",
    "shards/outputs/parquet.py": "shards/outputs/registry.py",
    "tables/arrow_ipc/recode.py": "tables/arrow_ipc/format.py",
    "tables/hdf5/recode.py": "tables/hdf5/format.py",
    "tables/litdata/arrow_rows.py": "tables/litdata/format.py",
    "tables/parquet/columns.py": "the recoders of tables",
    "tables/parquet/number_lists.py": "the recoders of tables",
    "tables/parquet/recode.py": "tables/parquet/format.py",
    "tools/link_report.py": "cli/options.py (--plot)",
    "tools/plan_command.py": "cli/options.py (--plot)",
    "cli/images.py": "cli/show_command.py (--out)",
    "decode/masks.py": "the function that is called before",
    # by `import_pyav`
    "media/decode/audio.py": "media/decode/decoder.py",
    "media/decode/decoder.py": "itself",
    "media/decode/rgb.py": "media/decode/video.py",
    "media/decode/video.py": "media/decode/decoder.py",
    "media/decode/video_packets.py": "media/decode/decoder.py",
    # by `require_modules`
    "cli/top_command.py": "itself",
    "peers/server.py": "service/lifecycle.py, service/long_requests.py",
    "peers/tls.py": "service/lifecycle.py, service/long_requests.py",
    "peers/transfer.py": "service/lifecycle.py, service/long_requests.py",
    "service/metrics.py": "service/web.py",
    "service/web.py": "itself",
    "store/curl/handle.py": "store/__init__.py",
    "store/curl/multi.py": "store/__init__.py",
    "store/curl/request.py": "store/__init__.py",
    "store/curl/store.py": "store/__init__.py",
    "store/fsspec_store.py": "store/__init__.py",
    "store/obstore_clients.py": "store/__init__.py",
    "store/obstore_store.py": "store/__init__.py",
    # by `find_spec`, or a caller that has imported it already
    "cli/terminal.py": "itself",
    "store/places.py": "the function that is called before",
}
# What makes batches of torch is imported by the loader, which is imported as `streamer.StreamingDataset`: that says
# what to install. Other rooms import these modules inside of `require_extra`.
OF_TORCH = ("batches/", "loader/")


def unguarded(tree: ast.AST) -> Iterator[str]:
    """Yields the optional packages that a module imports without catching the error, type checkers apart."""
    for child in ast.iter_child_nodes(tree):
        names: list[str] = []
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                for each in child.orelse:
                    yield from unguarded(each)
                continue
            case ast.Try() if any("ImportError" in ast.unparse(each.type) for each in child.handlers if each.type):
                continue
            case ast.With() if "require_extra(" in ast.unparse(child.items[0]):
                continue
            case ast.Import():
                names = [alias.name for alias in child.names]
            case ast.ImportFrom():
                names = [child.module or ""]
        yield from (name.partition(".")[0] for name in names if name.partition(".")[0] in EXTRAS)
        yield from unguarded(child)


def test_each_optional_import_is_asked_for() -> None:
    """Each import of an optional package is in `require_extra`, catches its error, or is named with who has asked."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        packages = set(unguarded(ast.parse(path.read_text())))
        if packages - ({"torch"} if name.startswith(OF_TORCH) else set()):
            found.add(name)
    assert found - ASKED_BEFORE.keys() == set(), "import it inside of `require_extra` (streamer/base/extras.py)"
    assert ASKED_BEFORE.keys() - found == set(), "these names can go"
