"""The datasets and the engine of the loader's tests."""

from tests.unit.loader.conftest import fake_engine, folder, make_dataset, ordinary, tars

__all__ = ["fake_engine", "folder", "make_dataset", "ordinary", "tars"]
