// Searching: which operations a query lets through. Words are joined by "and".

const F = { text: "", only: false, mask: null, hits: new Uint32Array(0), sorted: null, rows: null };
const UNITS = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9, b: 1, kb: 1e3, mb: 1e6, gb: 1e9 };
const STATUS = ["ok", "in_flight", "error"];
// A part of a text; after = all of it.
const has = (text, part) => {
  const whole = String(text ?? "").toLowerCase();
  return part.startsWith("=") ? whole === part.slice(1) : whole.includes(part);
};

const lineOf = (call) => T.stacks[call.stack][0].map(([path, line, name]) => path + ":" + line + " " + name).join("\n");
const groupOf = (call) => (T.groups[call.in] ? T.groups[call.in].label + " " + T.groups[call.in].name : "");
const keyOf = (op) => (T.key[op] === NONE ? "" : [].concat(T.keys[T.key[op]]).join("\n"));

// What a word asks: of a call (answered once for all of its operations), or of an operation.
const ASKED = {
  op: (word) => ({ call: (call) => has(callName(call), word) || has(call.op, word) }),
  kind: (word) => ({ call: (call) => has(call.kind, word) }),
  group: (word) => ({ call: (call) => has(groupOf(call), word) }),
  line: (word) => ({ call: (call) => has(lineOf(call), word) }),
  key: (word) => ({ op: (op) => has(keyOf(op), word) }),
  status: (word) => ({ op: (op) => has(STATUS[T.open[op]], word) }),
  seq: (word) => ({ op: (op) => T.seq[op] === Number(word) }),
  id: (word) => ({ op: (op) => has(idOf(op), word) }),
  host: (word) => ({ op: (op) => has(T.processes[T.process[op]].host, word) }),
  rank: (word) => {
    const runs = word.split(",").map((run) => run.split("-").map(Number));
    return { op: (op) => {
      const { rank } = T.processes[T.process[op]];
      return rank !== null && runs.some(([a, b = a]) => rank >= a && rank <= b);
    } };
  },
};

const MEASURES = {
  waited: (op) => T.wait[op], took: (op) => T.end[op] - T.begin[op], bytes: bytesOf,
};

function question(word) {
  const measured = /^(waited|took|bytes)([<>])=?([\d.]+)([a-zµ]*)$/.exec(word);
  if (measured) {
    const value = MEASURES[measured[1]], bound = Number(measured[3]) * (UNITS[measured[4]] || 1);
    return { op: measured[2] === ">" ? (op) => value(op) >= bound : (op) => value(op) <= bound };
  }
  if (/^#\d+$/.test(word)) return ASKED.seq(word.slice(1));
  const colon = word.indexOf(":"), field = word.slice(0, colon);
  if (colon > 0 && Object.hasOwn(ASKED, field)) return ASKED[field](word.slice(colon + 1));
  const labels = T.processes.map((one) => has(one.label, word));
  const errors = T.errors.map((error) => has(error, word));
  return {
    call: (call) => has(callName(call), word) || has(call.op, word) || has(groupOf(call), word) || has(lineOf(call), word),
    or: (op) => labels[T.process[op]] || (T.error[op] !== NONE && errors[T.error[op]]) || (T.key[op] !== NONE && has(keyOf(op), word)),
  };
}

function search(text) {
  F.text = text.trim();
  F.sorted = null;
  const words = F.text.toLowerCase().match(/(?:[^\s"]|"[^"]*")+/g) || [];
  if (!words.length) {
    F.mask = F.rows = null;
    F.hits = new Uint32Array(0);
    return;
  }
  const asked = words.map((word) => question(word.replaceAll('"', "")))
    .map((one) => ({ ...one, calls: one.call && T.calls.map((call) => one.call(call)) }));
  F.mask = new Uint8Array(T.n);
  F.lit = null;
  const hits = [];
  for (let op = 0; op < T.n; op += 1) {
    if (!asked.every(({ calls, op: own, or }) => (calls && calls[T.call[op]]) || (own || or)?.(op))) continue;
    F.mask[op] = 1;
    hits.push(op);
  }
  F.hits = Uint32Array.from(hits);
  F.rows = new Rows(F.mask);
}

// What a folded lane stands for and does not draw: the matches there by begin, and of how many.
function hiddenMatches(lane) {
  if (F.lit?.lanes !== L.lanes) {
    F.lit = { lanes: L.lanes, found: L.lanes.map(() => ({ begins: [], processes: new Set() })) };
    for (const op of F.hits) {
      const number = L.of[T.process[op]], one = L.lanes[number];
      if (!one.folded || one.process === T.process[op]) continue;
      F.lit.found[number].begins.push(T.begin[op]);
      F.lit.found[number].processes.add(T.process[op]);
    }
    for (const one of F.lit.found) one.begins.sort((a, b) => a - b);
  }
  return F.lit.found[lane.number];
}

// The match after (or before) an operation, by time; around at the ends.
function neighbour(op, step) {
  F.sorted ??= Array.from(F.hits).sort((a, b) => T.begin[a] - T.begin[b] || a - b);
  if (!F.sorted.length) return -1;
  const here = F.sorted.indexOf(op);
  if (here >= 0) return F.sorted[(here + step + F.sorted.length) % F.sorted.length];
  const after = F.sorted.findIndex((one) => T.begin[one] >= V.from);
  return F.sorted[step > 0 ? Math.max(after, 0) : (after > 0 ? after : F.sorted.length) - 1];
}
