// Sorts a table by the column whose header is clicked, numbers as numbers, what is missing last.
function sortBy(head) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  const body = head.closest("table").tBodies[0];
  const text = (row) => row.cells[head.cellIndex].textContent.trim();
  const value = (row) => parseFloat(text(row).replaceAll(",", "").replace("−", "-"));
  const rows = [...body.rows];
  const there = rows.filter((row) => text(row) !== "–");
  const numeric = there.every((row) => !Number.isNaN(value(row)));
  const order = (a, b) => (numeric ? value(a) - value(b) : text(a).localeCompare(text(b)));
  there.sort((a, b) => (up ? order(a, b) : order(b, a)));
  body.append(...there, ...rows.filter((row) => text(row) === "–"));
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
}

// Saves the picture as it looks here as a file that needs no page: every style written out, values as tooltips.
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin",
  "opacity", "font-size", "font-weight", "font-family", "paint-order"];
function plainColour(value) {
  if (!value.startsWith("color(srgb")) return value;
  return "rgb(" + value.match(/[\d.]+(?:e-?\d+)?/g).slice(0, 3).map((v) => Math.round(255 * v)).join(",") + ")";
}
function standalone(chart) {
  const copy = chart.cloneNode(true);
  const [, , width, height] = chart.getAttribute("viewBox").split(" ");
  const made = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const marks = copy.querySelectorAll("*");
  chart.querySelectorAll("*").forEach((mark, i) => {
    const style = getComputedStyle(mark);
    for (const name of LOOKS) marks[i].setAttribute(name, plainColour(style.getPropertyValue(name)));
    marks[i].removeAttribute("class");
    if (mark.dataset.tip) {
      const title = made("title");
      title.textContent = mark.dataset.tip;
      marks[i].append(title);
      marks[i].removeAttribute("data-tip");
    }
  });
  const paper = made("rect");
  for (const [name, value] of [["width", width], ["height", height], ["fill", getComputedStyle(document.body).backgroundColor]]) {
    paper.setAttribute(name, value);
  }
  copy.prepend(paper);
  for (const [name, value] of [["xmlns", "http://www.w3.org/2000/svg"], ["width", width], ["height", height]]) {
    copy.setAttribute(name, value);
  }
  copy.removeAttribute("class");
  return new XMLSerializer().serializeToString(copy);
}
function save(button) {
  const chart = [...button.closest("figure").querySelectorAll("svg.chart")].find((one) => one.checkVisibility());
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
