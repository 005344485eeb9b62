// What is read aloud, and the small card beside the pointer.

const speaker = make("div", { class: "unseen", role: "status", "aria-live": "polite" });
const card = make("div", { class: "card", "aria-hidden": "true", hidden: true });

function showCard(panel, index) {
  const stop = panel.stops[index];
  const [x, y] = panel.at(index);
  card.replaceChildren(
    make("b", {}, stop.title),
    ...stop.lines.map((line) =>
      make("div", {}, line.arm === undefined ? null : swatch(line.arm), make("span", {}, line.text)),
    ),
  );
  card.hidden = false;
  const box = panel.node.getBoundingClientRect();
  const zoom = box.width / panel.node.viewBox.baseVal.width;
  const [px, py] = [box.left + x * zoom, box.top + y * zoom];
  const { width, height } = card.getBoundingClientRect();
  const side = px + 14 + width > innerWidth ? px - width - 14 : px + 14;
  card.style.left = `${Math.max(4, Math.min(side, innerWidth - width - 4))}px`;
  card.style.top = `${Math.max(4, Math.min(py - height / 2, innerHeight - height - 4))}px`;
  return [stop.title, ...stop.lines.map((line) => line.text)].join(", ");
}

function swatch(arm) {
  const drawn = make("svg", { viewBox: "-11 -7 22 14", width: 22, height: 14, "aria-hidden": "true" });
  drawn.append(
    make("path", { class: "curve", d: "M-11 0H11", "stroke-dasharray": dash(arm) }),
    marker(arm, 0, 0, { class: "dot" }),
  );
  return make("span", { class: `swatch arm arm-${arm % COLOURS}` }, drawn);
}

function listen(panel) {
  let stop = null;
  const leave = () => {
    stop = null;
    panel.at(null);
    card.hidden = true;
  };
  panel.node.addEventListener("pointermove", (event) => {
    const box = panel.node.getBoundingClientRect();
    const zoom = panel.node.viewBox.baseVal.width / box.width;
    stop = panel.nearest((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
    showCard(panel, stop);
  });
  panel.node.addEventListener("pointerleave", leave);
  panel.node.addEventListener("blur", leave);
  panel.node.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const jump = { Home: 0, End: panel.stops.length - 1 }[event.key];
    if (event.key === "Escape") leave();
    if (step === undefined && jump === undefined) return;
    event.preventDefault();
    stop =
      jump ??
      Math.max(
        0,
        Math.min(panel.stops.length - 1, stop === null ? (step > 0 ? 0 : panel.stops.length - 1) : stop + step),
      );
    speaker.textContent = showCard(panel, stop);
  });
  return panel.node;
}
