// The trace: unpacked from the page (see content.py), as typed arrays. Times are nanoseconds.

const NONE = 0xffffffff;
const T = {};

async function unpack(text) {
  const letters = atob(text.trim());
  const packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const size = new Uint32Array(buffer, 0, 1)[0];
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const column = {};
  let at = 4 + size;
  for (const { name, rows, wide, delta } of head.columns) {
    const low = new Uint32Array(buffer, at, rows);
    at += 4 * rows;
    if (!wide) {
      column[name] = low;
      if (delta) for (let i = 1; i < rows; i += 1) low[i] += low[i - 1];
      continue;
    }
    const high = new Int32Array(buffer, at, rows);
    at += 4 * rows;
    const both = column[name] = new Float64Array(rows);
    let before = 0;
    for (let i = 0; i < rows; i += 1) {
      both[i] = high[i] * 4294967296 + low[i] + (delta ? before : 0);
      before = both[i];
    }
  }
  Object.assign(T, head, column);
  complete();
}

// What follows from the columns: ends of what is in flight, waiting, members of collectives.
function complete() {
  const n = T.n = T.begin.length;
  T.open = new Uint8Array(n); // 0: over, 1: in flight, 2: ended in an error
  T.wait = new Float64Array(n); // so long it waited for another process, from its begin on
  T.over = T.end; // after its begin; -1: no end
  T.end = new Float64Array(n);
  T.ex = new Uint32Array(n).fill(NONE);
  T.msg = new Uint32Array(n).fill(NONE);
  for (let i = 0; i < n; i += 1) {
    const failed = T.error[i] !== NONE, begin = T.begin[i];
    T.open[i] = failed ? 2 : T.over[i] < 0 ? 1 : 0;
    // In flight: until the last sign of life of its process.
    T.end[i] = T.over[i] >= 0 ? begin + T.over[i]
      : failed ? begin + Math.max(0, T.issued[i])
        : Math.max(begin, T.processes[T.process[i]].last);
    const lasts = T.end[i] - begin;
    T.wait[i] = T.until[i] < 0 ? lasts : Math.min(T.until[i], lasts);
  }
  const collectives = T.ex_expected.length;
  T.first = new Uint32Array(collectives + 1); // members of a collective: first[x] to first[x + 1]
  for (let m = 0; m < T.member_ex.length; m += 1) T.first[T.member_ex[m] + 1] += 1;
  for (let x = 0; x < collectives; x += 1) T.first[x + 1] += T.first[x];
  T.ex_begin = new Float64Array(collectives).fill(Infinity);
  T.ex_end = new Float64Array(collectives);
  for (let m = 0; m < T.member_ex.length; m += 1) {
    const op = T.member_op[m], x = T.member_ex[m];
    T.ex[op] = x;
    T.ex_begin[x] = Math.min(T.ex_begin[x], T.begin[op]);
    T.ex_end[x] = Math.max(T.ex_end[x], T.end[op]);
  }
  for (let m = 0; m < T.msg_send.length; m += 1) T.msg[T.msg_send[m]] = T.msg[T.msg_recv[m]] = m;
  T.span = Math.max(1, T.end.reduce((most, end) => Math.max(most, end), T.end.length ? 0 : 1));
  for (const one of T.processes) T.span = Math.max(T.span, one.last);
}

// Members of a collective, in the order in which they arrived.
const members = (x) => Array.from(T.member_op.subarray(T.first[x], T.first[x + 1]))
  .sort((a, b) => T.begin[a] - T.begin[b] || T.process[a] - T.process[b]);

const idOf = (op) => T.processes[T.process[op]].id + "." + T.number[op];

function withId(id) {
  const dot = id.lastIndexOf("."), number = Number(id.slice(dot + 1));
  const process = T.processes.findIndex((one) => one.id === id.slice(0, dot));
  for (let i = 0; process >= 0 && i < T.n; i += 1) {
    if (T.process[i] === process && T.number[i] === number) return i;
  }
  return -1;
}

// The first place in sorted numbers that is not below a value.
function lower(values, value, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] < value) from = middle + 1;
    else to = middle;
  }
  return from;
}
