// Where everything is: a lane per process, or per processes that did the same; rows of bars in it.

const LABEL = 204, AXIS = 26, BAR = 16, ROW = 18, PAD = 7, MANY_LANES = 12, ALIKE = 3;
const COMMUNICATION = new Set(["collective", "message", "store", "constructor", "unknown"]);
const L = { lanes: [], height: 0, of: [], unfolded: new Set(), pinned: new Set(), fold: true, full: false };

// ---- rows: bars of one depth on one track, which never overlap

class Row {
  constructor(ops) {
    const n = ops.length;
    this.ops = ops;
    this.begin = new Float64Array(n);
    this.end = new Float64Array(n);
    this.busy = new Float64Array(n + 1); // sums of the bars before
    this.waiting = new Float64Array(n + 1);
    this.marked = []; // in flight or failed: never merged with others
    for (let i = 0; i < n; i += 1) {
      const op = ops[i];
      this.begin[i] = T.begin[op];
      this.end[i] = T.end[op];
      this.busy[i + 1] = this.busy[i] + T.end[op] - T.begin[op];
      this.waiting[i + 1] = this.waiting[i] + T.wait[op];
      if (T.open[op]) this.marked.push(op);
    }
  }
}

// Depth of every operation on its track; operations of a track come by begin. The rows of all tracks
// are numbered: those of one begin at its `base`.
function stack() {
  const open = T.tracks.map(() => []);
  T.depth = new Uint8Array(T.n);
  T.depths = new Uint16Array(T.tracks.length).fill(1);
  for (let op = 0; op < T.n; op += 1) {
    const track = T.track[op], ends = open[track];
    while (ends.length && ends[ends.length - 1] <= T.begin[op]) ends.pop();
    T.depth[op] = Math.min(ends.length, 255);
    ends.push(T.open[op] === 1 ? Infinity : T.end[op]);
    T.depths[track] = Math.max(T.depths[track], Math.min(ends.length, 255));
  }
  T.base = new Uint32Array(T.tracks.length + 1);
  T.depths.forEach((depths, track) => { T.base[track + 1] = T.base[track] + depths; });
}

const rowOf = (op) => T.base[T.track[op]] + T.depth[op];

// Rows of all operations, or of those that a mask lets through: each is made when it is asked for,
// since of thousands of processes few are drawn.
class Rows {
  constructor(mask) {
    const first = this.first = new Uint32Array(T.base[T.tracks.length] + 1), next = new Uint32Array(first.length);
    for (let op = 0; op < T.n; op += 1) if (!mask || mask[op]) first[rowOf(op) + 1] += 1;
    for (let row = 1; row < first.length; row += 1) next[row] = first[row] += first[row - 1];
    this.ops = new Uint32Array(first[first.length - 1]);
    for (let op = 0; op < T.n; op += 1) if (!mask || mask[op]) this.ops[next[rowOf(op)]++] = op;
    this.made = new Map();
  }

  of(track, depth) {
    const row = T.base[track] + depth;
    let found = this.made.get(row);
    if (!found) this.made.set(row, found = new Row(this.ops.subarray(this.first[row], this.first[row + 1])));
    return found;
  }
}

// ---- what a process does outside communication

// The times in which no operation of a process was going on, and where it was sampled then.
function gapsOf(process) {
  T.gaps ??= [];
  return T.gaps[process] ??= outside(process);
}

function outside(process) {
  const gaps = { begin: [], end: [], stack: [], track: -1, depth: 0 }, one = T.processes[process], seen = new Map();
  let until = -1;
  for (let op = lower(T.process, process); op < T.n && T.process[op] === process; op += 1) {
    if (!COMMUNICATION.has(T.calls[T.call[op]].kind)) continue;
    const row = rowOf(op);
    seen.set(row, (seen.get(row) || 0) + 1);
    if (until >= 0 && T.begin[op] > until) gap(gaps, one, until, T.begin[op]);
    until = Math.max(until, T.end[op]);
  }
  const from = until >= 0 ? until : firstSign(process);
  if (one.last - from > 1e6 || (one.last > from && one.samples.length)) gap(gaps, one, from, one.last);
  // Drawn where most of its communication is: on the thread that calls, if there is one.
  let most = -1;
  for (const track of T.tracksOf[process]) {
    const beside = T.tracks[track].name === "asynchronous" ? 0 : 1e9;
    for (let depth = 0; depth < T.depths[track]; depth += 1) {
      const weight = beside + (seen.get(T.base[track] + depth) || 0);
      if (weight > most) { Object.assign(gaps, { track, depth }); most = weight; }
    }
  }
  return gaps;
}

function firstSign(process) {
  const op = lower(T.process, process);
  const begin = op < T.n && T.process[op] === process ? T.begin[op] : 0;
  return Math.min(begin, ...T.processes[process].samples.map(([at]) => at));
}

function gap(gaps, { samples }, begin, end) {
  let sampled = -1;
  for (const [at, stack] of samples) if (at >= begin && at <= end && T.stacks[stack][1] >= 0) sampled = stack;
  gaps.begin.push(begin);
  gaps.end.push(end);
  gaps.stack.push(sampled);
}

// ---- lanes

// Processes that made the same calls at the same lines, in the same order, and are in them alike.
function signatures() {
  const names = new Map();
  const kinds = T.calls.map((call) => {
    const key = callName(call) + "|" + call.stack;
    if (!names.has(key)) names.set(key, names.size + 1);
    return names.get(key);
  });
  const sums = T.processes.map(() => 2166136261);
  const mix = (sum, value) => Math.imul(sum ^ value, 16777619);
  for (let op = 0; op < T.n; op += 1) {
    const process = T.process[op];
    sums[process] = mix(mix(mix(sums[process], kinds[T.call[op]]), T.seq[op]), T.open[op]);
  }
  return T.processes.map((one, index) => [sums[index] >>> 0, one.state, one.role, one.attempt].join(":"));
}

// Where each depth of a track is drawn; while the start-up is out of sight, rows that only it needs
// lie on the one before.
function slotsOf(track) {
  const depths = Array.from({ length: T.depths[track] }, (_, depth) => depth);
  if (L.full) return depths;
  T.needed ??= needed();
  const kept = gapsOf(T.tracks[track].process);
  let next = -1;
  return depths.map((depth) => {
    if (T.needed[T.base[track] + depth] || (kept.track === track && kept.depth === depth)) next += 1;
    return next;
  });
}

// Per row whether anything in it is in sight without the start-up.
function needed() {
  const [from, to] = interesting(), found = new Uint8Array(T.base[T.tracks.length]);
  for (let op = 0; op < T.n; op += 1) if (T.end[op] >= from && T.begin[op] <= to) found[rowOf(op)] = 1;
  return found;
}

// Tracks of each process: threads first, then what goes on beside them.
function tracksOf() {
  const found = T.processes.map(() => []);
  T.tracks.forEach((track, index) => found[track.process].push(index));
  const beside = (index) => T.tracks[index].name === "asynchronous";
  for (const tracks of found) if (tracks.length > 1) tracks.sort((a, b) => beside(a) - beside(b) || a - b);
  return found;
}

function layout() {
  const culprits = new Set(T.findings.flatMap((found) => found.culprit_processes));
  const order = T.processes.map((_, index) => index);
  const rank = (index) => T.processes[index].rank ?? Infinity;
  const weight = (index) => 2 * culprits.has(index) + L.pinned.has(index);
  order.sort((a, b) => weight(b) - weight(a) || (rank(a) === rank(b) ? a - b : rank(a) - rank(b)));
  T.signatures ??= signatures();
  const alike = new Map();
  for (const index of order) {
    const key = weight(index) ? "alone " + index : T.signatures[index];
    if (!alike.has(key)) alike.set(key, []);
    alike.get(key).push(index);
  }
  const folding = L.fold && order.length > MANY_LANES;
  L.lanes = [];
  L.of = T.processes.map(() => -1);
  for (const [key, all] of alike) {
    const folded = folding && all.length >= ALIKE && !L.unfolded.has(key);
    for (const processes of folded ? [all] : all.map((index) => [index])) {
      L.lanes.push({ key, processes, process: processes[0], culprit: culprits.has(processes[0]),
        foldable: folding && all.length >= ALIKE, folded });
    }
  }
  const place = new Map(order.map((process, number) => [process, number]));
  L.lanes.sort((a, b) => place.get(a.process) - place.get(b.process));
  const roomy = L.lanes.length <= 24;
  let top = AXIS;
  L.lanes.forEach((lane, number) => {
    lane.number = number;
    for (const process of lane.processes) L.of[process] = number;
    lane.top = top;
    lane.tracks = [];
    let below = PAD;
    for (const index of T.tracksOf[lane.process]) {
      const slots = slotsOf(index), rows = slots[slots.length - 1] + 1;
      if (!rows) continue;
      lane.tracks.push({ index, top: top + below, slots });
      below += rows * ROW + 2;
    }
    lane.height = Math.max(below + PAD - 4, roomy || lane.culprit || lane.folded ? 42 : 26);
    if (below === PAD + ROW + 2) {
      lane.tracks[0].top = top + (lane.height - BAR) / 2;
    }
    top += lane.height;
  });
  L.height = top;
  get("whole").style.height = L.height + "px"; // before anything scrolls to a lane
}

// The top of a bar; of a folded process where its like is drawn.
function yOf(process, track, depth) {
  const lane = L.lanes[L.of[process]];
  const ordinal = T.tracksOf[process].indexOf(track), like = T.tracksOf[lane.process][ordinal];
  const place = lane.tracks.find((one) => one.index === like) || lane.tracks[0];
  return place ? place.top + (place.slots[Math.min(depth, place.slots.length - 1)] ?? 0) * ROW : lane.top + PAD;
}

const yOfOp = (op) => yOf(T.process[op], T.track[op], T.depth[op]);
const yOfGap = (process) => yOf(process, gapsOf(process).track, gapsOf(process).depth);

function unfold(process) {
  const lane = L.lanes[L.of[process]];
  if (lane.folded && lane.process !== process) toggle(lane);
}

function toggle(lane) {
  if (!L.unfolded.delete(lane.key)) L.unfolded.add(lane.key);
  layout();
}

// A pinned lane stays on top, below those of culprits, and out of folds.
function pin(process) {
  if (!L.pinned.delete(process)) L.pinned.add(process);
  layout();
}

// What the last operation of a process says: where it is, or how it ended.
function whereabouts(process) {
  const one = T.processes[process];
  if (!T.flying) {
    T.flying = T.processes.map(() => -1);
    for (let op = 0; op < T.n; op += 1) {
      if (T.open[op] === 1 && COMMUNICATION.has(T.calls[T.call[op]].kind)) T.flying[T.process[op]] = op;
    }
  }
  const op = T.flying[process];
  if (op >= 0) return time(T.end[op] - T.begin[op]) + " in " + title(op);
  const { stack } = gapsOf(process);
  const sampled = stack[stack.length - 1];
  if (one.state !== "exited" && sampled >= 0) return "at " + place(sampled);
  return one.word;
}
