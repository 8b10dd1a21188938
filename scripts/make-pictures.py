#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures of docs/watching.md: scripts/make-pictures.py [--ztrain build/ztrain] [--out docs/pictures]

It writes the invented runs of scripts/demo_runs.py, reports on them, and takes pictures with a headless Chromium ($CHROMIUM, or
`chromium`). Fonts are those of the machine, so pictures of two machines differ in their pixels.
"""
import argparse
import collections
import html
import os
import re
import struct
import subprocess
import tempfile
import zlib

from demo_runs import demos

# Puts the pointer on the loss, so that the picture shows the values under it.
POINTER = """<script>
addEventListener('load', () => setTimeout(() => {
  const svg = document.querySelector('#panel-loss > svg'), box = svg.getBoundingClientRect();
  svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width * 0.42, clientY: box.top + 80, bubbles: true}));
}, 500));
</script>"""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 16px 20px; background: #12171d; color: #dbe2ea; }
pre { margin: 0; font: 13px/1.35 "DejaVu Sans Mono", "Liberation Mono", monospace; }
.b1 { font-weight: bold; color: #fff; } .b2 { color: #8c99a6; } .b32 { color: #56d3a5; } .b33 { color: #f0c060; } .b36 { color: #56b4e9; }
.prompt { color: #8c99a6; }
</style><pre>%s</pre>"""


# --- small files ------------------------------------------------------------------------------------------------------

def read_png(path):
    """(width, height, pixels): the pixels as a list of (r, g, b), of an 8-bit PNG with 3 or 4 channels."""
    with open(path, "rb") as f:
        data = f.read()
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
            assert depth == 8
        elif kind == b"IDAT":
            packed += body
        at += size + 12
    raw, stride = zlib.decompress(packed), width * channels
    before, pixels = bytearray(stride), []
    for row in range(height):
        start = row * (stride + 1)
        before = unfilter(raw[start], bytearray(raw[start + 1:start + 1 + stride]), before, channels)
        pixels += zip(before[0::channels], before[1::channels], before[2::channels])
    return width, height, pixels


def unfilter(kind, line, above, channels):
    """A row without PNG's prediction."""
    for i, value in enumerate(line if kind else ()):
        left, corner = (line[i - channels], above[i - channels]) if i >= channels else (0, 0)
        if kind == 4:
            guess = min((left, above[i], corner), key=lambda x, p=left + above[i] - corner: abs(p - x))
        else:
            guess = (0, left, above[i], (left + above[i]) // 2)[kind]
        line[i] = (value + guess) & 255
    return line


def shrink_png(path):
    """Writes the picture with 256 of the colours that occur most; other pixels get the nearest of them."""
    width, height, pixels = read_png(path)
    counts = collections.Counter(pixels)
    palette = []
    for colour, _ in counts.most_common(4000):  # without a colour that is all but one of them
        if len(palette) < 256 and all(sum((a - b) ** 2 for a, b in zip(colour, other)) > 60 for other in palette):
            palette.append(colour)
    index = {colour: i for i, colour in enumerate(palette)}
    for colour in counts:
        if colour not in index:
            index[colour] = min(range(len(palette)), key=lambda i, c=colour: sum((a - b) ** 2 for a, b in zip(c, palette[i])))
    rows = b"".join(b"\0" + bytes(index[colour] for colour in pixels[y * width:(y + 1) * width]) for y in range(height))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)), (b"PLTE", bytes(v for c in palette for v in c)),
                           (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")):
            f.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))


# --- pictures ---------------------------------------------------------------------------------------------------------

class Camera:
    def __init__(self, folder, out):
        self.folder, self.out = folder, out

    def take(self, name, page, width, height):
        """A picture of a page (a path, perhaps with #…)."""
        path = os.path.join(self.out, name + ".png")
        subprocess.run([os.environ.get("CHROMIUM", "chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        "--disable-dev-shm-usage", "--no-first-run", "--user-data-dir=" + os.path.join(self.folder, "profile"),
                        f"--window-size={width},{height}", "--virtual-time-budget=5000", "--screenshot=" + path, "file://" + page],
                       check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shrink_png(path)
        print(f"{path}: {os.path.getsize(path) // 1000} kB")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path


def terminal(ztrain, folder, *commands):
    """What a terminal of 100 columns shows of `ztrain report …`, as HTML: `script` gives the program a terminal."""
    text = ""
    for runs in commands:
        command = " ".join([ztrain, "report", *runs])
        done = subprocess.run(["script", "-qec", command, "/dev/null"], cwd=folder, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                              env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color", "COLUMNS": "100"})
        shown = html.escape(done.stdout.decode().replace("\r", ""))
        shown = re.sub(r"\x1b\[(\d+)m(.*?)\x1b\[0m", r'<span class="b\1">\2</span>', shown, flags=re.S)
        text += f'<span class="prompt">$ ztrain report {html.escape(" ".join(runs))}</span>\n{shown}\n'
    return TERMINAL % text.rstrip()


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ztrain", default=os.path.join(root, "build", "ztrain"))
    parser.add_argument("--out", default=os.path.join(root, "docs", "pictures"))
    arguments = parser.parse_args()
    ztrain = os.path.abspath(arguments.ztrain)
    os.makedirs(arguments.out, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        camera = Camera(folder, os.path.abspath(arguments.out))
        runs = [demo.write(os.path.join(folder, "runs"), 2130 if demo.name == "wide" else None) for demo in demos()]
        for name, shown in (("one", runs[1:2]), ("three", runs)):
            page = os.path.join(folder, name + ".html")
            subprocess.run([ztrain, "report", *shown, "--out", page], check=True)
            with open(page, encoding="utf-8") as f:
                text = f.read()
            camera.write(name + ".html", text.replace("</body>", POINTER + "</body>"))
        camera.take("report-light", os.path.join(folder, "one.html#theme=light"), 1120, 860)
        camera.take("report-three", os.path.join(folder, "three.html#theme=dark&log=1"), 1120, 900)
        frames = "".join(f'<iframe src="one.html#theme={theme}&marks=0" style="width:390px;height:960px;border:0"></iframe>' for theme in ("light", "dark"))
        camera.take("report-phone", camera.write("phone.html", f'<body style="margin:0;display:flex">{frames}</body>'), 780, 960)
        text = terminal(ztrain, os.path.join(folder, "runs"), ["large-lr"], ["large-lr", "small-lr", "wide"])
        camera.take("report-terminal", camera.write("terminal.html", text), 860, 610)


if __name__ == "__main__":
    main()
