// Numbers and operations as a person reads them.

const get = (id) => document.getElementById(id);

function element(name, text, inside, kind) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  if (kind) made.className = kind;
  if (inside) inside.append(made);
  return made;
}

// Three digits that count, with the unit that a person would choose.
function time(ns) {
  const size = Math.abs(ns);
  if (size < 1) return "0";
  for (const [unit, scale] of [["ns", 1], ["µs", 1e3], ["ms", 1e6]]) {
    if (size < 999.5 * scale) return (ns / scale).toFixed(unit === "ns" ? 0 : digits(size / scale)) + " " + unit;
  }
  if (size < 120e9) return (ns / 1e9).toFixed(digits(size / 1e9)) + " s";
  const seconds = Math.round(size / 1e9), sign = ns < 0 ? "-" : "";
  if (seconds < 3600) return sign + Math.floor(seconds / 60) + " min " + (seconds % 60) + " s";
  return sign + Math.floor(seconds / 3600) + " h " + (Math.floor(seconds / 60) % 60) + " min";
}

const digits = (value) => (value < 9.995 ? 2 : value < 99.95 ? 1 : 0);

function size(bytes) {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= scale) return (bytes / scale).toFixed(digits(bytes / scale)) + " " + unit;
  }
  return (Number.isInteger(bytes) ? bytes : bytes.toFixed(digits(bytes))) + " B";
}

// 1,234,567; the browser's own way takes long the first time.
const whole = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const count = (number, noun) => whole(number) + " " + noun + (number === 1 ? "" : "s");

// 0-3, 7 for 0, 1, 2, 3, 7.
function spans(numbers) {
  const runs = [];
  for (const value of [...numbers].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && value === last[1] + 1) last[1] = value;
    else runs.push([value, value]);
  }
  return runs.map(([a, b]) => (a === b ? a : a + (b === a + 1 ? ", " : "-") + b)).join(", ");
}

function ordinal(number) {
  const tail = number % 100 > 10 && number % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][number % 10] || "th";
  return number + tail;
}

// rank 3; ranks 0-6; agent 4711
function people(processes) {
  const ranks = [], others = [];
  for (const index of processes) {
    const one = T.processes[index];
    if (one.rank === null) others.push(one.label);
    else ranks.push(one.rank);
  }
  const words = ranks.length ? [(ranks.length === 1 ? "rank " : "ranks ") + spans(ranks)] : [];
  return [...words, ...others].join(", ");
}

function callName(call) {
  return call.op === "annotate" && call.name ? call.name : call.op;
}

function title(op) {
  const name = callName(T.calls[T.call[op]]);
  return T.seq[op] === NONE ? name : name + " #" + T.seq[op];
}

const shortPath = (path) => path.replace(/^.*\/(?:site|dist)-packages\//, "");
const file = (path) => path.slice(path.lastIndexOf("/") + 1);

// many.py:8
function lineOfProgram(stack) {
  const [frames, mine] = T.stacks[stack];
  return mine < 0 ? "" : file(frames[mine][0]) + ":" + frames[mine][1];
}

// many.py:8 load_batch
function place(stack) {
  const [frames, mine] = T.stacks[stack], name = mine < 0 ? "" : frames[mine][2];
  return lineOfProgram(stack) + (name && name !== "<module>" ? " " + name : "");
}

const bytesOf = (op) => (T.bytes[op] >= 0 ? T.bytes[op] : T.calls[T.call[op]].bytes ?? -1);

// What an operation waited for, in one sentence; empty where it waited for nobody.
function waited(op) {
  const lasts = T.end[op] - T.begin[op], flying = T.open[op] === 1;
  const verb = flying && T.wait[op] >= lasts ? "waiting " : "waited ";
  if (T.ex[op] !== NONE) {
    const missing = absent(T.ex[op]);
    if (missing) return flying ? "waiting " + time(lasts) + " for " + missing : "missing: " + missing;
  }
  if (T.wait[op] <= 0) return "";
  const whom = T.for[op] === NONE ? (T.msg[op] === NONE ? "" : " for the other end")
    : " for " + T.processes[T.for[op]].label;
  return whom ? verb + time(T.wait[op]) + whom : flying ? "in flight for " + time(lasts) : "";
}

// Who has not arrived in a collective: ranks 3 and 4, or how many.
function absent(x) {
  const expected = T.ex_expected[x];
  if (expected === NONE || T.ex_arrived[x] >= expected) return "";
  const call = T.calls[T.call[T.member_op[T.first[x]]]], group = T.groups[call.in];
  const here = new Set(members(x).map((op) => T.processes[T.process[op]].rank));
  const ranks = group && group.ranks ? group.ranks.filter((rank) => !here.has(rank)) : [];
  if (ranks.length !== expected - T.ex_arrived[x]) return count(expected - T.ex_arrived[x], "member");
  return (ranks.length === 1 ? "rank " : "ranks ") + spans(ranks);
}

// arrived 7th of 8; arrived last of 8, 7 others waited up to 149 ms for it
function arrival(op) {
  const x = T.ex[op];
  if (x === NONE) return "";
  const order = members(x), nth = order.indexOf(op) + 1;
  const of = T.ex_expected[x] === NONE ? order.length : T.ex_expected[x];
  if (nth === of && of > 1) {
    const held = order.filter((other) => T.for[other] === T.process[op] && T.wait[other] > 0);
    const longest = time(Math.max(...held.map((other) => T.wait[other])));
    return "arrived last of " + of + (held.length ? ", " + count(held.length, "other") + " waited up to " + longest + " for it" : "");
  }
  return nth === 1 && of > 1 ? "arrived first of " + of : "arrived " + ordinal(nth) + " of " + of;
}

// From the arrival of the last member on: what the exchange itself took, and how fast it was.
function exchange(op) {
  const x = T.ex[op];
  if (x === NONE || absent(x)) return null;
  const last = T.ex_last_begin[x], took = T.ex_end[x] - last;
  if (!(took > 0) || members(x).some((member) => T.open[member])) return null;
  const call = T.calls[T.call[op]], bytes = bytesOf(op);
  return { took, bus: call.bus && bytes > 0 ? (call.bus * bytes) / (took / 1e9) : 0 };
}
