// --- what all pictures share: a canvas, a part of an axis that is seen, a tooltip ---

// View is the part of an axis that pictures show, [lo, hi] within [min, max].
class View {
  constructor(min, max) { this.listeners = []; this.limit(min, max); this.all(); }
  limit(min, max) {
    const whole = this.lo === this.min && this.hi === this.max;
    this.min = min; this.max = max > min ? max : min + 1;
    if (whole) { this.lo = this.min; this.hi = this.max; }
  }
  get span() { return this.hi - this.lo; }
  get whole() { return this.lo === this.min && this.hi === this.max; }
  set(lo, hi) {
    const span = Math.min(Math.max(hi - lo, (this.max - this.min) * 1e-6), this.max - this.min);
    lo = Math.min(Math.max(lo, this.min), this.max - span);
    this.lo = lo; this.hi = lo + span;
    if (this.hi > this.max || span === this.max - this.min) this.hi = this.max;
    this.tell();
  }
  all() { this.lo = this.min; this.hi = this.max; this.tell(); }
  zoom(at, factor) { this.set(at - (at - this.lo) / factor, at + (this.hi - at) / factor); }
  pan(by) { this.set(this.lo + by, this.hi + by); }
  // show moves so that [from, to] is seen.
  show(from, to) {
    if (from >= this.lo && to <= this.hi) return;
    const span = Math.max(this.span, (to - from) * 1.2), middle = (from + to) / 2;
    this.set(middle - span / 2, middle + span / 2);
  }
  tell() { for (const f of this.listeners) f(); }
}

// Picture is a canvas that fills its box's width, sharp on any screen, drawn at most once a frame.
class Picture {
  constructor(box, view, label) {
    this.box = box; this.view = view;
    this.canvas = element("canvas", { role: "img" });
    if (label) this.canvas.setAttribute("aria-label", label);
    box.replaceChildren(this.canvas);
    this.ctx = this.canvas.getContext("2d");
    view.listeners.push(() => this.redraw());
    theme.listeners.push(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(box);
    this.listen();
  }
  redraw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.paint(); });
  }
  paint() {
    const width = this.box.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1, height = this.height(width);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio); this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = width + "px"; this.canvas.style.height = height + "px";
    }
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ctx.clearRect(0, 0, width, height);
    this.draw(this.ctx, width, height);
    this.painted = (this.painted || 0) + 1;
  }
  x(value) { return this.left + (value - this.view.lo) / this.view.span * (this.right - this.left); }
  value(x) { return this.view.lo + (x - this.left) / (this.right - this.left) * this.view.span; }

  listen() {
    const c = this.canvas;
    let drag = null;
    c.addEventListener("wheel", e => {
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        this.view.zoom(this.value(e.offsetX), Math.exp(-Math.max(-60, Math.min(60, e.deltaY)) / 100));
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY) && !this.view.whole) {
        e.preventDefault();
        this.view.pan(e.deltaX / (this.right - this.left) * this.view.span);
      }
    }, { passive: false });
    c.addEventListener("pointerdown", e => {
      if (e.pointerType === "touch") return this.hover(e.offsetX, e.offsetY, e);
      if (e.button !== 0) return;
      drag = { x: e.offsetX, lo: this.view.lo, hi: this.view.hi, moved: false };
      c.setPointerCapture(e.pointerId);
    });
    c.addEventListener("pointermove", e => {
      if (drag && (drag.moved || Math.abs(e.offsetX - drag.x) > 3)) {
        drag.moved = true;
        const by = (drag.x - e.offsetX) / (this.right - this.left) * (drag.hi - drag.lo);
        tip.hide();
        this.view.set(drag.lo + by, drag.hi + by);
      } else this.hover(e.offsetX, e.offsetY, e);
    });
    c.addEventListener("pointerup", e => {
      if (drag && !drag.moved) this.click(e.offsetX, e.offsetY);
      drag = null;
    });
    c.addEventListener("pointerleave", e => { if (e.pointerType !== "touch") { this.leave(); tip.hide(); } });
    c.addEventListener("dblclick", () => this.view.all());
  }
  hover() {}
  leave() {}
  click() {}

  // axis draws the x axis below y, with its name at the right. All of its marks are in the unit of the last.
  axis(ctx, y, marks, format, name = "") {
    ctx.font = small; ctx.textBaseline = "top"; ctx.fillStyle = theme.colour("muted");
    ctx.textAlign = "right";
    ctx.fillText(name, this.right, y + 6);
    ctx.textAlign = "center";
    const most = this.right - (name ? ctx.measureText(name).width + 10 : -14);
    let end = -Infinity;
    for (const t of marks) {
      const x = this.x(t), text = format(t, marks.at(-1)), half = ctx.measureText(text).width / 2;
      if (x - half < end + 10 || x + half > most || x < this.left - 1) continue;
      ctx.fillText(text, x, y + 6);
      end = x + half;
    }
  }
}

// fitting is a text that is cut to a width.
function fitting(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  const n = firstWhere(text.length, k => ctx.measureText(text.slice(0, k + 1) + "…").width > width);
  return text.slice(0, n) + "…";
}

const small = "11.5px system-ui, sans-serif";

// tip is the one tooltip: a title and lines, near a point of the window.
const tip = {
  show(x, y, title, lines) {
    const t = byId("tip");
    t.replaceChildren(element("strong", { textContent: title }), ...lines.map(line => {
      if (typeof line === "string") return element("div", { textContent: line });
      const swatch = element("i", { className: "swatch" });
      swatch.style.background = line.colour;
      return element("div", {}, swatch, line.text);
    }));
    t.hidden = false;
    const gap = 14, w = t.offsetWidth, h = t.offsetHeight;
    t.style.left = Math.max(4, x + gap + w > innerWidth ? x - gap - w : x + gap) + "px";
    t.style.top = Math.max(4, y + gap + h > innerHeight ? y - gap - h : y + gap) + "px";
  },
  hide() { byId("tip").hidden = true; },
};

// --- curves ---

// Chart draws series over an axis. Series are {name, x, y, stepped, faint, width, dash, colour}, with
// ascending x; levels are {y, text} limits, lines across; marks {x, y} diamonds.
class Chart extends Picture {
  constructor(box, view, options) {
    super(box, view, options.label);
    this.o = options;
    this.series = []; this.levels = []; this.marks = [];
    box.tabIndex = 0;
    box.setAttribute("role", "application"); box.setAttribute("aria-roledescription", "chart"); box.setAttribute("aria-label", options.label);
    this.canvas.removeAttribute("role"); this.canvas.removeAttribute("aria-label");
    box.addEventListener("keydown", e => this.key(e));
    box.addEventListener("blur", () => { this.leave(); tip.hide(); });
  }
  height() { return this.o.height || 190; }
  set(series, levels, marks) { this.series = series; this.levels = levels || []; this.marks = marks || []; this.redraw(); }

  range() {
    let lo = Infinity, hi = -Infinity;
    for (const s of this.series) {
      const from = Math.max(0, firstWhere(s.x.length, i => s.x[i] >= this.view.lo) - 1);
      for (let i = from; i < s.x.length && (i === from || s.x[i - 1] <= this.view.hi); i++) {
        if (s.y[i] === null) continue;
        lo = Math.min(lo, s.y[i]); hi = Math.max(hi, s.y[i]);
      }
    }
    for (const l of this.levels) if (l.y <= 1.25 * hi) hi = Math.max(hi, l.y); // others are marked at the upper edge
    for (const m of this.marks) { hi = Math.max(hi, m.y); lo = Math.min(lo, m.y); }
    if (this.o.from !== undefined) lo = Math.min(lo, this.o.from);
    if (!isFinite(hi)) return [0, 1];
    const same = !(hi - lo > 1e-9 * Math.abs(hi)), room = same ? Math.abs(hi) * 0.1 || 1 : (hi - lo) * 0.06;
    const [least, most] = this.o.within || [-Infinity, Infinity];
    return [lo === this.o.from ? lo : Math.max(lo - room, least), Math.min(hi + room, most)];
  }

  draw(ctx, width, height) {
    const [lo, hi] = this.range(), above = this.levels.filter(l => l.y > hi), bottom = height - 24, top = above.length ? 22 : 8;
    const marks = ticks(lo, hi, Math.max(3, (bottom - top) / 30), this.o.base);
    ctx.font = small;
    const text = t => this.o.yText(t, marks.at(-1));
    this.left = this.o.left ? this.o.left(width) : Math.ceil(Math.max(...marks.map(t => ctx.measureText(text(t)).width))) + 12;
    this.right = width - 14;
    this.y = v => bottom - (v - lo) / (hi - lo) * (bottom - top);
    ctx.lineWidth = 1; ctx.strokeStyle = theme.colour("grid"); ctx.fillStyle = theme.colour("muted");
    ctx.textAlign = "right"; ctx.textBaseline = "middle";
    for (const t of marks) {
      const y = Math.round(this.y(t)) + 0.5;
      ctx.beginPath(); ctx.moveTo(this.left, y); ctx.lineTo(this.right, y); ctx.stroke();
      ctx.fillText(text(t), this.left - 7, y);
    }
    this.axis(ctx, bottom, ticks(this.view.lo, this.view.hi, Math.max(2, (this.right - this.left) / 80), this.o.xBase), this.o.xTick, this.o.xName);
    ctx.save();
    ctx.beginPath(); ctx.rect(this.left - 4, 0, this.right - this.left + 8, height); ctx.clip(); // with room for half a point
    this.series.forEach((s, i) => this.line(ctx, s, i));
    ctx.strokeStyle = ctx.fillStyle = theme.colour("limit"); ctx.lineWidth = 1.5; ctx.setLineDash([6, 4]);
    ctx.textAlign = "right"; ctx.textBaseline = "top";
    for (const l of this.levels) {
      const y = l.y > hi ? 1.5 : Math.round(this.y(l.y)) + 0.5;
      ctx.beginPath(); ctx.moveTo(this.left, y); ctx.lineTo(this.right, y); ctx.stroke();
    }
    if (above.length) ctx.fillText(`↑ ${above.map(l => l.text).join(", ")}`, this.right, 5);
    ctx.setLineDash([]);
    for (const m of this.marks) diamond(ctx, this.x(m.x), this.y(m.y), 7);
    ctx.restore();
    if (this.at !== undefined) this.cross(ctx, top, bottom);
  }

  line(ctx, s, index) {
    const n = s.x.length;
    if (!n) return;
    ctx.strokeStyle = s.colour || theme.series(index); ctx.globalAlpha = s.faint ? 0.3 : 1;
    ctx.lineWidth = s.width || 1.75; ctx.lineJoin = "round"; ctx.setLineDash(s.dash || []);
    const from = Math.max(0, firstWhere(n, i => s.x[i] >= this.view.lo) - 1);
    let end = n;
    for (let i = from; i < n; i++) if (s.x[i] > this.view.hi) { end = i + 1; break; }
    ctx.beginPath();
    let before = null, shown = 0;
    for (const i of this.drawn(s, from, end)) {
      if (s.y[i] === null) { before = null; continue; }
      const x = this.x(s.x[i]), y = this.y(s.y[i]);
      if (before === null) ctx.moveTo(x, y);
      else if (s.stepped) { ctx.lineTo(x, before); ctx.lineTo(x, y); }
      else ctx.lineTo(x, y);
      before = y; shown++;
    }
    if (s.stepped && before !== null && s.x[n - 1] <= this.view.hi) ctx.lineTo(this.x(s.until === undefined ? s.x[n - 1] : s.until), before);
    ctx.stroke(); ctx.setLineDash([]); ctx.globalAlpha = 1;
    if (shown < 40 && !s.stepped && !s.faint || s.dots) {
      ctx.fillStyle = ctx.strokeStyle;
      for (let i = from; i < end; i++) {
        if (s.y[i] === null) continue;
        ctx.beginPath(); ctx.arc(this.x(s.x[i]), this.y(s.y[i]), 2.5, 0, 7); ctx.fill();
      }
    }
  }

  // drawn is the places of a series that are drawn: where many share a pixel's width, the lowest and the highest of
  // them.
  drawn(s, from, end) {
    if (s.stepped || end - from < 3 * (this.right - this.left)) return Array.from({ length: end - from }, (_, k) => from + k);
    const out = [];
    let low = from, high = from, at;
    for (let i = from; i <= end; i++) {
      const x = i < end ? Math.round(this.x(s.x[i])) : NaN;
      if (x === at) {
        if (s.y[i] < s.y[low]) low = i;
        if (s.y[i] > s.y[high]) high = i;
        continue;
      }
      if (i > from) out.push(Math.min(low, high), Math.max(low, high));
      low = high = i; at = x;
    }
    return out;
  }

  // nearest is the place of a series at, or before, a value of the axis; -1 is none.
  nearest(s, value) {
    const i = firstWhere(s.x.length, k => s.x[k] > value);
    if (s.stepped || i === s.x.length || i > 0 && value - s.x[i - 1] < s.x[i] - value) return i - 1;
    return i;
  }

  cross(ctx, top, bottom) {
    const x = Math.round(this.x(this.at)) + 0.5;
    if (x < this.left - 1 || x > this.right + 1) return;
    ctx.strokeStyle = theme.colour("muted"); ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, bottom); ctx.stroke();
    this.series.forEach((s, i) => {
      const k = this.nearest(s, this.at);
      if (k < 0 || s.y[k] === null || s.faint) return;
      ctx.fillStyle = s.colour || theme.series(i);
      ctx.beginPath(); ctx.arc(s.stepped ? x : this.x(s.x[k]), this.y(s.y[k]), 3.5, 0, 7); ctx.fill();
    });
  }

  hover(x, y, e) {
    this.point(this.value(Math.max(this.left, Math.min(this.right, x))), e.clientX, e.clientY);
  }
  leave() { this.point(undefined); }

  // point shows what there is at a value of the axis, here and in charts that share it.
  point(at, clientX, clientY) {
    let best;
    if (at !== undefined) {
      for (const s of this.series) {
        const k = this.nearest(s, at);
        if (k >= 0 && !s.stepped && (best === undefined || Math.abs(s.x[k] - at) < Math.abs(best - at))) best = s.x[k];
      }
      if (best === undefined) best = at;
    }
    for (const c of this.o.together || [this]) { c.at = best; c.redraw(); }
    if (best === undefined) return tip.hide();
    const lines = this.series.map((s, i) => {
      const k = this.nearest(s, best);
      return k < 0 || s.y[k] === null || !s.stepped && s.x[k] !== best ? null
        : { colour: s.colour || theme.series(i), text: `${s.name}: ${this.o.yText(s.y[k])}${s.note ? s.note(k) : ""}` };
    }).filter(Boolean);
    if (!lines.length) lines.push("nothing here");
    for (const l of this.levels) lines.push({ colour: theme.colour("limit"), text: l.text });
    tip.show(clientX, clientY, this.o.xText(best), lines);
    return [this.o.xText(best), ...lines.map(l => l.text || l)].join(". ");
  }

  key(e) {
    const s = this.series.find(s => s.x.length && !s.stepped) || this.series[0];
    if (!s || e.ctrlKey || e.metaKey || e.altKey) return;
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[e.key];
    if (move) {
      const from = this.at === undefined ? (move > 0 ? -1 : s.x.length) : this.nearest(s, this.at);
      const k = Math.max(0, Math.min(s.x.length - 1, from + move));
      this.view.show(s.x[k], s.x[k]);
      const r = this.canvas.getBoundingClientRect();
      byId("picked").textContent = this.point(s.x[k], r.left + this.x(s.x[k]), r.top + 40);
    } else if (e.key === "+" || e.key === "=") this.view.zoom(this.at === undefined ? (this.view.lo + this.view.hi) / 2 : this.at, 1.6);
    else if (e.key === "-") this.view.zoom(this.at === undefined ? (this.view.lo + this.view.hi) / 2 : this.at, 1 / 1.6);
    else if (e.key === "0") this.view.all();
    else if (e.key === "Escape") { this.leave(); tip.hide(); return; }
    else return;
    e.preventDefault();
  }
}

function diamond(ctx, x, y, r) {
  ctx.beginPath(); ctx.moveTo(x, y - r); ctx.lineTo(x + r, y); ctx.lineTo(x, y + r); ctx.lineTo(x - r, y); ctx.closePath();
  ctx.fillStyle = theme.colour("mark"); ctx.fill();
  ctx.strokeStyle = theme.colour("card"); ctx.lineWidth = 1.5; ctx.stroke();
}
