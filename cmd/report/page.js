(() => {
'use strict';
/* The report's page. Text of the runs reaches it through textContent or setAttribute, never as HTML.
 *
 *   data    what ztrain wrote: runs with their curves, events, samples
 *   view    what the reader chose: axis, smoothing, zoom, …; it is kept in the address behind the #
 *   panels  one chart each; draw() makes its SVG from data and view, hover() moves the crosshair in all of them */

const data = JSON.parse(document.getElementById('data').textContent);
const runs = data.runs;
const NS = new DOMParser().parseFromString('<svg></svg>', 'text/html').querySelector('svg').namespaceURI;
const byId = id => document.getElementById(id);
const several = runs.length > 1;

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (value !== false) made.setAttribute(name, value === true ? '' : value);
  made.append(...children.filter(child => child !== null));
  return made;
}

const element = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes, ...children) => fill(document.createElementNS(NS, tag), attributes, children);

/* ---- numbers ------------------------------------------------------------- */

const PREFIXES = [[1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']];
const SECONDS = [[1, ' s'], [1e-3, ' ms'], [1e-6, ' µs']];
/* Values of 1e300 and more only damaged lines have. They count as absent, so that no difference overflows. */
const known = value => value !== null && value !== undefined && Math.abs(value) < 1e300;

/* Whether two values are the same but for rounding: closer than ticks and pixels can tell apart. */
const alike = (low, high) => high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));

function plain(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value);
  if (value === 0) return '0';
  if (size < 1e-3 || size >= 1e7) return value.toExponential(2).replace('e+', 'e');
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 5)));
}

function prefixed(value, unit) {
  if (!known(value)) return '–';
  const [scale, prefix] = PREFIXES.find(([s]) => Math.abs(value) >= s * 0.9995) || [1, ''];
  const digits = Math.abs(value) / scale >= 99.95 ? 1 : 2;
  const text = prefix || value % 1 ? (value / scale).toFixed(digits) : String(value);
  return text + (prefix || unit ? '\u00a0' + prefix + unit : '');
}

const count = value => known(value) ? Math.round(value).toLocaleString('en-US') : '–';
const percent = value => known(value) ? (100 * value).toFixed(1) + '\u00a0%' : '–';

const secondsUnit = size => SECONDS.find(([scale]) => size >= scale) || SECONDS[2];

function seconds(value) {
  if (!known(value)) return '–';
  const size = Math.abs(value), [scale, unit] = secondsUnit(size);
  return size < 1e-9 ? '0 s' : Number((value / scale).toPrecision(3)) + unit;
}

/* digits: of the fraction of a second. */
function duration(value, digits = 0) {
  if (!known(value)) return '–';
  const unit = Math.pow(10, digits), all = Math.round(value * unit), s = Math.floor(all / unit), days = Math.floor(s / 86400), two = n => String(n).padStart(2, '0');
  const clock = s >= 3600 ? Math.floor(s % 86400 / 3600) + ':' + two(Math.floor(s / 60) % 60) + ':' + two(s % 60) : Math.floor(s / 60) + ':' + two(s % 60);
  return (days ? days + ' d ' + clock : clock) + (digits ? '.' + String(all % unit).padStart(digits, '0') : '');
}

const FORMATS = {plain, percent, seconds, count, duration, si: value => prefixed(value, ''), bytes: value => prefixed(value, 'B')};

/* Round values from low to high, about `wanted` of them; none if the two are alike. whole: only whole numbers. */
function ticks(low, high, wanted, base = 10, whole = false) {
  if (!(high > low) || alike(low, high)) return {step: 1, found: []};
  const raw = (high - low) / Math.max(1, wanted), power = Math.pow(base, Math.floor(Math.log(raw) / Math.log(base)));
  const factors = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 5, 10, 15, 30, 60];
  const steps = factors.map(f => whole ? Math.max(1, f * power) : f * power);
  const step = steps.find(s => s >= raw * 0.999 && (!whole || s % 1 === 0)), found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && found.length < 100; i++) found.push(i * step || 0);
  return {step, found};
}

/* The same, but at least two where that is possible. */
function axisTicks(low, high, wanted, base, whole) {
  let made = ticks(low, high, wanted, base, whole);
  for (let more = wanted + 1; made.found.length < 2 && more <= 4 * wanted; more++) made = ticks(low, high, more, base, whole);
  return made;
}

function decimals(step) {
  let digits = 0;
  while (digits < 9 && Math.abs(step * Math.pow(10, digits) - Math.round(step * Math.pow(10, digits))) > 1e-4) digits++;
  return digits;
}

/* All with the same unit and as many digits as tell them apart. */
function tickLabels(found, step, format) {
  const largest = Math.max(...found.map(Math.abs), 0);
  if (format === 'percent') return found.map(v => (100 * v).toFixed(decimals(100 * step)) + ' %');
  if (format === 'duration') return found.map(v => duration(v, decimals(step)));
  if (format === 'count' && largest < 1e5) return found.map(count);
  let scale = 1, unit = '';
  if (format === 'seconds') [scale, unit] = secondsUnit(largest);
  else if (['bytes', 'si', 'count'].includes(format) || largest >= 1e4) {
    [scale, unit] = PREFIXES.find(([s]) => largest >= s) || [1, ''];
    unit = unit || format === 'bytes' ? ' ' + unit + (format === 'bytes' ? 'B' : '') : '';
  } else if (largest > 0 && largest < 1e-2) {
    const power = Math.floor(Math.log10(largest) + 1e-9), ten = Math.pow(10, power);
    return found.map(v => v === 0 ? '0' : (v / ten).toFixed(decimals(step / ten)) + 'e' + power);
  }
  return found.map(v => v === 0 ? '0' : (v / scale).toFixed(decimals(step / scale)) + unit);
}

/* ---- the view ------------------------------------------------------------ */

const AXES = {step: {label: 'step', format: 'count'}, tokens: {label: 'tokens', format: 'si'}, time: {label: 'time of the steps', format: 'duration'}};
const view = {axis: 'step', smoothing: several ? 0.6 : 0.5, log: false, marks: true, zoom: null, theme: '', off: new Set()};

function readView() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (Object.hasOwn(AXES, wanted.get('axis'))) view.axis = wanted.get('axis');
  if (wanted.has('smoothing')) view.smoothing = Math.min(0.99, Math.max(0, Number(wanted.get('smoothing')) || 0));
  view.log = wanted.get('log') === '1';
  view.marks = wanted.get('marks') !== '0';
  if (['light', 'dark'].includes(wanted.get('theme'))) view.theme = wanted.get('theme');
  const zoom = (wanted.get('zoom') || '').split('~').map(Number);
  view.zoom = zoom.length === 2 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] ? zoom : null;
  view.off = new Set((wanted.get('off') || '').split('.').filter(Boolean).map(Number).filter(r => r >= 0 && r < runs.length));
}

function keepView() {
  const kept = new URLSearchParams({axis: view.axis, smoothing: String(view.smoothing), log: view.log ? '1' : '0', marks: view.marks ? '1' : '0'});
  if (view.zoom) kept.set('zoom', view.zoom.map(v => Number(v.toPrecision(7))).join('~'));
  if (view.theme) kept.set('theme', view.theme);
  if (view.off.size) kept.set('off', [...view.off].join('.'));
  history.replaceState(null, '', '#' + kept);
}

/* ---- curves -------------------------------------------------------------- */

/* Where a step of the i-th bucket lies on an axis. */
function along(curves, axis, i, step) {
  const ends = curves.ends[axis], {first, last} = curves;
  if (axis === 'step') return step;
  const before = i ? last[i - 1] : first[0] - 1;
  const start = i ? ends[i - 1] : last.length > 1 ? Math.max(0, ends[0] - (ends[1] - ends[0]) * (last[0] - before) / (last[1] - last[0])) : 0;
  return known(ends[i]) && known(start) && last[i] > before ? start + (ends[i] - start) * (step - before) / (last[i] - before) : ends[i];
}

/* A bucket's mean stands in its middle. */
for (const run of runs)
  for (const curves of [run.steps, run.evals]) {
    curves.ends = {step: curves.last, tokens: curves.tokens, time: curves.time};
    for (const axis of Object.keys(AXES))
      curves[axis] = curves.per > 1 ? curves.last.map((last, i) => along(curves, axis, i, (curves.first[i] + last) / 2)) : curves.ends[axis];
  }

/* The exponential mean of the values, freed of its start at zero. */
function smooth(values, weight) {
  if (!(weight > 0)) return values;
  let mean = 0, share = 0;
  return values.map(value => {
    if (!known(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return mean / share;
  });
}

/* The first index with xs[i] >= x. */
function search(xs, x) {
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

const median = values => [...values].sort((a, b) => a - b)[values.length >> 1];

function nearest(xs, x) {
  const i = search(xs, x);
  return i > 0 && (i === xs.length || x - xs[i - 1] < xs[i] - x) ? i - 1 : i;
}

const PANELS = [
  {id: 'loss', title: 'Loss', wide: true, log: true, format: 'plain', lines: [['steps', 'loss', 'training'], ['evals', 'eval_loss', 'evaluation']]},
  {id: 'accuracy', title: 'Accuracy', unit: 'evaluation', format: 'percent', lines: [['evals', 'accuracy', 'accuracy']]},
  {id: 'f1', title: 'F1', unit: 'evaluation', format: 'plain', lines: [['evals', 'f1', 'F1']]},
  {id: 'perplexity', title: 'Perplexity', unit: 'evaluation', log: true, format: 'plain', lines: [['evals', 'perplexity', 'perplexity']]},
  {id: 'lr', title: 'Learning rate', log: true, format: 'plain', exact: true, lines: [['steps', 'lr', 'lr']]},
  {id: 'rewards', title: 'Rewards', unit: 'mean of a step', log: false, format: 'plain', lines: [['steps', 'rewards/chosen', 'chosen'], ['steps', 'rewards/rejected', 'rejected'], ['steps', 'rewards/margins', 'margin']]},
  {id: 'reward_accuracy', title: 'Reward accuracy', unit: 'share of pairs', format: 'percent', lines: [['steps', 'rewards/accuracies', 'training'], ['evals', 'rewards/accuracies', 'evaluation']]},
  {id: 'logps', title: 'Log-probabilities', unit: 'of an answer', log: false, format: 'plain', lines: [['steps', 'logps/chosen', 'chosen'], ['steps', 'logps/rejected', 'rejected']]},
  {id: 'aux_loss', title: 'Auxiliary loss', unit: 'of routers', log: false, format: 'plain', lines: [['steps', 'aux_loss', 'aux loss']]},
  {id: 'entropy', title: 'Entropy of the loads', unit: 'at most log E of E experts', log: false, format: 'plain', lines: [['steps', 'entropy', 'entropy']]},
  {id: 'max_load', title: 'Largest load', unit: 'share of the choices that one expert gets', log: false, format: 'percent', lines: [['steps', 'max_load', 'largest load']]},
  {id: 'grad_norm', title: 'Gradient norm', unit: 'before clipping', log: true, format: 'plain', lines: [['steps', 'grad_norm', 'norm']]},
  {id: 'rate', title: 'Throughput', unit: 'tokens/s', format: 'si', lines: [['steps', 'tokens_per_s', 'tokens/s']]},
  {id: 'mfu', title: 'MFU', unit: 'of the peak', format: 'percent', lines: [['steps', 'mfu', 'MFU']]},
  {id: 'memory', title: 'Memory', unit: 'rank 0', format: 'bytes', exact: true, zero: true, lines: [['steps', 'device', 'device'], ['steps', 'host', 'host']]},
];
const PARTS = ['data', 'forward', 'backward', 'reduce', 'optimizer', 'checkpoint', 'rest'];
/* room: the least pixels between two marks of a kind. The box at the pointer names them all. */
const EVENTS = {
  'checkpoint': {room: 8, colour: '--soft', plural: 'checkpoints'}, 'resume': {room: 3, colour: '--accent', plural: 'resumes', dash: '5 3'},
  'restart': {room: 3, colour: '--bad', plural: 'restarts', dash: '2 2'}, 'skipped step': {room: 4, colour: '--warn', plural: 'skipped steps'},
  'end of an epoch': {room: 32, colour: '--soft', plural: 'epochs ended', dash: ''}, 'early stopping': {room: 3, colour: '--good', plural: '', dash: '8 3 2 3'},
  'failure': {room: 3, colour: '--bad', plural: 'failures', dash: '8 3 2 3'},
};

const colourOf = i => `var(--c${i % 8})`;

/* The lines of a panel that have data. */
const linesOf = definition => runs.flatMap((run, r) => definition.lines.flatMap(([source, name, label], l) => {
  const curves = run[source], series = curves.series[name];
  return !series || !curves.step.length ? [] : {
    run: r, curves, series, points: source === 'evals', dash: several && l > 0 && source !== 'evals' ? '6 4' : '',
    colour: colourOf(several ? r : l), label: several ? run.name + (definition.lines.length > 1 ? ' · ' + label : '') : label,
  };
}));

/* The seconds of each part of a step, and of the rest. */
function partsOf(run) {
  const series = run.steps.series, step = series.step;
  if (!step || !step.mean.some(known)) return null;
  const values = PARTS.map(name => series[name] ? series[name].mean.map(v => known(v) ? Math.max(0, v) : 0) : step.mean.map(() => 0));
  const rest = PARTS.length - 1, saves = PARTS.indexOf('checkpoint');
  step.mean.forEach((all, i) => {
    const measured = values.reduce((sum, part, p) => p === rest || p === saves ? sum : sum + part[i], 0);
    values[rest][i] = known(all) ? Math.max(0, all - measured) : 0;
  });
  return values;
}

/* ---- panels -------------------------------------------------------------- */

const SMALLEST = 1e-290; /* smaller ones are drawn as zero; 1 / SMALLEST and the room around it are no overflow */

const point = (x, y) => x.toFixed(1) + ' ' + y.toFixed(1);

/* The area between two rows of points. */
const area = (over, under) => over.length ? 'M' + [...over, ...under.reverse()].join('L') + 'Z' : '';

class Panel {
  constructor(definition) {
    Object.assign(this, definition);
    this.legend = element('div', {class: 'legend'});
    this.svg = shape('svg', {role: 'img', 'aria-label': this.title});
    this.tip = element('div', {class: 'tip', hidden: true});
    this.root = element('section', {class: 'panel' + (this.wide ? ' wide' : ''), id: 'panel-' + this.id},
      element('div', {class: 'head'}, element('h3', {}, this.title, this.unit ? element('span', {class: 'unit'}, ' · ' + this.unit) : null), this.legend),
      this.svg, this.tip);
    this.listen();
  }

  listen() {
    const svg = this.svg;
    this.held = new Map(); /* pixels: of each finger; of a mouse or a pen 'from', where it was pressed, 'to', where it is */
    svg.addEventListener('pointermove', event => this.move(event));
    svg.addEventListener('pointerleave', event => { if (!this.held.size && event.pointerType !== 'touch') hover(null); });
    svg.addEventListener('pointerdown', event => {
      if (event.button || !this.frame) return;
      const {x} = this.place(event);
      if (!this.held.size) [this.pressed, this.before] = [x, hovered];
      this.held.set(event.pointerType === 'touch' ? event.pointerId : 'from', x);
      if (event.pointerType === 'mouse') svg.setPointerCapture(event.pointerId);
      this.move(event);
    });
    svg.addEventListener('pointerup', event => this.lift(event));
    svg.addEventListener('pointercancel', event => { /* the page scrolls instead */
      this.held.clear();
      this.showSelection();
      hover(event.pointerType === 'touch' ? this.before : null);
    });
    svg.addEventListener('dblclick', () => zoomTo(null));
  }

  place(event) {
    const box = this.svg.getBoundingClientRect(), {left, right} = this.frame;
    const x = Math.min(right, Math.max(left, event.clientX - box.left));
    return {x, value: this.domain[0] + (x - left) / (right - left) * (this.domain[1] - this.domain[0])};
  }

  /* The ends of the part that a mouse has crossed or that lies between two fingers; null: there is none. */
  part() { return this.held.size > 1 ? [...this.held.values()].slice(0, 2).sort((a, b) => a - b) : null; }

  move(event) {
    if (!this.frame) return;
    const at = this.place(event), touch = event.pointerType === 'touch';
    if (touch && !this.held.has(event.pointerId)) return;
    if (touch || this.held.has('from')) this.held.set(touch ? event.pointerId : 'to', at.x);
    this.showSelection();
    hover({panel: this, value: at.value});
  }

  /* Zooms to the part. The values that a finger has read stay when it is lifted; a tap at them hides them. */
  lift(event) {
    const x = this.held.get(event.pointerId), part = this.part(), {before} = this;
    if (event.pointerType === 'touch' && x === undefined) return;
    this.held.clear();
    this.showSelection();
    if (x !== undefined && !part && Math.abs(x - this.pressed) < 8 && before && before.panel === this && Math.abs(this.x(before.value) - x) < 16) hover(null);
    if (!part || part[1] - part[0] < 8) return;
    const {left, right} = this.frame, [low, high] = this.domain;
    zoomTo(part.map(x => low + (x - left) / (right - left) * (high - low)));
    if (event.pointerType !== 'mouse') hover(null);
  }

  showSelection() {
    const [from, to] = this.part() || [0, 0];
    this.selection?.setAttribute('x', from);
    this.selection?.setAttribute('width', to - from);
  }

  visible() { return this.all.filter(line => !view.off.has(line.run)); }

  draw() {
    this.tip.hidden = true;
    const width = Math.max(200, this.svg.clientWidth || this.root.clientWidth - 24), height = this.wide && this.lines ? 300 : 196;
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.setAttribute('height', height);
    this.svg.replaceChildren();
    this.domain = domainOfAxis();
    this.logarithmic = view.log && this.log;
    this.values = this.prepare();
    this.range = this.rangeOfValues();
    this.scale(width, height);
    this.drawGrid();
    const clip = 'clip-' + this.id;
    this.svg.append(shape('clipPath', {id: clip}, shape('rect', {x: this.frame.left, y: this.frame.top - 3, width: this.frame.right - this.frame.left, height: this.frame.bottom - this.frame.top + 6})));
    this.plot = shape('g', {'clip-path': `url(#${clip})`});
    this.signs = shape('g', {});
    this.svg.append(this.plot, this.signs);
    this.drawMarks();
    this.drawCurves();
    this.cross = shape('g', {class: 'hover'});
    this.selection = shape('rect', {class: 'select', x: 0, y: this.frame.top, width: 0, height: this.frame.bottom - this.frame.top});
    this.svg.append(this.cross, this.selection);
    this.drawLegend();
  }

  /* The indices from the bucket before the domain to the one behind it. */
  window(xs) { return [Math.max(0, search(xs, this.domain[0]) - 1), Math.min(xs.length, search(xs, this.domain[1]) + 1)]; }

  prepare() {
    return this.visible().map(line => {
      const xs = line.curves[view.axis], weight = line.points || this.exact ? 0 : view.smoothing;
      const [from, to] = this.window(xs);
      return {...line, xs, from, to, end: line.curves.ends[view.axis][xs.length - 1], ys: smooth(line.series.mean, weight), raw: weight > 0 ? line.series.mean : null};
    });
  }

  /* Whether a place is on the axis, and whether a value can be drawn. */
  inside(x) { return x >= this.domain[0] && x <= this.domain[1]; }

  shown(value) { return known(value) && !(this.logarithmic && value <= 0); }

  rangeOfValues() {
    let low = Infinity, high = -Infinity;
    for (const {series, xs, ys, from, to} of this.values)
      for (let i = from; i < to; i++)
        for (const v of this.inside(xs[i]) ? [series.mean[i], ys[i], series.low?.[i], series.high?.[i]] : []) {
          if (!this.shown(v)) continue;
          low = Math.min(low, v);
          high = Math.max(high, v);
        }
    if (this.zero) low = Math.min(0, low);
    return this.widen(low, high);
  }

  widen(low, high) {
    if (!(low <= high)) return [0, 1];
    if (Math.max(Math.abs(low), Math.abs(high)) < SMALLEST) return this.logarithmic ? [SMALLEST, 1] : [0, 1];
    if (this.logarithmic) {
      low = Math.max(low, SMALLEST);
      const room = alike(low, high) ? 2 : Math.exp((Math.log(high) - Math.log(low)) * 0.04);
      return [Math.max(1e-305, low / room), Math.min(1e305, high * room)];
    }
    if (alike(low, high)) return [low - Math.abs(low) * 0.1, high + Math.abs(high) * 0.1];
    const room = (high - low) * 0.05;
    return [low >= 0 && low < room * 2 ? 0 : low - room, high + room];
  }

  scale(width, height) {
    const [low, high] = this.range, top = 10, bottom = height - 24;
    this.ticks = this.valueTicks(low, high, Math.max(2, Math.round((bottom - top) / 46)));
    const longest = Math.max(...this.ticks.map(t => t.label.length), 3);
    const left = Math.round(longest * 6.3 + 12), right = width - 12;
    this.frame = {left, right, top, bottom, width, height};
    const span = this.domain[1] - this.domain[0] || 1;
    const bounded = v => Math.max(-1e9, Math.min(1e9, v)); /* what SVG takes, for values far outside */
    this.x = v => bounded(left + (v - this.domain[0]) / span * (right - left));
    const scaled = this.logarithmic ? Math.log : v => v;
    this.y = v => this.logarithmic && v <= 0 ? bottom + 99 : bounded(bottom - (scaled(v) - scaled(low)) / (scaled(high) - scaled(low)) * (bottom - top));
  }

  valueTicks(low, high, wanted) {
    if (!this.logarithmic || high / low < 3) {
      const {step, found} = ticks(low, high, wanted), labels = tickLabels(found, step, this.format);
      return found.map((value, i) => ({value, label: labels[i]}));
    }
    let fine = [];
    for (const factors of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 5], [1, 2, 5], [1]]) {
      fine = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
        for (const factor of factors) {
          const value = Number(factor + 'e' + power);
          if (value >= low && value <= high) fine.push({value});
        }
      if (fine.length <= wanted + 2) break;
    }
    const every = Math.ceil(fine.length / (wanted + 2));
    return fine.filter((_, i) => i % every === 0).map(t => ({value: t.value, label: FORMATS[this.format](t.value)}));
  }

  drawGrid() {
    const {left, right, top, bottom, height} = this.frame;
    for (const {value, label} of this.ticks) {
      const y = this.y(value).toFixed(1);
      this.svg.append(shape('line', {class: 'grid', x1: left, x2: right, y1: y, y2: y}),
        shape('text', {class: 'tick', x: left - 6, y: Number(y) + 4, 'text-anchor': 'end'}, label));
    }
    const format = AXES[view.axis].format, minutes = format === 'duration' && this.domain[1] - this.domain[0] > 60;
    const {step, found} = axisTicks(Math.max(0, this.domain[0]), this.domain[1], Math.max(2, Math.floor((right - left) / 76)), minutes ? 60 : 10, format !== 'duration'); /* whole steps, tokens */
    const labels = tickLabels(found, step, format);
    found.forEach((value, i) => {
      const x = this.x(value), anchor = x - left < 14 ? 'start' : right - x < 22 ? 'end' : 'middle';
      this.svg.append(shape('line', {class: 'axis', x1: x.toFixed(1), x2: x.toFixed(1), y1: bottom, y2: bottom + 4}),
        shape('text', {class: 'tick', x: x.toFixed(1), y: height - 6, 'text-anchor': anchor}, labels[i]));
    });
    this.svg.append(shape('line', {class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom}));
  }

  drawMarks() {
    if (!view.marks) return;
    const {top, bottom} = this.frame;
    runs.forEach((run, r) => {
      if (view.off.has(r) || (this.runs && !this.runs.includes(r))) return;
      const last = {};
      for (const event of run.events) {
        const value = event[view.axis], x = this.x(value);
        if (!this.inside(value) || x - (last[event.kind] ?? -99) < EVENTS[event.kind].room) continue;
        last[event.kind] = x;
        this.signs.append(mark(event.kind, x, top, bottom, several ? colourOf(r) : `var(${EVENTS[event.kind].colour})`));
      }
    });
  }

  /* A path through the values, with gaps where there are none. */
  path(xs, ys, from, to) {
    let text = '', open = false;
    for (let i = from; i < to; i++) {
      const shown = this.shown(ys[i]);
      if (shown) text += (open ? 'L' : 'M') + point(this.x(xs[i]), this.y(ys[i]));
      open = shown;
    }
    return text;
  }

  /* The place of an extreme of the i-th bucket. side: 'low' or 'high'. */
  placeOf(line, side, i) { return this.x(along(line.curves, view.axis, i, line.curves.first[i] + line.series[side + '_at'][i])); }

  /* The area between the extremes of buckets that hold several steps. */
  band(line) {
    const over = [], under = [], {low, high} = line.series;
    for (let i = line.from; i < line.to; i++) {
      if (!this.shown(low[i]) || !known(high[i])) continue;
      over.push(point(this.placeOf(line, 'high', i), this.y(high[i])));
      under.push(point(this.placeOf(line, 'low', i), this.y(low[i])));
    }
    return area(over, under);
  }

  /* Vertical lines to extremes that stand out from those around: where buckets are about a pixel wide, such a spike
   * hardly shows in the area. */
  spikes(line) {
    const {from, to} = line;
    if (!line.series.low || to - from < 3 || this.x(line.xs[to - 1]) - this.x(line.xs[from]) > 3 * (to - from)) return '';
    let text = '';
    for (const [side, up] of [['low', -1], ['high', 1]]) {
      const heights = line.series[side].map(v => this.shown(v) ? -up * this.y(v) : NaN); /* pixels; the larger, the farther out */
      for (let i = Math.max(1, from); i < Math.min(to, heights.length - 1); i++) {
        if (!this.shown(line.ys[i]) || !(heights[i] > -up * this.y(line.ys[i]) + 4 && heights[i] >= heights[i - 1] && heights[i] >= heights[i + 1])) continue;
        const around = heights.slice(Math.max(0, i - 32), i + 33).filter(known), usual = median(around);
        if (heights[i] - usual <= Math.max(4, 6 * median(around.map(h => Math.abs(h - usual))))) continue;
        text += `M${point(this.placeOf(line, side, i), this.y(line.ys[i]))}V${this.y(line.series[side][i]).toFixed(1)}`;
      }
    }
    return text;
  }

  drawCurves() {
    for (const line of this.values) {
      if (line.series.low) this.plot.append(shape('path', {class: 'band', d: this.band(line), fill: line.colour, 'fill-opacity': 0.22}));
      if (line.raw) this.plot.append(shape('path', {class: 'raw', d: this.path(line.xs, line.raw, line.from, line.to), fill: 'none', stroke: line.colour, 'stroke-opacity': 0.3, 'stroke-width': 1}));
      const spikes = this.spikes(line);
      if (spikes) this.plot.append(shape('path', {class: 'spike', d: spikes, fill: 'none', stroke: line.colour, 'stroke-width': 1.4}));
    }
    for (const line of this.values) {
      this.plot.append(shape('path', {class: 'curve', d: this.path(line.xs, line.ys, line.from, line.to), fill: 'none', stroke: line.colour,
        'stroke-width': 1.7, 'stroke-linejoin': 'round', 'stroke-dasharray': line.dash}));
      this.drawDots(line);
      this.drawBad(line);
    }
  }

  /* Dots for values without a neighbour, of which the path draws nothing, and for evaluations, if they are few. They are
   * not cut at the edges, where the first and the last evaluation are. */
  drawDots({xs, ys, from, to, points, colour}) {
    for (let i = from; i < to; i++) {
      if (!this.shown(ys[i]) || !this.inside(xs[i])) continue;
      const at = {cx: this.x(xs[i]).toFixed(1), cy: this.y(ys[i]).toFixed(1)};
      if (!this.shown(ys[i - 1]) && !this.shown(ys[i + 1])) this.signs.append(shape('circle', {class: 'lone', ...at, r: 2.5, fill: colour}));
      if (points && to - from <= 120 && at.cy <= this.frame.bottom) this.signs.append(shape('circle', {...at, r: 3, fill: 'var(--card)', stroke: colour, 'stroke-width': 1.6}));
    }
  }

  /* A cross at the top for values that are not finite. */
  drawBad(line) {
    let last = -9;
    for (const [i] of line.series.bad) {
      const x = this.x(line.xs[i]);
      if (!this.inside(line.xs[i]) || x - last < 4) continue;
      last = x;
      this.signs.append(shape('path', {class: 'bad', d: cross(x, this.frame.top + 3, 3.2), stroke: 'var(--bad)', 'stroke-width': 1.8, fill: 'none'}));
    }
  }

  drawLegend() {
    this.legend.replaceChildren(...(this.cut ? [element('span', {}, '▲ beyond the scale')] : []));
    this.entries = this.stacked ? [...this.values].reverse() : this.values;
    for (const line of this.entries) {
      line.value = element('b', {});
      this.legend.append(element('span', {title: line.label}, swatch(line), element('em', {}, line.label), line.value));
    }
    this.showValues(null);
  }

  /* The value of a line at x, or its last one. */
  valueAt({xs, ys, series, end}, x) {
    const i = x === null ? ys.findLastIndex(known) : nearest(xs, x);
    if (i < 0 || (x !== null && x > end + (this.domain[1] - this.domain[0]) * 0.02)) return {text: '–', i: -1};
    const bad = series.bad.find(([at]) => at === i);
    return {text: known(ys[i]) ? FORMATS[this.format](ys[i]) : bad ? 'not finite' : '–', i, bad};
  }

  showValues(x) {
    for (const line of this.entries) {
      const {text} = this.valueAt(line, x);
      line.longest = Math.max(line.longest || 4, text.length); /* so that the legend does not move with the pointer */
      line.value.style.minWidth = line.longest + 'ch';
      line.value.textContent = text;
    }
  }

  hover(at, own) {
    this.showValues(at);
    this.cross.replaceChildren();
    this.tip.hidden = true;
    if (at === null || !this.inside(at)) return;
    const {top, bottom} = this.frame, x = this.x(at);
    this.cross.append(shape('line', {class: 'cross', x1: x, x2: x, y1: top, y2: bottom}));
    for (const line of this.stacked ? [] : this.values) {
      const {i} = this.valueAt(line, at);
      if (known(line.ys[i])) this.cross.append(shape('circle', {cx: this.x(line.xs[i]), cy: this.y(line.ys[i]), r: 3.5, fill: line.colour, stroke: 'var(--card)', 'stroke-width': 1.5}));
    }
    if (own) this.showTip(at, x);
  }

  /* The extremes and the single value behind a smoothed one. */
  detail({series, raw}, i) {
    const format = FORMATS[this.format];
    if (series.low && known(series.low[i])) return `${format(series.low[i])} to ${format(series.high[i])}`;
    return raw && known(raw[i]) ? 'single: ' + format(raw[i]) : '';
  }

  showTip(at, x) {
    this.tip.replaceChildren(element('div', {class: 'what'}, whereText(at)));
    for (const line of this.entries) {
      const {text, i, bad} = this.valueAt(line, at);
      if (i < 0) continue;
      const detail = this.detail(line, i);
      this.tip.append(element('div', {class: 'row'}, swatch(line), line.label, detail ? element('small', {}, detail) : null, element('b', {}, text)));
      if (bad) this.tip.append(element('div', {class: 'what'}, `${count(bad[1])} not finite`));
    }
    for (const text of eventsNear(at, (this.domain[1] - this.domain[0]) * 5 / (this.frame.right - this.frame.left), this.runs))
      this.tip.append(element('div', {class: 'what'}, text));
    this.tip.hidden = false;
    const frame = this.root.getBoundingClientRect(), inner = this.svg.getBoundingClientRect();
    const width = this.tip.offsetWidth, offset = inner.left - frame.left, box = this.root.clientWidth;
    const left = offset + x + 14 + width <= box ? offset + x + 14 : Math.max(4, offset + x - 14 - width);
    this.tip.style.left = Math.min(left, Math.max(4, box - width - 4)) + 'px';
    this.tip.style.top = inner.top - frame.top + 14 + 'px';
  }
}

/* Where a step's time goes, for one run. */
class StackPanel extends Panel {
  prepare() {
    const run = runs[this.runs[0]], xs = run.steps[view.axis], [from, to] = this.window(xs);
    const used = PARTS.map((_, p) => p).filter(p => this.seconds[p].some(v => v > 0));
    let below = xs.map(() => 0);
    return used.map(p => {
      const single = PARTS[p] === 'checkpoint' ? this.seconds[p] : smooth(this.seconds[p], view.smoothing), under = below;
      below = below.map((v, i) => v + (single[i] || 0));
      return {run: this.runs[0], part: p, xs, from, to, end: run.steps.ends[view.axis][xs.length - 1], ys: single, under, over: below, series: {bad: []}, block: true, label: PARTS[p], colour: `var(--p${p})`};
    });
  }

  rangeOfValues() {
    const top = this.values[this.values.length - 1], inside = top ? top.over.filter((_, i) => i >= top.from && i < top.to) : [];
    const most = inside.reduce((all, v) => Math.max(all, v), 0), usual = this.usual(top ? top.from : 0, top ? top.to : 0);
    this.cut = usual > SMALLEST && most > 2 * usual;
    return [0, this.cut ? 1.25 * usual : most < SMALLEST ? 1 : Math.min(most, 1e300) * 1.05];
  }

  /* The time of all but a few steps, without their checkpoints: those would set the scale for everything else. */
  usual(from, to) {
    const parts = this.values.filter(part => PARTS[part.part] !== 'checkpoint');
    const steps = this.values.length ? this.values[0].xs.map((_, i) => parts.reduce((all, part) => all + (part.ys[i] || 0), 0)).slice(from, to) : [];
    steps.sort((a, b) => a - b);
    return steps.length ? steps[Math.floor((steps.length - 1) * 0.95)] : 0;
  }

  /* Lines in the areas of checkpoints, which take the time of single steps, so that they are less than a pixel wide. */
  drawCheckpoints() {
    const part = this.values.find(one => PARTS[one.part] === 'checkpoint');
    let text = '';
    for (let i = part ? part.from : 0; part && i < part.to; i++)
      if (part.ys[i] > 0) text += `M${point(this.x(part.xs[i]), this.y(part.under[i]))}V${this.y(part.over[i]).toFixed(1)}`;
    if (text) this.plot.append(shape('path', {class: 'spike', d: text, stroke: part.colour, 'stroke-width': 1.4}));
  }

  /* Marks at the top for bars that the scale cuts, in the colour of the largest part. */
  drawCut() {
    let last = -9;
    const top = this.values[this.values.length - 1];
    for (let i = top.from; i < top.to; i++) {
      const x = this.x(top.xs[i]);
      if (!(top.over[i] > this.range[1]) || !this.inside(top.xs[i]) || x - last < 5) continue;
      last = x;
      const largest = this.values.reduce((most, part) => (part.ys[i] || 0) > (most.ys[i] || 0) ? part : most);
      this.signs.append(shape('path', {class: 'cut', d: `M${x.toFixed(1)} ${this.frame.top - 8}l3.5 6h-7Z`, fill: largest.colour}));
    }
  }

  drawCurves() {
    for (const part of this.values) {
      const over = [], under = [];
      for (let i = part.from; i < part.to; i++)
        for (const side of part.xs.length === 1 ? [-8, 8] : [0]) { /* a single step is a bar */
          over.push(point(this.x(part.xs[i]) + side, this.y(part.over[i])));
          under.push(point(this.x(part.xs[i]) + side, this.y(part.under[i])));
        }
      this.plot.append(shape('path', {class: 'curve', d: area(over, under), fill: part.colour, stroke: 'var(--card)', 'stroke-width': 0.4}));
    }
    this.drawCheckpoints();
    if (this.cut) this.drawCut();
  }

  /* Without a pointer: the part's share of the time that is shown. */
  valueAt(line, x) {
    if (x !== null) return super.valueAt(line, x);
    const sum = line => line.ys.slice(line.from, line.to).reduce((all, v) => all + (v || 0), 0);
    return {text: percent(sum(line) / this.values.reduce((all, part) => all + sum(part), 0)), i: -1};
  }

  detail({ys}, i) {
    const all = this.values[this.values.length - 1].over[i];
    return all > 0 ? percent(ys[i] / all) : '';
  }
}

const cross = (x, y, size) =>
  `M${x - size} ${y - size}L${x + size} ${y + size}M${x - size} ${y + size}L${x + size} ${y - size}`;

function mark(kind, x, top, bottom, colour) {
  if (kind === 'checkpoint') return shape('path', {class: 'mark', d: `M${x} ${bottom - 6}l3.5 6h-7Z`, fill: colour});
  if (kind === 'skipped step') return shape('path', {class: 'mark', d: `M${x} ${top + 6}l3.5 -6h-7Z`, fill: colour});
  return shape('line', {class: 'mark', x1: x, x2: x, y1: top, y2: bottom, stroke: colour, 'stroke-width': 1.4, 'stroke-opacity': kind === 'end of an epoch' ? 0.35 : 1, 'stroke-dasharray': EVENTS[kind].dash});
}

function swatch(entry) {
  const svg = shape('svg', {width: 18, height: 10, 'aria-hidden': 'true'});
  if (entry.block) svg.append(shape('rect', {x: 4, y: 0, width: 10, height: 10, rx: 2, fill: entry.colour}));
  else svg.append(shape('line', {x1: 0, x2: 18, y1: 5, y2: 5, stroke: entry.colour, 'stroke-width': 2, 'stroke-dasharray': entry.dash || ''}));
  if (entry.points) svg.append(shape('circle', {cx: 9, cy: 5, r: 3, fill: 'var(--card)', stroke: entry.colour, 'stroke-width': 1.6}));
  return svg;
}

/* ---- the axis ------------------------------------------------------------ */

function domainOfAxis() {
  let low = Infinity, high = -Infinity;
  runs.forEach((run, r) => {
    const curves = run.steps.last.length ? run.steps : run.evals, ends = curves.ends[view.axis];
    if (view.off.has(r) || !ends.length) return;
    low = Math.min(low, along(curves, view.axis, 0, curves.first[0]));
    high = Math.max(high, ends[ends.length - 1]);
  });
  if (!(low <= high)) return [0, 1];
  if (low - 0 < (high - low) * 0.05) low = 0;
  if (alike(low, high)) return [low - Math.max(1, Math.abs(low) * 1e-6), high + Math.max(1, Math.abs(high) * 1e-6)];
  if (!view.zoom) return [low, high];
  const zoom = [Math.max(low, view.zoom[0]), Math.min(high, view.zoom[1])];
  return zoom[0] < zoom[1] && !alike(...zoom) ? zoom : [low, high];
}

/* By the first run that is shown. */
function whereText(at) {
  const texts = [];
  const r = runs.findIndex((run, i) => !view.off.has(i) && run.steps.step.length && run.steps.ends[view.axis][run.steps.step.length - 1] >= at);
  if (r < 0) return FORMATS[AXES[view.axis].format](at);
  const curves = runs[r].steps, i = nearest(curves[view.axis], at);
  texts.push(curves.first[i] === curves.last[i] ? 'step ' + count(curves.last[i]) : `steps ${count(curves.first[i])} to ${count(curves.last[i])}`);
  if (known(curves.ends.tokens[i])) texts.push(prefixed(curves.ends.tokens[i], '') + ' tokens');
  if (curves.ends.time[i] > 0) texts.push(duration(curves.ends.time[i]));
  return texts.join(' · ');
}

function eventsNear(at, reach, only) {
  const texts = [];
  runs.forEach((run, r) => {
    if (!view.marks || view.off.has(r) || (only && !only.includes(r))) return;
    const {first, last, ends} = run.steps, i = nearest(run.steps[view.axis], at); /* of these steps are the values */
    const [from, to] = i < last.length && at <= ends[view.axis][last.length - 1] + reach ? [first[i], last[i]] : [1, 0];
    for (const event of run.events)
      if ((Math.abs(event[view.axis] - at) <= reach || (event.step >= from && event.step <= to)) && texts.length < 6)
        texts.push((several ? run.name + ': ' : '') + `${event.kind} at step ${count(event.step)}` + (event.text ? ` (${event.text})` : ''));
  });
  return texts;
}

/* ---- the page ------------------------------------------------------------ */

/* A function that does the work once before the next frame, or soon where there is none (a tab in the background). */
function later(work) {
  let waiting = false;
  const once = () => {
    if (!waiting) return;
    waiting = false;
    work();
  };
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(once);
    setTimeout(once, 100);
  };
}

const panels = [], drawLater = later(draw);
let hovered = null;
const hoverLater = later(() => panels.filter(panel => panel.frame).forEach(panel => panel.hover(hovered && hovered.value, hovered && hovered.panel === panel)));

function hover(at) {
  hovered = at;
  hoverLater();
}

function draw() {
  for (const panel of panels) {
    const lines = panel.visible();
    panel.root.hidden = !lines.length;
    if (lines.length) panel.draw();
  }
  byId('reset').disabled = !view.zoom;
}

function redraw() {
  keepView();
  drawLater();
}

/* A part too narrow for its ends to differ is not zoomed into. */
function zoomTo(zoom) {
  if (zoom && alike(...zoom)) return;
  view.zoom = zoom;
  redraw();
}

function showTheme() {
  document.documentElement.dataset.theme = view.theme;
  byId('theme').textContent = view.theme || 'light/dark: auto';
}

function makeControls() {
  const axes = [...document.querySelectorAll('[data-axis]')];
  const change = (name, value) => { view[name] = value; show(); redraw(); };
  const show = () => {
    for (const button of axes) button.setAttribute('aria-pressed', String(button.dataset.axis === view.axis));
    byId('smoothing').value = view.smoothing;
    byId('smoothing-value').textContent = view.smoothing > 0 ? view.smoothing.toFixed(2) : 'off';
    for (const name of ['log', 'marks']) byId(name).checked = view[name];
    byId('key').hidden = !view.marks;
  };
  for (const button of axes)
    button.addEventListener('click', () => {
      if (view.axis !== button.dataset.axis) view.zoom = null;
      change('axis', button.dataset.axis);
    });
  byId('smoothing').addEventListener('input', event => change('smoothing', Number(event.target.value)));
  for (const name of ['log', 'marks']) byId(name).addEventListener('change', event => change(name, event.target.checked));
  byId('reset').addEventListener('click', () => zoomTo(null));
  byId('theme').addEventListener('click', () => {
    view.theme = view.theme === '' ? 'dark' : view.theme === 'dark' ? 'light' : '';
    showTheme();
    keepView();
  });
  addEventListener('keydown', event => { if (event.key === 'Escape' && view.zoom) zoomTo(null); });
  show();
}

function makeKey() {
  const add = (width, sign, text) => byId('key').append(element('span', {}, shape('svg', {width, height: 14, 'aria-hidden': 'true'}, sign), text));
  for (const kind of Object.keys(EVENTS).filter(kind => runs.some(run => run.totals[kind])))
    add(12, mark(kind, 6, kind === 'skipped step' ? 4 : 0, kind === 'checkpoint' ? 10 : 14, `var(${several ? '--soft' : EVENTS[kind].colour})`), kind);
  const names = PANELS.flatMap(panel => panel.lines);
  if (runs.some(run => names.some(([source, name]) => run[source].series[name]?.bad.length)))
    add(12, shape('path', {d: cross(6, 7, 3.2), stroke: 'var(--bad)', 'stroke-width': 1.8, fill: 'none'}), 'not finite');
  if (runs.some(run => run.steps.per > 1))
    add(18, shape('rect', {x: 1, y: 2, width: 16, height: 10, fill: 'var(--c0)', 'fill-opacity': 0.22}),
      `lowest to highest of ${[...new Set(runs.map(run => count(run.steps.per)))].join(' or ')} steps, around their mean`);
}

function fact(list, name, value, more) {
  if (value === null || value === undefined || value === '–') return;
  list.append(element('div', {}, element('dt', {}, name), element('dd', {}, value, more ? element('small', {}, more) : null)));
}

function eventText(run) {
  return Object.entries(EVENTS).filter(([kind, {plural}]) => run.totals[kind] && plural)
    .map(([kind, {plural}]) => count(run.totals[kind]) + ' ' + (run.totals[kind] > 1 ? plural : kind === 'end of an epoch' ? 'epoch ended' : kind)).join(', ');
}

/* A bar for each expert's load in the last step, and a line at the even load. */
function loadBars(load, colour) {
  const n = load.length, most = Math.max(...load, 1 / n), up = share => 36 * share / most;
  return shape('svg', {class: 'loads', viewBox: `0 0 ${n} 36`, preserveAspectRatio: 'none', role: 'img', 'aria-label': 'load of each expert in the last step'},
    ...load.map((share, e) => shape('rect', {x: e + 0.1, y: 36 - up(share), width: 0.8, height: up(share), fill: colour}, shape('title', {}, `expert ${e}: ${percent(share)}`))),
    shape('path', {d: `M0 ${36 - up(1 / n)}H${n}`, stroke: 'var(--ink)', 'stroke-dasharray': '4 3', 'vector-effect': 'non-scaling-stroke'}));
}

function makeCard(run, r) {
  const list = element('dl', {}), state = run.state === 'over' ? '' : run.state;
  const shown = several ? element('input', {type: 'checkbox', checked: !view.off.has(r), 'aria-label': 'show ' + run.name}) : null;
  if (shown) shown.addEventListener('change', () => { if (shown.checked) view.off.delete(r); else view.off.add(r); redraw(); });
  const card = element('article', {class: 'card'},
    element('div', {class: 'title'}, shown, element('span', {class: 'swatch', style: `background: ${colourOf(r)}`}), element('b', {title: run.folder}, run.name),
      state ? element('span', {class: 'state ' + state.split(' ')[0]}, state) : null));
  if (run.length) card.append(element('div', {class: 'progress'}, element('i', {style: `width: ${Math.min(100, 100 * run.step / run.length)}%; background: ${colourOf(r)}`})));
  fact(list, 'step', count(run.step) + (run.length ? ' of ' + count(run.length) : ''), run.epoch ? 'epoch ' + count(run.epoch) : '');
  fact(list, 'last loss', plain(run.loss));
  if (run.best_step)
    fact(list, 'best ' + run.metric, run.metric === 'accuracy' ? percent(run.best) : plain(run.best), 'step ' + count(run.best_step) + (known(run.perplexity) ? ', perplexity\u00a0' + plain(run.perplexity) : ''));
  fact(list, 'tokens', prefixed(run.trained_tokens, ''), known(run.rate) ? prefixed(run.rate, '') + ' tokens/s' + (known(run.mfu) ? ', MFU\u00a0' + percent(run.mfu) : '') : '');
  fact(list, 'time of the steps', duration(run.seconds));
  if (run.parameters) fact(list, 'model', prefixed(run.parameters, '') + ' parameters', `${run.model_type}, ${run.dtype}, ${count(run.world)} rank${run.world > 1 ? 's' : ''}`);
  const load = Array.isArray(run.load) ? run.load.map(share => Math.max(0, Number(share)) || 0) : []; /* of damaged lines, anything */
  if (load.length)
    fact(list, 'last loads', percent(Math.min(...load)) + ' to ' + percent(Math.max(...load)), `median\u00a0${percent(median(load))}, ${count(load.length)} experts, none dropped`);
  card.append(list);
  if (load.length) card.append(loadBars(load, colourOf(r)));
  const notes = [eventText(run)];
  for (const former of run.formers) notes.push(`metrics.jsonl.${former.number}: ${former.same ? 'a part that a resume left' : 'an earlier run'}, up to step ${count(former.step)}`);
  if (run.damaged) notes.push(`${count(run.damaged)} damaged line${run.damaged > 1 ? 's are' : ' is'} left out`);
  if (run.unordered) notes.push(`${count(run.unordered)} line${run.unordered > 1 ? 's' : ''} whose steps had come before ${run.unordered > 1 ? 'are' : 'is'} left out`);
  const text = notes.filter(Boolean).join(' · ');
  if (text) card.append(element('p', {}, text));
  return card;
}

function makePanels() {
  for (const definition of PANELS) {
    const all = linesOf(definition);
    if (all.length) panels.push(new Panel({...definition, all}));
  }
  const odd = panels.filter(panel => !panel.wide).length % 2 === 1; /* then there is a gap for one more */
  runs.forEach((run, r) => {
    const parts = partsOf(run);
    if (parts) panels.push(new StackPanel({id: 'time-' + r, title: 'Time of a step', unit: several ? run.name : 'and of its checkpoint', wide: !several && !odd, format: 'seconds', runs: [r], all: [{run: r}], seconds: parts, stacked: true}));
  });
  byId('panels').append(...panels.map(panel => panel.root));
  if (panels.length) return;
  byId('panels').append(element('p', {class: 'note'}, 'There is no step yet.'));
  for (const run of runs) {
    const failure = run.events.findLast(event => event.kind === 'failure' || event.kind === 'restart');
    if (failure) byId('panels').append(element('p', {class: 'note'}, (several ? run.name + ': ' : '') + `${failure.kind}: ${failure.text}`));
  }
}

function makeDifferences() {
  if (!several) return;
  byId('differences').hidden = false;
  const table = byId('differences').querySelector('table');
  if (!data.differences.length) {
    table.append(element('tr', {}, element('td', {}, 'The specs do not differ.')));
    return;
  }
  table.append(element('tr', {}, element('th', {}, 'key'), ...runs.map((run, r) => element('th', {}, element('span', {class: 'swatch', style: `display: inline-block; margin-right: 6px; background: ${colourOf(r)}`}), run.name))));
  for (const [key, ...values] of data.differences)
    table.append(element('tr', {}, element('td', {class: 'key-name'}, key), ...values.map(value => element('td', {class: 'value'}, value === null ? '–' : value))));
}

/* The samples as a table: the newest step first, and for each step its prompts. */
function makeSamples() {
  const sampled = runs.filter(run => run.samples.length);
  if (!sampled.length) return;
  byId('samples').hidden = false;
  const table = byId('samples').querySelector('table'), filters = byId('samples').querySelector('.filters');
  const prompts = [...new Set(sampled.flatMap(run => run.samples.map(sample => sample.number)))].sort((a, b) => a - b);
  const prompt = element('select', {'aria-label': 'prompt'}, element('option', {value: ''}, 'all prompts'),
    ...prompts.map(number => element('option', {value: String(number)}, 'prompt ' + number)));
  const fill = () => {
    const rows = sampled.flatMap(run => run.samples.map(sample => ({run, sample}))).filter(row => prompt.value === '' || row.sample.number === Number(prompt.value));
    rows.sort((a, b) => b.sample.step - a.sample.step || a.sample.number - b.sample.number);
    table.replaceChildren(element('tr', {}, element('th', {}, 'step'), several ? element('th', {}, 'run') : null, element('th', {}, 'prompt and continuation')));
    let before = null;
    for (const {run, sample} of rows) {
      table.append(element('tr', {}, element('td', {class: 'number'}, sample.step === before ? '' : count(sample.step)), several ? element('td', {}, run.name) : null,
        element('td', {class: 'text'}, element('i', {}, sample.ids && sample.prompt ? '[' + sample.prompt + ']' : sample.prompt), sample.ids ? ' [' + sample.text + ']' : sample.text)));
      before = sample.step;
    }
  };
  prompt.addEventListener('change', fill);
  if (prompts.length > 1) filters.append(prompt);
  const left = sampled.reduce((sum, run) => sum + run.num_samples - run.samples.length, 0);
  if (left) filters.append(element('span', {}, `${count(left)} earlier samples are left out.`));
  fill();
}

/* A run that goes on writes the page again: load it again, but not under the reader's finger. */
function reloadLater() {
  if (!data.reload) return;
  setTimeout(function again() {
    if (document.hidden || panels.some(panel => panel.held.size)) setTimeout(again, 500);
    else location.reload();
  }, data.reload * 1000);
}

readView();
showTheme();
document.title = runs.map(run => run.name).join(', ') + ' – ztrain report';
byId('made').textContent = 'ztrain report, ' + data.made + (data.reload ? ' · renewed while the run lasts' : '');
byId('runs').append(...runs.map(makeCard));
makeControls();
makeKey();
makePanels();
makeDifferences();
makeSamples();
draw();
let drawnWidth = byId('panels').clientWidth; /* the height changes where a legend needs another line */
new ResizeObserver(() => {
  if (byId('panels').clientWidth === drawnWidth) return;
  drawnWidth = byId('panels').clientWidth;
  drawLater();
}).observe(byId('panels'));
addEventListener('hashchange', () => location.reload());
addEventListener('pointerup', event => { if (event.pointerType === 'touch' && hovered && !event.target.closest('.panel > svg')) hover(null); });
reloadLater();
})();
