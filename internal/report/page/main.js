// --- the page ---

const data = JSON.parse(byId("data").textContent);
const history = { steps: data.history.steps, tests: data.history.tests, validations: data.history.validations, peaks: data.history.peaks || [] };
const STEP = 0, TIME = 2, LOSS = 3, LR = 4, NORM = 5, SPEED = 6, PEAKS = 7;
const ACCURACY = 3, TESTLOSS = 4, MSE = 5; // of tests and validations
let view = data.view;

// legend lists what colours mean, for those that are there.
function legend(list, entries) {
  list.replaceChildren(...entries.map(e => {
    const swatch = element("i", { className: "swatch" + (e.hatched ? " hatched" : "") + (e.line ? " line" : "") });
    if (e.line) {
      swatch.style.borderTopColor = `var(--${e.colour})`;
      swatch.style.borderTopStyle = e.dashed ? "dashed" : "solid";
    } else swatch.style.background = `var(--${e.colour})`;
    return element("li", {}, swatch, e.name);
  }));
}

// evenly lays boxes out in rows of about the same number, as many in a row as have the least width.
function evenly(grid, least, gap) {
  const lay = () => {
    const most = Math.max(1, Math.floor((grid.clientWidth + gap) / (least + gap))), n = grid.children.length;
    grid.style.setProperty("--columns", Math.ceil(n / Math.ceil(n / most)) || 1);
  };
  new ResizeObserver(lay).observe(grid);
  new MutationObserver(lay).observe(grid, { childList: true });
}

// --- key figures ---

function tile(name, value, note, share) {
  const t = element("div", { className: "tile" }, element("span", { className: "name", textContent: name }), element("strong", { textContent: value }));
  if (share !== undefined) {
    const fill = element("i", { className: share > 1 ? "fill over" : "fill" });
    fill.style.width = Math.min(100, 100 * share) + "%";
    t.append(element("span", { className: "meter" }, fill));
  }
  t.append(element("span", { className: "note", textContent: note || "\u00a0" }));
  return t;
}

// peakTile is the tile of the device that is nearest to its limit, or else holds the most; none without peaks.
function peakTile(name, peaks) {
  const devices = peaks.map((peak, i) => {
    const { name, limit } = view.devices && view.devices[i] || { name: `device ${i}` };
    return { peak, name, limit, share: limit ? peak / limit : 0 };
  }).filter(d => d.peak).sort((a, b) => b.share - a.share || b.peak - a.peak);
  return devices.slice(0, 1).map(d => tile(name, bytes(d.peak), d.name + (d.limit ? `, ${percent(d.share)} of ${bytes(d.limit)}` : ", no limit"), d.share || undefined));
}

function tiles() {
  const out = [], steps = history.steps, last = steps.at(-1);
  if (last) {
    const done = last[STEP];
    const recent = steps.slice(-51), left = median(recent.slice(1).map((s, i) => (s[TIME] - recent[i][TIME]) / (s[STEP] - recent[i][STEP]))) * (view.last - done);
    const note = view.last ? `of ${grouped(view.last)}${data.live && left > 0 && !ended() ? `, ${wait(left)} left` : ""}` : "";
    out.push(tile("Steps", grouped(done), note, view.last ? done / view.last : undefined));
    out.push(tile("Loss", significant(smoothed(steps.map(s => s[LOSS])).at(-1), 4), steps.length > 1 ? `smoothed; ${significant(last[LOSS], 4)} in the last step` : ""));
  }
  const validation = last && history.validations.at(-1);
  if (validation && validation[TESTLOSS] !== null) {
    const lowest = history.validations.reduce((a, b) => b[TESTLOSS] < a[TESTLOSS] ? b : a);
    out.push(tile("Validation loss", significant(validation[TESTLOSS], 4), lowest === validation ? `the lowest, after step ${grouped(validation[STEP])}`
      : `lowest ${significant(lowest[TESTLOSS], 4)} after step ${grouped(lowest[STEP])}`));
  }
  for (const [name, list] of [["Validation", history.validations], ["Test", history.tests]]) {
    const test = list.at(-1);
    if (!test) continue;
    const after = `after step ${grouped(test[STEP])}`;
    if (test[ACCURACY] !== null) out.push(tile(`${name} accuracy`, (100 * test[ACCURACY]).toFixed(2) + " %", after));
    else if (test[MSE] !== null && test[MSE] !== test[TESTLOSS]) out.push(tile(`${name} mean squared error`, significant(test[MSE], 4), after));
  }
  if (last) out.push(tile("Samples a second", grouped(Math.round(median(steps.slice(-50).map(s => s[SPEED])))), "median of the last steps"));
  if (!last && view.planned && view.times === "predicted" && view.devices) {
    out.push(tile("Step, planned", duration(lengthOf(view.planned)), `${grouped(view.devices.length)} ${view.devices.length === 1 ? "device" : "devices"}`));
    if (!view.ran) out.push(tile("Idle, planned", percent(view.devices.reduce((sum, d) => sum + d.idle, 0) / view.devices.length), "mean of the devices"));
    out.push(...peakTile("Peak memory, planned", view.devices.map(d => d.predicted)));
    out.push(tile("Recomputed forwards", grouped(view.devices.reduce((sum, d) => sum + d.recomputed, 0)), "in a step, of all units"));
  }
  if (view.devices && view.ran) {
    const mean = of => view.devices.reduce((sum, d) => sum + d[of], 0) / view.devices.length;
    out.push(tile("Idle", percent(mean("ran_idle")), `planned ${percent(mean("idle"))}, mean of ${count(view.devices.length, "device")}`));
  }
  out.push(...peakTile("Peak memory", history.peaks));
  byId("tiles").replaceChildren(...out);
}

// lengthOf is the time from the first event of a timeline to the last.
function lengthOf(timeline) {
  return timeline.events.reduce((t, e) => Math.max(t, e[3]), -Infinity) - timeline.events.reduce((t, e) => Math.min(t, e[2]), Infinity);
}

// --- the step ---

const stepView = new View(0, 1);
let timeline = null, memoryChart = null;

const timesOf = {
  predicted: "each action takes the time that is predicted for it",
  unit: "all actions are drawn equally long",
};

function step() {
  const planned = view.planned && view.planned.events.length, ran = view.ran && view.ran.events.length;
  byId("step").hidden = !planned && !ran;
  if (!planned && !ran) return;
  const blocks = [], ideal = view.times === "median";
  if (planned) blocks.push(new Block(ideal ? "Without waiting" : "As planned", view.planned, view.times === "unit"));
  if (ran) blocks.push(new Block("As it ran", view.ran, false));
  byId("step-title").textContent = ran ? `Step ${grouped(view.step)}${view.rows ? `, ${count(view.rows, "sample")}` : ""}` : "One step";
  const meanOf = of => percent(view.devices.reduce((sum, d) => sum + d[of], 0) / view.devices.length);
  const notes = [];
  if (ran && planned && ideal) notes.push(`It took ${duration(blocks[1].length)}, with devices idle for ${meanOf("ran_idle")} of it on average. Without waits and transfers, each action taking the median time of its kind, it would take ${duration(blocks[0].length)}.`);
  else if (ran && planned && view.times !== "unit") notes.push(`It took ${duration(blocks[1].length)} where ${duration(blocks[0].length)} were planned; devices stood idle for ${meanOf("ran_idle")} of it on average.`);
  else if (ran) notes.push(`It took ${duration(blocks.at(-1).length)}; devices stood idle for ${meanOf("ran_idle")} of it on average.`);
  else if (view.times !== "unit") notes.push(`Planned to take ${duration(blocks[0].length)}; devices stand idle for ${meanOf("idle")} of it on average.`);
  if (planned && !ideal && (ran || view.times === "unit")) notes.push(`As planned, ${timesOf[view.times]}.`);
  byId("step-note").textContent = notes.join(" ").replaceAll(/(\d) (%|[mµ]?s\b)/g, "$1\u00a0$2");
  const there = new Set(blocks.flatMap(b => b.events.filter(e => e.letter !== "T" || e.end > e.start).map(e => e.letter)));
  legend(byId("kinds"), Object.entries(kinds).filter(([k]) => there.has(k)).map(([k, v]) => ({ name: `${capital(v.name)}${k.length === 1 && k !== "T" ? ` (${k})` : ""}`, colour: v.colour, hatched: k === "R" })));
  stepView.listeners = []; stepView.min = stepView.lo = 0;
  stepView.max = stepView.hi = Math.max(...blocks.map(b => b.length));
  timeline = new Timeline(byId("timeline"), stepView, blocks, view.devices, stagesOf(view.layers || []));
  timeline.box.setAttribute("aria-label", `Timeline of a step: ${blocks.map(b => `${b.title.toLowerCase()}, ${count(b.events.length, "action")}, ${duration(b.length)}`).join("; ")}`);
  memoryOverStep(blocks.findLast(b => b.events.some(e => e.live)));
  devicesTable();
}

// stagesOf is the layers of each stage in words.
function stagesOf(layers) {
  const of = [];
  for (const l of layers) if (l.stage >= 0) (of[l.stage] ||= []).push(l.name);
  return of.map(names => names.length > 1 ? `${names[0]} to ${names.at(-1)}, ${count(names.length, "layer")}` : names[0]);
}

// memoryOverStep draws the bytes of each device over the step as it ran, or else as it was planned, on the
// axis of the timeline.
function memoryOverStep(ran) {
  for (const id of ["bytes", "bytes-title", "bytes-legend"]) byId(id).hidden = !ran;
  if (!ran) return;
  byId("bytes-title").textContent = `Bytes on each device after each action, ${lower(ran.title)}`;
  memoryChart = new Chart(byId("bytes"), stepView, {
    label: "Bytes on each device over the step", height: 200, base: 1024, left: Timeline.left,
    yText: bytes, xTick: duration, xText: t => "At " + duration(t),
  });
  const series = [], names = [];
  view.devices.forEach((d, w) => {
    const mine = ran.events.filter(e => e.worker === w && (e.live || e.letter !== "RED")).sort((a, b) => a.end - b.end);
    const i = w % 8;
    series.push({ name: d.name, x: mine.map(e => e.end), y: mine.map(e => e.live), stepped: true, until: ran.length, colour: undefined, dash: dashes[i], note: k => ` after ${lower(mine[k].words)}` });
    names.push({ name: d.name, colour: "series-" + i, line: true, dashed: i > 0 });
  });
  const lines = limits();
  legend(byId("bytes-legend"), [...names, ...lines.map(asLegend)]);
  memoryChart.set(series, lines);
}

// limits are the limits of the devices, those that several share once, as levels of a chart.
function limits() {
  const of = new Map();
  for (const d of view.devices || []) if (d.limit) of.set(d.limit, (of.get(d.limit) || []).concat(d.name));
  return [...of].map(([y, names]) => ({ y, text: `limit ${bytes(y)}${of.size > 1 ? " of " + names.join(", ") : ""}` }));
}

const asLegend = limit => ({ name: limit.text, colour: "limit", line: true, dashed: true });

const memoryBar = (n, limit) => n ? (limit ? bar(bytes(n), n / limit, "accent") : bytes(n)) : "–";

function devicesTable() {
  const columns = [
    { title: "Device", head: true, value: d => d.name },
    { title: "Stages", value: d => (d.stages || []).join(", "), number: true },
    { title: "Idle", note: "share of the step as it ran", number: true, value: d => d.ran_idle, cell: d => bar(percent(d.ran_idle), d.ran_idle, "idle"), only: view.ran },
    { title: "Idle, planned", number: true, value: d => d.idle, cell: d => bar(percent(d.idle), d.idle, "idle") },
    { title: "Recomputed forwards", number: true, value: d => d.recomputed },
    { title: "Highest memory", note: "of all steps", number: true, value: d => d.most, cell: d => memoryBar(d.most, d.limit), only: view.ran },
    { title: "Predicted peak", number: true, value: d => d.predicted, cell: d => memoryBar(d.predicted, d.limit) },
    { title: "Limit", number: true, value: d => d.limit, cell: d => d.limit ? bytes(d.limit) : "none" },
  ].filter(c => !("only" in c) || c.only);
  new Table(byId("devices"), columns, "Devices").set(view.devices.map((d, i) => ({ ...d, most: history.peaks[i] || 0 })));
}

// --- curves over steps ---

const numbersView = new View(0, 1);
const charts = [];

// Curves that can be shown: a name, what makes its series of the history, and how numbers are written.
const curves = [
  { id: "loss", name: "Loss", text: x => significant(x, 4), series: () => {
    const validated = tested("validation", history.validations, TESTLOSS, 1);
    return [...both(validated.length ? "training" : "loss", s => s[LOSS], 0), ...validated];
  } },
  { id: "accuracy", name: "Accuracy", within: [0, 1], text: x => (100 * x).toFixed(1) + " %", series: () =>
    [...tested("validation", history.validations, ACCURACY, 1), ...tested("test", history.tests, ACCURACY, 2)] },
  { id: "mse", name: "Mean squared error", text: x => significant(x, 4), series: () =>
    [...tested("validation", history.validations, MSE, 1), ...tested("test", history.tests, MSE, 2)] },
  { id: "lr", name: "Learning rate", from: 0, text: x => significant(x, 3), series: () =>
    history.steps.length ? [{ name: "learning rate", x: history.steps.map(s => s[STEP]), y: history.steps.map(s => s[LR]), hue: 1 }] : [] },
  { id: "speed", name: "Samples a second", from: 0, text: x => significant(x, 4), series: () => both("samples/s", s => s[SPEED], 4) },
  { id: "norm", name: "Gradient norm", from: 0, text: x => significant(x, 3), series: () =>
    history.steps.some(s => s[NORM] !== null) ? both("gradient norm", s => s[NORM] || 0, 3) : [] },
  { id: "peaks", name: "Peak memory", base: 1024, text: bytes, series: () => {
    const n = Math.max(0, ...history.steps.slice(-1).map(s => (s[PEAKS] || []).length));
    return Array.from({ length: n }, (_, i) => ({ name: view.devices && view.devices[i] ? view.devices[i].name : `device ${i}`,
      x: history.steps.map(s => s[STEP]), y: history.steps.map(s => s[PEAKS] && s[PEAKS][i] !== undefined ? s[PEAKS][i] : null), hue: i % 8, dash: dashes[i % 8], dots: false }));
  } },
];

// tested is a number of tests or validations, where there are some.
function tested(name, list, of, hue) {
  const there = list.filter(t => t[of] !== null);
  return there.length ? [{ name, x: there.map(t => t[STEP]), y: there.map(t => t[of]), hue, dash: dashes[hue], dots: there.length < 200 }] : [];
}

// both is a number of each step, and where there are many of them also their course.
function both(name, of, hue) {
  const x = history.steps.map(s => s[STEP]), y = history.steps.map(of);
  if (x.length < 40) return x.length ? [{ name, x, y, hue }] : [];
  return [{ name, x, y, faint: true, width: 1, hue }, { name: name + ", smoothed", x, y: smoothed(y), hue }];
}

// smoothed is an exponential mean over about a fiftieth of all, corrected for its beginning.
function smoothed(y) {
  const keep = 1 - 1 / Math.max(3, y.length / 50);
  let sum = 0, weight = 0;
  return y.map(v => { sum = keep * sum + v; weight = keep * weight + 1; return sum / weight; });
}

function numbers() {
  const n = history.steps.length;
  const all = [history.steps, history.tests, history.validations].filter(list => list.length);
  byId("curves").hidden = !all.length;
  if (!all.length) return;
  numbersView.limit(n ? history.steps[0][STEP] : Math.min(...all.map(list => list[0][STEP])), Math.max(...all.map(list => list.at(-1)[STEP])));
  for (const c of curves) {
    const series = c.series();
    if (!series.some(s => s.x.length > 1)) continue; // the tiles show a single number
    if (!c.chart) {
      const box = element("div", { className: "canvas-box" });
      c.legend = element("ul", { className: "legend" });
      c.figure = element("figure", {}, element("figcaption", { textContent: c.name }), box, c.legend);
      c.chart = new Chart(box, numbersView, { label: c.name + " over steps", from: c.from, base: c.base, yText: c.text, together: charts,
        left: () => 62, within: c.within, xName: "step", xTick: t => Number.isInteger(t) ? grouped(t) : "", xText: t => "Step " + grouped(Math.round(t)) });
      charts.push(c.chart);
      byId("charts").replaceChildren(...curves.filter(k => k.figure).map(k => k.figure));
    }
    const levels = c.id === "peaks" ? limits() : [];
    for (const s of series) s.colour = theme.series(s.hue);
    const named = series.filter(s => !s.faint);
    const names = [...named.map(s => ({ name: s.name, colour: "series-" + s.hue, line: true, dashed: s.dash && s.dash.length > 0 })), ...levels.map(asLegend)];
    c.legend.hidden = names.length < 2;
    legend(c.legend, c.legend.hidden ? [] : names);
    c.chart.set(series, levels);
  }
}

// --- time over memory ---

function memory() {
  const stages = (data.curves || []).map(c => ({ ...c, title: `Stage ${c.stage}, ${count(c.layers, "unit")}: one micro-batch` }));
  const list = stages.filter(c => c.best && c.best.length > 2); // two plans are no curve
  byId("memory").hidden = !list.length;
  byId("memory-charts").replaceChildren(...list.map(c => {
    const x = c.best.map(p => p.bytes), y = c.best.map(p => p.us * 1000);
    const chosen = c.chosen || [];
    const lo = Math.min(...x, ...chosen.map(p => p.bytes)), hi = Math.max(...x, ...chosen.map(p => p.bytes));
    const room = Math.max((hi - lo) * 0.06, hi * 0.01);
    const box = element("div", { className: "canvas-box" });
    const title = c.title;
    const chart = new Chart(box, new View(Math.max(0, lo - room), hi + room), { label: title + ": time over memory", height: 230, base: undefined, xBase: 1024,
      yText: duration, xTick: bytes, xText: b => `Within ${bytes(b)}` });
    chart.set([{ name: "fastest plan", x, y, stepped: true, until: hi + room, note: k => ` (${percent(c.best[k].us / c.once - 1)} more than without recomputation)` }], [],
      chosen.map(p => ({ x: p.bytes, y: p.us * 1000 })));
    const of = chosen.length ? `This plan: ${chosen.map(p => `${duration(p.us * 1000)} within ${bytes(p.bytes)}`).join("; ")}.` : "";
    return element("figure", {}, element("figcaption", { textContent: title }), box, element("p", { className: "note", textContent: of }));
  }));
}

// --- other schedules ---

function others() {
  const rows = view.others || [];
  byId("others").hidden = !rows.length;
  const most = Math.max(...rows.map(o => o.step || 0));
  new Table(byId("other-table"), [
    { title: "Schedule", head: true, value: o => o.schedule },
    { title: "Micro-batches", number: true, value: o => o.micro_batches || 0, cell: o => o.micro_batches ? grouped(o.micro_batches) : "–" },
    { title: "Step", number: true, value: o => o.step || 0, cell: o => o.step ? bar(duration(o.step * 1e9), o.step / most, o.lost ? "idle" : "kept") : "–" },
    { title: "Lower bound", note: "no plan of the schedule takes less", number: true, value: o => o.bound || 0, cell: o => o.bound ? duration(o.bound * 1e9) : "–" },
    { title: "Peak memory", number: true, value: o => o.peak || 0, cell: o => o.peak ? bytes(o.peak) : "–" },
    { title: "Rejected because", wide: true, value: o => o.lost || "", cell: o => o.lost ? element("span", { className: "wrap", textContent: o.lost }) : element("span", { className: "badge kept", textContent: "the plan" }) },
  ], "Schedules").set(rows);
}

// --- layers ---

let layerTable = null;

function layers() {
  const rows = (view.layers || []).map((l, i) => ({ ...l, i }));
  byId("layers").hidden = !rows.length;
  if (!rows.length) return;
  const measured = rows.some(l => l.forward || l.backward || l.saved);
  const most = Math.max(...rows.map(l => l.forward + l.backward));
  const mostSaved = Math.max(...rows.map(l => l.saved));
  const again = rows.filter(l => l.again).length;
  byId("layers-note").textContent = `${count(rows.length, "layer")}${again ? `, of which ${grouped(again)} are recomputed in backward` : view.layers.some(l => l.stage >= 0) ? ", none recomputed" : ""}.`
    + (measured ? " Times and bytes are of one micro-batch." : " Their costs were not measured, as nothing in this run asked for it.");
  const columns = [
    { title: "#", value: l => l.i, number: true, minor: true },
    { title: "Layer", head: true, value: l => l.name, cell: l => element("code", { textContent: l.name }) },
    ...(rows.some(l => l.type) ? [{ title: "Kind", value: l => l.type || "" }] : []),
    { title: "Stage", value: l => l.stage, number: true, cell: l => l.stage < 0 ? "–" : String(l.stage) },
    { title: "Device", value: l => l.device || "" },
  ];
  if (rows.some(l => l.stage >= 0)) {
    columns.push({ title: "Plan", wide: true, value: l => l.frozen ? -1 : l.again / (l.micro_batches || 1), cell: l => {
      if (l.stage < 0) return "–";
      if (l.frozen) return element("span", { className: "badge again", textContent: "frozen", title: "runs once and holds nothing: nothing before it is trained" });
      if (!l.again) return element("span", { className: "badge kept", textContent: "kept" });
      const of = l.again === l.micro_batches ? "" : ` in ${l.again} of ${l.micro_batches}`;
      return element("span", { className: "badge again", textContent: "recomputed" + of, title: `runs ${l.runs} times for ${count(l.micro_batches, "micro-batch")}` });
    } });
  }
  columns.push({ title: "Parameters", value: l => l.parameters, number: true, cell: l => l.parameters ? bytes(l.parameters) : "–" });
  if (measured) {
    const joined = l => l.of > 1 ? ` for ${l.of}` : "";
    columns.push(
      { title: "Forward", value: l => l.forward, number: true, cell: l => l.forward ? bar(duration(l.forward * 1e9) + joined(l), l.forward / most, "forward") : "–" },
      { title: "Backward", value: l => l.backward, number: true, cell: l => l.backward ? bar(duration(l.backward * 1e9) + joined(l), l.backward / most, "backward") : "–" },
      { title: "Saved", note: "bytes held from forward to backward", value: l => l.saved, number: true, cell: l => l.saved ? bar(bytes(l.saved) + joined(l), l.saved / mostSaved, "accent") : "–" });
  }
  layerTable = new Table(byId("layer-table"), columns, "Layers of the model");
  layerTable.set(rows);
  filter();
}

function filter() {
  const words = byId("filter").value.trim().toLowerCase();
  if (layerTable) layerTable.filter(words ? l => `${l.name} ${l.type} ${l.device}`.toLowerCase().includes(words) : undefined);
}

// --- the rest ---

function heading() {
  const n = history.steps.length;
  byId("title").textContent = view.title || "A run";
  byId("about-title").textContent = n || view.ran ? "About this run" : "About this plan";
  byId("about").hidden = !(view.facts && view.facts.length);
  byId("facts").replaceChildren(...(view.facts || []).flatMap(f => [element("dt", { textContent: f.name }), element("dd", { textContent: f.value })]));
  const parts = [];
  if (view.devices && view.devices.length) {
    const stages = view.devices.reduce((k, d) => k + (d.stages || []).length, 0);
    parts.push(`${count(stages, "stage")} on ${count(view.devices.length, "device")}`);
  }
  if (n) {
    const at = new Date(history.steps.at(-1)[TIME] * 1000);
    parts.push(`last step on ${at.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" })} at ${at.toLocaleTimeString("en-GB")}`);
  }
  byId("status").textContent = parts.join(" · ");
  const end = ended();
  if (end && !data.live) say(end.how, end.how);
  byId("ended").hidden = !end || !end.why;
  byId("ended").textContent = end && end.why ? `The run ${end.how === "failed" ? "failed" : "was interrupted"}: ${end.why.replace(/^interrupted /, "")}` : "";
}

// ended is how the run ended; null if it goes on, also again.
const ended = () => view.ended && !(history.steps.length && history.steps.at(-1)[TIME] > view.ended.time) ? view.ended : null;

// say says how the run stands.
function say(text, state) {
  const live = byId("live");
  live.hidden = false; live.textContent = text; live.dataset.state = state;
}

function everything() { heading(); tiles(); step(); numbers(); memory(); others(); layers(); }

// Live: further events come from the program that trains.
function listen() {
  say("connecting", "waiting");
  const source = new EventSource(data.live);
  source.addEventListener("open", () => say("live", "on"));
  source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED ? "not connected" : "reconnecting", "waiting"));
  source.addEventListener("numbers", e => {
    const more = JSON.parse(e.data), after = (list, rows) => rows.filter(r => !list.length || r[0] > list.at(-1)[0]);
    history.steps.push(...after(history.steps, more.steps));
    history.tests.push(...after(history.tests, more.tests));
    history.validations.push(...after(history.validations, more.validations));
    more.peaks.forEach((p, i) => { history.peaks[i] = Math.max(history.peaks[i] || 0, p); });
    heading(); tiles(); numbers();
  });
  source.addEventListener("run", e => { view = JSON.parse(e.data); everything(); });
  source.addEventListener("end", e => { say(JSON.parse(e.data), JSON.parse(e.data)); source.close(); });
}

theme.start();
evenly(byId("tiles"), 162, 12);
evenly(byId("charts"), 360, 28);
evenly(byId("memory-charts"), 360, 28);
everything();
byId("zoom-in").addEventListener("click", () => stepView.zoom((stepView.lo + stepView.hi) / 2, 1.6));
byId("zoom-out").addEventListener("click", () => stepView.zoom((stepView.lo + stepView.hi) / 2, 1 / 1.6));
byId("zoom-all").addEventListener("click", () => stepView.all());
byId("filter").addEventListener("input", filter);
theme.listeners.push(numbers);
if (data.live) listen();
