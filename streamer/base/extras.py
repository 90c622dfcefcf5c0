"""Asks for optional packages: where one is missing, the error is a ConfigError that names what to install.

Every part that needs an optional package imports it inside of `require_extra`, or calls `require_modules` before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from streamer.errors import ConfigError

# The extra of streamer-data that installs a package, by the name under which the package is imported.
EXTRAS = {
    "PIL": "images",
    "aiohttp": "peers",
    "av": "video",
    "adlfs": "azure",
    "botocore": "aws",
    "cramjam": "codecs",
    "cv2": "images",
    "distributed": "dask",
    "fsspec": "stores",
    "gcsfs": "gcs",
    "google_crc32c": "zarr",
    "h5py": "hdf5",
    "hdf5plugin": "hdf5",
    "matplotlib": "plots",
    "numcodecs": "zarr",
    "obstore": "stores",
    "prometheus_client": "serve",
    "pyarrow": "parquet",
    "pycocotools": "coco",
    "pycurl": "stores",
    "ray": "ray",
    "rich": "cli",
    "s3fs": "s3",
    "simplejpeg": "images",
    "torch": "torch",
}


@contextmanager
def require_extra(what: str, *, field: str) -> Iterator[None]:
    """Turns an ImportError that is raised inside of a `with` into a ConfigError that says how to install the package.

    Args:
        what: the part that needs the package, as the beginning of the message.
        field: the argument or setting that asks for the part, for the error.
    """
    try:
        yield
    except ImportError as error:
        raise explain_import_error(what, error, field=field) from error


def explain_import_error(what: str, error: ImportError, *, field: str) -> ConfigError:
    """Returns the ConfigError for a package that is not installed, or is broken; see `require_extra` for the others."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return ConfigError(
            f"{what} needs a module that cannot be imported in this environment ({sys.prefix}): {error}", field=field
        )
    return ConfigError(f"{_lack(what, [package], EXTRAS[package])} ({error})", field=field)


def require_modules(what: str, extra: str, *modules: str, field: str) -> None:
    """Checks that modules are installed, without importing them.

    Args:
        what: the part that needs them, as the beginning of the message.
        extra: the extra of streamer-data that installs them.
        modules: their names.
        field: the argument or setting that asks for the part, for the error.

    Raises:
        ConfigError: one is missing; the text names all missing ones and the extra.
    """
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ConfigError(_lack(what, missing, extra), field=field)


def _lack(what: str, packages: list[str], extra: str) -> str:
    return (
        f"{what} needs {' and '.join(packages)} in this environment ({sys.prefix}): "
        f"pip install 'streamer-data[{extra}]'"
    )
