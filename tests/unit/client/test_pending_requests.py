"""Requests that wait for answers: what is sent, what is sent again, and which answer is next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from streamer.client.pending_requests import MAX_IN_FLIGHT, Ask, PendingRequests
from streamer.wire.messages import GetStatistics

COUNT = MAX_IN_FLIGHT + 3


def pending(taken: list[int]) -> PendingRequests:
    """Makes requests, and notes in `taken` which of them have been made."""

    def asks() -> Iterator[Ask]:
        for number in range(COUNT):
            taken.append(number)
            yield Ask(GetStatistics)

    return PendingRequests(asks(), itertools.count(1))


def numbers(messages: list[GetStatistics]) -> list[int]:
    """Returns the numbers of the requests."""
    return [message.request for message in messages]


def test_a_few_are_in_flight_and_the_rest_is_not_even_made():
    """A few requests are in flight, a further one is made when one is answered, and answers are taken in order."""
    taken = []
    requests = pending(taken)
    assert numbers(requests.take_unsent("engine")) == [*range(1, MAX_IN_FLIGHT + 1)]
    assert requests.take_unsent("engine") == []
    assert len(taken) == MAX_IN_FLIGHT
    assert requests.first[0] == 1
    requests.finish(1)
    assert numbers(requests.take_unsent("engine")) == [MAX_IN_FLIGHT + 1]
    assert requests.first[0] == 2


def test_a_new_connection_gets_all_that_are_unanswered():
    """A new connection is sent all unanswered requests with their numbers, and each is answered once."""
    requests = pending([])
    requests.take_unsent("engine")
    requests.finish(1)
    assert numbers(requests.take_unsent("the next engine")) == [*range(2, MAX_IN_FLIGHT + 2)]
    for number in range(2, MAX_IN_FLIGHT + 2):
        requests.finish(number)
    assert numbers(requests.take_unsent("the next engine")) == [COUNT - 1, COUNT]
    requests.finish(COUNT - 1)
    requests.finish(COUNT)
    assert requests.take_unsent("the next engine") == []
    assert requests.first is None
