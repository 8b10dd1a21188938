"""Encodes batches in several processes, and gives their results in order."""
import collections
import concurrent.futures
import itertools
import multiprocessing
import os
import signal
import threading

from .encode import Encoder
from .errors import DATA, Failure

worker = None  # the Encoder of a worker process


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def start_worker(args):
    global worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()  # even if it was killed and cannot end them
    worker = Encoder(args)


def work(texts):
    return worker.encode(texts)


def encoded(args, encoder, found):
    """Yields what Encoder.encode gives for each batch, in order."""
    first = list(itertools.islice(found, 2))
    found = itertools.chain(first, found)
    if args.workers == 1 or len(first) < 2:  # not worth a process
        yield from map(encoder.encode, found)
        return
    with concurrent.futures.ProcessPoolExecutor(args.workers, initializer=start_worker, initargs=(args,)) as pool:
        pending = collections.deque()
        try:
            for batch in found:
                pending.append(pool.submit(work, batch))
                if len(pending) >= 3 * args.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool:
            raise Failure(DATA, "a worker process died (out of memory?); hint: fewer --workers")
        finally:
            for future in pending:
                future.cancel()
