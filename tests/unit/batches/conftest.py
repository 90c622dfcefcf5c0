"""The fixtures of the loader's tests, with datasets on the disk and a fake engine, for the tests of batches."""

from tests.unit.loader.conftest import fake_engine, folder, make_dataset, ordinary, tars

__all__ = ["fake_engine", "folder", "make_dataset", "ordinary", "tars"]
