"""Implements `streamer audit`, which proves that each sample came exactly once. `cli/main.py` runs it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.cli.exit_codes import Exit
from streamer.cli.options import add_cache_dir
from streamer.cli.terminal import Terminal

if TYPE_CHECKING:
    from streamer.order.audit import Record
    from streamer.order.state import State

HELP = "prove from states and logs that each sample came exactly once"

DESCRIPTION = """\
Adds up what each rank of a StreamingDataLoader has received, from its logs or states, and says whether each sample of
an epoch came exactly once; if not, which came too often, not at all, or in place of another. The exit code is 1 where
one did not, or where records are missing.
"""

EXAMPLES = """\
examples:
  streamer audit rank-0.log rank-1.log rank-2.log rank-3.log
  # states, as json.dump(loader.state_dict(), file) writes them
  streamer audit checkpoints/step-*/loader-*.json
  # a checkpoint of torch that has states in it
  streamer audit last.pt
  # a run of 4 ranks that 2 ranks went on with
  streamer audit before/*.log after/*.log
"""

NOTES = """\
Each rank adds up a hash of every sample that the trainer has received, some bytes per epoch. The sums are in its
`state_dict()`, and with STREAMER_LOG_FORMAT=json (or logging at INFO) in its log: at the end of an epoch, and wherever
`state_dict()` is called. Runs that were resumed, with any number of ranks, add up: give the files of all of them. Where
a part of an epoch, a mix or a selection is compared, the order is computed anew from the manifests in the cache folder;
one whole dataset needs none. Samples that on_error="skip" left out are named.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    records = parser.add_argument_group("records")
    records.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="logs, states as JSON, or checkpoints of torch; of all ranks",
    )
    add_cache_dir(parser.add_argument_group("machine"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Shows the result for each epoch of each order; returns `FAILED` if one of them is not proven, or there is none.

    Raises:
        ConfigError: a file is a checkpoint that cannot be read, or a variable of the environment is invalid.
        StateError: a state is damaged, or of another version.
        OSError: a file cannot be read.
    """
    from streamer.order.audit import audit_epoch, describe_audit, read_records
    from streamer.order.state import State
    from streamer.tools.audit_states import StateOrder, states_in

    # A state and the records of each epoch, by id of the order.
    orders: dict[str, tuple[State, dict[int, list[Record]]]] = {}
    without = 0
    for saved in (state for path in arguments.files for state in states_in(path)):
        state = State.from_dict(saved)
        saved_records = read_records(saved)
        without += not saved_records
        for record in saved_records:
            _, epochs = orders.setdefault(state.spec.order_id, (state, {}))
            epochs.setdefault(record.epoch, []).append(record)
    if without:
        terminal.note(f"{without} states have no digests: of an earlier version, of a stock DataLoader, or of no batch")
    if not orders:
        terminal.line("not proven: no digests in these files; a log has them at INFO (STREAMER_LOG_FORMAT=json)")
    proven = bool(orders)
    for order_id, (state, records) in sorted(orders.items()):
        terminal.line(f"order {order_id}")
        order = StateOrder(state, arguments.cache_dir)
        for epoch, found in sorted(records.items()):
            expected = partial(order.tallies, epoch)
            result = audit_epoch(found, expected, order.codes(epoch, found[0].samples), order.names)
            proven = proven and not result.faults and not result.gaps
            for line in describe_audit(result):
                terminal.line(line)
    return Exit.DONE if proven else Exit.FAILED
