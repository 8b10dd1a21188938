# SPDX-License-Identifier: Apache-2.0
"""Encodes batches in several processes, and gives their results in order.

A process has a pipe to the first one and a thread there, which sends it one batch at a time. The pools of the standard library
take semaphores, for which /dev/shm has to be writable."""
import collections
import concurrent.futures
import itertools
import multiprocessing
import os
import queue
import signal
import threading

from .encode import Encoder
from .errors import DATA, Failure, interrupt


def end_with_parent():
    multiprocessing.parent_process().join()
    os._exit(1)


def serve(args, pipe):
    """A worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()  # even if it was killed and cannot end them
    encoder = Encoder(args)
    while True:
        try:
            batch = pipe.recv()
        except EOFError:
            return
        try:
            result = encoder.encode(batch)
        except (Failure, MemoryError, RecursionError) as failure:
            result = failure
        pipe.send(result)


class Workers:
    """The processes: work() gives a batch to one that is idle, from any thread."""

    def __init__(self, args):
        self.idle, self.processes = queue.SimpleQueue(), []
        try:
            for _ in range(args.workers):
                self.start(args)
        except OSError as error:
            self.end()
            raise Failure(DATA, f"cannot start {args.workers} worker processes: {error.strerror}; hint: fewer --workers")

    def start(self, args):
        pipe, other = multiprocessing.Pipe()
        process = multiprocessing.Process(target=serve, args=(args, other), daemon=True)
        process.start()
        self.processes.append(process)
        other.close()  # the worker alone has it, so that its death is seen
        self.idle.put(pipe)

    def work(self, batch):
        pipe = self.idle.get()
        try:
            pipe.send(batch)
            result = pipe.recv()
        except (EOFError, OSError):
            raise Failure(DATA, "a worker process died (out of memory?); hint: fewer --workers")
        finally:
            self.idle.put(pipe)
        if isinstance(result, Exception):
            raise result
        return result

    def end(self):
        for process in self.processes:
            process.kill()  # one that has just begun would only notice a SIGTERM, and wait for a batch
        for process in self.processes:
            process.join()


def result_of(future):
    """Its result; a signal that comes meanwhile is noticed."""
    while True:
        try:
            return future.result(timeout=0.2)
        except concurrent.futures.TimeoutError:
            interrupt.check()


def encoded(args, encoder, found):
    """Yields what Encoder.encode gives for each batch, in order."""
    first = list(itertools.islice(found, 2))
    found = itertools.chain(first, found)
    # A process is not worth its start then; but a chat template is a program that may never end, and a process can be ended.
    if args.form not in ("chat", "preference") and (args.workers == 1 or len(first) < 2):
        yield from map(encoder.encode, found)
        return
    workers, pending = Workers(args), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(args.workers) as threads:
        try:
            for batch in found:
                pending.append(threads.submit(workers.work, batch))
                if len(pending) >= 3 * args.workers:
                    yield result_of(pending.popleft())
            while pending:
                yield result_of(pending.popleft())
        finally:
            for future in pending:
                future.cancel()
            workers.end()
