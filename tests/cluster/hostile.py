#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stranger who talks to every port of this machine that a program listens on: hostile.py SECONDS

It looks for listening TCP ports all the time, connects to each as soon as it is there and again and again: closes at
once, sends noise, an HTTP request, the beginning of a line and nothing more, an endless stream; many connections stay
open without a word. At the end (or at SIGINT) it prints how many connections it had and where: "42 connections: A B …".
"""
import contextlib
import os
import random
import signal
import socket
import sys
import time


def listening():
    """(family, address, port) of all listening TCP sockets of this network namespace."""
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}", encoding="ascii") as f:
            for line in f.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":
                    number, _, port = fields[1].partition(":")
                    words = [bytes.fromhex(number[i:i + 8])[::-1] for i in range(0, len(number), 8)]
                    found.add((family, socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def main():
    rng = random.Random(1)
    end = time.monotonic() + float(sys.argv[1])
    addresses, connections, open_ones, told = set(), 0, [], []
    signal.signal(signal.SIGINT, lambda *_: told.append(True))
    while time.monotonic() < end and not told:
        for family, address, port in listening():
            caller = socket.socket(family, socket.SOCK_STREAM)
            caller.settimeout(0.2)
            try:
                caller.connect((address if address not in ("0.0.0.0", "::") else
                                {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}[family], port))
                addresses.add(address)
                connections += 1
                manner = rng.randrange(6)
                if manner == 1:
                    caller.send(os.urandom(rng.randrange(1, 4000)))
                elif manner == 2:
                    caller.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                elif manner == 3:
                    caller.send(b"\0" * 3)
                elif manner == 4:
                    for _ in range(64):
                        caller.send(os.urandom(16384))
                if manner in (3, 5) and len(open_ones) < 400:
                    open_ones.append(caller)
                    continue
            except OSError:
                pass
            caller.close()
        time.sleep(0.002)
    print(connections, "connections:", *sorted(addresses))


main()
