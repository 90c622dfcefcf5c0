"""Parses the words of a command: formats its help, and answers an old option by an error with the new spelling.

`main.py` makes the parsers; `cache_command.py` uses the class for its actions.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NoReturn

from streamer.errors import without_controls, without_secrets
from streamer.removed import find_old_option

# Lines that are longer are hard to read, however wide the terminal is.
_MAX_COLUMNS = 100


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs to the width of the terminal, keeps examples as they are, and lists options only once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, _MAX_COLUMNS) - 2)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Adds the usage line, called by argparse: arguments that must be given, and [OPTION ...] for all others."""
        required = [group for group in groups if group.required]
        chosen = {id(action) for group in required for action in group._group_actions}
        shown = [each for each in actions if not each.option_strings or each.required or id(each) in chosen]
        others = argparse.Action([], "options", nargs="?", metavar="OPTION ...")
        # Words after the name of a command belong to that command.
        before_command = any(each.nargs == argparse.PARSER for each in shown)
        super().add_usage(usage, [others, *shown] if before_command else [*shown, others], required, prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        return "\n\n".join(
            paragraph if "\n " in f"\n{paragraph}" else textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in paragraphs
        )


class CommandParser(argparse.ArgumentParser):
    """Parses the words of one command, with a help formatted by `HelpFormatter`.

    Args:
        prog: Name of the program and the command.
        description: Text above the options.
        epilog: Text below the options; None for none.
        removed: Options of earlier releases, and what is written now; see `streamer.removed.OPTIONS`.

    Attributes:
        removed: see Args.
    """

    def __init__(
        self,
        *,
        prog: str,
        description: str,
        epilog: str | None = None,
        removed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, formatter_class=HelpFormatter)
        self.removed = removed

    def parse_known_args(  # type: ignore[override]  # it has overloads for the type of the namespace
        self, args: Iterable[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses words as argparse does, after looking for an option of an earlier release.

        Raises:
            SystemExit: there is one, and the error shows the new spelling; or as argparse.
        """
        words = sys.argv[1:] if args is None else list(args)
        if (text := find_old_option(self.removed, words)) is not None:
            self.error(text)
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Ends the program as argparse does; logins and signatures of urls are left out of the message."""
        super().error(without_secrets(without_controls(message)))
