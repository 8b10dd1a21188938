# SPDX-License-Identifier: Apache-2.0
"""Power fails: the run is on a small ext4 on a loop device, and only the data that the device has received before a system
call exist afterwards.

A training run stops before each of the chosen calls while its device is copied (until two copies in a row are the same,
so that the copy is what the device was at one instant). Each copy is mounted, which replays its journal, and must hold
the checkpoint that was announced last; every checkpoint in it is whole; and the run, resumed there, ends with the numbers
of all steps of an unbroken run. The file system is mounted as usual, and so that data and renames become
durable by fsync alone, in any order (data=writeback, noauto_da_alloc).
"""
import ctypes
import os
import re
import shutil
import subprocess

from call_sweep import START, Breaker
from lab import BESIDE, ENVIRONMENT, FINISHED, Place, Sweep

CLONE_NEWNS = 0x20000
IMAGE_BYTES = 16 << 20
OPTIONS = {"ordered": "noatime,commit=1", "writeback": "noatime,commit=1,data=writeback,noauto_da_alloc"}


def left_out(breaker):
    """Why this machine cannot do it, or None."""
    if not breaker.exists:
        return "call_breaker is built on x86-64 only"
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        return "it takes root and loop devices"
    for tool in ("mkfs.ext4", "mount", "umount", "cmp"):
        if not shutil.which(tool):
            return f"there is no {tool}"
    # mounts of a private namespace end with this process, whatever happens to it
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0 or subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode:
        return "it takes a mount namespace"
    return None


def mount(image, folder, options):
    os.makedirs(folder, exist_ok=True)
    return subprocess.run(["mount", "-t", "ext4", "-o", f"loop,{options}", image, folder], capture_output=True, text=True,
                          check=False)


def unmount(folder):
    subprocess.run(["umount", "-l", folder], check=True)  # it may be busy for a moment


class Device:
    """A loop device with a file system, mounted, and a place on it."""

    def __init__(self, sweep, name, options):
        self.sweep, self.options = sweep, options
        self.image = os.path.join(sweep.scratch, f"{name}.ext4")
        self.folder = os.path.join(sweep.scratch, name)
        with open(self.image, "wb") as f:
            f.truncate(IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-b", "1024", "-J", "size=2", self.image], check=True)
        done = mount(self.image, self.folder, options)
        if done.returncode != 0:
            raise OSError(done.stderr.strip())
        self.place = Place(sweep.options.ztrain, sweep.template, os.path.join(self.folder, "place"))
        self.place.clear()
        os.sync()

    def run(self, breaker, numbers, arguments):
        """Runs to the end with a copy of the device before each of these calls; returns the call that each was at."""
        said, log = self.image + ".out", self.image + ".calls"
        copy = (f"cp '{said}' '{self.image}.'$N.out; for i in 1 2 3 4 5 6 7 8 9; do cp --sparse=always '{self.image}' "
                f"'{self.image}.'$N; cmp -s '{self.image}' '{self.image}.'$N && exit 0; done; exit 1")
        with open(said, "wb") as out:
            done = subprocess.run([breaker.breaker, log, ",".join(map(str, numbers)), "at:" + copy, self.place.ztrain, *arguments],
                                  cwd=self.place.path, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                                  env={**os.environ, **ENVIRONMENT}, check=False)
        assert done.returncode == FINISHED, done.stderr
        with open(log, encoding="utf-8", errors="replace") as f:
            lines = [line.rstrip("\n") for line in f]
        return {int(lines[i - 1].split()[0]): lines[i - 1] for i in range(1, len(lines)) if lines[i] == "hit"}


def check_copy(sweep, breaker, device, call):
    """What is wrong with the device as it was before a call, or None."""
    number = call.split()[0]
    image = f"{device.image}.{number}"
    folder = image + ".d"
    with open(image + ".out", encoding="utf-8", errors="replace") as f:
        announced = re.findall(r"^checkpoint \S*?(runs/run/checkpoints/\S+)", f.read(), re.M)
    done = mount(image, folder, device.options)
    if done.returncode != 0:
        return f"the file system does not come back: {done.stderr.strip()}"
    try:
        place = Place(sweep.options.ztrain, sweep.template, os.path.join(folder, "place"))
        if announced and not os.path.isdir(place.at(announced[-1])):
            return f"'{announced[-1]}' was announced and is gone [before {call}]"
        fault = breaker.at_the_end(place)
        return fault and f"{fault} [before {call}]"
    finally:
        unmount(folder)
        os.unlink(image)


def break_power(sweep, breaker, name, how, share):
    device, arguments = Device(sweep, name.replace(", ", "-"), how), [*START, *breaker.more]
    try:
        calls = breaker.calls(sweep.template, arguments)
        chosen = sorted(sweep.sample([number for number, _, _ in calls], share))
        taken = device.run(breaker, chosen, arguments)
        sweep.run(f"{name} ({len(calls)} calls)", list(taken.values()), lambda _, call: check_copy(sweep, breaker, device, call))
    finally:
        unmount(device.folder)


def run(options):
    sweep = Sweep("power", options)
    breakers = {"": Breaker(sweep, options), ", beside": Breaker(sweep, options, BESIDE)}
    why = left_out(breakers[""])
    if why:
        print(f"power: left out: {why}", flush=True)
        return sweep
    for name, how in OPTIONS.items():
        for suffix, breaker in breakers.items():
            if not options.only or options.only in name + suffix:
                break_power(sweep, breaker, name + suffix, how, 0.06 if breaker.more else 0.12)
    sweep.close()
    return sweep
