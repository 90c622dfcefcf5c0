"""The page at `/`: one file that requests `/statistics.json` and shows it. Clients choose names that it shows."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib.resources import files


@functools.cache
def page() -> tuple[bytes, dict[str, str]]:
    """The page, with headers that let a browser run only this script and style, and ask only this server."""
    text = files(__package__).joinpath("overview.html").read_text(encoding="utf-8")
    policy = {
        "default-src": "'none'",
        "script-src": _hash_of("script", text),
        "style-src": _hash_of("style", text),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        # No string becomes markup, whatever a later change of the script does.
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return text.encode(), headers


def _hash_of(tag: str, text: str) -> str:
    """The source expression for the only inline element of this tag (Content Security Policy 3, 2.3.1)."""
    (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
