// Draws the proxy actions of one trajectory with their band; a slider moves through the steps.
for (const box of document.querySelectorAll("[data-scrub]")) {
  const traces = JSON.parse(box.getAttribute("data-scrub"));
  const [pick, dim, at, plot, said] = ["pick", "dim", "at", "plot", "said"].map((name) => box.querySelector("." + name));
  const WIDTH = 640, HEIGHT = 240, SPAN = 120;
  const line = (points) => points.map(([x, y]) => x.toFixed(1) + "," + y.toFixed(1)).join(" ");
  function draw() {
    const trace = traces[pick.value], d = Number(dim.value);
    const n = trace.act.length, first = Math.min(Number(at.value), Math.max(0, n - 2));
    at.max = String(Math.max(0, n - SPAN));
    const last = Math.min(n, first + SPAN), act = trace.act.slice(first, last).map((row) => row[d]);
    const std = trace.std.slice(first, last).map((row) => 1.96 * row[d]);
    const low = Math.min(...act.map((a, i) => a - std[i])), high = Math.max(...act.map((a, i) => a + std[i]));
    const x = (i) => (WIDTH * i) / Math.max(1, act.length - 1);
    const y = (v) => HEIGHT - 8 - ((HEIGHT - 16) * (v - low)) / Math.max(high - low, 1e-9);
    const band = [...act.map((a, i) => [x(i), y(a + std[i])]), ...act.map((a, i) => [x(i), y(a - std[i])]).reverse()];
    const marks = act.map((a, i) => (trace.unseen[first + i] ? `<circle cx="${x(i)}" cy="${y(a)}" r="3" class="unseen"/>` : ""));
    plot.innerHTML = `<polygon points="${line(band)}" class="band"/><polyline points="${line(act.map((a, i) => [x(i), y(a)]))}" class="act"/>` + marks.join("");
    said.textContent = `steps ${first} to ${last - 1} of ${n}; from ${low.toPrecision(3)} to ${high.toPrecision(3)}`;
  }
  for (const input of [pick, dim, at]) input.addEventListener("input", draw);
  draw();
}
