// Panels: each draws one SVG and says what is to be read at each of its stops.
//
// A panel is { node, stops, nearest(x, y), at(stop) }: a stop is { title, lines: [{ arm, text }] }.

const LETTER = 6.3; // average width of a letter of the small print, in pixels

function canvas(width, height, label) {
  return make("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    tabindex: 0,
    "aria-label": label,
  });
}

function words(x, y, text, attributes = {}) {
  return make("text", { x, y, ...attributes }, text);
}

function clip(text, width) {
  const most = Math.max(3, Math.floor(width / LETTER));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Lines and labels at the ticks, below for x and to the left for y. */
function axisX(node, x, ticks, { top, bottom, form, heading, plain = false }) {
  let free = -Infinity;
  for (const tick of ticks) {
    const at = x(tick);
    const text = x.log || plain ? show(".6g", tick) : tickText(tick, ticks, form);
    node.append(make("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    const half = (text.length * LETTER) / 2;
    if (at - half > free) {
      node.append(words(at, bottom + 15, text, { class: "tick", "text-anchor": "middle" }));
      free = at + half + 6;
    }
  }
  if (heading) {
    const middle = (x(x.low) + x(x.high)) / 2;
    node.append(words(middle, bottom + 31, heading, { class: "heading", "text-anchor": "middle" }));
  }
}

function axisY(node, y, ticks, { left, right, form }) {
  for (const tick of ticks) {
    const at = y(tick);
    const text = y.log ? show(".2g", tick) : tickText(tick, ticks, form);
    node.append(make("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    node.append(words(left - 6, at + 4, text, { class: "tick", "text-anchor": "end" }));
  }
}

function describe(what) {
  const error = isNumber(what.error) ? ` ± ${show(what.form, what.error)}` : "";
  return `${show(what.form, what.mean, what.signed)}${error}`;
}

/** Arms down, values across: mean, 95 % interval, each seed, and the paper's number. */
function dotPanel(width, { items, form, signed, label, zero }) {
  const longest = Math.max(...items.map((item) => item.name.length));
  const left = Math.min(longest * LETTER + 14, width * 0.44);
  const [top, row] = [6, 24];
  const bottom = top + row * items.length;
  const node = canvas(width, bottom + 22, label);
  const reached = items.flatMap((item) => [item.mean, item.low, item.high, item.paper, ...(item.each ?? [])]);
  const { at: x, ticks } = fit(reached, left + 4, width - 10, {
    log: form.endsWith("e"),
    zero,
    ticks: (width - left) / 62,
  });
  axisX(node, x, ticks, { top, bottom, form });
  if (zero) node.append(make("line", { class: "zero", x1: x(0), x2: x(0), y1: top, y2: bottom }));
  const glow = make("rect", { class: "glow", x: 0, width, height: row, visibility: "hidden" });
  node.append(glow);
  items.forEach((item, i) => {
    const y = top + row * (i + 0.5);
    const group = make("g", { class: `arm arm-${item.arm % COLOURS}` });
    group.append(words(left - 8, y + 4, clip(item.name, left - 10), { class: "name", "text-anchor": "end" }));
    for (const value of item.each ?? []) {
      if (isNumber(value)) group.append(make("circle", { class: "seed", cx: x(value), cy: y + 7, r: 1.9 }));
    }
    if (isNumber(item.low)) {
      group.append(make("line", { class: "whisker", x1: x(item.low), x2: x(item.high), y1: y, y2: y }));
    }
    if (isNumber(item.paper))
      group.append(make("path", { class: "paper", d: SHAPES[3], transform: `translate(${x(item.paper)} ${y})` }));
    if (isNumber(item.mean)) group.append(marker(item.arm, x(item.mean), y, { class: "dot" }));
    node.append(group);
  });
  const stops = items.map((item) => ({
    title: item.name,
    lines: [
      { arm: item.arm, text: describe({ ...item, form, signed }) },
      isNumber(item.low)
        ? { text: `95 % interval ${show(form, item.low, signed)} to ${show(form, item.high, signed)}` }
        : null,
      { text: `${item.count} seed${item.count === 1 ? "" : "s"}` },
      isNumber(item.paper) ? { text: `paper: ${show(form, item.paper)}` } : null,
    ].filter(Boolean),
  }));
  return {
    node,
    stops,
    nearest: (_, py) => Math.max(0, Math.min(items.length - 1, Math.floor((py - top) / row))),
    at(stop) {
      glow.setAttribute("visibility", stop === null ? "hidden" : "visible");
      glow.setAttribute("y", top + row * (stop ?? 0));
      return [width / 2, top + row * ((stop ?? 0) + 0.5)];
    },
  };
}

/** Lines over x with a band: one standard error, or for differences the 95 % interval.
 *  lines: [{ arm, name, points: [summary or null], each }]. */
function curvePanel(width, { lines, xs, form, heading, label, paired, limits }) {
  const height = Math.max(190, Math.min(340, width * 0.62));
  const [left, right, top, bottom] = [52, width - 12, 8, height - 38];
  const node = canvas(width, height, label);
  const log = xs.length <= 12 && xs[0] > 0 && xs.at(-1) / xs[0] >= 20;
  const x = scale(xs[0], xs.at(-1), left + 6, right - 4, log);
  const inside = (value) => Math.min(Math.max(value, limits[0] ?? -Infinity), limits[1] ?? Infinity);
  const band = (point) =>
    paired ? [point.low, point.high] : [inside(point.mean - point.error), inside(point.mean + point.error)];
  const seen = lines.flatMap((line) => [
    ...line.points.flatMap((point) => (point ? [point.mean, ...band(point)] : [])),
    ...(line.each ?? []).flat(),
  ]);
  const { at: y, ticks } = fit(seen, bottom, top, { log: form.endsWith("e"), ticks: height / 45, zero: paired });
  axisY(node, y, ticks, { left, right, form });
  axisX(node, x, xs.length <= 8 || log ? xs : nice(xs[0], xs.at(-1), width / 80), {
    top,
    bottom,
    heading,
    plain: true,
  });
  if (paired) node.append(make("line", { class: "zero", x1: left, x2: right, y1: y(0), y2: y(0) }));
  const rule = make("line", { class: "rule", y1: top, y2: bottom, visibility: "hidden" });
  node.append(rule);
  const drawn = strokes(
    lines,
    lines.map((line) => line.points.map((point) => (point ? y(point.mean) : null))),
  );
  lines.forEach((line, index) => {
    const { stroke, marked } = drawn[index];
    const group = make("g", { class: `arm arm-${line.arm % COLOURS}` });
    for (const seed of line.each ?? []) {
      group.append(
        make("path", {
          class: "thread",
          d: linePath(seed.map((value, i) => (isNumber(value) ? [x(xs[i]), y(value)] : null))),
        }),
      );
    }
    const known = line.points.map((point, i) => (point ? { ...point, i, x: x(xs[i]) } : null)).filter(Boolean);
    const banded = known.filter((point) => isNumber(band(point)[0]) && (!y.log || band(point)[0] > 0));
    if (banded.length > 1) {
      const up = banded.map((point) => [point.x, y(band(point)[1])]);
      const down = banded.map((point) => [point.x, y(band(point)[0])]).reverse();
      group.append(make("path", { class: "band", d: `${linePath([...up, ...down])}Z` }));
    }
    group.append(
      make("path", {
        class: "curve",
        ...stroke,
        d: linePath(known.map((point) => [point.x, y(point.mean)])),
      }),
    );
    // A dozen marks or so.
    const step = Math.ceil(known.length / 15);
    known.forEach((point, place) => {
      if (marked(point.i, place / step))
        group.append(marker(line.arm, point.x, y(point.mean), { class: "dot small" }));
    });
    node.append(group);
  });
  const stops = xs.map((value, i) => ({
    title: `${heading}: ${show(".6g", value)}`,
    lines: lines
      .filter((line) => line.points[i])
      .map((line) => ({
        arm: line.arm,
        text: `${line.name} ${describe({ ...line.points[i], form, signed: paired })}`,
      })),
  }));
  return { node, stops, ...sweep(xs.map(x), rule, bottom) };
}

/** Hovering along x: the stop nearest to the pointer, marked by a rule. */
function sweep(positions, rule, bottom) {
  return {
    nearest: (px) =>
      positions.reduce((best, at, i) => (Math.abs(at - px) < Math.abs(positions[best] - px) ? i : best), 0),
    at(stop) {
      const x = positions[stop ?? 0];
      rule.setAttribute("visibility", stop === null ? "hidden" : "visible");
      rule.setAttribute("x1", x);
      rule.setAttribute("x2", x);
      return [x, bottom / 2];
    },
  };
}

/** Promised level across, observed share up; an honest forecaster's line is the diagonal. */
function reliabilityPanel(width, { lines, levels, label }) {
  const [left, top] = [46, 8];
  const size = Math.min(width - left - 10, 300);
  const [right, bottom] = [left + size, top + size];
  const node = canvas(right + 10, bottom + 38, label);
  const x = scale(0, 100, left, right);
  const y = scale(0, 100, bottom, top);
  const ticks = [0, 25, 50, 75, 100];
  axisY(node, y, ticks, { left, right, form: "" });
  axisX(node, x, ticks, { top, bottom, heading: "promised, %", form: "" });
  node.append(make("line", { class: "ideal", x1: left, y1: bottom, x2: right, y2: top }));
  const rule = make("line", { class: "rule", y1: top, y2: bottom, visibility: "hidden" });
  node.append(rule);
  const places = lines.map((line) =>
    line.points.map((point, i) => (point ? [x(levels[i]), y(100 * point.mean)] : null)),
  );
  const drawn = strokes(
    lines,
    places.map((points) => points.map((point) => point && point[1])),
  );
  lines.forEach((line, index) => {
    const { stroke, marked } = drawn[index];
    const points = places[index];
    const group = make("g", { class: `arm arm-${line.arm % COLOURS}` });
    group.append(make("path", { class: "curve", ...stroke, d: linePath([[left, bottom], ...points, [right, top]]) }));
    points.forEach((point, i) => {
      if (point && marked(i, (i - 1) / 2)) group.append(marker(line.arm, ...point, { class: "dot small" }));
    });
    node.append(group);
  });
  const stops = levels.map((level, i) => ({
    title: `promised ${level}\u202f%, happened`,
    lines: lines
      .filter((line) => line.points[i])
      .map((line) => ({ arm: line.arm, text: `${line.name} ${describe({ ...line.points[i], form: ".1%" })}` })),
  }));
  return { node, stops, ...sweep(levels.map(x), rule, bottom) };
}

/** Where in their forecasts outcomes fell, in equal bins: flat at 1 when honest. */
function pitPanel(width, { lines, levels, label }) {
  const [left, top] = [46, 8];
  const size = Math.min(width - left - 10, 300);
  const [right, bottom] = [left + size, top + size];
  const node = canvas(right + 10, bottom + 38, label);
  const edges = [0, ...levels, 100];
  const bars = lines.map((line) => {
    const below = [0, ...line.points.map((point) => point?.mean ?? NaN), 1];
    return { ...line, heights: edges.slice(1).map((edge, i) => (100 * (below[i + 1] - below[i])) / (edge - edges[i])) };
  });
  const x = scale(0, 100, left, right);
  const most = Math.max(2, ...bars.flatMap((bar) => bar.heights.filter(isNumber)));
  const y = scale(0, most * 1.05, bottom, top);
  axisY(node, y, nice(0, most * 1.05, 5), { left, right, form: "" });
  axisX(node, x, [0, 25, 50, 75, 100], { top, bottom, heading: "PIT, %", form: "" });
  node.append(make("line", { class: "ideal", x1: left, x2: right, y1: y(1), y2: y(1) }));
  const rule = make("line", { class: "rule", y1: top, y2: bottom, visibility: "hidden" });
  node.append(rule);
  const drawn = strokes(
    bars,
    bars.map((bar) => bar.heights.map((height) => (isNumber(height) ? y(height) : null))),
  );
  bars.forEach((bar, index) => {
    const steps = bar.heights.flatMap((height, i) => [
      [x(edges[i]), y(height)],
      [x(edges[i + 1]), y(height)],
    ]);
    const group = make("g", { class: `arm arm-${bar.arm % COLOURS}` });
    // More would mix to a colour that is no arm's.
    if (bars.length < 5)
      group.append(make("path", { class: "band", d: `${linePath([[left, bottom], ...steps, [right, bottom]])}Z` }));
    group.append(make("path", { class: "curve", ...drawn[index].stroke, d: linePath(steps) }));
    node.append(group);
  });
  const stops = edges.slice(1).map((edge, i) => ({
    title: `PIT ${edges[i]} to ${edge}\u202f%`,
    lines: bars.map((bar) => ({ arm: bar.arm, text: `${bar.name} ${show(".2f", bar.heights[i])}` })),
  }));
  return {
    node,
    stops,
    ...sweep(
      edges.slice(1).map((edge, i) => x((edge + edges[i]) / 2)),
      rule,
      bottom,
    ),
  };
}
