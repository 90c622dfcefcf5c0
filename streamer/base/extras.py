"""Libraries that a plain installation leaves out, and the error if one of them is missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from streamer.errors import ConfigError


def require(what: str, extra: str, *modules: str, field: str) -> None:
    """Looks for modules without importing them.

    Args:
        what: the part that needs them, as the beginning of the message.
        extra: the extra that installs them.
        modules: their names.
        field: the argument or setting that asks for it.

    Raises:
        ConfigError: one is missing; names it and the extra.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {' and '.join(missing)} in this environment ({sys.prefix}): "
            f"pip install 'streamer-data[{extra}]'",
            field=field,
        )
