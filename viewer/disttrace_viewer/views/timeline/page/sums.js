// What is in view, or in the measured span, summed up: by operation, and by process. Blocked,
// waiting and hidden time are those of `disttrace stats` (analysis/wait_states.py).

const EXCHANGED = new Set(["collective", "message"]);

// Calls that are summed up together: of one operation, in groups of one kind, and at one line where
// that is asked for. -1: in no sum.
function sorts(byLine) {
  const known = new Map(), found = [];
  const of = T.calls.map((call) => {
    if (call.kind === "composed" || call.kind === "constructor") return -1;
    const group = T.groups[call.in], name = callName(call), kind = group ? group.kind || group.label : "";
    const line = byLine ? lineOfProgram(call.stack) : "", key = [name, kind, line].join("\n");
    if (!known.has(key)) {
      known.set(key, found.length);
      found.push({ name, group: kind, line });
    }
    return known.get(key);
  });
  return { of, found };
}

// Stretches of time, each without what earlier ones of its process cover: they are disjoint.
class Stretches {
  constructor(most) {
    this.op = new Uint32Array(most);
    this.from = new Float64Array(most);
    this.to = new Float64Array(most);
    this.n = 0;
  }

  add(op, from, to) {
    if (!(to > from)) return;
    this.op[this.n] = op;
    this.from[this.n] = from;
    this.to[this.n] = to;
    this.n += 1;
  }

  disjoint() {
    const { op, from, to, n } = this, found = new Stretches(n), order = new Uint32Array(n);
    const before = (a, b) => from[a] - from[b] || op[a] - op[b];
    // Those of a process lie together; where they are in order they stay as they are.
    for (let first = 0, next = 0; first < n; first = next) {
      const process = T.process[op[first]];
      let sorted = true, covered = -Infinity;
      for (; next < n && T.process[op[next]] === process; next += 1) {
        order[next] = next;
        if (next > first && sorted && before(next - 1, next) > 0) sorted = false;
      }
      if (!sorted) order.subarray(first, next).sort(before);
      for (let n = first; n < next; n += 1) {
        const i = order[n];
        found.add(op[i], Math.max(from[i], covered), to[i]);
        covered = Math.max(covered, to[i]);
      }
    }
    return found;
  }

  // Calls back with each operation and its time within a span.
  within(from, to, back) {
    for (let i = 0; i < this.n; i += 1) {
      const time = Math.min(this.to[i], to) - Math.max(this.from[i], from);
      if (time > 0) back(this.op[i], time);
    }
  }
}

// Of collectives and messages: what holds their process up, what of that is waiting, and, for what
// is hidden, when something is under way.
function stretches() {
  const blocked = new Stretches(2 * T.n), waiting = new Stretches(2 * T.n);
  const holding = new Stretches(2 * T.n), all = new Stretches(3 * T.n);
  for (let op = 0, after = 0; op < T.n; op += 1) {
    const call = T.calls[T.call[op]];
    if (!EXCHANGED.has(call.kind)) continue;
    const begin = T.begin[op], end = T.end[op], until = begin + T.wait[op];
    const whole = T.issued[op] < 0 || (T.wait_begin[op] < 0 && call.unseen);
    const pieces = whole ? [[begin, end]] : [[begin, begin + T.issued[op]]];
    if (!whole && T.wait_begin[op] >= 0) pieces.push([begin + T.wait_begin[op], end]);
    for (const [from, to] of pieces) {
      blocked.add(op, from, to);
      if (T.wait[op] > 0) waiting.add(op, from, Math.min(to, until));
      // Where nobody sees the wait, a process still issues what begins meanwhile.
      let held = from;
      if (call.unseen && T.wait_begin[op] < 0) {
        for (after = Math.max(after, op); after + 1 < T.n && T.process[after + 1] === T.process[op] && T.begin[after + 1] < end; after += 1);
        for (let other = after; other > op; other -= 1) {
          if (EXCHANGED.has(T.calls[T.call[other]].kind)) { held = Math.max(held, T.begin[other]); break; }
        }
      }
      holding.add(op, held, to);
      all.add(op, held, to);
    }
    all.add(op, begin, T.open[op] === 1 || T.complete[op] < 0 ? end : begin + T.complete[op]);
  }
  return { blocked: blocked.disjoint(), waiting: waiting.disjoint(), holding: holding.disjoint(), all: all.disjoint() };
}

function statistics(from, to, byLine = false) {
  const { of, found } = byLine ? (T.sortsByLine ??= sorts(true)) : (T.sorts ??= sorts(false));
  const times = T.stretches ??= stretches(), zeros = () => new Float64Array(T.processes.length);
  const ops = found.map((one) => ({ ...one, calls: 0, bytes: 0, total: 0, waiting: 0, took: [], moved: 0, busy: 0, last: new Map() }));
  const ranks = { blocked: zeros(), waiting: zeros(), held: zeros(), flying: zeros(), holding: zeros() };
  for (let op = 0; op < T.n; op += 1) {
    const begin = T.begin[op], end = T.end[op], sort = of[T.call[op]];
    if (sort < 0 || end < from || begin > to || (F.mask && !F.mask[op])) continue;
    const one = ops[sort];
    one.calls += 1;
    one.total += Math.min(end, to) - Math.max(begin, from);
    one.bytes += Math.max(0, bytesOf(op));
    if (byLine) speed(one, op);
    if (cameLast(op)) {
      one.last.set(T.process[op], (one.last.get(T.process[op]) || 0) + 1);
    }
    // What waits in a store is held up by nobody of a group.
    if (!EXCHANGED.has(T.calls[T.call[op]].kind)) one.waiting += Math.max(0, Math.min(begin + T.wait[op], to) - Math.max(begin, from));
  }
  const shown = (op) => !F.mask || F.mask[op];
  times.blocked.within(from, to, (op, time) => { if (shown(op)) ranks.blocked[T.process[op]] += time; });
  times.waiting.within(from, to, (op, time) => {
    if (!shown(op)) return;
    ranks.waiting[T.process[op]] += time;
    ops[of[T.call[op]]].waiting += time;
    if (T.for[op] !== NONE && T.for[op] !== T.process[op]) ranks.held[T.for[op]] += time;
  });
  times.all.within(from, to, (op, time) => { ranks.flying[T.process[op]] += time; });
  times.holding.within(from, to, (op, time) => { ranks.holding[T.process[op]] += time; });
  const sum = (name) => ops.reduce((all, one) => all + one[name], 0);
  return { ops: ops.filter((one) => one.calls), ranks, calls: sum("calls"), total: sum("total"), waiting: sum("waiting") };
}

// Whether all the others had come before it.
function cameLast(op) {
  const x = T.ex[op], m = T.msg[op];
  if (x !== NONE) return T.ex_last[x] === T.process[op] && T.ex_arrived[x] >= T.ex_expected[x];
  if (m === NONE) return false;
  const other = T.msg_send[m] === op ? T.msg_recv[m] : T.msg_send[m];
  return (T.begin[op] - T.begin[other] || T.process[op] - T.process[other]) > 0;
}

// How long it took, and, where that is defined, what it moved in which time since the last arrival.
function speed(one, op) {
  one.took.push(T.end[op] - T.begin[op]);
  const x = T.ex[op], m = T.msg[op], { bus } = T.calls[T.call[op]];
  if (!bus || T.open[op] || (x === NONE ? m === NONE : T.ex_arrived[x] < T.ex_expected[x])) return;
  const came = x === NONE ? Math.max(T.begin[T.msg_send[m]], T.begin[T.msg_recv[m]]) : T.ex_last_begin[x];
  one.moved += bus * Math.max(0, bytesOf(op));
  one.busy += Math.max(0, T.end[op] - came);
}

// The value below which a share of sorted numbers lies.
const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.round(share * (sorted.length - 1)))];

// How many of some times fall into each of so many steps of one ratio.
function spread(times, low, high, steps) {
  const counts = new Uint32Array(steps), ratio = Math.log(high / low) || 1;
  for (const one of times) {
    counts[Math.min(steps - 1, Math.max(0, Math.floor((steps * Math.log(Math.max(one, low) / low)) / ratio)))] += 1;
  }
  return counts;
}
