// Which arms, metric, problem and seeds each study shows: choices, and the address that keeps them.

const ALL = -1;
const state = new Map(); // id of a study → its choices
const start = () => ({ metric: 0, problem: ALL, view: "values", off: new Set(), seeds: "", each: false });

// The address: #at=bandits&bandits.1.metric=2&bandits.1.off=0.3

function readAddress() {
  const text = location.hash.slice(1);
  const known = new URLSearchParams(text.includes("=") ? text : `at=${text}`);
  const choices = new Map();
  for (const [key, value] of known) {
    const [, id, name] = /^(.+)\.(metric|problem|view|off|seeds|each)$/.exec(key) ?? [];
    if (!id) continue;
    if (!choices.has(id)) choices.set(id, start());
    const choice = choices.get(id);
    if (name === "metric" || name === "problem") choice[name] = Number.parseInt(value, 10) || 0;
    else if (name === "off") choice.off = new Set(value.split(".").map(Number).filter(Number.isInteger));
    else if (name === "each") choice.each = value === "1";
    else choice[name] = value;
  }
  return { at: known.get("at") ?? "", choices };
}

let place = "";
function writeAddress() {
  const known = new URLSearchParams(place ? { at: place } : {});
  for (const [id, choice] of state) {
    if (choice.metric) known.set(`${id}.metric`, choice.metric);
    if (choice.problem !== ALL) known.set(`${id}.problem`, choice.problem);
    if (choice.view !== "values") known.set(`${id}.view`, choice.view);
    if (choice.off.size) known.set(`${id}.off`, [...choice.off].sort((a, b) => a - b).join("."));
    if (choice.seeds) known.set(`${id}.seeds`, choice.seeds);
    if (choice.each) known.set(`${id}.each`, "1");
  }
  const text = known.toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}

/** "0-4, 7" as a list of places in `seeds`; null if it cannot be read or names none of them. */
function chosenSeeds(text, seeds) {
  const everything = seeds.map((_, i) => i);
  if (!text.trim() || text.trim() === "all") return everything;
  const wanted = [];
  for (const part of text
    .split(",")
    .map((piece) => piece.trim())
    .filter(Boolean)) {
    const range = /^(\d+)(?:\s*[-–]\s*(\d+))?$/.exec(part);
    if (!range) return null;
    wanted.push([Number(range[1]), Number(range[2] ?? range[1])]);
  }
  const found = everything.filter((i) => wanted.some(([low, high]) => seeds[i] >= low && seeds[i] <= high));
  return found.length ? found : null;
}
