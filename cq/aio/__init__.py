"""cq for asyncio: no thread waits while a task waits for the store. Needs the package greenlet.

    db = await cq.aio.open("fdb:")
    words = cq.aio.CombineQueue[str, int]("words")
    await db.transact(lambda tr: words.add(tr, {"hello": 1}))

`import cq` does not import this package. `calls` says how it works, `docs/count/add.md` how to use it. On the
embedded store, reads run in the event loop's thread, because each is short; commits run in one thread of the store.
"""

from cq.aio.calls import Call, result_of, run
from cq.aio.cells import AsyncCells as Cells
from cq.aio.cells import AsyncUserData
from cq.aio.database import AsyncDatabase, AsyncRange, AsyncReads, AsyncTransaction, open  # noqa: A004 - as cq.open
from cq.aio.handles import AsyncCloudReader as CloudReader
from cq.aio.handles import AsyncCombineQueue as CombineQueue
from cq.aio.handles import AsyncFeed as Feed
from cq.aio.handles import AsyncRanking as Ranking
from cq.aio.handles import AsyncWindow as Window
from cq.aio.worker import AsyncWorker as Worker

__all__ = [
    "AsyncDatabase",
    "AsyncRange",
    "AsyncReads",
    "AsyncTransaction",
    "AsyncUserData",
    "Call",
    "Cells",
    "CloudReader",
    "CombineQueue",
    "Feed",
    "Ranking",
    "Window",
    "Worker",
    "open",
    "result_of",
    "run",
]
