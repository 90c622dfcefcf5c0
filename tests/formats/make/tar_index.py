"""Makes the files of tests/formats/data/tar_index: tars of webdataset, index files of Megatron Energon and of DALI.

    pip install webdataset megatron-energon; PYTHONPATH=.:FOLDER python tests/formats/make/tar_index.py
FOLDER has wds2idx.py, which is in DALI's wheel.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import webdataset
from megatron.energon.epathlib import EPath
from megatron.energon.flavors.webdataset.prepare import WebdatasetPreparator
from wds2idx import IndexCreator

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "tar_index"


def samples(drawn: random.Random) -> list[dict[str, object]]:
    """Makes members of 0 bytes and of many; names that need extended headers."""
    return [
        {
            "__key__": f"{'deep/' * 30 if number % 4 == 3 else ''}{'k' * 90 if number % 4 == 2 else ''}{number:03d}",
            "bin": drawn.randbytes(number * 83 % 1500),
            "cls": number,
        }
        for number in range(16)
    ]


def main() -> None:
    for index in ("energon", "dali"):
        folder = ROOT / index
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        written = samples(random.Random(8))
        for name, part in (("a", written[:9]), ("b", written[9:])):
            tar = folder / f"{name}.tar"
            with webdataset.TarWriter(str(tar)) as writer:
                for sample in part:
                    writer.write(sample)
            if index == "energon":
                list(WebdatasetPreparator._preprocess_tar(tar.name, {tar.name: 0}, EPath(folder), 10))
            else:
                with IndexCreator(str(tar), str(tar.with_suffix(".idx")), verbose=False) as creator:
                    creator.create_index()
        read = webdataset.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=False)
        write_expected(folder, [{"__key__": s["__key__"], "bin": s["bin"], "cls": int(s["cls"])} for s in read])


if __name__ == "__main__":
    main()
