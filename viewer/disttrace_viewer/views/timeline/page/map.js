// The map of the whole trace.

const map = get("map").firstElementChild, mapPen = map.getContext("2d");
let mapWidth = 0, mapImage = null;

function resizeMap(scale) {
  mapWidth = printed ? PAPER.width : get("map").clientWidth;
  map.width = Math.max(1, Math.round(mapWidth * scale));
  map.height = Math.round(46 * scale);
  map.style.width = printed ? mapWidth + "px" : "";
  mapImage = null;
}

const mapX = (ns) => LABEL + (ns / T.span) * (mapWidth - LABEL);
const mapTime = (pixel) => ((pixel - LABEL) / Math.max(1, mapWidth - LABEL)) * T.span;

// How many are waiting and how many exchange, per pixel, over all lanes.
function paintMap() {
  const columns = Math.max(1, mapWidth - LABEL), per = T.span / columns;
  const waiting = new Float64Array(columns + 1), busy = new Float64Array(columns + 1);
  // Whatever begins counts in all that follows, until it ends: one sum at the end, no loop for each.
  const from = (sums, at, sign) => {
    const column = Math.min(columns - 1, Math.floor(at / per)), rest = column + 1 - at / per;
    sums[column] += sign * rest;
    sums[column + 1] += sign * (1 - rest);
  };
  const add = (sums, begin, end) => {
    if (!(end > begin)) return;
    from(sums, begin, 1);
    from(sums, end, -1);
  };
  for (let op = 0; op < T.n; op += 1) {
    const { kind } = T.calls[T.call[op]];
    if (kind === "composed" || kind === "constructor") continue;
    const turn = T.begin[op] + T.wait[op];
    add(waiting, T.begin[op], turn);
    add(busy, turn, T.end[op]);
  }
  let most = 1e-9;
  for (const sums of [waiting, busy]) for (let c = 1; c < columns; c += 1) sums[c] = Math.max(0, sums[c] + sums[c - 1]);
  for (let c = 0; c < columns; c += 1) most = Math.max(most, waiting[c] + busy[c]);
  mapImage = { waiting, busy, most, columns };
}

function drawMap() {
  if (!mapImage) paintMap();
  const scale = sharpness(), { waiting, busy, most, columns } = mapImage;
  mapPen.setTransform(scale, 0, 0, scale, 0, 0);
  mapPen.clearRect(0, 0, mapWidth, 46);
  mapPen.fillStyle = C.collective;
  for (let c = 0; c < columns; c += 1) {
    const low = (busy[c] / most) * 38, high = (waiting[c] / most) * 38;
    mapPen.globalAlpha = 1;
    mapPen.fillRect(LABEL + c, 44 - low, 1, low);
    mapPen.globalAlpha = PALE;
    mapPen.fillRect(LABEL + c, 44 - low - high, 1, high);
  }
  mapPen.globalAlpha = 1;
  mapPen.fillStyle = C.mark;
  for (const one of T.findings) mapPen.fillRect(mapX(one.at) - 1, 2, 2, 8);
  const left = Math.max(mapX(V.from), LABEL), right = Math.min(mapX(V.to), mapWidth);
  mapPen.fillStyle = C.page;
  mapPen.globalAlpha = 0.62;
  mapPen.fillRect(LABEL, 0, Math.max(0, left - LABEL), 46);
  mapPen.fillRect(right, 0, mapWidth - right, 46);
  mapPen.globalAlpha = 1;
  mapPen.strokeStyle = C.accent;
  mapPen.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 2), 45);
  mapPen.fillStyle = C.dim;
  mapPen.font = "11px " + FONT;
  mapPen.textBaseline = "middle";
  mapPen.fillText("whole trace, " + time(T.span), 14, 23);
}
