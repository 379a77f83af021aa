// The tables in the place of the timeline: what is in view by operation and by rank, and what the
// whole run was made of.

const STEPS = 40; // of a histogram

function tables(open) {
  G.open = open;
  get("tables").hidden = !open;
  get("view").hidden = get("side").hidden = open;
  get("sums").setAttribute("aria-pressed", open);
  if (!open) resize();
  fillVisible();
  remember();
}

function fillTables() {
  const panel = get("tables"), [from, to] = V.span || [V.from, V.to], found = statistics(from, to, true);
  for (const one of found.ops) one.took.sort((a, b) => a - b);
  const focus = panel.contains(document.activeElement) ? document.activeElement.getAttribute("data-name") : null;
  panel.replaceChildren();
  const top = element("div", undefined, panel, "top");
  element("h2", spanInWords(from, to), top);
  element("p", (F.mask ? "Of what the search finds: " : "") + count(found.calls, "operation") + ". The strip above, the keys and the search choose what is summed up.", top, "dim");
  saver(top, "operations", "operations in view", OPERATION, () => inView(from, to));
  operationGrid(panel, found);
  rankGrid(panel, found.ranks, from, to);
  if (T.run) {
    whatIfGrid(panel, T.run.what_if);
    pathGrid(panel, T.run.path);
  } else element("p", "What the run would have taken otherwise is in disttrace stats: here are too many operations for it.", panel, "dim");
  if (focus) panel.querySelector('[data-name="' + CSS.escape(focus) + '"]')?.focus();
}

function ask(text) {
  get("query").value = text;
  find(text);
}

const quoted = (field, value) => field + ':"' + value + '"';
const atLine = (line) => (line ? quoted("line", file(line) + " ") : ""); // what follows it is the function

// A text that searches when it is clicked, where there is something to search for.
function asker(parent, name, text, query) {
  if (!query) {
    parent.textContent = text;
    return;
  }
  const button = element("button", text, parent, "ask");
  button.type = "button";
  button.title = "Search: " + query;
  button.setAttribute("data-name", name);
  button.addEventListener("click", () => ask(query));
}

// ---- operations, and how long they took

function operationGrid(panel, { ops }) {
  const longest = Math.max(1, ...ops.map(({ took }) => took[took.length - 1]));
  const least = Math.min(longest, ...ops.map(({ took }) => Math.max(took[0], 100)));
  const chosen = ops.find((one) => keyOfSort(one) === G.chosen) || [...ops].sort((a, b) => b.total - a.total)[0];
  const at = (share) => (one) => quantile(one.took, share), told = (value) => (one) => time(value(one));
  const box = grid(panel, { name: "operations", title: "Operations", csv: "by-operation", sort: "total", rows: ops, most: 40,
    note: "totals of all ranks; bandwidth from the last arrival on; durations from " + time(least) + " to " + time(longest),
    columns: [
      { title: "operation", key: "operation", value: (one) => one.name, left: true, fill: (one, cell) => asker(cell, keyOfSort(one), one.name, queryOf(one)) },
      { title: "group", key: "group", value: (one) => one.group, left: true },
      { title: "line", key: "line", value: (one) => one.line, left: true },
      { title: "calls", key: "calls", value: (one) => one.calls, text: (one) => whole(one.calls) },
      { title: "bytes", key: "bytes", value: (one) => one.bytes, text: (one) => (one.bytes ? size(one.bytes) : "") },
      { title: "total", key: "total_ns", value: (one) => one.total, text: told((one) => one.total) },
      { title: "median", key: "median_ns", value: at(0.5), text: told(at(0.5)) },
      { title: "p99", key: "p99_ns", value: at(0.99), text: told(at(0.99)) },
      { title: "max", key: "max_ns", value: at(1), text: told(at(1)) },
      { title: "durations", value: at(0.5), fill: (one, cell) => small(one, cell, least, longest) },
      { title: "waiting", key: "waiting_ns", value: (one) => one.waiting, fill: (one, cell) => shareOf(one.waiting / Math.max(1, one.total), cell) },
      { title: "busbw", key: "busbw", value: speedOf, text: (one) => (speedOf(one) ? size(speedOf(one)) + "/s" : "") },
      { title: "last to arrive", key: "last_to_arrive", value: lastName, left: true },
    ] });
  if (chosen) large(box, chosen);
}

const keyOfSort = ({ name, group, line }) => [name, group, line].join(" ");
const speedOf = (one) => (one.busy > 0 && one.moved > 0 ? one.moved / (one.busy / 1e9) : null);
const queryOf = ({ name, line }) => [quoted("op", "=" + name), atLine(line)].filter(Boolean).join(" ");

// A button that shows the durations of a row below the table.
function small(one, cell, least, longest) {
  const button = element("button", undefined, cell, "hist small"), counts = spread(one.took, least, longest, 24);
  button.type = "button";
  button.setAttribute("data-name", "hist " + keyOfSort(one));
  button.setAttribute("aria-label", "Durations of " + one.name + ", median " + time(quantile(one.took, 0.5)));
  button.setAttribute("aria-pressed", keyOfSort(one) === G.chosen);
  button.addEventListener("click", () => { G.chosen = keyOfSort(one); fillTables(); });
  bars(button, counts, "i");
}

function bars(box, counts, kind) {
  const largest = Math.max(1, ...counts);
  return [...counts].map((number) => {
    const bar = element(kind, undefined, box);
    bar.style.setProperty("--tall", number ? Math.max(4, (100 * number) / largest) + "%" : "0");
    return bar;
  });
}

// The histogram of one sort of operation; a bar finds its operations.
function large(box, one) {
  const low = Math.max(one.took[0], 100), high = Math.max(one.took[one.took.length - 1], low * 1.01);
  const counts = spread(one.took, low, high, STEPS), bound = (n) => low * (high / low) ** (n / STEPS);
  const part = element("div", undefined, box, "durations");
  element("h3", "Durations of " + [one.name, one.group, one.line].filter(Boolean).join(", "), part);
  const plot = element("div", undefined, part, "hist large");
  bars(plot, counts, "button").forEach((bar, n) => {
    const from = bound(n), to = bound(n + 1), text = count(counts[n], "call") + " of " + time(from) + " to " + time(to);
    bar.type = "button";
    bar.title = text;
    bar.setAttribute("aria-label", text);
    bar.disabled = !counts[n];
    bar.addEventListener("click", () => ask(queryOf(one) + " took>" + Math.floor(n ? from : 0) + "ns took<" + Math.ceil(to) + "ns"));
  });
  const scale = element("div", undefined, part, "scale");
  for (const share of [0, 0.25, 0.5, 0.75, 1]) element("span", time(bound(share * STEPS)), scale);
}

// ---- ranks

function rankGrid(panel, found, from, to) {
  const who = T.processes.map((_, n) => n).filter((n) => T.processes[n].rank !== null || found.blocked[n] > 0);
  const alive = (n) => Math.max(0, Math.min(T.processes[n].last, to) - Math.max(T.processes[n].first, from));
  const hidden = (n) => Math.max(0, found.flying[n] - found.holding[n]), hosts = new Set(who.map((n) => T.processes[n].host));
  const sum = (title, key, value, about) => ({ title, key, value, about, text: (n) => time(value(n)) });
  grid(panel, { name: "ranks", title: "Ranks", csv: "by-rank", rows: who, sort: "rank", down: false, most: 64,
    note: "hidden: under way while the rank was not held up by communication",
    columns: [
      { title: "rank", key: "rank", value: order, left: true, fill: (n, cell) => asker(cell, "rank " + n, T.processes[n].label, T.processes[n].rank === null ? quoted("id", T.processes[n].id) : "rank:" + T.processes[n].rank) },
      ...(hosts.size > 1 ? [{ title: "host", key: "host", value: (n) => T.processes[n].host, left: true }] : []),
      sum("communicating", "communicating_ns", (n) => found.blocked[n], "held up by collectives and messages"),
      { title: "share", value: (n) => found.blocked[n] / Math.max(1, alive(n)), fill: (n, cell) => shareOf(found.blocked[n] / Math.max(1, alive(n)), cell) },
      sum("waiting", "waiting_ns", (n) => found.waiting[n], "the part of that before the last one came"),
      sum("made others wait", "made_others_wait_ns", (n) => found.held[n], "what others waited for it, summed"),
      sum("outside", "outside_ns", (n) => Math.max(0, alive(n) - found.blocked[n]), "the rest of its time"),
      sum("under way", "in_flight_ns", (n) => found.flying[n], "the time in which some communication of it was under way"),
      sum("hidden", "overlapped_ns", hidden, "under way while the rank was not held up by it"),
      { title: "overlap", value: (n) => hidden(n) / Math.max(1, found.flying[n]), fill: (n, cell) => shareOf(hidden(n) / Math.max(1, found.flying[n]), cell) },
    ] });
}

// ---- the whole run

function whatIfGrid(panel, { note, rows }) {
  if (!rows.length) return;
  grid(panel, { name: "whatif", title: "What if", note, csv: "what-if", rows, sort: "saved", columns: [
    { title: "without", key: "without", value: (row) => row.text, left: true, fill: (row, cell) => {
      const query = [row.without.rank === null ? "" : "rank:" + row.without.rank, atLine(row.without.line), row.without.host ? quoted("host", row.without.host) : ""].filter(Boolean).join(" ");
      asker(cell, "without " + row.text, row.text, query);
    } },
    { title: "the run takes", key: "wall_ns", value: (row) => row.wall_ns, text: (row) => time(row.wall_ns) },
    { title: "saved", key: "saved_ns", value: (row) => row.saved_ns, text: (row) => time(row.saved_ns) },
    { title: "share", key: "saved_share", value: (row) => row.saved_share, fill: (row, cell) => shareOf(row.saved_share, cell) },
  ] });
}

function pathGrid(panel, { note, rows, rest }) {
  if (!rows.length) return;
  const box = grid(panel, { name: "path", title: "Critical path", note, csv: "critical-path", rows, sort: "time", most: 12, columns: [
    { title: "rank", key: "rank", value: (row) => order(row.process), left: true, text: (row) => T.processes[row.process].label },
    { title: "what", key: "what", value: (row) => row.text, left: true, fill: (row, cell) => {
      const { rank } = T.processes[row.process], query = [rank === null ? "" : "rank:" + rank, atLine(row.line)].filter(Boolean).join(" ");
      asker(cell, "path " + rank + row.text, row.text, query);
    } },
    { title: "time", key: "time_ns", value: (row) => row.time_ns, text: (row) => time(row.time_ns) },
    { title: "share", key: "share", value: (row) => row.share, fill: (row, cell) => shareOf(row.share, cell) },
  ] });
  if (rest) element("p", "and " + time(rest) + " in smaller stretches", box, "dim");
}

// ---- the operations themselves, for CSV

const wallclock = (ns) => String(BigInt(T.start_ns) + BigInt(Math.round(ns)));
const OPERATION = [
  { key: "id", value: idOf },
  { key: "rank", value: (op) => T.processes[T.process[op]].rank },
  { key: "process", value: (op) => T.processes[T.process[op]].label },
  { key: "host", value: (op) => T.processes[T.process[op]].host },
  { key: "op", value: (op) => callName(T.calls[T.call[op]]) },
  { key: "group", value: (op) => T.groups[T.calls[T.call[op]].in]?.label },
  { key: "seq", value: (op) => (T.seq[op] === NONE ? null : T.seq[op]) },
  { key: "begin_ns", value: (op) => wallclock(T.begin[op]) },
  { key: "duration_ns", value: (op) => T.end[op] - T.begin[op] },
  { key: "waiting_ns", value: (op) => T.wait[op] },
  { key: "waited_for", value: (op) => (T.for[op] === NONE ? null : T.processes[T.for[op]].label) },
  { key: "bytes", value: (op) => (bytesOf(op) < 0 ? null : bytesOf(op)) },
  { key: "status", value: (op) => STATUS[T.open[op]] },
  { key: "line", value: (op) => place(T.calls[T.call[op]].stack) },
];

function inView(from, to) {
  const found = [];
  for (let op = 0; op < T.n; op += 1) {
    if (T.end[op] >= from && T.begin[op] <= to && (!F.mask || F.mask[op])) found.push(op);
  }
  return found;
}
