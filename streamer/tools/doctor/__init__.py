"""Implements `streamer doctor`, which reports what this machine has and lacks. `cli/main.py` runs it.

Its checks are in `machine.py` (Python, memory, cache folder, engine), `environment.py` (what is around the process, and
optional libraries) and `reach.py` (a url), which all return a `Finding` for each result.
"""

from __future__ import annotations

import argparse
import json
from typing import Literal, NamedTuple

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir, add_json, add_storage_options
from streamer.cli.terminal import Terminal
from streamer.config import counted

HELP = "what this machine has and lacks, and whether a url can be read"

DESCRIPTION = """\
Checks Python and torch, memory and limits, the cache folder and its disk, an engine, and the optional libraries; with a
URL also the credentials, the endpoint and its clock, and the rate of the link. Each line that is not "ok" says what to
do; the exit code is 1 where something is a problem.
"""

EXAMPLES = """\
examples:
  streamer doctor
  streamer doctor s3://bucket/train/
  streamer doctor --json | jq '.[] | select(.state != "ok")'
"""

NOTES = """\
It starts an engine, which ends by itself, or asks the one that STREAMER_ENGINE names, and makes the cache folder where
it does not exist; nothing else is changed. Of credentials it shows the source and the end, never the keys. From a URL
it reads for two seconds: what is read then is what it costs, and `streamer bench URL` is the long form of it.
docs/trouble.md explains what is missing or strange around the process.
"""


# A "problem" ends a job, a "warning" slows it down or may end it, and what is "optional" is missing but rarely needed.
State = Literal["ok", "optional", "warning", "problem"]


class Finding(NamedTuple):
    """The result of one check, a line of the report.

    Attributes:
        state: how bad it is.
        subject: subject of the check, in a word or two.
        fact: the result, with numbers; never a secret.
        advice: advice to the user; "" if there is none.
    """

    state: State
    subject: str
    fact: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    data = parser.add_argument_group("data")
    data.add_argument("url", nargs="?", metavar="URL", help="a prefix or folder, an object, or a pattern")
    add_storage_options(data)
    add_json(parser.add_argument_group("output"))
    add_cache_dir(parser.add_argument_group("machine"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Makes all checks and shows the findings; returns `FAILED` if one of them is a problem.

    Raises:
        ConfigError: an option or the url is invalid.
        AccessDeniedError: a store may not be opened.
    """
    import asyncio

    from streamer.cli.dataset import client_settings
    from streamer.store import StoreRoot
    from streamer.tools.doctor.environment import environment_findings, library_findings
    from streamer.tools.doctor.machine import machine_findings
    from streamer.tools.doctor.reach import link_findings, url_findings

    settings = client_settings(arguments)
    found = [*machine_findings(settings), *environment_findings(settings.runtime_dir)]
    found += library_findings()
    if arguments.url is not None:
        root = StoreRoot.resolve(arguments.url, arguments.storage_options)
        found += asyncio.run(url_findings(root, arguments.url))
        if all(finding.state != "problem" for finding in found if finding.subject in ("url", "read", "endpoint")):
            found += asyncio.run(link_findings(root, arguments.url))
    if arguments.json:
        terminal.line(json.dumps([finding._asdict() for finding in found]))
    else:
        width = max(len(finding.subject) for finding in found)
        for finding in found:
            terminal.line(f"{finding.state:<8}  {finding.subject:<{width}}  {finding.fact}")
            if finding.advice:
                terminal.line(f"{'':<8}  {'':<{width}}  -> {finding.advice}")
        counts = (
            counted(sum(finding.state == state for finding in found), f"{state}s") for state in ("problem", "warning")
        )
        terminal.line()
        terminal.line(", ".join(counts))
    return Exit.FAILED if any(finding.state == "problem" for finding in found) else Exit.DONE
