"""Do work for coming items in other threads while earlier items are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = 2  # the second thread starts the next batch while the first finishes


def read_ahead(
    fetch: Callable[[Item], Result], items: Sequence[Item], *, ahead: int
) -> Generator[Result, None, None]:
    """Yield ``fetch(item)`` of each item, in order; at most `ahead` are ready and not yet used.

    >>> list(read_ahead(str, [1, 2, 3], ahead=2))
    ['1', '2', '3']
    """
    threads = ThreadPoolExecutor(min(ahead, THREADS), thread_name_prefix="read-ahead")
    try:
        coming = deque(threads.submit(fetch, item) for item in items[:ahead])
        for number in range(len(items)):
            result = coming.popleft().result()
            if number + ahead < len(items):
                coming.append(threads.submit(fetch, items[number + ahead]))
            yield result
    finally:
        threads.shutdown(cancel_futures=True)
