# SPDX-License-Identifier: Apache-2.0
"""The page of `ztrain report` in a headless Chromium: it draws, answers the pointer and the controls, and complains of nothing.

.ci/run browser runs this where there is a `chromium`; $CHROMIUM names another one.
"""
import html
import json
import os
import re
import subprocess
import sys

import pytest

from harness import PATIENCE, ROOT, SLOWNESS

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from demo_runs import Demo, demos  # noqa: E402

# The tests' script, at the page's end. It acts as a reader would, and leaves what it sees in an attribute.
PROBE = """<script>
addEventListener('load', () => setTimeout(async () => {
  const seen = {}, frame = () => new Promise(done => setTimeout(done, 150));
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const panel = id => document.getElementById('panel-' + id);
  const paths = id => all('path.curve', panel(id)).map(path => path.getAttribute('d'));
  const point = (id, type, share, more) => {
    const svg = panel(id).querySelector(':scope > svg'), box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent(type, {clientX: box.left + box.width * share, clientY: box.top + 60, bubbles: true, pointerType: 'pen', ...more}));
  };
  const shown = () => all('.panel').filter(p => !p.hidden).map(p => p.id.slice(6));
  const ticks = id => all('text.tick', panel(id)).map(text => text.textContent);
  try {
    PLAN
  } catch (error) {
    seen.error = String(error) + error.stack;
  }
  document.body.setAttribute('data-seen', JSON.stringify(seen));
}, 100));
</script>"""


def look(page, plan, fragment="", size="1200,900"):
    """Opens the page, runs the plan in it, and returns (what it saw, the page's elements as text)."""
    probed = page + ".probe.html"
    with open(page, encoding="utf-8") as f:
        text = f.read()
    with open(probed, "w", encoding="utf-8") as f:
        f.write(text.replace("</body>", PROBE.replace("PLAN", plan) + "</body>"))
    done = subprocess.run([os.environ.get("CHROMIUM", "chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           "--no-first-run", "--disable-background-networking", "--user-data-dir=" + page + ".profile", "--window-size=" + size,
                           "--virtual-time-budget=20000", "--enable-logging=stderr", "--v=0", "--dump-dom", "file://" + probed + fragment],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True, timeout=PATIENCE * SLOWNESS, text=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    seen = json.loads(html.unescape(found.group(1)))
    assert "error" not in seen, seen
    return seen, done.stdout


@pytest.fixture
def pages(folder):
    """page(runs…) writes the page of these demo runs and returns its path."""
    def page(*runs):
        made = [run if isinstance(run, str) else run.write(folder.at("runs")) for run in runs]
        folder.ztrain("report", *made, "--out", folder.at("page.html"))
        return folder.at("page.html")
    return page


def test_a_run_is_drawn_and_answers(pages):
    """2500 steps are thinned: bands; a spike; skipped steps. Pointer, zoom, axis, log scale, smoothing, marks, theme."""
    seen, dom = look(pages(Demo("one", 2500, 0.001, 3.0, 400_000, 3, spike=900)), """
      seen.shown = shown();
      seen.curves = Object.fromEntries(seen.shown.map(id => [id, paths(id).map(d => d.length)]));
      seen.bands = all('path.band', panel('loss')).length;
      seen.bad = all('path.bad', panel('grad_norm')).length;
      seen.spikes = ['loss', 'grad_norm', 'lr'].map(id => all('path.spike', panel(id)).length);
      seen.marks = all('.mark', panel('loss')).length;
      point('loss', 'pointermove', 0.5); await frame();
      seen.tip = panel('loss').querySelector('.tip').innerText;
      const tip = panel('loss').querySelector('.tip').getBoundingClientRect(), chart = panel('loss').querySelector(':scope > svg').getBoundingClientRect();
      seen.inside = tip.top >= chart.top && tip.top < chart.top + 60 && tip.left > chart.left + chart.width / 2 && tip.right <= chart.right + 12;
      seen.crosses = all('line.cross').length;
      point('loss', 'pointerleave', 0.5); await frame();
      seen.away = all('line.cross').length;
      const before = paths('lr')[0];
      point('loss', 'pointerdown', 0.3, {button: 0}); point('loss', 'pointermove', 0.5); point('loss', 'pointerup', 0.5); await frame();
      seen.zoomed = location.hash; seen.moved = paths('lr')[0] !== before; seen.zoomTicks = ticks('lr');
      document.getElementById('reset').click(); await frame();
      seen.back = paths('lr')[0] === before; seen.reset = location.hash;
      const smooth = paths('loss')[0], slider = document.getElementById('smoothing');
      slider.value = 0.95; slider.dispatchEvent(new Event('input')); await frame();
      seen.smoother = paths('loss')[0] !== smooth && location.hash.includes('smoothing=0.95');
      document.getElementById('log').click(); await frame();
      seen.log = ticks('loss');
      document.querySelector('[data-axis=tokens]').click(); await frame();
      seen.tokens = ticks('loss');
      document.querySelector('[data-axis=time]').click(); await frame();
      seen.time = ticks('loss');
      document.getElementById('marks').click(); await frame();
      seen.unmarked = all('.mark', panel('loss')).length + document.getElementById('key').offsetHeight;
      seen.auto = getComputedStyle(document.body).backgroundColor; seen.system = matchMedia('(prefers-color-scheme: dark)').matches;
      document.getElementById('theme').click();
      seen.dark = getComputedStyle(document.body).backgroundColor; seen.hash = location.hash;
      seen.samples = all('#samples tr').length;
      seen.wide = document.documentElement.scrollWidth;
    """)
    assert seen["shown"] == ["loss", "perplexity", "lr", "grad_norm", "rate", "mfu", "memory", "time-0"]
    assert all(length > 60 for lengths in seen["curves"].values() for length in lengths) and len(seen["curves"]["loss"]) == 2
    assert seen["bands"] == 1 and seen["bad"] == 2 and seen["marks"] >= 10
    assert "training" in seen["tip"] and "evaluation" in seen["tip"] and re.match(r"steps? 1,\d\d\d", seen["tip"]), seen["tip"]
    assert seen["inside"] and seen["spikes"] == [1, 1, 0]
    assert seen["crosses"] == len(seen["shown"]) and seen["away"] == 0
    assert "zoom=" in seen["zoomed"] and seen["moved"] and "0" not in seen["zoomTicks"][-3:]
    assert seen["back"] and "zoom=" not in seen["reset"] and seen["smoother"]
    assert seen["unmarked"] == 0 and any(text.endswith("M") for text in seen["tokens"]) and any(":" in text for text in seen["time"])
    assert seen["auto"] == ("rgb(16, 21, 27)" if seen["system"] else "rgb(246, 247, 249)")
    assert seen["dark"] == "rgb(16, 21, 27)" and all(word in seen["hash"] for word in ("axis=time", "log=1", "marks=0", "theme=dark"))
    assert seen["samples"] > 20 and seen["wide"] <= 1200
    assert "NaN" not in dom.split("<script")[0] and "undefined" not in dom.split("<script")[0]


def test_runs_are_laid_over_each_other_on_a_phone(pages):
    """Also: a run can be hidden, and the address brings the view back."""
    seen, _ = look(pages(*demos(300)), """
      seen.wide = Math.max(...all('body *').filter(e => !e.closest('.scroll') && !e.closest('svg')).map(e => Math.round(e.getBoundingClientRect().right)));
      seen.axis = document.querySelector('[aria-pressed=true]').dataset.axis;
      seen.log = document.getElementById('log').checked;
      seen.curves = paths('loss').length; seen.ticks = ticks('loss');
      seen.theme = document.documentElement.dataset.theme;
      seen.keys = all('#differences td.key-name').map(cell => cell.textContent);
      document.querySelector('#runs input').click(); await frame();
      seen.fewer = paths('loss').length; seen.hidden = panel('time-0').hidden; seen.hash = location.hash;
    """, "#axis=step&log=1&zoom=100~200&theme=light&smoothing=0", "390,900")
    assert seen["wide"] <= 500 and seen["axis"] == "step" and seen["log"] and seen["theme"] == "light"  # 500: headless windows are no narrower
    assert seen["curves"] == 6 and seen["fewer"] == 4 and seen["hidden"] and "off=0" in seen["hash"]
    assert "120" in seen["ticks"] and "0" not in seen["ticks"]
    assert seen["keys"] == ["model.config", "optimizer.params.lr", "zero_optimization.stage"]


def test_hostile_text_does_nothing(folder, pages):
    evil = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    runs = []
    for name in ("a", "b"):
        run = Demo("same", 20, 0.001, 3.0, 1000, 1).write(folder.at("runs", name, *evil.split("/")))
        with open(os.path.join(run, "metrics.jsonl"), "a", encoding="utf-8") as f:
            f.write(json.dumps({"step": 20, "sample": 1, "prompt": evil, "text": evil}) + "\n")
            f.write(json.dumps({"step": 20, "checkpoint": evil, "bytes": 1}) + "\n")
        with open(os.path.join(run, "run.yaml"), "a", encoding="utf-8") as f:
            f.write(f"\"{name}{evil.replace(chr(34), chr(39))}\": \"{evil.replace(chr(34), chr(39))}\"\n")
        runs.append(run)
    seen, _ = look(pages(*runs), """
      await frame(); seen.title = document.title; seen.images = all('img').length; seen.scripts = all('script').length;
      point('loss', 'pointermove', 0.99); await frame();
      seen.tip = panel('loss').querySelector('.tip').textContent;
      seen.text = document.getElementById('samples').textContent + document.getElementById('differences').textContent;
    """)
    assert seen["title"] != "pwned" and evil[:9] in seen["title"] and seen["images"] == 0 and seen["scripts"] == 3  # data, page, probe
    assert evil in seen["text"] and "<img src" in seen["tip"]


def write_losses(folder, name, losses):
    run = folder.at(name)
    os.mkdir(run)
    with open(os.path.join(run, "metrics.jsonl"), "w", encoding="utf-8") as f:
        for step, loss in enumerate(losses, start=1):
            f.write(json.dumps({"step": step, "loss": loss, "lr": 1e-4, "tokens": 1000 * step, "seconds": {"step": 1.0}}) + "\n")
    return run


@pytest.mark.parametrize("losses", [[10.0002], [10.0002] * 40, [1.7e308, -1.7e308, 1e-320, 2.5], [1e-300, 1e299], [1e-320]],
                         ids=["one step", "constant", "huge", "far apart", "tiny"])
def test_equal_and_extreme_values_are_drawn(folder, pages, losses):
    """Values that differ by rounding alone, or by more than a double holds; and a view from the address that names no axis."""
    runs = [write_losses(folder, name, losses) for name in ("a", "b")]
    seen, dom = look(pages(*runs), """
      seen.curves = paths('loss'); seen.axis = document.querySelector('[aria-pressed=true]').dataset.axis; seen.ticks = ticks('loss').length;
      document.getElementById('log').click(); await frame();
      seen.log = paths('loss');
    """, "#axis=constructor&zoom=1~1.0000000001")
    assert len(seen["curves"]) == len(seen["log"]) == 2 and seen["axis"] == "step" and 2 <= seen["ticks"] <= 60
    assert all("M" in path and "NaN" not in path and "Infinity" not in path for path in seen["curves"] + seen["log"] if max(losses) > 1e-300)
    assert "NaN" not in dom.split("<script")[0]


def test_a_short_run_with_a_slow_checkpoint(folder, pages):
    """Whole steps below the axis; the last evaluation's mark is whole; the checkpoint does not set the scale, and is marked."""
    run = write_losses(folder, "short", [4.0, 3.5, 3.1])
    with open(os.path.join(run, "metrics.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"step":3,"eval_loss":3.2,"perplexity":24.5}\n{"step":4,"loss":3.0,"seconds":{"step":1.0,"forward":0.6,"checkpoint":30.0}}\n')
        f.write('{"step":5,"loss":2.9,"seconds":{"step":1.0,"forward":0.6}}\n{"step":5,"eval_loss":3.0,"perplexity":20}\n')
    seen, _ = look(pages(run), """
      seen.steps = ticks('loss').filter(text => /^[1-5]$/.test(text));
      seen.points = all('circle', panel('loss').querySelector(':scope > svg')).filter(circle => !circle.closest('[clip-path]')).length;
      seen.scale = ticks('time-0'); seen.cut = all('path.cut', panel('time-0')).length; seen.legend = panel('time-0').querySelector('.legend').textContent;
    """)
    assert seen["steps"] == ["1", "2", "3", "4", "5"] and seen["points"] == 2, seen
    assert seen["cut"] == 1 and "beyond the scale" in seen["legend"] and "1.0 s" in seen["scale"] and "10 s" not in seen["scale"], seen


def test_a_run_without_a_step(folder, pages):
    run = folder.at("young")
    os.mkdir(run)
    with open(os.path.join(run, "metrics.jsonl"), "w", encoding="utf-8") as f:
        f.write('{"gave_up":1,"step":0,"exit_code":6,"cause":"rank 0 was killed"}\n')
    seen, _ = look(pages(run), "seen.text = document.getElementById('panels').textContent;")
    assert "no step yet" in seen["text"] and "failure: exit code 6: rank 0 was killed" in seen["text"]


def test_spikes_stand_at_their_steps(folder, pages):
    """Lines are drawn for thinned runs only, each at the step of its extreme; a value without neighbours is a dot."""
    spike = 3300
    thinned = write_losses(folder, "thinned", [9.0 if step == spike else 2 + (step * 37 % 11) / 100 for step in range(1, 8001)])
    single = write_losses(folder, "single", [4 + (step % 3) if step != 30 else 12 for step in range(1, 41)])
    seen, _ = look(pages(thinned), """
      const svg = panel('loss').querySelector(':scope > svg'), d = all('path.spike', panel('loss')).map(path => path.getAttribute('d'));
      const axis = all('line.axis', svg).at(-1), [left, right] = ['x1', 'x2'].map(name => Number(axis.getAttribute(name)));
      seen.lines = d.join('').split('M').length - 1; seen.share = (Number(d.join('').slice(1).split(' ')[0]) - left) / (right - left);
    """, "#smoothing=0")
    assert seen["lines"] == 1 and abs(seen["share"] * 8000 - spike) < 8, seen
    seen, _ = look(pages(single, write_losses(folder, "one", [2.5])), """
      seen.lines = all('path.spike').length; seen.dots = all('circle.lone', panel('loss')).length;
    """)
    assert seen["lines"] == 0 and seen["dots"] == 1, seen


def test_the_axis_of_a_short_run(folder, pages):
    """Whole steps on a phone too; at least two times. The box has the mark of the step whose values it shows."""
    run = write_losses(folder, "short", [3.0] * 12)
    with open(os.path.join(run, "metrics.jsonl"), "r+", encoding="utf-8") as f:
        text = f.read().replace('"step": 1.0}', '"step": 0.15}')
        f.seek(0)
        f.write(text + "".join(json.dumps({"step": step, "checkpoint": f"step-{step:08}", "bytes": 1}) + "\n" for step in range(1, 13)))
        f.truncate()
    seen, _ = look(pages(run), """
      const below = () => all('text.tick', panel('lr')).filter(text => text.getAttribute('y') === '190').map(text => text.textContent);
      seen.steps = below();
      seen.tips = [];
      for (const share of [0.5, 0.52, 0.54, 0.56]) {
        point('loss', 'pointermove', share); await frame();
        seen.tips.push(panel('loss').querySelector('.tip').textContent);
      }
      document.querySelector('[data-axis=time]').click(); await frame();
      seen.times = below();
    """, "", "390,900")
    assert all(re.fullmatch("[0-9]+", text) for text in seen["steps"]) and len(seen["steps"]) >= 2, seen
    assert len(set(seen["times"])) == len(seen["times"]) >= 2 and all(re.match(r"0:0\d", text) for text in seen["times"]), seen
    assert all(f"checkpoint at step {re.match('step ([0-9]+)', tip).group(1)} " in tip for tip in seen["tips"]), seen


def test_fingers_read_and_zoom(pages):
    """A tap or a slide leaves the values; a second tap there, or one elsewhere, hides them; two fingers zoom."""
    seen, _ = look(pages(Demo("one", 60, 0.001, 3.0, 400_000, 3)), """
      const touch = (type, share, id) => point('loss', type, share, {pointerType: 'touch', pointerId: id || 1, button: 0});
      const tip = () => { const box = panel('loss').querySelector('.tip'); return box.hidden ? '' : box.firstChild.textContent; };
      const tap = async (from, to) => { touch('pointerdown', from); if (to) touch('pointermove', to); touch('pointerup', to || from); touch('pointerleave', to || from); await frame(); return tip(); };
      seen.tap = await tap(0.3); seen.again = await tap(0.3); seen.slide = await tap(0.3, 0.8); seen.hash = location.hash;
      document.body.dispatchEvent(new PointerEvent('pointerup', {bubbles: true, pointerType: 'touch'})); await frame();
      seen.elsewhere = tip();
      seen.before = await tap(0.5);
      touch('pointerdown', 0.2); touch('pointermove', 0.2); touch('pointercancel', 0.2); await frame(); seen.scrolled = tip();
      touch('pointerdown', 0.3, 1); touch('pointerdown', 0.5, 2); touch('pointermove', 0.7, 2); touch('pointerup', 0.7, 2); touch('pointerup', 0.3, 1); await frame();
      seen.zoom = location.hash;
    """)
    assert seen["tap"].startswith("step 1") and seen["again"] == "" and seen["slide"].startswith("step 4") and "zoom" not in seen["hash"], seen
    assert seen["elsewhere"] == "" and seen["before"] == seen["scrolled"] != "" and re.search(r"zoom=1\d.*(~|%7E)4\d", seen["zoom"]), seen


def test_a_page_that_loads_itself_again_keeps_the_view(pages):
    page = pages(Demo("one", 50, 0.001, 3.0, 400_000, 3))
    with open(page, encoding="utf-8") as f:
        text = f.read()
    assert text.count('"reload":0,') == 1
    with open(page, "w", encoding="utf-8") as f:
        f.write(text.replace('"reload":0,', '"reload":1,'))
    seen, _ = look(page, """
      if (!sessionStorage.getItem('again')) {
        sessionStorage.setItem('again', '1');
        document.querySelector('[data-axis=tokens]').click();
        point('loss', 'pointerdown', 0.3, {button: 0}); point('loss', 'pointermove', 0.6); point('loss', 'pointerup', 0.6); await frame();
        sessionStorage.setItem('hash', location.hash);
        await new Promise(() => {}); // until the page loads itself again
      }
      Object.defineProperty(document, 'hidden', {value: true}); // a hidden page waits
      seen.hash = location.hash; seen.before = sessionStorage.getItem('hash');
      seen.axis = document.querySelector('[aria-pressed=true]').dataset.axis; seen.zoomed = !document.getElementById('reset').disabled;
    """)
    assert seen["hash"] == seen["before"] and "zoom=" in seen["hash"] and seen["axis"] == "tokens" and seen["zoomed"]
