// Tables that sort by a click on a heading, show so many rows, and are saved as CSV.

const G = { open: false, sort: new Map(), whole: new Set() }; // by names of tables

// columns: { title, key (its name in CSV; without a title it is only there), value(row), text(row),
// left, fill(row, cell), tip(row) }; rows are sorted at first by the column of a title or key.
function grid(parent, { name, title, note, level = "h2", columns, rows, sort, down = true, most = 100, csv }) {
  const box = element("section", undefined, parent, "grid"), top = element("div", undefined, box, "top");
  const heading = element(level, title, top);
  heading.id = "of-" + name;
  if (note) element("p", note, top, "dim");
  if (csv) saver(top, csv, title, columns, rows);
  const shown = columns.filter((one) => one.title), made = element("table", undefined, box);
  made.setAttribute("aria-labelledby", heading.id);
  const head = element("tr", undefined, element("thead", undefined, made)), body = element("tbody", undefined, made);
  const heads = shown.map((one) => {
    const cell = element("th", undefined, head, one.left ? "left" : ""), button = element("button", one.title, cell);
    cell.scope = "col";
    button.type = "button";
    cell.dataset.head = one.title;
    if (one.about) button.title = one.about;
    button.addEventListener("click", () => {
      const now = G.sort.get(name);
      G.sort.set(name, { by: one.title, down: now.by === one.title ? !now.down : !one.left });
      fillBody();
    });
    return cell;
  });
  if (!G.sort.has(name)) G.sort.set(name, { by: sort, down });
  const more = element("p", undefined, box, "more");
  function fillBody() {
    const { by, down } = G.sort.get(name), column = columns.find((one) => (one.title || one.key) === by);
    shown.forEach((one, n) => {
      if (one.title === by) heads[n].setAttribute("aria-sort", down ? "descending" : "ascending");
      else heads[n].removeAttribute("aria-sort");
    });
    const all = sorted(rows, column, down), limit = G.whole.has(name) ? all.length : most;
    body.replaceChildren(...all.slice(0, limit).map((row) => gridRow(shown, row)));
    more.replaceChildren();
    if (all.length <= most) return;
    const button = element("button", limit < all.length ? "Show " + count(all.length - limit, "more row") : "Show fewer", more);
    button.type = "button";
    if (limit < all.length) button.dataset.left = count(all.length - limit, "more row");
    button.addEventListener("click", () => { if (!G.whole.delete(name)) G.whole.add(name); fillBody(); });
  }
  fillBody();
  return box;
}

function sorted(rows, column, down) {
  if (!column) return rows;
  const keyed = rows.map((row, n) => [column.value(row), n, row]);
  keyed.sort(([a, n], [b, m]) => {
    const less = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : (a ?? -1) - (b ?? -1);
    return (down ? -less : less) || n - m;
  });
  return keyed.map(([, , row]) => row);
}

function gridRow(columns, row) {
  const line = document.createElement("tr");
  for (const one of columns) {
    const cell = element("td", one.fill ? undefined : String((one.text || one.value)(row) ?? ""), line, one.left ? "left" : "");
    if (one.fill) one.fill(row, cell);
    if (one.tip) cell.title = one.tip(row);
  }
  return line;
}

// A bar that stands for a share, beside its number.
function shareOf(share, cell) {
  cell.classList.add("share");
  const bar = element("span", undefined, cell);
  bar.setAttribute("aria-hidden", "true");
  element("i", "", bar).style.width = 100 * Math.min(1, share) + "%";
  element("b", (100 * share).toFixed(share && share < 0.0995 ? 1 : 0) + " %", cell);
}

// ---- CSV, as RFC 4180 has it

// What a spreadsheet would take for a formula is none: names come from programs.
function cellOf(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

const csvOf = (columns, rows) => [columns.map((one) => one.key || one.title), ...rows.map((row) => columns.map((one) => one.value(row)))]
  .map((cells) => cells.map(cellOf).join(",") + "\r\n");

function saver(parent, name, what, columns, rows) {
  const button = element("button", "CSV", parent, "save");
  button.type = "button";
  button.title = "Save as a table for other programs";
  button.setAttribute("aria-label", "Save as CSV: " + what);
  button.addEventListener("click", () => save("disttrace-" + name + ".csv", csvOf(columns, typeof rows === "function" ? rows() : rows)));
}

function save(name, lines) {
  const link = document.createElement("a"), address = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}
