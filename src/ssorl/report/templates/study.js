// Sorts a table by the column whose header is clicked: numbers by value, missing values last.
function sortBy(head) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  const body = head.closest("table").tBodies[0];
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const value = (row) => parseFloat(text(row).replaceAll(",", "").replace("−", "-"));
  const rows = [...body.rows];
  const known = rows.filter((row) => text(row) !== "–");
  const numeric = known.every((row) => !Number.isNaN(value(row)));
  const order = (a, b) => (numeric ? value(a) - value(b) : text(a).localeCompare(text(b)));
  known.sort((a, b) => (up ? order(a, b) : order(b, a)));
  body.append(...known, ...rows.filter((row) => text(row) === "–"));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
}

// Saves a chart as an SVG file that stands alone: computed styles become attributes, data-tip becomes a title.
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin",
  "opacity", "font-size", "font-weight", "font-family", "paint-order"];
function plainColour(value) {
  if (!value.startsWith("color(srgb")) return value;
  return "rgb(" + value.match(/[\d.]+(?:e-?\d+)?/g).slice(0, 3).map((v) => Math.round(255 * v)).join(",") + ")";
}
function standalone(chart) {
  const copy = chart.cloneNode(true);
  const [, , width, height] = chart.getAttribute("viewBox").split(" ");
  const create = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const marks = copy.querySelectorAll("*");
  chart.querySelectorAll("*").forEach((mark, i) => {
    const style = getComputedStyle(mark);
    for (const name of STYLES) marks[i].setAttribute(name, plainColour(style.getPropertyValue(name)));
    marks[i].removeAttribute("class");
    if (mark.dataset.tip) {
      const title = create("title");
      title.textContent = mark.dataset.tip;
      marks[i].append(title);
      marks[i].removeAttribute("data-tip");
    }
  });
  const background = create("rect");
  for (const [name, value] of [["width", width], ["height", height], ["fill", getComputedStyle(document.body).backgroundColor]]) {
    background.setAttribute(name, value);
  }
  copy.prepend(background);
  for (const [name, value] of [["xmlns", "http://www.w3.org/2000/svg"], ["width", width], ["height", height]]) {
    copy.setAttribute(name, value);
  }
  copy.removeAttribute("class");
  return new XMLSerializer().serializeToString(copy);
}
function save(button) {
  const chart = [...button.closest("figure").querySelectorAll("svg.chart")].find((svg) => svg.checkVisibility());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([standalone(chart)], { type: "image/svg+xml" }));
  link.download = button.dataset.file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
document.addEventListener("click", (event) => {
  const button = event.target instanceof Element && event.target.closest("button");
  if (!button) return;
  if (button.matches(".save")) save(button);
  else if (button.closest("th")) sortBy(button.closest("th"));
});
