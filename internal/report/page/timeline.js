// --- the timeline of a step ---

// Kinds of actions, by the letters of their text form (schedule.Action).
const kinds = {
  F: { name: "forward", colour: "forward" },
  R: { name: "recomputation", colour: "recompute" },
  B: { name: "backward", colour: "backward" },
  I: { name: "backward, gradient of the input", colour: "input" },
  W: { name: "backward, gradients of the weights", colour: "weight" },
  T: { name: "transfer", colour: "transfer" },
  RED: { name: "sum of gradients over replicas", colour: "reduce" },
};

// decode is an event of a timeline: [worker, action, start, end, live].
function decode([worker, code, start, end, live]) {
  const e = { worker, code, start, end, live, letter: "F" };
  let m;
  if ((m = /^(\d+)RED$/.exec(code))) Object.assign(e, { letter: "RED", stage: +m[1], words: `Sum of gradients over replicas · stage ${m[1]}` });
  else if ((m = /^(\d+)([FB])(\d+)>(\d+)$/.exec(code))) {
    Object.assign(e, { letter: "T", stage: +m[1], micro: +m[3], words: `Send ${m[2] === "F" ? "activation" : "gradient"} · stage ${m[1]} to ${m[4]} · micro-batch ${m[3]}` });
  } else if ((m = /^(\d+)>(\d+)([FB])(\d+)$/.exec(code))) {
    Object.assign(e, { letter: "T", stage: +m[2], micro: +m[4], words: `Receive ${m[3] === "F" ? "activation" : "gradient"} · stage ${m[2]} from ${m[1]} · micro-batch ${m[4]}` });
  } else if ((m = /^(\d+)([A-Z])(\d+)$/.exec(code))) {
    Object.assign(e, { letter: m[2], stage: +m[1], micro: +m[3], words: `${capital(kinds[m[2]].name)} · stage ${m[1]} · micro-batch ${m[3]}` });
  }
  return e;
}

// Block is a timeline made ready: by worker its computations, transfers and reductions, by time from
// its first event. One that is untimed has actions of one length.
class Block {
  constructor(title, timeline, untimed) {
    this.title = title; this.untimed = untimed;
    this.events = timeline.events.map(decode);
    const first = this.events.reduce((t, e) => Math.min(t, e.start), Infinity);
    for (const e of this.events) { e.start -= first; e.end -= first; e.block = this; }
    this.length = this.events.reduce((t, e) => Math.max(t, e.end), 0);
    this.events.sort((a, b) => a.start - b.start || a.end - b.end);
    this.byCode = new Map(this.events.map(e => [e.code, e]));
    this.lanes = [];
    for (let w = 0; w < timeline.workers; w++) {
      const mine = this.events.filter(e => e.worker === w);
      this.lanes.push({
        all: mine.filter(e => e.letter !== "T" || e.end > e.start),
        main: mine.filter(e => e.letter !== "T" && e.letter !== "RED"),
        thin: mine.filter(e => e.letter === "T" && e.end > e.start),
        beside: mine.filter(e => e.letter === "RED"),
      });
    }
  }
}

class Timeline extends Picture {
  // stages are the layers of each stage, in words.
  constructor(box, view, blocks, devices, stages) {
    super(box, view, "The actions of each device over the time of a step");
    this.blocks = blocks; this.devices = devices; this.stages = stages;
    this.lane = Math.max(...blocks.map(b => b.lanes.length)) > 16 ? 18 : 28;
    this.canvas.removeAttribute("role");
    box.onkeydown = e => this.key(e);
    box.onblur = () => { tip.hide(); };
    this.redraw();
  }
  height() { return this.blocks.reduce((h, b) => h + 26 + b.lanes.length * (this.lane + 4) + 6, 0) + 24; }
  rows() {
    const rows = [];
    let y = 0;
    for (const b of this.blocks) {
      y += 26;
      b.lanes.forEach((lane, worker) => { rows.push({ block: b, lane, worker, y }); y += this.lane + 4; });
      y += 6;
    }
    return rows;
  }
  static left(width) { return Math.round(Math.min(132, width * 0.22)); }

  draw(ctx, width, height) {
    this.left = Timeline.left(width); this.right = width - 14;
    const rows = this.rows(), h = this.lane;
    const marks = ticks(this.view.lo, this.view.hi, Math.max(2, (this.right - this.left) / 80));
    ctx.strokeStyle = theme.colour("grid"); ctx.lineWidth = 1;
    for (const t of marks) {
      const x = Math.round(this.x(t)) + 0.5;
      if (x < this.left || x > this.right) continue;
      ctx.beginPath(); ctx.moveTo(x, 20); ctx.lineTo(x, height - 22); ctx.stroke();
    }
    this.axis(ctx, height - 26, marks, duration);
    for (const row of rows) {
      if (row.worker === 0) {
        ctx.font = "600 12.5px system-ui, sans-serif"; ctx.textAlign = "left"; ctx.textBaseline = "alphabetic"; ctx.fillStyle = theme.colour("text");
        ctx.fillText(row.block.title, 0, row.y - 8);
        const at = ctx.measureText(row.block.title).width + 10;
        ctx.font = small; ctx.fillStyle = theme.colour("muted");
        if (!row.block.untimed) ctx.fillText(duration(row.block.length), at, row.y - 8);
      }
      ctx.font = small; ctx.textAlign = "left"; ctx.textBaseline = "middle"; ctx.fillStyle = theme.colour("text");
      const d = this.devices[row.worker];
      ctx.fillText(fitting(ctx, d ? d.name : `worker ${row.worker}`, this.left - 10), 0, row.y + h / 2);
      ctx.fillStyle = theme.colour("lane");
      ctx.fillRect(this.left, row.y, this.right - this.left, h);
    }
    ctx.save();
    ctx.beginPath(); ctx.rect(this.left, 0, this.right - this.left, height); ctx.clip();
    for (const row of rows) {
      this.bars(ctx, row, row.lane.main, row.y, h, true);
      this.bars(ctx, row, row.lane.thin, row.y + h - 6, 6, false);
      this.bars(ctx, row, row.lane.beside, row.y + h - 3, 6, false);
    }
    for (const e of new Set([this.over, this.over && this.counterpart(this.over), this.picked])) if (e) this.outline(ctx, rows, e);
    ctx.restore();
  }

  // bars draws the events of a row that are seen. Those that share a pixel are one bar.
  bars(ctx, row, events, y, h, labelled) {
    const n = events.length, end = this.view.hi;
    let letter = "", from = 0, to = -1;
    const flush = () => {
      if (to < 0) return;
      ctx.fillStyle = theme.colour(kinds[letter].colour);
      ctx.fillRect(from, y, Math.max(to - from, 1), h);
    };
    ctx.font = "600 11px system-ui, sans-serif"; ctx.textAlign = "center"; ctx.textBaseline = "middle";
    const several = this.devices[row.worker] && this.devices[row.worker].stages && this.devices[row.worker].stages.length > 1;
    const texts = [];
    for (let i = firstWhere(n, k => events[k].end >= this.view.lo); i < n && events[i].start <= end; i++) {
      const e = events[i], x0 = Math.max(this.x(e.start), this.left - 2), x1 = Math.min(this.x(e.end), this.right + 2), w = x1 - x0;
      if (w < 3) {
        if (to >= 0 && (letter === e.letter ? x0 - to < 1 : x1 - from < 1)) { to = Math.max(to, x1); continue; }
        flush(); letter = e.letter; from = x0; to = x1;
        continue;
      }
      flush(); to = -1;
      ctx.fillStyle = theme.colour(kinds[e.letter].colour);
      ctx.fillRect(x0, y, w - (w > 4 ? 1 : 0), h);
      if (e.letter === "R" && w > 5) this.hatch(ctx, x0, y, w - 1, h);
      if (labelled && w > 20) {
        const text = several ? e.code : e.code.replace(/^\d+/, "");
        if (w > 7 * text.length + 6) texts.push([text, (x0 + x1) / 2, e.letter]);
      }
    }
    flush();
    for (const [text, x, kind] of texts) { ctx.fillStyle = theme.colour("on-" + kinds[kind].colour); ctx.fillText(text, x, y + h / 2 + 0.5); }
  }

  hatch(ctx, x, y, w, h) {
    ctx.save();
    ctx.beginPath(); ctx.rect(x, y, w, h); ctx.clip();
    ctx.strokeStyle = theme.colour("hatch"); ctx.lineWidth = 1.5; ctx.beginPath();
    for (let at = x - h; at < x + w; at += 7) { ctx.moveTo(at, y + h); ctx.lineTo(at + h, y); }
    ctx.stroke(); ctx.restore();
  }

  // place is where an event is drawn.
  place(rows, e) {
    const row = rows.find(r => r.block === e.block && r.worker === e.worker);
    const thin = e.letter === "T" ? 6 : 0, beside = e.letter === "RED";
    const y = beside ? row.y + this.lane - 3 : thin ? row.y + this.lane - 6 : row.y;
    return { x: this.x(e.start), y, w: Math.max(this.x(e.end) - this.x(e.start), 2), h: thin || beside ? 6 : this.lane };
  }
  outline(ctx, rows, e) {
    const p = this.place(rows, e);
    ctx.strokeStyle = theme.colour("text"); ctx.lineWidth = 2;
    ctx.setLineDash(e === this.over || e === this.picked ? [] : [3, 2]);
    ctx.strokeRect(p.x, p.y + 1, p.w, p.h - 2);
    ctx.setLineDash([]);
  }
  // counterpart is the same action in the other timeline.
  counterpart(e) {
    const other = this.blocks.find(b => b !== e.block);
    return other && other.byCode.get(e.code);
  }

  find(x, y) {
    const row = this.rows().find(r => y >= r.y - 2 && y <= r.y + this.lane + 3);
    if (!row || x < this.left) return null;
    const near = list => {
      const t = this.value(x), slack = 3 * this.view.span / (this.right - this.left);
      const i = firstWhere(list.length, k => list[k].end >= t);
      if (i < list.length && list[i].start <= t) return list[i];
      if (i < list.length && list[i].start <= t + slack) return list[i];
      return i > 0 && list[i - 1].end >= t - slack ? list[i - 1] : null;
    };
    const low = y > row.y + this.lane - 7;
    return low && (near(row.lane.beside) || near(row.lane.thin)) || near(row.lane.main) || near(row.lane.thin) || near(row.lane.beside);
  }
  hover(x, y, e) {
    const over = this.find(x, y);
    if (over !== this.over) { this.over = over; this.redraw(); }
    const idle = over ? null : this.idle(x, y);
    if (over) tip.show(e.clientX, e.clientY, over.words, this.lines(over));
    else if (idle) tip.show(e.clientX, e.clientY, "Idle", idle);
    else tip.hide();
    this.canvas.style.cursor = over ? "pointer" : "default";
  }
  // idle says of a point between actions how long the device does nothing, and what it does next.
  idle(x, y) {
    const row = this.rows().find(r => y >= r.y && y <= r.y + this.lane), t = this.value(x);
    if (!row || x < this.left || x > this.right) return null;
    const list = row.lane.main, i = firstWhere(list.length, k => list[k].end >= t);
    const from = i > 0 ? list[i - 1].end : 0, to = i < list.length ? list[i].start : row.block.length;
    return [this.on(row.block, row.worker), `for ${duration(to - from)}, from ${duration(from)} to ${duration(to)}`,
      i < list.length ? "Next: " + lower(list[i].words) : "Nothing more in this step"];
  }
  on(block, worker) {
    const d = this.devices[worker];
    return `${block.title}, on ${d ? d.name : "worker " + worker}`;
  }
  leave() { if (this.over) { this.over = null; this.redraw(); } }
  click(x, y) { this.pick(this.find(x, y)); this.box.focus({ preventScroll: true }); }

  lines(e) {
    const out = [this.on(e.block, e.worker), `from ${duration(e.start)} to ${duration(e.end)}: ${duration(e.end - e.start)}`];
    const other = this.counterpart(e);
    if (other) {
      const [ran, planned] = e.block === this.blocks[0] ? [other, e] : [e, other];
      const late = ran.end - planned.end;
      out.push(`planned ${duration(planned.end - planned.start)}, ran ${duration(ran.end - ran.start)}; ended ${duration(Math.abs(late))} ${late < 0 ? "earlier" : "later"} than planned`);
    }
    if (e.live) out.push(`${bytes(e.live)} on the device afterwards`);
    if (this.stages[e.stage]) out.push(`stage ${e.stage}: ${this.stages[e.stage]}`);
    return out;
  }

  // pick chooses an action by the keyboard or a click, and says what it is.
  pick(e) {
    this.picked = e;
    byId("picked").textContent = e ? [e.words, ...this.lines(e)].join(". ") : "";
    if (e) {
      this.view.show(e.start, e.end);
      this.paint();
      const p = this.place(this.rows(), e), r = this.canvas.getBoundingClientRect();
      tip.show(r.left + Math.max(p.x, this.left) + Math.min(p.w, 40), r.top + p.y + p.h, e.words, this.lines(e));
    } else tip.hide();
    this.redraw();
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const rows = this.rows(), at = this.picked;
    const middle = at ? (at.start + at.end) / 2 : (this.view.lo + this.view.hi) / 2;
    const row = at ? rows.findIndex(r => r.block === at.block && r.worker === at.worker) : 0;
    const go = (to, move) => {
      const list = rows[to].lane.all;
      if (!list.length) return;
      if (!at) return this.pick(list[0]);
      const k = to === row ? list.indexOf(at) + move : Math.min(list.length - 1, firstWhere(list.length, i => list[i].end >= middle));
      this.pick(list[Math.max(0, Math.min(list.length - 1, k))]);
    };
    switch (e.key) {
      case "ArrowRight": go(row, 1); break;
      case "ArrowLeft": go(row, -1); break;
      case "ArrowDown": go(Math.min(rows.length - 1, at ? row + 1 : 0), 0); break;
      case "ArrowUp": go(Math.max(0, row - 1), 0); break;
      case "Home": this.pick(rows[row].lane.all[0] || null); break;
      case "End": this.pick(rows[row].lane.all.at(-1) || null); break;
      case "+": case "=": this.view.zoom(middle, 1.6); break;
      case "-": this.view.zoom(middle, 1 / 1.6); break;
      case "0": this.view.all(); break;
      case "Escape": this.pick(null); break;
      default: return;
    }
    e.preventDefault();
  }
}
