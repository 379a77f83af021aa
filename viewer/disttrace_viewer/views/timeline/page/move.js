// Moving about: the span in view, what is selected, and all of it in the address.

function look(from, to) {
  const size = Math.min(Math.max(to - from, 50), T.span * 1.06);
  V.from = Math.min(Math.max(from, -0.03 * T.span), 1.03 * T.span - size);
  V.to = V.from + size;
  const [from_, to_] = interesting(), full = V.from < from_ - 0.05 * (to_ - from_);
  if (full !== L.full) { L.full = full; layout(); }
  redraw();
  showVisible();
  remember();
}

function zoom(factor, around) {
  look(around - (around - V.from) * factor, around + (V.to - around) * factor);
}

const middle = () => (V.from + V.to) / 2;
const pan = (share) => look(V.from + share * (V.to - V.from), V.to + share * (V.to - V.from));

// Everything; at first without the start-up of processes that do not communicate yet.
function everything() { look(-0.01 * T.span, 1.01 * T.span); }

function interesting() { return T.interesting ??= communication(); }

function communication() {
  let from = Infinity, to = 0;
  for (let op = 0; op < T.n; op += 1) {
    const { kind } = T.calls[T.call[op]];
    if (T.processes[T.process[op]].rank === null || (kind !== "collective" && kind !== "message")) continue;
    from = Math.min(from, T.begin[op]);
    to = Math.max(to, T.end[op]);
  }
  if (!(to > from)) return [0, T.span];
  // What lies before is kept where it is short beside the rest.
  return [from < 0.1 * (to - from) ? 0 : from, T.span - to < 0.1 * (to - from) ? T.span : to];
}

function home() {
  const [from, to] = interesting(), room = 0.015 * (to - from);
  look(from - room, to + room);
}

// ---- selection

function choose(op, bring) {
  V.op = op;
  V.gap = null;
  if (op >= 0) {
    unfold(T.process[op]);
    if (bring) reveal(T.begin[op], T.end[op], yOfOp(op));
    say(told(op).map(([text]) => text).join(". "));
  }
  chosen();
}

function chooseGap(gap, bring) {
  V.op = -1;
  V.gap = gap;
  unfold(gap.process);
  if (bring) reveal(gap.begin, gap.end, yOfGap(gap.process));
  say(toldGap(gap).map(([text]) => text).join(". "));
  chosen();
}

function chosen() {
  showDetail();
  redraw();
  remember();
}

const say = (text) => { get("spoken").textContent = text; };

// Scroll to a lane, and to a time unless it is well in view.
function reveal(begin, end, top) {
  const view = get("view");
  if (top < view.scrollTop + AXIS || top + ROW > view.scrollTop + height) view.scrollTop = top - height / 3;
  const inside = begin >= V.from && end <= V.to, wide = end - begin >= (V.to - V.from) / 200;
  const around = begin <= V.from && end >= V.to;
  if (!(inside && wide) && !around) {
    const room = Math.max((end - begin) * 1.5, T.span / 1e6);
    look(begin - room, end + room);
  }
}

function zoomToSelection() {
  if (V.span) look(...V.span);
  else if (V.op >= 0) fit(T.begin[V.op], T.end[V.op]);
  else if (V.gap) fit(V.gap.begin, V.gap.end);
  else home();
}

function fit(begin, end) {
  const room = Math.max((end - begin) * 0.15, 100);
  look(begin - room, end + room);
}

// What a process did at a time: the innermost operation, else its time outside communication.
function doing(process, at) {
  let best = -1;
  for (let op = lower(T.process, process); op < T.n && T.process[op] === process && T.begin[op] <= at; op += 1) {
    if (T.end[op] >= at && T.calls[T.call[op]].kind !== "composed" && (best < 0 || T.depth[op] >= T.depth[best])) best = op;
  }
  if (best >= 0) return { op: best };
  return { gap: gapAt(process, at) };
}

function gapAt(process, at) {
  const gaps = gapsOf(process), n = lower(gaps.end, at);
  if (n >= gaps.begin.length || gaps.begin[n] > at) return null;
  return { process, begin: gaps.begin[n], end: gaps.end[n], stack: gaps.stack[n] };
}

// A finding: the culprit's lane in sight, what it did selected, the whole exchange in view.
function showFinding(number) {
  const one = T.findings[number];
  if (!one) return;
  get("findings").querySelectorAll("button").forEach((button, n) => button.setAttribute("aria-current", n === number));
  const culprit = one.culprit_processes[0] ?? one.processes[0];
  let from = one.from, to = one.to;
  if (from === null) { from = one.at - T.span / 40; to = one.at + T.span / 40; }
  V.span = null;
  if (one.operation !== null) choose(one.operation, false);
  else if (culprit !== undefined) {
    const last = T.processes[culprit].last, found = doing(culprit, Math.min(to, last));
    if (found.gap) chooseGap(found.gap, false);
    else choose(found.op ?? -1, false);
  }
  if (V.op >= 0) { from = Math.min(from, T.begin[V.op]); to = Math.max(to, T.end[V.op]); }
  // Also where the culprit was before: that is what there is to look at.
  const room = (to - from) * 0.12;
  look(from - room, to + room);
  if (culprit !== undefined) {
    const lane = L.lanes[L.of[culprit]], view = get("view");
    if (lane.top < view.scrollTop + AXIS || lane.top + lane.height > view.scrollTop + height) {
      view.scrollTop = Math.max(0, lane.top - AXIS - 10);
    }
  }
  say(one.severity + ": " + one.summary);
}

// The bar before or after on the same row; the same collective, or the same time, a lane up or down.
function beside(step) {
  const row = T.rows.of(T.track[V.op], T.depth[V.op]), n = row.ops.indexOf(V.op) + step;
  if (n >= 0 && n < row.ops.length) choose(row.ops[n], true);
}

function across(step) {
  const process = V.op >= 0 ? T.process[V.op] : V.gap ? V.gap.process : -1;
  if (process < 0) {
    const lane = L.lanes[step > 0 ? 0 : L.lanes.length - 1];
    if (lane) select(lane.process, middle());
    return;
  }
  const lane = L.lanes[L.of[process] + step];
  if (!lane) return;
  const mate = V.op >= 0 && T.ex[V.op] !== NONE ? members(T.ex[V.op]).find((op) => T.process[op] === lane.process) : undefined;
  if (mate !== undefined) choose(mate, true);
  else select(lane.process, V.op >= 0 ? T.begin[V.op] : (V.gap.begin + V.gap.end) / 2);
}

function select(process, at) {
  const found = doing(process, at);
  if (found.gap) chooseGap(found.gap, true);
  else if (found.op !== undefined) choose(found.op, true);
  else {
    const first = lower(T.process, process);
    if (first < T.n && T.process[first] === process) choose(nearest(process, at), true);
  }
}

function nearest(process, at) {
  let best = lower(T.process, process);
  for (let op = best; op < T.n && T.process[op] === process; op += 1) {
    if (Math.abs(T.begin[op] - at) < Math.abs(T.begin[best] - at)) best = op;
  }
  return best;
}

// ---- what lies under the pointer

function under(offsetX, offsetY) {
  if (offsetY < AXIS) return {};
  const top = offsetY + shift, lane = L.lanes.find((one) => top >= one.top && top < one.top + one.height);
  if (!lane || offsetX < LABEL) return { lane, label: Boolean(lane) };
  const at = moment(offsetX), near = 3 * (V.to - V.from) / (width - LABEL);
  for (const track of lane.tracks) {
    const slot = Math.floor((top - track.top) / ROW), depth = track.slots.indexOf(slot);
    if (depth < 0 || top - track.top - slot * ROW > BAR + 1) continue;
    const row = (F.mask && F.only ? F.rows : T.rows).of(track.index, depth);
    const n = lower(row.end, at - near);
    let best = -1;
    for (let k = n; k < row.ops.length && row.begin[k] <= at + near; k += 1) {
      const off = Math.max(row.begin[k] - at, at - row.end[k], 0);
      if (best < 0 || off < Math.max(row.begin[best] - at, at - row.end[best], 0)) best = k;
      if (!off) break;
    }
    if (best >= 0) return { lane, op: row.ops[best] };
  }
  if (Math.abs(top - yOfGap(lane.process) - BAR / 2) <= BAR) return { lane, gap: gapAt(lane.process, at) };
  return { lane };
}

// ---- the address: timeline.html#t=FROM-TO&op=ID&q=TEXT

let remembering = 0;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const parts = ["t=" + Math.round(V.from) + "_" + Math.round(V.to)];
    if (V.op >= 0) parts.push("op=" + encodeURIComponent(idOf(V.op)));
    if (V.gap) parts.push("at=" + V.gap.process + "_" + Math.round((V.gap.begin + V.gap.end) / 2));
    if (V.span) parts.push("span=" + V.span.map(Math.round).join("_"));
    if (F.text) parts.push("q=" + encodeURIComponent(F.text));
    if (F.only) parts.push("only=1");
    if (G.open) parts.push("view=tables");
    try { history.replaceState(null, "", "#" + parts.join("&")); } catch { /* a sandboxed frame */ }
  }, 150);
}

function recall() {
  const asked = new Map(location.hash.slice(1).split("&").map((part) => {
    const [name, value = ""] = part.split("=");
    try { return [name, decodeURIComponent(value)]; } catch { return [name, ""]; }
  }));
  const pair = (name) => (asked.get(name) || "").split("_").map(Number);
  if (asked.has("q")) {
    get("query").value = asked.get("q");
    find(asked.get("q"));
    if (asked.get("only") === "1") filter(true);
  }
  const op = asked.has("op") ? withId(asked.get("op")) : -1, [from, to] = pair("t");
  if (to > from) look(from, to);
  if (op >= 0) choose(op, !(to > from));
  const [process, at] = pair("at");
  if (asked.has("at") && T.processes[process]) {
    const gap = gapAt(process, at);
    if (gap) chooseGap(gap, !(to > from));
  }
  if ((asked.get("view") === "tables") !== G.open) tables(!G.open);
  const [a, b] = pair("span");
  if (asked.has("span") && b > a) measure(a, b);
}

function measure(a, b) {
  V.span = a === undefined ? null : [Math.min(a, b), Math.max(a, b)];
  if (V.span) say(time(V.span[1] - V.span[0]) + " measured");
  redraw();
  showVisible();
  remember();
}

// ---- search and filter

function find(text) {
  search(text);
  get("found").textContent = F.mask ? whole(F.hits.length) + " of " + whole(T.n) : "";
  redraw();
  showVisible();
  remember();
}

function filter(only) {
  F.only = only;
  get("only").setAttribute("aria-pressed", only);
  redraw();
  remember();
}

function match(step) {
  const op = F.mask ? neighbour(V.op, step) : -1;
  if (op >= 0) choose(op, true);
}
