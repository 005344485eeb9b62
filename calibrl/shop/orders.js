const list = document.getElementById("items"), rows = [...list.children];
const find = document.getElementById("find"), sort = document.getElementById("sort");
const said = document.getElementById("said");
function show() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    row.hidden = !words.every((word) => row.dataset.name.includes(word));
    count += !row.hidden;
  }
  said.textContent = words.length ? `${count} of ${rows.length} shown` : "";
}
function order() {
  const by = sort.value;
  const key = by === "name" ? (a, b) => a.dataset.name.localeCompare(b.dataset.name)
    : (a, b) => b.dataset[by] - a.dataset[by];
  list.append(...[...rows].sort(key));
}
find.addEventListener("input", show);
sort.addEventListener("change", order);
