// The page around the timeline: what stands on it at first, and what keys and pointers do.

const HELP = [
  ["W S, + −, wheel", "zoom in and out"],
  ["A D, Shift ← →, drag", "move in time"],
  ["← →", "the operation before or after in the lane"],
  ["↑ ↓", "the same collective in the lane above or below"],
  ["F", "zoom to what is selected or measured"],
  ["Home, 0", "the whole trace; twice: with the start-up of processes"],
  ["/", "search; Enter and N, P: next and previous match"],
  ["X", "show only what matches"],
  ["M, Shift drag", "measure what is selected, or from one point to another"],
  ["1 … 9", "go to a finding"],
  ["K, click on a rank", "keep the lane on top, or let it go"],
  ["G", "fold lanes that do the same, or unfold them"],
  ["R", "arrows and bands on or off"],
  ["V", "tables of what is in view, and of the whole run; or the timeline again"],
  ["T", "light, dark, or as the system"],
  ["Esc", "let go: of the measure, the selection, the search"],
];
const FIELDS = "op: op:=all_reduce group: rank:0-3 key: line: kind: status:in_flight host: seq: id: waited>10ms took>1s bytes>1mb #6";

function fill() {
  const ranks = T.processes.filter((one) => one.rank !== null).length, others = T.processes.length - ranks;
  get("counts").textContent = [ranks ? count(ranks, "rank") : "", others ? count(others, ranks ? "other process" : "process").replace("processs", "processes") : "",
    count(T.total, "operation"), time(T.span)].filter(Boolean).join(", ");
  if (T.n < T.total) {
    get("part").hidden = false;
    get("part").textContent = "This page shows only the last " + whole(T.n) + " of " + whole(T.total)
      + " operations, with all that are in flight. The whole trace: disttrace export --format perfetto.";
  }
  const all = get("findings").firstElementChild;
  T.findings.forEach((one, number) => {
    const item = element("li", undefined, all, one.severity), button = element("button", undefined, item);
    button.type = "button";
    element("span", one.severity + (one.certainty === "likely" ? ", likely" : ""), button, "tag");
    element("span", one.summary, button);
    const follows = one.consequences.slice(0, 3).map((text) => "It follows: " + text);
    if (one.consequences.length > 3) follows.push("and " + (one.consequences.length - 3) + " more that follow, which disttrace diagnose lists.");
    const doubt = one.because.length ? "Likely only, because " + one.because.join("; ") + "." : "";
    for (const text of [doubt, one.hint, ...follows]) if (text) element("span", text, button, "more");
    button.addEventListener("click", () => showFinding(number));
  });
  if (!T.findings.length) element("li", "Nothing wrong was found.", all, "healthy");
  for (const { at, summary } of T.said) {
    element("li", "Said by the job itself at " + new Date(1000 * at).toLocaleTimeString("en", { hourCycle: "h23" }) + ": " + summary, all, "said");
  }
  const legend = get("legend"), mark = (text, ...patches) => {
    const item = element("span", undefined, legend);
    for (const [name, opacity] of patches) {
      Object.assign(element("i", "", item).style, { background: "var(--" + name + ")", opacity });
    }
    item.append(text);
  };
  mark("waiting, then exchange", ["collective", PALE], ["collective", 1]);
  for (const kind of KINDS.slice(0, 5)) mark(kind === "composed" ? "composite or annotation" : kind, [kind, 1]);
  mark("not in any call; sampled line", ["idle", 1]);
  const keys = get("keys");
  element("h2", "Keys", keys);
  const row = list(keys);
  for (const [key, text] of HELP) row(key, text);
  element("h3", "In the search box, words that must all hold", keys);
  element("p", FIELDS, keys, "code");
  const close = element("button", "Close", keys);
  close.type = "button";
  close.addEventListener("click", () => keys.close());
}

// ---- keys: they work without clicking first

let start = false; // the whole trace with the start-up is in view
const ACTIONS = {
  w: () => zoom(0.6, middle()), s: () => zoom(1 / 0.6, middle()), "+": () => zoom(0.6, middle()), "=": () => zoom(0.6, middle()), "-": () => zoom(1 / 0.6, middle()),
  a: () => pan(-0.2), d: () => pan(0.2),
  ArrowLeft: (event) => (V.op >= 0 && !event.shiftKey ? beside(-1) : pan(-0.2)),
  ArrowRight: (event) => (V.op >= 0 && !event.shiftKey ? beside(1) : pan(0.2)),
  ArrowUp: () => across(-1), ArrowDown: () => across(1),
  PageUp: () => { get("view").scrollTop -= height * 0.8; }, PageDown: () => { get("view").scrollTop += height * 0.8; },
  f: zoomToSelection, Home: wholeTrace, 0: wholeTrace,
  "/": () => { get("query").focus(); get("query").select(); },
  n: () => match(1), p: () => match(-1), x: () => filter(!F.only), m: measureSelected,
  k: pinSelected, g: foldAll, v: () => tables(!G.open), r: arrows, t: theme, "?": () => get("keys").showModal(),
  Escape: letGo,
};

function wholeTrace() {
  start = !start && V.from <= interesting()[0] && V.to >= interesting()[1];
  if (start) everything();
  else home();
}

function measureSelected() {
  if (V.span) measure();
  else if (V.op >= 0) measure(T.begin[V.op], T.end[V.op]);
  else if (V.gap) measure(V.gap.begin, V.gap.end);
  else measure(V.from + (V.to - V.from) / 4, V.to - (V.to - V.from) / 4);
}

function pinSelected() {
  const process = V.op >= 0 ? T.process[V.op] : V.gap ? V.gap.process : -1;
  if (process < 0) return;
  pin(process);
  resize();
  get("view").scrollTop = 0;
}

function letGo() {
  if (V.span) measure();
  else if (V.op >= 0 || V.gap) choose(-1, false);
  else if (F.mask) { get("query").value = ""; find(""); }
  showTip(null, []);
}

function foldAll() {
  L.fold = !L.fold;
  L.unfolded.clear();
  layout();
  get("fold").setAttribute("aria-pressed", L.fold);
  resize();
}

function arrows() {
  V.arrows = !V.arrows;
  get("arrows").setAttribute("aria-pressed", V.arrows);
  redraw();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function theme() {
  const next = { system: "light", light: "dark", dark: "system" }[store() || "system"];
  store(next);
  paintTheme();
}

function store(value) {
  try {
    if (value) localStorage.setItem("disttrace-theme", value);
    return localStorage.getItem("disttrace-theme") || "system";
  } catch {
    if (value) store.kept = value;
    return store.kept || "system";
  }
}

function paintTheme() {
  const wanted = store();
  get("theme").textContent = "Theme: " + wanted;
  paintAs(wanted === "system" ? (dark.matches ? "dark" : "light") : wanted);
  redraw();
}

function paintAs(name) {
  document.documentElement.dataset.theme = name;
  colors();
}

// All lanes instead of those in sight.
function onPaper(on) {
  printed = on;
  resize();
}

function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || get("keys").open) return;
    if (event.target === get("query")) {
      if (event.key === "Escape") { get("query").blur(); canvas.focus(); }
      if (event.key === "Enter") match(event.shiftKey ? -1 : 1);
      return;
    }
    const finding = Number(event.key);
    const act = ACTIONS[event.key] || ACTIONS[event.key.toLowerCase()] || (finding && T.findings[finding - 1] ? () => showFinding(finding - 1) : null);
    if (!act) return;
    event.preventDefault();
    act(event);
  });
  get("query").addEventListener("input", () => find(get("query").value));
  for (const [id, act] of Object.entries({ previous: () => match(-1), next: () => match(1), only: () => filter(!F.only),
    all: wholeTrace, fold: foldAll, arrows, sums: () => tables(!G.open), theme, help: () => get("keys").showModal() })) get(id).addEventListener("click", act);
  pointer();
  mapPointer();
  get("view").addEventListener("scroll", redraw);
  new ResizeObserver(resize).observe(get("view"));
  dark.addEventListener("change", paintTheme);
  addEventListener("beforeprint", () => { paintAs("light"); onPaper(true); draw(); });
  addEventListener("afterprint", () => { onPaper(false); paintTheme(); });
  addEventListener("hashchange", recall);
}

function pointer() {
  let held = null, moved = false;
  canvas.addEventListener("wheel", (event) => {
    if (event.shiftKey) return; // scrolls the lanes
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / width);
    else zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.25, Math.abs(event.deltaY) / 300)), moment(event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.offsetX, y: event.offsetY, measure: event.shiftKey ? moment(event.offsetX) : null };
    moved = false;
    canvas.setPointerCapture(event.pointerId);
    showTip(event, []);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held === null) { hover(event); return; }
    if (!moved && Math.hypot(event.offsetX - held.x, event.offsetY - held.y) < 3) return;
    moved = true;
    if (held.measure !== null) { measure(held.measure, moment(event.offsetX)); return; }
    const by = ((held.x - event.offsetX) / Math.max(1, width - LABEL)) * (V.to - V.from);
    get("view").scrollTop += held.y - event.offsetY;
    Object.assign(held, { x: event.offsetX, y: event.offsetY });
    look(V.from + by, V.to + by);
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = held && !moved;
    held = null;
    if (clicked) click(event);
  });
  canvas.addEventListener("pointerleave", () => { V.hover = -1; get("tip").hidden = true; redraw(); });
  canvas.addEventListener("dblclick", zoomToSelection);
}

function hover(event) {
  const found = under(event.offsetX, event.offsetY), op = found.op ?? -1;
  canvas.style.cursor = op >= 0 || found.gap || found.label ? "pointer" : "default";
  if (op >= 0) showTip(event, told(op));
  else if (found.gap) showTip(event, toldGap(found.gap));
  else if (found.label) showTip(event, toldLane(found.lane));
  else showTip(event, []);
  if (op !== V.hover) { V.hover = op; redraw(); }
}

function toldLane(lane) {
  const one = T.processes[lane.process], hosts = new Set(lane.processes.map((index) => T.processes[index].host));
  return [
    [people(lane.processes)],
    [lane.folded ? lane.processes.length + " that did the same; shown is " + one.label + ". Click to unfold." : whereabouts(lane.process), "say"],
    [(hosts.size === 1 ? one.host : count(hosts.size, "host")) + (lane.folded ? "" : ", pid " + one.pid) + ", " + one.word, "dim"],
  ];
}

function click(event) {
  const found = under(event.offsetX, event.offsetY);
  if (found.label && found.lane.foldable) {
    toggle(found.lane);
    resize();
  } else if (found.label) {
    pin(found.lane.process);
    resize();
  } else if (found.op !== undefined) choose(found.op, false);
  else if (found.gap) chooseGap(found.gap, false);
  else choose(-1, false);
}

function mapPointer() {
  let held = false;
  const go = (event) => { const half = (V.to - V.from) / 2, at = mapTime(event.offsetX); look(at - half, at + half); };
  map.addEventListener("pointerdown", (event) => { held = true; map.setPointerCapture(event.pointerId); go(event); });
  map.addEventListener("pointermove", (event) => { if (held) go(event); });
  map.addEventListener("pointerup", () => { held = false; });
}

// For tests and for the curious: where an operation is drawn, and how long drawing took.
const disttrace = { T, V, F, L, timing, draw, whereIs: (id) => {
  const op = withId(id), box = canvas.getBoundingClientRect();
  return { x: box.left + (Math.max(x(T.begin[op]), LABEL) + Math.min(x(T.end[op]), width)) / 2, y: box.top + yOfOp(op) - shift + BAR / 2 };
} };

unpack(get("trace").textContent).then(() => {
  get("trace").remove();
  window.disttrace = disttrace;
  stack();
  T.rows = new Rows(null);
  T.tracksOf = tracksOf();
  layout();
  fill();
  paintTheme();
  listen();
  resize();
  home();
  showDetail();
  recall();
  draw();
  Object.assign(document.body.dataset, { ready: "yes", collectives: T.ex_expected.length, messages: T.msg_send.length });
  timing.ready = performance.now();
}).catch((error) => {
  get("part").hidden = false;
  get("part").textContent = "This page could not be shown: " + error.message;
  throw error;
});
