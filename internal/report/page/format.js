// --- numbers and elements ---

const byId = id => document.getElementById(id);

// element makes an element. Text is text: nothing of it is read as HTML.
function element(tag, properties, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in e) e[name] = value;
    else e.setAttribute(name, value);
  }
  e.append(...children.filter(c => c !== null && c !== undefined));
  return e;
}

// significant is a number in so many digits, without an exponent where people read none.
function significant(x, digits) {
  if (x === null || x === undefined || !isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return String(Number(x.toPrecision(digits)).toExponential()).replace("e+", "e");
  return String(Number(x.toPrecision(digits)));
}

// bytes is a number of bytes in words, in the unit of another where one is given, as on an axis.
function bytes(n, like = n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  while (Math.abs(like) >= 1024 && k < units.length - 1) { n /= 1024; like /= 1024; k++; }
  return (k === 0 ? n : Number(n.toPrecision(n >= 100 ? 4 : 3))) + " " + units[k];
}

// duration is nanoseconds in words, in the unit of another duration where one is given.
function duration(ns, like = ns) {
  const size = Math.abs(like);
  if (ns === 0) return "0";
  if (size >= 1e9) return significant(ns / 1e9, 4) + " s";
  if (size >= 1e6) return significant(ns / 1e6, 4) + " ms";
  if (size >= 1e3) return significant(ns / 1e3, 3) + " µs";
  return Math.round(ns) + " ns";
}

// wait is seconds in words, as people wait for them.
function wait(seconds) {
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (seconds < 90) return Math.ceil(seconds) + " s";
  return days ? `${days} d ${hours % 24} h` : hours ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

const percent = x => (100 * x).toFixed(Math.abs(x) < 0.0995 ? 1 : 0) + " %";
const grouped = n => Number(n).toLocaleString("en-GB").replaceAll(",", "\u202f");
const lower = s => s.charAt(0).toLowerCase() + s.slice(1);
const capital = s => s.charAt(0).toUpperCase() + s.slice(1);
const count = (n, what) => `${grouped(n)} ${what}${n === 1 ? "" : what.endsWith("ch") ? "es" : "s"}`;

function median(list) {
  if (!list.length) return NaN;
  const s = Float64Array.from(list).sort();
  return (s[(s.length - 1) >> 1] + s[s.length >> 1]) / 2;
}

// firstWhere is the first index of an ascending condition.
function firstWhere(n, holds) {
  let lo = 0, hi = n;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (holds(mid)) hi = mid; else lo = mid + 1;
  }
  return lo;
}

// ticks are round numbers from lo to hi, about so many.
function ticks(lo, hi, about, base) {
  const span = hi - lo;
  if (!(span > 1e-12 * Math.max(Math.abs(lo), Math.abs(hi))) || !isFinite(span)) return [lo]; // steps would be lost in rounding
  let step;
  if (base === 1024) {
    const unit = Math.pow(1024, Math.max(0, Math.floor(Math.log(Math.max(hi, 1)) / Math.log(1024))));
    step = unit * niceStep(span / unit / about);
  } else step = niceStep(span / about);
  const out = [];
  for (let t = Math.ceil(lo / step - 1e-9) * step; t <= hi + step * 1e-9; t += step) out.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return out;
}

function niceStep(raw) {
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const part = raw / power;
  return power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
}
