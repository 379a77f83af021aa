// Drawing. What is narrower than two pixels is drawn together with its neighbours: its height is
// the share of the exchange, the pale part above it the share of waiting.

const V = { from: 0, to: 1, op: -1, gap: null, hover: -1, span: null, arrows: true };
const KINDS = ["collective", "message", "store", "constructor", "composed", "unknown"];
const FEW = 50, PALE = 0.3, FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const canvas = get("canvas"), pen = canvas.getContext("2d");
const PAPER = { width: 690, height: 8000 }; // pixels of A4 or letter, and of lanes that are printed
let width = 0, height = 0, shift = 0, C = {}, dirty = false, printed = false;
const timing = { draw: 0, ready: 0 };

function colors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["page", "text", "dim", "rule", "stripe", "mark", "accent",
    "idle", "idle-text", "arrow", "chosen", ...KINDS]) C[name] = style.getPropertyValue("--" + name).trim();
}

const x = (ns) => LABEL + ((ns - V.from) / (V.to - V.from)) * (width - LABEL);
const moment = (pixel) => V.from + ((pixel - LABEL) / Math.max(1, width - LABEL)) * (V.to - V.from);

// Dots of a canvas for a pixel of the page.
const sharpness = () => Math.max(window.devicePixelRatio || 1, printed ? 2 : 1);

// The canvas is as large as what is seen of it: thousands of lanes would be too large for one.
function resize() {
  const view = get("view"), scale = sharpness();
  get("whole").style.height = L.height + "px";
  height = printed ? Math.min(L.height, PAPER.height) : view.clientHeight;
  width = printed ? PAPER.width : view.clientWidth;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  resizeMap(scale);
  redraw();
}

function redraw() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(() => { dirty = false; draw(); });
}

function draw() {
  const began = performance.now();
  const scale = sharpness();
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  shift = printed ? 0 : get("view").scrollTop;
  pen.fillStyle = C.page;
  pen.fillRect(0, 0, width, height);
  pen.font = "12px " + FONT;
  pen.textBaseline = "middle";
  pen.save();
  pen.translate(0, -shift);
  const seen = L.lanes.filter((lane) => lane.top + lane.height > shift && lane.top < shift + height);
  for (const lane of seen) drawLane(lane);
  pen.save();
  pen.beginPath();
  pen.rect(LABEL, shift + AXIS, width - LABEL, height);
  pen.clip();
  drawGrid();
  if (!(F.only && F.mask)) for (const lane of seen) drawGaps(lane);
  let drawn = 0;
  for (const lane of seen) drawn += drawRows(lane);
  const exchanges = drawExchanges();
  for (const lane of seen) drawEnd(lane);
  drawChosen();
  pen.restore();
  drawAxis();
  pen.restore();
  drawMap();
  Object.assign(document.body.dataset, { drawn, arrows: exchanges.messages, bands: exchanges.bands });
  timing.draw = performance.now() - began;
}

// ---- text that ends in an ellipsis where there is no room for all of it

const widths = new Map();
function widthOf(text) {
  const key = pen.font + text;
  let found = widths.get(key);
  if (found === undefined) {
    if (widths.size > 20000) widths.clear();
    widths.set(key, found = pen.measureText(text).width);
  }
  return found;
}

function write(text, left, middle, room) {
  if (room < 14) return;
  let shown = text;
  // What has more letters than there are pixels is not even measured.
  if (text.length > room || widthOf(text) > room) {
    let low = 0, high = Math.min(text.length, Math.floor(room));
    while (low < high) {
      const half = (low + high + 1) >> 1;
      if (widthOf(text.slice(0, half) + "…") <= room) low = half;
      else high = half - 1;
    }
    if (low < 3) return;
    shown = text.slice(0, low) + "…";
  }
  pen.fillText(shown, left, middle);
}

// ---- lanes, gaps and bars

function drawLane(lane) {
  const { top, height: tall } = lane, one = T.processes[lane.process];
  if (lane.number % 2) {
    pen.fillStyle = C.stripe;
    pen.fillRect(0, top, width, tall);
  }
  pen.fillStyle = C.rule;
  pen.fillRect(0, top + tall - 1, width, 1);
  if (lane.culprit) {
    pen.fillStyle = C.mark;
    pen.fillRect(0, top, 3, tall - 1);
  }
  const two = tall >= 40, first = two ? top + 14 : top + tall / 2, room = LABEL - 30;
  let left = 14;
  if (lane.foldable) {
    pen.fillStyle = C.dim;
    pen.fillText(lane.folded ? "▸" : "▾", 12, first);
    left = 28;
  }
  pen.font = "600 12px " + FONT;
  pen.fillStyle = lane.culprit ? C.mark : C.text;
  const pinned = L.pinned.has(lane.process) ? " \u2191" : "";
  const label = lane.folded ? lane.label ??= people(lane.processes) : one.label + pinned, times = lane.folded ? "×" + lane.processes.length : "";
  const aside = times ? widthOf(times) + 8 : 0;
  write(label, left, first, room - left - aside + 12);
  if (times) pen.fillText(times, LABEL - 14 - widthOf(times), first);
  pen.font = "11px " + FONT;
  pen.fillStyle = C.dim;
  const found = F.mask && lane.folded ? hiddenMatches(lane) : null;
  if (found?.begins.length) {
    pen.fillStyle = C.accent;
    write(whole(found.begins.length) + " found in " + found.processes.size + " of these", left, first + 15, LABEL - left - 10);
    drawLit(lane, found.begins);
  } else if (two) write(whereabouts(lane.process), left, first + 15, LABEL - left - 10);
  else write(one.word, left + 56, first, LABEL - left - 66);
  pen.font = "12px " + FONT;
}

// A mark wherever the folded ones have a match.
function drawLit(lane, begins) {
  const unit = (V.to - V.from) / (width - LABEL);
  for (let i = lower(begins, V.from); i < begins.length && begins[i] < V.to; i = lower(begins, begins[i] + 2 * unit, i + 1)) {
    pen.fillRect(Math.max(Math.round(x(begins[i])) - 1, LABEL), lane.top + 1, 2, 5);
  }
}

function drawGaps(lane) {
  const gaps = gapsOf(lane.process), least = ((V.to - V.from) / (width - LABEL)) * 3;
  const top = yOfGap(lane.process);
  for (let i = lower(gaps.end, V.from); i < gaps.begin.length && gaps.begin[i] < V.to; i += 1) {
    if (gaps.end[i] - gaps.begin[i] < least) continue;
    const left = Math.max(x(gaps.begin[i]) + 1, LABEL - 4), right = Math.min(x(gaps.end[i]) - 1, width + 4);
    const blamed = lane.culprit && gaps.stack[i] >= 0;
    pen.fillStyle = blamed ? C.mark : C.idle;
    if (blamed) pen.globalAlpha = 0.16;
    pen.beginPath();
    pen.roundRect(left, top + 1, right - left, BAR - 2, 3);
    pen.fill();
    pen.globalAlpha = 1;
    const start = Math.max(left, LABEL) + 6, room = right - start - 4;
    if (room < 40) continue;
    pen.fillStyle = blamed ? C.mark : C["idle-text"];
    const lasts = time(gaps.end[i] - gaps.begin[i]);
    const text = gaps.stack[i] >= 0 ? "at " + place(gaps.stack[i]) + ", " + lasts : lasts;
    write(text, start, top + BAR / 2 + 0.5, room);
  }
}

function drawRows(lane) {
  let drawn = 0;
  for (const track of lane.tracks) {
    for (let depth = 0; depth < T.depths[track.index]; depth += 1) {
      if (track.slots[depth] < 0 || (depth && track.slots[depth] === track.slots[depth - 1])) continue;
      const top = track.top + track.slots[depth] * ROW;
      if (top > shift + height || top + ROW < shift) continue;
      if (F.mask && F.only) {
        drawn += drawRow(F.rows.of(track.index, depth), top, 1);
      } else if (F.mask) {
        drawn += drawRow(T.rows.of(track.index, depth), top, 0.18);
        drawRow(F.rows.of(track.index, depth), top, 1);
      } else {
        drawn += drawRow(T.rows.of(track.index, depth), top, 1);
      }
    }
  }
  return drawn;
}

function drawRow(row, top, alpha) {
  const n = row.ops.length, unit = (V.to - V.from) / (width - LABEL), step = 2 * unit;
  let i = lower(row.end, V.from), drawn = 0;
  const run = { left: -1, right: -1, kind: "", steps: [] };
  while (i < n && row.begin[i] < V.to) {
    if (row.end[i] - row.begin[i] >= step) {
      flush(run, top, alpha);
      drawBar(row.ops[i], top, alpha);
      drawn += 1;
      i += 1;
      continue;
    }
    // All that begin in the next two pixels, without a wide one at their end.
    const until = row.begin[i] + step;
    let j = i + 1, jump = 1;
    while (j < n && row.begin[j] < until) { j += jump; jump *= 2; }
    j = lower(row.begin, until, i + 1, Math.min(j, n));
    if (j - 1 > i && row.end[j - 1] - row.begin[j - 1] >= step) j -= 1;
    const busy = row.busy[j] - row.busy[i];
    const share = busy > 0 ? 1 - (row.waiting[j] - row.waiting[i]) / busy : 1;
    const left = Math.round(x(row.begin[i])), solid = Math.round(share * BAR);
    const kind = T.calls[T.call[row.ops[i]]].kind;
    if (run.kind !== kind || left - run.right > 2) {
      flush(run, top, alpha);
      run.left = left;
      run.kind = kind;
    }
    run.right = Math.max(left + 2, Math.round(x(row.end[j - 1])));
    run.steps.push(left, solid);
    drawn += j - i;
    i = j;
  }
  flush(run, top, alpha);
  for (const op of row.marked) {
    if (T.end[op] - T.begin[op] < step && T.end[op] >= V.from && T.begin[op] <= V.to) drawBar(op, top, alpha);
  }
  return drawn;
}

// A run of such columns: pale all over, and the exchange as an area in front of it.
function flush(run, top, alpha) {
  const { left, right, steps: found } = run, bottom = top + BAR;
  if (left < 0) return;
  pen.fillStyle = C[run.kind] || C.unknown;
  pen.globalAlpha = PALE * alpha;
  pen.fillRect(left, top, right - left, BAR);
  pen.globalAlpha = alpha;
  pen.beginPath();
  pen.moveTo(left, bottom);
  for (let n = 0; n < found.length; n += 2) {
    pen.lineTo(found[n], bottom - found[n + 1]);
    pen.lineTo(n + 2 < found.length ? found[n + 2] : right, bottom - found[n + 1]);
  }
  pen.lineTo(right, bottom);
  pen.fill();
  pen.globalAlpha = 1;
  run.left = -1;
  run.kind = "";
  run.steps = [];
}

function drawBar(op, top, alpha) {
  const begin = T.begin[op], end = T.end[op], kind = T.calls[T.call[op]].kind, flying = T.open[op] === 1;
  const left = Math.max(x(begin), LABEL - 8), right = Math.max(Math.min(x(end), width + 8), left + 2);
  const middle = Math.min(Math.max(x(begin + T.wait[op]), left), right), color = C[kind] || C.unknown;
  pen.fillStyle = color;
  if (middle > left) {
    pen.globalAlpha = PALE * alpha;
    pen.fillRect(left, top, middle - left, BAR);
  }
  pen.globalAlpha = (flying && !T.wait[op] ? 0.55 : 1) * alpha;
  if (right - middle > 0.5 || middle === left) pen.fillRect(middle, top, Math.max(right - middle, 1), BAR);
  if (middle > left) pen.fillRect(left, top, Math.min(2, right - left), BAR);
  if (T.open[op]) {
    pen.strokeStyle = C.mark;
    pen.setLineDash(flying ? [4, 3] : []);
    pen.strokeRect(left + 0.5, top + 0.5, Math.max(right - left - 1, 1), BAR - 1);
    pen.setLineDash([]);
  }
  const start = Math.max(left, LABEL) + 6, room = right - start - 4;
  if (room > 22) {
    const text = room > 150 ? [title(op), waited(op)].filter(Boolean).join("  ") : title(op);
    // White on what is solid, the text's own color on what is pale: on the larger of both.
    const pale = kind === "composed" || middle - start > Math.min(widthOf(text), right - middle);
    pen.fillStyle = pale ? C.text : "#fff";
    const at = pale || middle <= start ? start : middle + 5;
    write(text, at, top + BAR / 2 + 0.5, (pale && kind !== "composed" ? Math.min(middle, right - 4) : right - 4) - at);
  }
  pen.globalAlpha = 1;
}

function drawEnd(lane) {
  for (const process of lane.processes.slice(0, 1)) {
    const one = T.processes[process];
    if (one.state !== "killed" && one.state !== "failed") continue;
    const at = x(one.last);
    pen.fillStyle = C.mark;
    pen.fillRect(at, lane.top + 3, 1.5, lane.height - 7);
  }
}

// ---- selection, measured span, axis

function outline(left, right, top, color) {
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.strokeRect(Math.max(left, LABEL - 9) - 1.5, top - 1.5, Math.min(right, width + 9) - Math.max(left, LABEL - 9) + 3, BAR + 3);
  pen.lineWidth = 1;
}

function drawChosen() {
  const bar = (op, color) => outline(x(T.begin[op]), Math.max(x(T.end[op]), x(T.begin[op]) + 2), yOfOp(op), color);
  if (V.hover >= 0 && V.hover !== V.op) bar(V.hover, C.accent);
  if (V.op >= 0) bar(V.op, C.chosen);
  if (V.gap) outline(x(V.gap.begin), x(V.gap.end), yOfGap(V.gap.process), C.chosen);
  if (V.span) {
    const [a, b] = V.span.map(x);
    pen.fillStyle = C.accent;
    pen.globalAlpha = 0.1;
    pen.fillRect(a, shift, b - a, height);
    pen.globalAlpha = 1;
    pen.fillRect(a - 0.5, shift, 1, height);
    pen.fillRect(b - 0.5, shift, 1, height);
  }
}

function steps() {
  const wanted = (V.to - V.from) / Math.max(2, (width - LABEL) / 120), power = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= wanted), found = [];
  for (let at = Math.ceil(V.from / step) * step; at <= V.to; at += step) found.push(at);
  return { step, found };
}

function drawGrid() {
  pen.fillStyle = C.rule;
  pen.globalAlpha = 0.6;
  for (const at of steps().found) pen.fillRect(Math.round(x(at)), shift, 1, height);
  pen.globalAlpha = 1;
}

// Tick labels agree in their digits: +1.20 s, +1.25 s.
function tick(at, step) {
  const [unit, scale] = V.to - V.from >= 2e9 || Math.abs(at) >= 10e9 ? ["s", 1e9] : Math.abs(V.to) >= 2e6 ? ["ms", 1e6] : ["µs", 1e3];
  return (at / scale).toFixed(Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / scale) - 1e-9)))) + " " + unit;
}

function drawAxis() {
  pen.fillStyle = C.page;
  pen.fillRect(0, shift, width, AXIS);
  pen.fillStyle = C.rule;
  pen.fillRect(0, shift + AXIS - 1, width, 1);
  pen.fillRect(LABEL - 1, shift, 1, height);
  pen.save();
  pen.beginPath();
  pen.rect(LABEL, shift, width - LABEL, AXIS);
  pen.clip();
  pen.font = "11px " + FONT;
  pen.fillStyle = C.dim;
  const { step, found } = steps();
  for (const at of found) pen.fillText(tick(at, step), x(at) + 4, shift + AXIS / 2);
  pen.fillStyle = C.mark;
  for (const one of T.findings) {
    const at = x(one.at);
    pen.beginPath();
    pen.moveTo(at - 4, shift + AXIS - 8);
    pen.lineTo(at + 4, shift + AXIS - 8);
    pen.lineTo(at, shift + AXIS - 1);
    pen.fill();
  }
  if (V.span) {
    const text = time(V.span[1] - V.span[0]), middle = (x(V.span[0]) + x(V.span[1])) / 2;
    pen.font = "600 12px " + FONT;
    const half = widthOf(text) / 2 + 8, at = Math.min(Math.max(middle, LABEL + half), width - half);
    pen.fillStyle = C.accent;
    pen.beginPath();
    pen.roundRect(at - half, shift + 3, 2 * half, AXIS - 7, 6);
    pen.fill();
    pen.fillStyle = C.page;
    pen.fillText(text, at - half + 8, shift + AXIS / 2);
  }
  pen.restore();
  pen.font = "11px " + FONT;
  pen.fillStyle = C.dim;
  pen.fillText(time(V.to - V.from) + " in view", 14, shift + AXIS / 2);
}
