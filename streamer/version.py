"""The version of the package, for `streamer --version`, manifests, saved states, logs, and the handshakes of engines.

`pyproject.toml` reads it from here.
"""

VERSION = "0.2.0"
