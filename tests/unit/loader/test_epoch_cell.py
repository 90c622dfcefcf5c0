"""Tests of the number of the next epoch, which the main process and all its workers share.

Workers are numbers of tickets, and in tests marked `process` real forked or spawned processes.
"""

from __future__ import annotations

import copy
import multiprocessing
import multiprocessing.resource_tracker
import os
import pickle
import threading
from collections.abc import Callable

import pytest
from torch.utils.data._utils import worker as torch_worker

from streamer.errors import ConfigError, StateError
from streamer.loader.epoch_cell import EpochCell, WorkerTicket


@pytest.fixture(scope="module")
def tracker() -> None:
    """Starts the resource tracker of multiprocessing, which spawned processes use."""
    # The first spawned process of a test run starts it, and it stays.
    multiprocessing.resource_tracker.ensure_running()


def begin(cell: EpochCell, seed: int, worker: int, number: int = 0) -> int:
    """Begins an iteration as a worker of torch's DataLoader with this seed and number."""
    return cell.begin(WorkerTicket(seed, number, worker))


def test_without_workers_every_begin_is_the_next_epoch():
    """Without workers every iteration is the next epoch, and `set` chooses another."""
    cell = EpochCell()
    assert [cell.begin() for _ in range(3)] == [0, 1, 2]
    cell.set(7)
    assert cell.next_epoch == 7
    assert [cell.begin() for _ in range(2)] == [7, 8]


def test_workers_of_one_iteration_agree():
    """Workers of one iteration have one epoch, in whatever order they begin."""
    cell = EpochCell()
    assert [begin(cell, 100, worker) for worker in (2, 0, 1)] == [0, 0, 0]
    assert [begin(cell, 200, worker) for worker in (1, 2, 0)] == [1, 1, 1]


def test_persistent_workers_agree_round_by_round():
    """Persistent workers, whose seed torch keeps, agree by rounds, although one worker is a round ahead."""
    cell = EpochCell()
    assert begin(cell, 5, 0, 0) == begin(cell, 5, 1, 0) == 0
    assert begin(cell, 5, 0, 1) == 1
    assert begin(cell, 5, 0, 2) == 2
    assert begin(cell, 5, 1, 1) == 1
    assert begin(cell, 5, 1, 2) == 2


def test_another_number_of_workers_is_no_confusion():
    """Iterations with other numbers of workers each have one epoch: none, two, then four."""
    cell = EpochCell()
    assert cell.begin() == 0
    assert {begin(cell, 1, worker) for worker in range(2)} == {1}
    assert {begin(cell, 2, worker) for worker in range(4)} == {2}


def test_a_straggler_of_an_abandoned_iteration_joins_its_own():
    """A late worker of an abandoned iteration joins that one, and does not move the one that runs."""
    cell = EpochCell()
    assert begin(cell, 1, 0) == 0
    assert begin(cell, 2, 0) == 1
    assert begin(cell, 1, 1) == 0
    assert begin(cell, 2, 1) == 1
    assert cell.next_epoch == 2


def test_a_seed_that_comes_again_is_a_new_iteration():
    """A seed that comes again is a new iteration, as where `torch.manual_seed(0)` is called before every epoch."""
    cell = EpochCell()
    for epoch in range(3):
        assert {begin(cell, 0, worker) for worker in range(3)} == {epoch}


def test_set_between_iterations_counts_for_all():
    """`set` between two iterations counts for all workers of the next one, and the epoch after it follows."""
    cell = EpochCell()
    begin(cell, 1, 0)
    cell.set(10)
    assert {begin(cell, 2, worker) for worker in range(3)} == {10}
    assert cell.next_epoch == 11


def test_many_iterations_fit():
    """300 iterations fit into the table of workers, which is a ring."""
    cell = EpochCell()
    for epoch in range(300):
        assert {begin(cell, epoch, worker) for worker in range(2)} == {epoch}


def test_too_many_workers_are_refused():
    """Worker 4,096 is refused, since the table has a bit for each of 4,096."""
    with pytest.raises(ConfigError, match="4096"):
        begin(EpochCell(), 0, 4096)


def test_the_first_manifest_counts():
    """The manifest that was found first counts for all processes and for copies."""
    cell = EpochCell()
    assert cell.manifest == ""
    assert cell.settle_manifest("a" * 32) == "a" * 32
    assert cell.settle_manifest("b" * 32) == "a" * 32
    assert copy.deepcopy(cell).manifest == "a" * 32


def test_a_copy_has_a_number_of_its_own():
    """A copy, deep or by pickle, begins at the same epoch and counts in memory of its own."""
    cell = EpochCell(3)
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert other.begin() == 3
    assert cell.next_epoch == 3


def become_a_worker() -> None:
    """Makes this process a worker of torch's DataLoader, as far as datasets can see."""
    torch_worker._worker_info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)


def fork(work: Callable[[], bool]) -> bool:
    """Returns what `work` returns in a forked process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.process
def test_a_forked_worker_shares_the_number():
    """A forked worker and its parent share the number and the manifest in both directions."""
    cell = EpochCell()
    cell.begin()

    def work() -> bool:
        become_a_worker()
        cell.settle_manifest("c" * 32)
        return cell.begin() == 1

    assert fork(work)
    assert cell.begin() == 2
    assert cell.manifest == "c" * 32


@pytest.mark.process
def test_a_forked_rank_has_epochs_of_its_own():
    """A forked rank begins where its parent was at the fork, whatever the parent does meanwhile."""
    cell = EpochCell(manifest="a" * 32)
    cell.begin()
    ours, theirs = os.pipe()

    def work() -> bool:
        os.read(ours, 1)
        return [cell.begin(), cell.begin(), cell.manifest] == [1, 2, "a" * 32]

    child = os.fork()
    if child == 0:
        os._exit(0 if work() else 1)
    cell.set(50)
    os.write(theirs, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cell.next_epoch == 50
    os.close(ours)
    os.close(theirs)


@pytest.mark.process
def test_the_workers_of_a_forked_rank_share_its_number():
    """Workers of a forked rank share its number, also where the rank has not used it before it forks them."""
    cell = EpochCell()

    def worker(epoch: int) -> bool:
        become_a_worker()
        return begin(cell, epoch, 0) == epoch

    def rank() -> bool:
        return all(fork(lambda epoch=epoch: worker(epoch)) for epoch in range(3)) and cell.next_epoch == 3

    assert fork(rank)
    assert fork(rank)
    assert cell.next_epoch == 0


@pytest.mark.process
def test_a_fork_while_a_thread_holds_the_lock_is_no_deadlock():
    """A process forked while another thread holds the lock is not blocked by it.

    It has no such thread that would release the lock.
    """
    cell = EpochCell()
    with cell._threads:
        child = os.fork()
        if child == 0:
            os._exit(0 if cell.begin() == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_cell_that_was_read_as_one_rank_refuses_another():
    """A dataset that was read as one rank refuses to be read as another, as the shares of the two would overlap."""
    cell = EpochCell()
    cell.keep_rank(0, 1)
    cell.keep_rank(0, 1)
    with pytest.raises(StateError, match=r"rank 0 of 1, and this process is rank 1 of 2 now.*init_process_group"):
        cell.keep_rank(1, 2)
    with pytest.raises(
        StateError, match="has read as rank 0 of 1, and this process is rank 1 of 2"
    ):  # not at the first try only
        cell.keep_rank(1, 2)
    cell.keep_rank(0, 1)


def _own(cell: EpochCell, answers: object) -> None:
    """Begins two iterations in a spawned process that is no worker, and sends their epochs."""
    answers.send([cell.begin(), cell.begin()])


@pytest.mark.process
@pytest.mark.usefixtures("tracker")
def test_a_spawned_rank_has_epochs_of_its_own():
    """A process of `mp.spawn` that is no worker of a DataLoader has epochs of its own."""
    cell = EpochCell(4)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_own, args=(cell, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == [4, 5]
    assert cell.next_epoch == 4
    ours.close()
    process.join()
    process.close()


def _child(cell: EpochCell, answers: object) -> None:
    """Begins an iteration in a spawned process as a worker, and sends its epoch, and later the next epoch."""
    become_a_worker()
    answers.send(cell.begin())
    answers.recv()
    answers.send(cell.next_epoch)


@pytest.mark.process
@pytest.mark.usefixtures("tracker")
def test_a_spawned_worker_shares_the_number():
    """A spawned worker shares the number by a descriptor that is handed over at its start."""
    cell = EpochCell(4)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_child, args=(cell, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == 4
    assert cell.next_epoch == 5
    cell.set(99)
    ours.send(None)
    assert ours.recv() == 99
    ours.close()
    process.join()
    process.close()


def test_threads_do_not_take_the_same_epoch():
    """Threads of one process never begin the same epoch; a record lock alone would not keep them apart."""
    cell, taken = EpochCell(), []
    threads = [threading.Thread(target=lambda: taken.extend(cell.begin() for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(800))
