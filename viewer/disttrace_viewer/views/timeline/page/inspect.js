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
  panel.classList.toggle("idle", V.op < 0 && !V.gap && !V.span);
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
    if (value === undefined || value === null || value === "") return null;
    element("dt", name, made);
    return element("dd", typeof value === "object" ? JSON.stringify(value) : String(value), made, kind);
  };
}

// Each frame, and below it what stands there, where the page has it.
function stackRow(row, name, stack) {
  const lines = row(name, " ", "code");
  lines.textContent = "";
  for (const [path, line, name_, text] of T.stacks[stack][0]) {
    element("div", shortPath(path) + ":" + line + " " + name_, lines).title = path;
    if (text) element("div", text, lines, "source");
  }
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
    if (!["op", "name", "kind", "group", "stack", "in", "bus", "bytes", "async", "unseen"].includes(name)) row(name, value);
  }
  row("async", call.async ? "yes" : null);
  stackRow(row, "called from", call.stack);
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
  const row = list(panel), gaps = gapsOf(gap.process);
  if (gap.stack >= 0) {
    row("sampled at", place(gap.stack), "code");
    stackRow(row, "stack", gap.stack);
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

function fillVisible() {
  if (G.open) { fillTables(); return; }
  const panel = get("visible"), [from, to] = V.span || [V.from, V.to];
  const found = statistics(from, to), { waiting, held } = found.ranks;
  panel.replaceChildren();
  element("h2", spanInWords(from, to), panel);
  if (F.mask) element("p", "Of what the search finds:", panel, "dim");
  const share = found.total ? Math.round((100 * found.waiting) / found.total) : 0;
  element("p", count(found.calls, "operation") + ", " + time(found.total) + " in them over all ranks, " + share + "\u00a0% of it waiting.", panel, "lead");
  const bar = element("div", undefined, panel, "bar");
  for (const part of [share, found.total ? 100 - share : 0]) element("i", "", bar).style.width = part + "%";
  grid(panel, { name: "where", title: "Where time goes", level: "h3", most: 8, sort: "total", rows: found.ops, columns: [
    { title: "operation", value: sortName, text: shortName, left: true, tip: (one) => sortName(one) + ": " + time(one.total) },
    { title: "calls", value: (one) => one.calls, text: (one) => whole(one.calls) },
    { title: "waiting", value: (one) => one.waiting, text: (one) => time(one.waiting) },
    { title: "last to arrive", value: lastTimes, text: lastName },
    { key: "total", value: (one) => one.total },
  ] });
  const who = T.processes.map((_, n) => n).filter((n) => held[n] > 0 || waiting[n] > 0);
  if (!who.length) return;
  grid(panel, { name: "who", title: "Who waited, and for whom", level: "h3", most: 8, sort: "made others wait", rows: who, columns: [
    { title: "rank", value: order, text: (n) => T.processes[n].label, left: true },
    { title: "waited", value: (n) => waiting[n], text: (n) => time(waiting[n]) },
    { title: "made others wait", value: (n) => held[n], text: (n) => time(held[n]) },
  ] });
}

const spanInWords = (from, to) => (V.span ? "In the measured " : "In view, ") + time(to - from);
const sortName = ({ name, group }) => name + (group && group !== "the default group" ? ", " + group : "");
// Without its middle: rows of one operation differ in their groups, which stand at the end.
function shortName(one) {
  const name = sortName(one).replace(", group [", " [");
  return name.length > 17 ? name.slice(0, 8) + "…" + name.slice(-8) : name;
}
const most = (last) => [...last].sort((a, b) => b[1] - a[1])[0];
const lastTimes = ({ last }) => (last.size ? most(last)[1] : 0);
const lastName = ({ last }) => (last.size ? T.processes[most(last)[0]].label + " ×" + whole(most(last)[1]) : "");
const order = (process) => T.processes[process].rank ?? 1e9 + process;
