// Numbers, scales and SVG: what every panel is drawn with.

const SVG = "http://www.w3.org/2000/svg";

/** A new SVG or HTML element; null attributes are left out, children may be text. */
function make(name, attributes = {}, ...children) {
  const drawn = /^(svg|g|path|line|rect|circle|text|title)$/.test(name);
  const node = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number printed by a Python format such as .1f, ",.0f", .3g, .1e or .1%. */
function show(form, value, sign = false) {
  if (!isNumber(value)) return "–";
  const [, digits, kind] = /\.(\d+)([fge%])/.exec(form) ?? [null, "4", "g"];
  const places = Number(digits);
  let text;
  if (kind === "%") text = `${(100 * value).toFixed(places)}\u202f%`;
  else if (kind === "f") text = value.toFixed(places);
  else if (kind === "e") text = value.toExponential(places);
  else text = String(Number(value.toPrecision(Math.max(places, 1))));
  if (form.startsWith(",")) text = text.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
  if (!/[1-9]/.test(text)) text = text.replace("-", "");
  return (sign && value > 0 ? "+" : "") + text.replaceAll("-", "−");
}

/** Mean, standard error and 95 % interval of the numbers in a list; `reach[n]` standard errors either way. */
function summary(values, reach) {
  const found = values.filter(isNumber);
  const count = found.length;
  if (!count) return null;
  const mean = found.reduce((sum, value) => sum + value, 0) / count;
  const square = found.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const error = count > 1 ? Math.sqrt(square / (count - 1) / count) : NaN;
  return interval(mean, error, count, reach);
}

/** The same, with an interval that stays where values can be; `limits` are null where there is none. */
function bounded(found, [least, most]) {
  if (!found) return found;
  return { ...found, low: Math.max(found.low, least ?? -Infinity), high: Math.min(found.high, most ?? Infinity) };
}

/** Where differences of such values can be. */
const between = ([least, most]) => (least === null || most === null ? [null, null] : [least - most, most - least]);

function interval(mean, error, count, reach) {
  const far = (reach[Math.min(count, reach.length - 1)] ?? NaN) * error;
  return { mean, error, count, low: mean - far, high: mean + far };
}

/** A straight or logarithmic scale from [low, high] to pixels. */
function scale(low, high, from, to, log = false) {
  const bend = log ? Math.log10 : (value) => value;
  const start = bend(low);
  const span = bend(high) - start || 1;
  const at = (value) => from + ((bend(value) - start) / span) * (to - from);
  return Object.assign(at, { low, high, log });
}

/** A scale that holds all values with some air, and its ticks. */
function fit(values, from, to, { log = false, ticks = 5, air = 0.06, zero = false } = {}) {
  let found = values.filter(isNumber);
  const bent = log && found.length > 0 && found.every((value) => value > 0);
  if (!found.length) found = [0, 1];
  let low = found.reduce((least, value) => Math.min(least, value), Infinity);
  let high = found.reduce((most, value) => Math.max(most, value), -Infinity);
  if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (bent) {
    const extra = Math.max((high / low) ** air, 1.05);
    const at = scale(low / extra, high * extra, from, to, true);
    return { at, ticks: decades(low / extra, high * extra) };
  }
  if (low === high) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
  const extra = (high - low) * air;
  const at = scale(low - extra, high + extra, from, to);
  return { at, ticks: nice(low - extra, high + extra, ticks) };
}

/** Round numbers between low and high, about as many as wanted. */
function nice(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const fine = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999) ?? 10;
  // At least two ticks, or nobody can read the scale.
  const step =
    [fine, fine / 2, fine / 5]
      .map((factor) => factor * power)
      .find((size) => Math.floor(high / size) - Math.ceil(low / size) >= 1) ?? power / 10;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i += 1)
    found.push(Number((i * step).toPrecision(12)));
  return found;
}

function decades(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(high))];
  const step = Math.max(1, Math.ceil((last - first) / 4));
  const found = [];
  for (let power = first; power <= last; power += step) found.push(10 ** power);
  return found.length > 1 ? found : [low, Math.sqrt(low * high), high].map((value) => Number(value.toPrecision(2)));
}

/** A tick as short as it can be told apart from its neighbours. */
function tickText(value, ticks, form = "") {
  const percent = form.endsWith("%");
  const shown = percent ? 100 * value : value;
  const gap = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) * (percent ? 100 : 1) : 1;
  const size = Math.abs(shown);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return show(".0e", shown);
  const places = Math.max(0, Math.min(6, -Math.floor(Math.log10(gap) + 1e-9)));
  const exact = Number(gap.toPrecision(3)) * 10 ** places;
  return (
    show(
      `${form.startsWith(",") ? "," : ""}.${places + (Math.abs(exact - Math.round(exact)) > 1e-6 ? 1 : 0)}f`,
      shown,
    ) + (percent ? "\u202f%" : "")
  );
}

/** Shapes that tell arms apart without colour. */
const SHAPES = [
  "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1 -4 0Z",
  "M-3.6 -3.6H3.6V3.6H-3.6Z",
  "M0 -4.6L4.4 3.4H-4.4Z",
  "M0 -5L5 0L0 5L-5 0Z",
  "M0 4.6L4.4 -3.4H-4.4Z",
  "M-4 -1.4H-1.4V-4H1.4V-1.4H4V1.4H1.4V4H-1.4V1.4H-4Z",
  "M0 -5L1.5 -1.6L5 -1.3L2.4 1.1L3.2 4.6L0 2.8L-3.2 4.6L-2.4 1.1L-5 -1.3L-1.5 -1.6Z",
  "M-4.5 -1.6H4.5V1.6H-4.5Z",
  "M-1.6 -4.5H1.6V4.5H-1.6Z",
  "M-4 -2.6L-2.6 -4L0 -1.4L2.6 -4L4 -2.6L1.4 0L4 2.6L2.6 4L0 1.4L-2.6 4L-4 2.6L-1.4 0Z",
  "M4.6 0L-3.4 4.4V-4.4Z",
  "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5Z",
];
const DASHES = ["", "7 3", "2 3", "9 3 2 3"];
const COLOURS = SHAPES.length;

/** An arm's mark; those beyond the colours repeat them with another shape. */
function marker(arm, x, y, extra = {}) {
  const shape = SHAPES[(arm + Math.floor(arm / COLOURS)) % COLOURS];
  return make("path", { d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, ...extra });
}

/** Arms beyond the colours repeat them with another dash; those after the first four are dashed from the start. */
function dash(arm) {
  return DASHES[(Math.floor(arm / COLOURS) + (arm % COLOURS > 3 ? 1 : 0)) % DASHES.length] || null;
}

/** How each of the lines is drawn: those that lie on one another take turns, so that none hides another.
 *  heights: for each line its points in pixels, null where there is none. Returns [{ stroke, marked }]: marked(i, place)
 *  says whether point i gets the line's mark, the place-th of its points that may; no mark has a fraction for a place. */
function strokes(lines, heights) {
  const near = (a, b, i) => a[i] !== null && b[i] !== null && Math.abs(a[i] - b[i]) < 2.5; // a line's width and air
  // On one another: along a third of the way, both ends of a stretch being near.
  const alike = (a, b) => {
    const stretches = a.map((_, i) => i).slice(a.length > 1 ? 1 : 0);
    return 3 * stretches.filter((i) => near(a, b, i) && near(a, b, Math.max(i - 1, 0))).length >= stretches.length;
  };
  const groups = heights.map((_, i) => i);
  heights.forEach((own, i) => {
    for (let j = 0; j < i; j += 1) {
      const [from, to] = [groups[i], groups[j]];
      if (alike(own, heights[j])) groups.forEach((group, k) => (groups[k] = group === from ? to : group));
    }
  });
  return lines.map((line, k) => {
    const among = groups.flatMap((group, j) => (group === groups[k] ? [j] : []));
    const [turn, of] = [among.indexOf(k), among.length];
    const stroke =
      of === 1
        ? { "stroke-dasharray": dash(line.arm) }
        : { "stroke-dasharray": `9 ${9 * (of - 1)}`, "stroke-dashoffset": -9 * turn };
    const marked = (i, place) => {
      const crowd = heights.flatMap((other, j) => (near(heights[k], other, i) ? [j] : []));
      return place % crowd.length === crowd.indexOf(k);
    };
    return { stroke, marked };
  });
}

function linePath(points) {
  let pen = "M";
  let path = "";
  for (const point of points) {
    if (point === null) {
      pen = "M";
    } else {
      path += `${pen}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}
