// One study: its controls, and its charts drawn from the choices.

const MANY = 12; // more problems than this are shown one at a time
const KEYS = "Use the arrow keys to read values.";

class Study {
  constructor(root, data, choice) {
    Object.assign(this, { root, data, choice });
    this.build();
  }

  build() {
    const { root, data, choice } = this;
    const sane = (value, most, fallback) => (value >= 0 && value < most ? value : fallback);
    choice.metric = sane(choice.metric, data.metrics.length, 0);
    choice.problem = sane(choice.problem, data.problems.length, ALL);
    if (!["values", "difference"].includes(choice.view) || data.baseline === null) choice.view = "values";
    this.charts = make("div", { class: "charts" });
    this.note = make("p", { class: "note", role: "status" });
    root.replaceChildren(this.controls(), this.note, this.charts);
    this.draw();
  }

  controls() {
    const { data, choice, root } = this;
    const id = (name) => `${root.id}.${name}`;
    const change = (name) => (event) => {
      choice[name] = event.target.type === "checkbox" ? event.target.checked : event.target.value;
      if (name === "metric" || name === "problem") choice[name] = Number(choice[name]);
      this.changed();
    };
    const pick = (name, label, options, value) => {
      const list = make(
        "select",
        { id: id(name) },
        ...options.map(([key, text]) => make("option", { value: key, selected: key === value }, text)),
      );
      list.addEventListener("change", change(name));
      return make("p", { class: "field" }, make("label", { for: id(name) }, label), list);
    };
    const arms = make("fieldset", { class: "arms" }, make("legend", {}, "Arms"));
    data.arms.forEach((arm, i) => {
      const box = make("input", { type: "checkbox", id: id(`arm${i}`), checked: !choice.off.has(i) });
      box.addEventListener("change", () => {
        choice.off[box.checked ? "delete" : "add"](i);
        this.changed();
      });
      arms.append(make("label", { class: "chip", for: id(`arm${i}`) }, box, swatch(i), make("span", {}, arm)));
    });
    const fields = make("div", { class: "fields" });
    if (data.metrics.length > 1)
      fields.append(
        pick(
          "metric",
          "Metric",
          data.metrics.map((metric, i) => [i, metric.heading]),
          choice.metric,
        ),
      );
    if (data.problems.length > 1) {
      const every = [ALL, `all ${data.problems.length} problems`];
      fields.append(pick("problem", "Problem", [every, ...data.problems.map((name, i) => [i, name])], choice.problem));
    }
    if (data.baseline !== null && data.arms.length > 1) {
      const views = [
        ["values", "values"],
        ["difference", `difference to ${data.arms[data.baseline]}`],
      ];
      fields.append(pick("view", "Show", views, choice.view));
    }
    if (data.seeds.length > 1 && data.each) {
      const span = `${data.seeds[0]}-${data.seeds.at(-1)}`;
      const hint = `all; or some of ${span}`;
      this.seeds = make("input", {
        id: id("seeds"),
        type: "text",
        value: choice.seeds,
        placeholder: hint,
        autocomplete: "off",
        spellcheck: "false",
        "aria-describedby": id("note"),
      });
      this.seeds.addEventListener("input", change("seeds"));
      fields.append(make("p", { class: "field" }, make("label", { for: id("seeds") }, "Seeds"), this.seeds));
      const each = make("input", { type: "checkbox", id: id("each"), checked: choice.each });
      each.addEventListener("change", change("each"));
      fields.append(make("label", { class: "chip", for: id("each") }, each, make("span", {}, "each seed")));
    }
    this.note.id = id("note");
    const reset = make("button", { type: "button", class: "reset" }, "Reset");
    reset.addEventListener("click", () => {
      Object.assign(choice, start());
      this.build();
      writeAddress();
      root.querySelector(".reset").focus();
    });
    fields.append(reset);
    return make(
      "div",
      { class: "controls", role: "group", "aria-label": `Choose what is shown: ${root.dataset.title}` },
      arms,
      fields,
    );
  }

  changed() {
    writeAddress();
    this.draw();
  }

  /** Statistics over the chosen seeds of one line of a pack: what is packed is every seed, or only the mean. */
  stat(pack, ...path) {
    const at = (nested) => path.reduce((part, i) => part?.[i], nested);
    if (pack.each) {
      const values = at(pack.each);
      return values
        ? summary(
            this.kept.map((i) => values[i]),
            this.data.reach,
          )
        : null;
    }
    return isNumber(at(pack.mean))
      ? interval(at(pack.mean), at(pack.error) ?? NaN, at(pack.count), this.data.reach)
      : null;
  }

  /** The paired difference to the baseline, in the same place. */
  change(pack, arm, ...path) {
    const at = (nested, first) => [first, ...path].reduce((part, i) => part?.[i], nested);
    if (pack.each) {
      const [values, base] = [at(pack.each, arm), at(pack.each, this.data.baseline)];
      const each = this.kept.map((i) => (isNumber(values[i]) && isNumber(base[i]) ? values[i] - base[i] : null));
      const found = summary(each, this.data.reach);
      return found && { ...found, each };
    }
    const [mean, low, high] = pack.difference.map((part) => at(part, arm));
    return isNumber(mean) ? { mean, low, high, error: NaN, count: at(pack.count, arm) } : null;
  }

  draw() {
    const { data, choice } = this;
    const kept = chosenSeeds(choice.seeds, data.seeds);
    this.seeds?.setAttribute("aria-invalid", kept === null);
    if (kept === null) {
      const span = `${data.seeds[0]}-${data.seeds.at(-1)}`;
      this.note.textContent = `“${choice.seeds}” matches no seed; enter numbers or ranges such as ${span}.`;
      return;
    }
    this.kept = kept;
    this.shown = data.arms.map((_, i) => i).filter((i) => !choice.off.has(i));
    this.metric = data.metrics[choice.metric];
    const parts = [this.results(), this.curves(), this.honesty()].filter(Boolean);
    this.charts.replaceChildren(...(this.shown.length ? parts : [make("p", { class: "empty" }, "No arm is selected.")]));
    const total = data.seeds.length;
    const seeds = total === 1 ? "one seed" : data.each ? `${kept.length} of ${total} seeds` : `all ${total} seeds`;
    const why = data.each ? "" : " Too many rows to choose among seeds here.";
    this.note.textContent = `${this.metric.heading}: ${this.shown.length} of ${data.arms.length} arms, ${seeds}.${why}`;
  }

  /** Panels side by side under a heading; widths come from the room there is. */
  group(title, hint, least, panels) {
    if (!panels.length) return null;
    const room = this.root.clientWidth || 640;
    const columns = Math.max(1, Math.min(panels.length, Math.floor((room + 20) / (least + 20))));
    const width = Math.floor((room - 20 * (columns - 1)) / columns);
    const most = panels.length === 1 ? Math.min(width, 720) : width;
    const grid = make("div", { class: "panels" });
    // Not as an attribute, which the page's content-security policy forbids.
    grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const { name, draw } of panels) {
      grid.append(make("figure", { class: "panel" }, make("figcaption", {}, name), ...draw(most).map(listen)));
    }
    return make(
      "section",
      { class: "group", "aria-label": `${title}, ${this.root.dataset.title}` },
      make("h4", {}, title),
      make("p", { class: "hint" }, hint),
      grid,
    );
  }

  over(rest) {
    return this.data.seeds.length > 1 ? `Mean over seeds${rest.startsWith(";") ? "" : " "}${rest}.` : "One seed.";
  }

  /** What the charts show, in words. */
  what() {
    const { data, choice, metric } = this;
    return choice.view === "difference"
      ? `${metric.heading}, paired difference to ${data.arms[data.baseline]}`
      : metric.heading;
  }

  results() {
    const { data, choice, metric } = this;
    const paired = choice.view === "difference";
    const packs = data.finals[metric.key];
    const problems =
      choice.problem === ALL ? (data.problems.length > MANY ? [] : data.problems.map((_, p) => p)) : [choice.problem];
    const panels = [];
    for (const p of problems) {
      const items = [];
      for (const arm of this.shown) {
        if (paired && arm === data.baseline) continue;
        const found = paired
          ? bounded(this.change(packs[p], arm), between(metric.limits))
          : bounded(this.stat(packs[p], arm), metric.limits);
        if (!found) continue;
        // Too few seeds for an interval are shown one by one.
        const each =
          !(choice.each || (found.count > 1 && found.count < data.enough)) || !packs[p].each ? null : paired ? found.each : this.kept.map((i) => packs[p].each[arm][i]);
        items.push({
          ...found,
          each,
          arm,
          name: data.arms[arm],
          paper: paired ? null : data.paper[metric.key]?.[p][arm],
        });
      }
      if (!items.length) continue;
      const told = items.map((item) => `${item.name} ${describe({ ...item, form: metric.form, signed: paired })}`);
      const label = `${this.what()}, ${data.problems[p]}: ${told.join("; ")}. ${KEYS}`;
      panels.push({
        name: data.problems[p],
        draw: (width) => [dotPanel(width, { items, form: metric.form, signed: paired, zero: paired, label })],
      });
    }
    const arrow = metric.better ? `, ${metric.better} is better` : "";
    const paper = !paired && data.paper[metric.key] ? "Hollow diamonds: the paper." : "";
    const some = this.kept.length < data.enough ? `and each seed; an interval takes ${data.enough} of them` : "";
    const hint = [metric.help && `${metric.help[0].toUpperCase()}${metric.help.slice(1)}.`, this.over(some || "with its 95 % interval"), paper, data.end]
      .filter(Boolean)
      .join(" ");
    return this.group(`${this.what()}${arrow}`, hint, 300, panels);
  }

  curves() {
    const { data, choice, metric } = this;
    const paired = choice.view === "difference";
    const wanted = data.curves.filter(
      (curve) => curve.values[metric.key] && (choice.problem === ALL || curve.problems.includes(choice.problem)),
    );
    const panels = wanted.map((curve) => {
      const pack = curve.values[metric.key];
      const lines = this.shown
        .filter((arm) => !paired || arm !== data.baseline)
        .map((arm) => {
          const points = curve.x.map((_, i) =>
            paired
              ? bounded(this.change(pack, arm, i), between(metric.limits))
              : bounded(this.stat(pack, arm, i), metric.limits),
          );
          const seed = (s, i) => (paired ? points[i]?.each[s] : pack.each[arm][i][this.kept[s]]);
          const each = choice.each && pack.each ? this.kept.map((_, s) => curve.x.map((__, i) => seed(s, i))) : null;
          return { arm, name: data.arms[arm], points, each };
        });
      const seen = lines.filter((line) => line.points.some(Boolean));
      const last = (line) => describe({ ...line.points.findLast(Boolean), form: metric.form, signed: paired });
      const told = seen.map((line) => `${line.name} ${last(line)}`).join("; ");
      const label = `${this.what()}, by ${curve.heading}, ${curve.title}; at the end ${told}. ${KEYS}`;
      const draw = (width) => [
        curvePanel(width, {
          lines: seen,
          xs: curve.x,
          form: metric.form,
          heading: curve.heading,
          label,
          paired,
          limits: metric.limits,
        }),
      ];
      return seen.length ? { name: curve.title, draw } : null;
    });
    const band = paired ? "its 95 % interval" : "one standard error";
    return this.group(
      `${this.what()}${paired ? "," : ""} by ${data.curves[0]?.heading}`,
      this.over(`; the band is ${band}. Lines that lie on one another are dashed in turn`),
      320,
      panels.filter(Boolean),
    );
  }

  honesty() {
    const { data, choice } = this;
    const panels = [];
    data.reliability.forEach((pack, p) => {
      if (!pack || (choice.problem !== ALL && choice.problem !== p)) return;
      const lines = this.shown
        .map((arm) => ({ arm, name: data.arms[arm], points: data.levels.map((_, i) => this.stat(pack, arm, i)) }))
        .filter((line) => line.points.some(Boolean));
      if (!lines.length) return;
      const below = lines.map((line) => `${line.name} ${show(".0%", line.points.at(-1)?.mean)}`).join("; ");
      const top = data.levels.at(-1);
      const label = `Reliability, ${data.problems[p]}: below the ${top} % level fell ${below}. ${KEYS}`;
      const bars = `PIT histogram, ${data.problems[p]}. ${KEYS}`;
      panels.push({
        name: data.problems[p],
        draw: (width) => {
          const side = width > 560 ? width / 2 : width; // beside each other, or one above the other
          return [
            reliabilityPanel(side, { lines, levels: data.levels, label }),
            pitPanel(side, { lines, levels: data.levels, label: bars }),
          ];
        },
      });
    });
    return this.group(
      "Are the forecasts honest?",
      "First, the share of outcomes below each predicted quantile: honest is the diagonal. Then, where in its forecast each " +
        "outcome fell (the PIT): honest is flat at 1.",
      280,
      panels,
    );
  }
}
