// Collectives as bands, messages as arrows.

// Of what is looked at; of all in view while they are few.
function drawExchanges() {
  const done = { bands: 0, messages: 0 };
  if (!V.arrows) return done;
  const near = new Set(), sent = new Set();
  for (const op of [V.op, V.hover]) {
    if (op < 0) continue;
    if (T.ex[op] !== NONE) near.add(T.ex[op]);
    if (T.msg[op] !== NONE) sent.add(T.msg[op]);
  }
  const bands = [], messages = [];
  for (let n = 0; n < T.ex_begin.length && bands.length <= FEW; n += 1) {
    if (T.ex_end[n] >= V.from && T.ex_begin[n] <= V.to && !near.has(n)) bands.push(n);
  }
  for (let n = 0; n < T.msg_send.length && messages.length <= FEW; n += 1) {
    if (T.end[T.msg_recv[n]] >= V.from && T.begin[T.msg_send[n]] <= V.to && !sent.has(n)) messages.push(n);
  }
  if (bands.length + messages.length <= FEW) {
    for (const n of bands) done.bands += drawBand(n, false);
    for (const n of messages) done.messages += drawArrow(n, false);
  }
  for (const n of near) done.bands += drawBand(n, true);
  for (const n of sent) done.messages += drawArrow(n, true);
  return done;
}

// The area between the members' begins and ends, and a line where the last one let them go.
function drawBand(n, strong) {
  const byLane = new Map();
  for (const op of members(n)) {
    const lane = L.of[T.process[op]];
    if (!byLane.has(lane) || L.lanes[lane].process === T.process[op]) byLane.set(lane, op);
  }
  const ops = [...byLane.entries()].sort(([a], [b]) => a - b).map(([, op]) => op);
  if (ops.length > 1) {
    pen.beginPath();
    for (const op of ops) { pen.lineTo(x(T.begin[op]), yOfOp(op)); pen.lineTo(x(T.begin[op]), yOfOp(op) + BAR); }
    for (const op of ops.reverse()) { pen.lineTo(x(T.end[op]), yOfOp(op) + BAR); pen.lineTo(x(T.end[op]), yOfOp(op)); }
    pen.closePath();
    pen.fillStyle = C.collective;
    pen.globalAlpha = strong ? 0.1 : 0.045;
    pen.fill();
    pen.globalAlpha = 1;
  }
  const last = members(n).find((op) => T.process[op] === T.ex_last[n] && T.begin[op] === T.ex_last_begin[n]);
  if (last === undefined || ops.length < 2 || absent(n)) return 1;
  const at = x(T.begin[last]), from = yOfOp(last) + BAR / 2;
  const tops = ops.map((op) => yOfOp(op) + BAR / 2);
  pen.strokeStyle = pen.fillStyle = C.arrow;
  pen.globalAlpha = strong ? 0.95 : 0.4;
  pen.lineWidth = strong ? 1.5 : 1;
  pen.beginPath();
  pen.moveTo(at, Math.min(from, ...tops));
  pen.lineTo(at, Math.max(from, ...tops));
  pen.stroke();
  if (strong) {
    for (const op of ops) if (op !== last && T.wait[op] > 0) tip(at, yOfOp(op) + BAR / 2, yOfOp(op) > yOfOp(last) ? 1 : -1);
  }
  pen.beginPath(); // the mark of the last one to arrive
  pen.moveTo(at, from - 5);
  pen.lineTo(at + 5, from);
  pen.lineTo(at, from + 5);
  pen.lineTo(at - 5, from);
  pen.fill();
  pen.globalAlpha = pen.lineWidth = 1;
  return 1;
}

function tip(at, middle, down) {
  pen.beginPath();
  pen.moveTo(at, middle);
  pen.lineTo(at - 4, middle - 6 * down);
  pen.lineTo(at + 4, middle - 6 * down);
  pen.fill();
}

function drawArrow(n, strong) {
  const send = T.msg_send[n], receive = T.msg_recv[n];
  const x1 = x(T.begin[send]), y1 = yOfOp(send) + BAR / 2, x2 = x(T.end[receive]), y2 = yOfOp(receive) + BAR / 2;
  pen.strokeStyle = pen.fillStyle = C.arrow;
  pen.globalAlpha = strong ? 1 : 0.5;
  pen.lineWidth = strong ? 2 : 1;
  const bend = Math.min(40, Math.max(8, Math.abs(x2 - x1) / 2));
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(x2 + 1, y2);
  pen.lineTo(x2 - 6, y2 - 3.5);
  pen.lineTo(x2 - 6, y2 + 3.5);
  pen.fill();
  pen.globalAlpha = pen.lineWidth = 1;
  return 1;
}
