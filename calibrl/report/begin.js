// The page: colours, studies, the section one came for, and paper.

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = make("button", { type: "button", class: "theme" });
  const root = document.documentElement;
  const now = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => {
    button.textContent = now() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${now() === "dark" ? "light" : "dark"} colours`);
  };
  // A browser may refuse to remember anything for files; the page then follows the system.
  try {
    const kept = localStorage.getItem("calibrl-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch {}
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("calibrl-theme", root.dataset.theme);
    } catch {}
    label();
  });
  dark.addEventListener("change", label);
  label();
  document.querySelector("header").append(button);
}

function begin() {
  document.body.append(speaker, card);
  theme();
  const { at, choices } = readAddress();
  const studies = [];
  const widths = new Map();
  const watch = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const width = Math.round(contentRect.width);
      if (widths.get(target) !== width) studies.find((study) => study.root === target)?.draw();
      widths.set(target, width);
    }
  });
  for (const root of document.querySelectorAll(".explore")) {
    const choice = choices.get(root.id) ?? start();
    state.set(root.id, choice);
    widths.set(root, Math.round(root.clientWidth));
    studies.push(new Study(root, JSON.parse(document.getElementById(`${root.id}-data`).textContent), choice));
    watch.observe(root);
  }
  place = at;
  if (at) document.getElementById(at)?.scrollIntoView();
  // A link to a section moves there; the choices stay in the address. Other choices, from a bookmark, begin anew.
  addEventListener("hashchange", () => {
    if (location.hash.includes("=")) return location.reload();
    place = location.hash.slice(1);
    writeAddress();
  });
  addEventListener("scroll", () => (card.hidden = true), { passive: true });
  const closed = new Set();
  addEventListener("beforeprint", () => {
    for (const node of document.querySelectorAll("details:not([open])")) {
      closed.add(node);
      node.open = true;
    }
  });
  addEventListener("afterprint", () => {
    closed.forEach((node) => (node.open = false));
    closed.clear();
  });
  document.documentElement.dataset.ready = "yes";
}

begin();
