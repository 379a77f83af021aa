// What is told of an operation, of a time outside communication, and of all that is in view.

// ---- the tooltip

function showTip(event, lines) {
  const box = get("tip");
  box.hidden = !lines.length;
  if (!lines.length) return;
  box.replaceChildren();
  lines.forEach(([text, kind], n) => element(n ? "div" : "b", text, box, kind));
  const { offsetWidth: wide, offsetHeight: tall } = box, room = 14;
  const left = event.clientX + room + wide > innerWidth ? event.clientX - wide - room : event.clientX + room;
  const top = event.clientY + room + tall > innerHeight ? event.clientY - tall - room : event.clientY + room;
  box.style.left = Math.max(4, left) + "px";
  box.style.top = Math.max(4, top) + "px";
}

function told(op) {
  const call = T.calls[T.call[op]], lasts = T.end[op] - T.begin[op], found = exchange(op), bytes = bytesOf(op);
  const over = T.open[op] === 1 ? "in flight for " + time(lasts) : time(lasts);
  const group = T.groups[call.in] ? T.groups[call.in].label : "", key = keyOf(op);
  return [
    [title(op) + ", " + T.processes[T.process[op]].label],
    [[waited(op), arrival(op)].filter(Boolean).join("; "), "say"],
    [[over, found ? "exchange " + time(found.took) : "", found && found.bus ? size(found.bus) + "/s bus" : ""].filter(Boolean).join(", ")],
    [[group, bytes >= 0 ? size(bytes) : "", peerOf(call), key].filter(Boolean).join(", "), "dim"],
    [T.error[op] === NONE ? "" : T.errors[T.error[op]].slice(0, 200), "lead bad"],
    [place(call.stack), "code"],
  ].filter(([text]) => text);
}

const peerOf = (call) => (call.peer === undefined ? "" : (call.op === "send" ? "to rank " : "from rank ") + call.peer);

function toldGap(gap) {
  return [
    [T.processes[gap.process].label + " is not in any collective, message or store call"],
    [time(gap.end - gap.begin) + (gap.end >= T.processes[gap.process].last ? ", until its last sign of life" : ""), "say"],
    [gap.stack >= 0 ? "at " + place(gap.stack) : "no stack sample in this time", gap.stack >= 0 ? "code" : "dim"],
  ];
}

// ---- the panel of the selection

function showDetail() {
  const panel = get("detail");
  panel.replaceChildren();
  if (V.op >= 0) operationDetail(panel, V.op);
  else if (V.gap) gapDetail(panel, V.gap);
  else if (V.span) element("h2", time(V.span[1] - V.span[0]) + " measured", panel);
  else {
    element("h2", "Nothing is selected", panel);
    element("p", "Click a bar or a finding. The wheel zooms, dragging moves, Shift and dragging measures; press ? for the keys.", panel, "dim");
  }
}

function list(panel) {
  const made = element("dl", undefined, panel);
  return (name, value, kind) => {
    if (value === undefined || value === null || value === "") return;
    element("dt", name, made);
    element("dd", typeof value === "object" ? JSON.stringify(value) : String(value), made, kind);
  };
}

function operationDetail(panel, op) {
  const call = T.calls[T.call[op]], one = T.processes[T.process[op]], lasts = T.end[op] - T.begin[op];
  const found = exchange(op), group = T.groups[call.in];
  element("h2", title(op), panel);
  element("p", one.label + ", " + T.tracks[T.track[op]].name, panel, "dim");
  const say = [waited(op), arrival(op)].filter(Boolean).join("; ");
  if (say) element("p", say[0].toUpperCase() + say.slice(1) + ".", panel, "lead" + (T.open[op] ? " bad" : ""));
  if (lasts > 0 && T.ex[op] !== NONE) {
    const bar = element("div", undefined, panel, "bar");
    bar.title = "waiting, then exchange";
    for (const part of [T.wait[op], lasts - T.wait[op]]) element("i", "", bar).style.width = (100 * part) / lasts + "%";
  }
  const row = list(panel), after = (value) => (value >= 0 ? time(value) : null);
  row("status", ["ok", "in flight: it has no end", "error"][T.open[op]]);
  row("error", T.error[op] === NONE ? null : T.errors[T.error[op]], "code");
  row("duration", T.open[op] === 1 ? "at least " + time(lasts) : time(lasts));
  row("waiting", T.wait[op] > 0 ? time(T.wait[op]) + " (" + Math.round((100 * T.wait[op]) / Math.max(lasts, 1)) + " %)" : null);
  row("exchange", found && time(found.took));
  row("bus bandwidth", found && found.bus ? size(found.bus) + "/s" : null);
  row("begin", "+" + (T.begin[op] / 1e9).toFixed(6) + " s");
  row("time of day", new Date(Number(BigInt(T.start_ns) / 1000000n) + T.begin[op] / 1e6).toISOString());
  // Of a call that does not return before it is over, these say nothing.
  if (call.async) {
    row("call returned after", after(T.issued[op]));
    row("waited for after", after(T.wait_begin[op]));
    row("complete after", after(T.complete[op]));
  }
  row("group", group && group.label);
  row("group ranks", group && group.ranks ? spans(group.ranks) : null);
  row("size", bytesOf(op) >= 0 ? size(bytesOf(op)) : null);
  row("key", keyOf(op), "code");
  for (const [name, value] of Object.entries(call)) {
    if (!["op", "name", "kind", "group", "stack", "in", "bus", "bytes", "async"].includes(name)) row(name, value);
  }
  row("async", call.async ? "yes" : null);
  row("called from", T.stacks[call.stack][0].map(([path, line, name]) => path + ":" + line + " " + name).join("\n"), "code");
  row("host, pid", one.host + ", " + one.pid);
  row("id", idOf(op), "code");
  if (T.ex[op] !== NONE) memberTable(panel, op);
}

// Everybody in the collective, in the order of arrival: the first, the last, and who is selected.
function memberTable(panel, op) {
  const order = members(T.ex[op]), first = T.begin[order[0]], most = 10;
  element("h3", "Order of arrival", panel);
  const table = element("table", undefined, panel), head = element("tr", undefined, element("thead", undefined, table));
  for (const name of ["", "after the first", "waited"]) element("th", name, head);
  const body = element("tbody", undefined, table);
  order.forEach((member, n) => {
    if (order.length > most && n >= 4 && n < order.length - 4 && member !== op) {
      if (n === 4) element("td", "… " + (order.length - 8) + " more", element("tr", undefined, body), "dim").colSpan = 3;
      return;
    }
    const line = element("tr", undefined, body);
    const button = element("button", T.processes[T.process[member]].label, element("td", undefined, line));
    button.type = "button";
    button.addEventListener("click", () => choose(member, true));
    element("td", "+" + time(T.begin[member] - first), line);
    element("td", T.wait[member] > 0 ? time(T.wait[member]) : "", line);
  });
}

function gapDetail(panel, gap) {
  const one = T.processes[gap.process];
  element("h2", one.label + ", outside communication", panel);
  element("p", "Not in any collective, message or store call for " + time(gap.end - gap.begin) + ".", panel, "lead");
  const row = list(panel), gaps = T.gaps[gap.process];
  if (gap.stack >= 0) {
    row("sampled at", place(gap.stack), "code");
    row("stack", T.stacks[gap.stack][0].map(([path, line, name]) => path + ":" + line + " " + name).join("\n"), "code");
  } else row("sampled at", "no stack sample in this time");
  row("begin", "+" + (gap.begin / 1e9).toFixed(6) + " s");
  row("share", gaps ? Math.round((100 * gaps.end.reduce((sum, end, n) => sum + end - gaps.begin[n], 0)) / Math.max(one.last, 1)) + " % of its time is outside communication" : null);
  row("host, pid", one.host + ", " + one.pid);
  row("state", one.word);
}

// ---- statistics of what is in view, or of the measured span

let summing = 0;
function showVisible() {
  clearTimeout(summing);
  summing = setTimeout(fillVisible, 60);
}

// Calls that are summed up together: of one operation, in groups of one kind. -1: in no sum.
function sorts() {
  const known = new Map();
  T.sort = T.calls.map((call) => {
    if (call.kind === "composed" || call.kind === "constructor") return -1;
    const group = T.groups[call.in], key = callName(call) + (group ? "\n" + (group.kind || group.label) : "");
    if (!known.has(key)) known.set(key, known.size);
    return known.get(key);
  });
  T.sorts = [...known.keys()];
}

function statistics(from, to) {
  if (!T.sort) sorts();
  const ops = T.sorts.map((key) => ({ key, calls: 0, total: 0, waiting: 0, last: new Map() }));
  const waitedBy = new Float64Array(T.processes.length), held = new Float64Array(T.processes.length);
  for (let op = 0; op < T.n; op += 1) {
    const begin = T.begin[op], end = T.end[op], sort = T.sort[T.call[op]];
    if (sort < 0 || end < from || begin > to || (F.mask && !F.mask[op])) continue;
    const one = ops[sort], start = Math.max(begin, from);
    const wait = Math.max(0, Math.min(begin + T.wait[op], to) - start);
    one.calls += 1;
    one.total += Math.min(end, to) - start;
    one.waiting += wait;
    waitedBy[T.process[op]] += wait;
    if (T.for[op] !== NONE) held[T.for[op]] += wait;
    const x = T.ex[op];
    if (x !== NONE && T.ex_last[x] === T.process[op] && T.ex_arrived[x] >= T.ex_expected[x]) {
      one.last.set(T.process[op], (one.last.get(T.process[op]) || 0) + 1);
    }
  }
  const sum = (name) => ops.reduce((all, one) => all + one[name], 0);
  return { ops: ops.filter((one) => one.calls), waitedBy, held, calls: sum("calls"), total: sum("total"), waiting: sum("waiting") };
}

function fillVisible() {
  const panel = get("visible"), [from, to] = V.span || [V.from, V.to];
  const found = statistics(from, to);
  panel.replaceChildren();
  element("h2", V.span ? "In the measured " + time(to - from) : "In view, " + time(to - from), panel);
  if (F.mask) element("p", "Of what the search finds:", panel, "dim");
  const share = found.total ? Math.round((100 * found.waiting) / found.total) : 0;
  element("p", count(found.calls, "operation") + ", " + time(found.total) + " in them over all ranks, " + share + " % of it waiting.", panel, "lead");
  const bar = element("div", undefined, panel, "bar");
  for (const part of [share, found.total ? 100 - share : 0]) element("i", "", bar).style.width = part + "%";
  const table = (title, names) => {
    const made = element("table", undefined, panel), head = element("tr", undefined, element("thead", undefined, made));
    for (const name of [title, ...names]) element("th", name, head);
    const body = element("tbody", undefined, made);
    return (cells) => { const line = element("tr", undefined, body); cells.forEach((cell) => element("td", cell, line)); return line; };
  };
  element("h3", "Where time goes", panel);
  const op = table("operation", ["calls", "waiting", "last to arrive"]);
  found.ops.sort((a, b) => b.total - a.total).slice(0, 8).forEach((one) => {
    const { key } = one;
    const last = [...one.last].sort((a, b) => b[1] - a[1])[0];
    const line = op([key.replace("\nthe default group", "").replace("\n", ", "), one.calls.toLocaleString("en"), time(one.waiting),
      last ? T.processes[last[0]].label + " ×" + last[1] : ""]);
    line.title = key.replace("\n", ", ") + ": " + time(one.total);
  });
  const held = T.processes.map((_, n) => n).filter((n) => found.held[n] > 0 || found.waitedBy[n] > 0)
    .sort((a, b) => found.held[b] - found.held[a] || found.waitedBy[b] - found.waitedBy[a]);
  if (!held.length) return;
  element("h3", "Who waited, and for whom", panel);
  const rank = table("", ["waited", "made others wait"]);
  held.slice(0, 8).forEach((n) => rank([T.processes[n].label, time(found.waitedBy[n]), time(found.held[n])]));
  if (held.length > 8) element("p", "and " + (held.length - 8) + " more", panel, "dim");
}
