// The page's interactive parts: explorers, sortable tables, certificates that can be filtered and expanded. Computes no results.
"use strict";

const WIDTH = 1000, HEIGHT = 470;
const read = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (x) => (x === 0 ? "0" : Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5 ? x.toExponential(1) : String(+x.toPrecision(3)));

function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElementNS(parent.namespaceURI, tag); // HTML in HTML, SVG in SVG
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

// A run in the page's data: 16-bit numbers, layer after layer, row (node) after row, column (key) after column.
class Story {
  constructor(data) {
    Object.assign(this, data);
    this.layers = this.level_end.length - 1;
    this.nodes = this.k - 1;
    this.starts = [0];
    for (let l = 0; l < this.layers; l++) this.starts.push(this.starts[l] + this.width(l) * this.level_end[l]);
    this.numbers = {};
    for (const [name, map] of Object.entries(this.maps)) {
      const bytes = Uint8Array.from(atob(map.numbers), (c) => c.charCodeAt(0));
      this.numbers[name] = new Uint16Array(bytes.buffer);
    }
  }
  width(layer) { return this.level_end[layer + 1] - this.level_end[layer]; }
  layerOf(node) { return this.level_end.findIndex((end) => this.n + node < end) - 1; }
  // The row of a node over its keys: attention at a moment, or another quantity in the stage that trains its layer.
  row(name, node, moment = 0) {
    const layer = this.layerOf(node), keys = this.level_end[layer], map = this.maps[name];
    const first = (name === "attention" ? moment * this.starts[this.layers] : 0)
      + this.starts[layer] + (this.n + node - this.level_end[layer]) * keys;
    return Array.from(this.numbers[name].subarray(first, first + keys), (u) => map.lowest + u * map.unit);
  }
  // Nodes from the first of one layer to the last of another.
  between(first, last) {
    const start = this.level_end[first] - this.n;
    return Array.from({ length: this.level_end[last + 1] - this.n - start }, (_, i) => start + i);
  }
  name(position) { return position < this.n ? `bit ${position}` : `node ${position}`; }
}

class Explorer {
  constructor(root, data) {
    this.parts = Object.fromEntries(Array.from(root.querySelectorAll("[data-part]"), (e) => [e.dataset.part, e]));
    this.stories = data.map((one) => new Story(one));
    this.stories.forEach((story, i) => make(this.parts.run, "option", { value: i }, story.title));
    this.parts.run.addEventListener("change", () => this.open(+this.parts.run.value));
    this.parts.scrubber.addEventListener("input", () => this.go(+this.parts.scrubber.value));
    this.parts.play.addEventListener("click", () => this.play());
    const resized = new ResizeObserver(() => this.draw());
    root.querySelectorAll(".chart").forEach((chart) => resized.observe(chart));
    this.open(0);
  }

  open(number) {
    this.story = this.stories[number];
    this.steps = !("act" in this.story.moments[0]); // true for a training run, whose moments are gradient steps
    this.node = 0;
    this.layer = null; // all layers of a training run; for Algorithm 1, the layer of the stage
    this.parts.scrubber.max = this.story.moments.length - 1;
    const layers = Array.from({ length: this.story.layers }, (_, l) => l);
    this.buttons(this.parts.stages, layers.map((l) => `stage ${l + 1}`), (l) => this.go(this.story.moments.findIndex((m) => m.layer === l)));
    this.buttons(this.parts.layers, [this.steps ? "all" : "the stage’s", ...layers.map((l) => `layer ${l + 1}`)], (l) => { this.layer = l ? l - 1 : null; this.draw(); });
    this.plant();
    this.charted = false;
    this.go(this.steps ? this.story.moments.length - 1 : 0);
  }

  buttons(parent, labels, choose) {
    parent.replaceChildren();
    labels.forEach((label, i) => make(parent, "button", { type: "button" }, label).addEventListener("click", () => choose(i)));
  }

  go(moment) {
    this.moment = moment;
    this.parts.scrubber.value = moment;
    this.draw();
  }

  choose(node, focus = false) {
    this.node = node;
    if (this.layer !== null) this.layer = this.story.layerOf(node);
    this.draw();
    if (focus) this.circles[node].focus();
  }

  play() {
    const stop = () => { clearInterval(this.timer); this.timer = null; this.parts.play.textContent = "▶"; this.parts.play.setAttribute("aria-label", "Play"); };
    if (this.timer) return stop();
    if (this.moment === this.story.moments.length - 1) this.go(0);
    this.parts.play.textContent = "❚❚";
    this.parts.play.setAttribute("aria-label", "Pause");
    this.timer = setInterval(() => {
      if (this.moment >= this.story.moments.length - 1) return stop();
      this.go(this.moment + 1);
    }, this.steps ? 150 : 1100);
  }

  // The tree. Its shape is drawn once per run; a moment changes colors and line widths.
  plant() {
    const { story } = this, svg = this.parts.tree, radius = Math.min(21, (0.4 * WIDTH) / (story.k / 2));
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    const bottom = HEIGHT - 34, top = radius + 8;
    const at = (position) => {
      const level = Math.max(story.level_end.findIndex((end) => position < end), 0);
      return [story.places[position] * WIDTH, bottom - (level * (bottom - top)) / story.layers];
    };
    this.lines = story.children.map((pair, node) => pair.map((child) => {
      const [x1, y1] = at(story.n + node), [x2, y2] = at(child);
      return make(svg, "line", { x1, y1, x2, y2 });
    }));
    const side = Math.min(20, (0.72 * WIDTH) / story.n);
    this.bits = Array.from({ length: story.n }, (_, bit) => {
      const [x, y] = at(bit), secret = story.secret.includes(bit);
      const square = make(svg, "rect", { class: secret ? "bit secret" : "bit", x: x - side / 2, y: y - side / 2, width: side, height: side });
      make(square, "title", {}, `bit ${bit}${secret ? ", in the secret set" : ""}`);
      return square;
    });
    make(svg, "text", { x: WIDTH / 2, y: HEIGHT - 10 }, `${story.n} input bits; the ${story.k} of the secret set stand out`);
    this.circles = story.children.map((_, node) => {
      const [x, y] = at(story.n + node), group = make(svg, "g", { class: "node", role: "button", tabindex: -1, "data-node": node });
      make(group, "circle", { cx: x, cy: y, r: radius });
      if (radius > 15) make(group, "text", { x, y }, String(story.n + node));
      group.addEventListener("click", () => this.choose(node));
      group.addEventListener("keydown", (event) => this.key(event, node));
      return group;
    });
  }

  key(event, node) {
    const { story } = this, position = story.n + node;
    const parent = story.children.findIndex((pair) => pair.includes(position));
    const to = {
      Enter: node, " ": node, ArrowLeft: node - 1, ArrowRight: node + 1, ArrowUp: parent,
      ArrowDown: story.children[node][0] - story.n,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (to >= 0 && to < story.nodes) this.choose(to, true);
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.drawTree();
      this.drawWords();
      this.drawCharts();
    });
  }

  drawTree() {
    const { story, moment } = this, now = story.moments[moment];
    const own = story.children[this.node];
    this.circles.forEach((group, node) => {
      const [accuracy, error] = now.nodes[node], position = story.n + node;
      group.style.setProperty("--quality", `${(100 * (1 - Math.min(error, 1))).toFixed(1)}%`);
      group.setAttribute("class", `node${node === this.node ? " chosen" : ""}${own.includes(position) ? " child" : ""}${error < 0.6 ? " hot" : ""}`);
      group.setAttribute("tabindex", node === this.node ? 0 : -1);
      group.setAttribute("aria-pressed", node === this.node);
      group.setAttribute("aria-label", `node ${position}, ${(100 * accuracy).toFixed(0)} % right, children ${story.children[node].map((c) => story.name(c)).join(" and ")}`);
      const row = story.row("attention", node, moment);
      this.lines[node].forEach((line, which) => {
        const weight = Math.min(1, 2 * row[story.children[node][which]]);
        line.setAttribute("stroke-width", (1 + 6 * weight).toFixed(2));
        line.setAttribute("stroke-opacity", (0.12 + 0.88 * weight).toFixed(3));
        line.setAttribute("class", node === this.node ? "of-chosen" : "");
      });
    });
    this.bits.forEach((square, bit) => square.classList.toggle("child", own.includes(bit)));
  }

  // What the map shows, and for which nodes. Gradient, step and rounded weights are those of the stage's layer.
  get shown() {
    const now = this.story.moments[this.moment], all = this.steps && this.layer === null, layer = this.layer ?? now.layer;
    const nodes = all ? this.story.between(0, this.story.layers - 1) : this.story.between(layer, layer);
    return { nodes, name: !this.steps && layer === now.layer ? now.act : "attention", where: all ? "of every layer" : `of layer ${layer + 1}` };
  }

  drawWords() {
    const { story, moment, node, parts } = this, now = story.moments[moment], { name, where } = this.shown;
    const stages = [...parts.stages.children], layers = [...parts.layers.children];
    stages.forEach((button, l) => button.setAttribute("aria-pressed", l === now.layer));
    layers.forEach((button, i) => button.setAttribute("aria-pressed", (i ? i - 1 : null) === this.layer));
    const acts = { gradient: "gradient", step: "step before rounding", rounded: "rounded weights" };
    parts.now.textContent = this.steps
      ? `step ${now.step}, stage ${now.stage}: loss ${short(now.loss)}, ${(100 * now.accuracy).toFixed(1)}\u00a0% of the answers right`
      : `stage ${now.stage}: ${acts[now.act]}`;
    parts.scrubber.setAttribute("aria-valuetext", parts.now.textContent);
    const titles = { attention: "Attention", gradient: "Gradient", step: "Step in units of K", rounded: "Rounded weights in units of K" };
    parts["map-title"].textContent = `${titles[name]} ${where}`;
    parts["course-title"].textContent = this.steps ? "Validation loss (click to go there)"
      : { gradient: `Stage ${now.stage}: gradient of every weight`, step: `Stage ${now.stage}: every step against its threshold`, rounded: `Stage ${now.stage}: every weight, rounded` }[now.act];
    const [accuracy, error, elsewhere] = now.nodes[node], row = story.row("attention", node, moment), [a, b] = story.children[node];
    parts["node-title"].textContent = `Node ${story.n + node}, written by layer ${story.layerOf(node) + 1}`;
    parts["node-text"].replaceChildren();
    make(parts["node-text"], "span", {}, "The product of its children ");
    [a, b].forEach((child, which) => {
      if (which) make(parts["node-text"], "span", {}, " and ");
      const link = make(parts["node-text"], child < story.n ? "b" : "button", child < story.n ? {} : { type: "button" }, story.name(child));
      if (child >= story.n) link.addEventListener("click", () => this.choose(child - story.n));
    });
    make(parts["node-text"], "span", {}, `. Attention on them ${row[a].toFixed(3)} and ${row[b].toFixed(3)}, at most ${elsewhere.toFixed(3)} elsewhere. `
      + `Right on ${(100 * accuracy).toFixed(1)}\u00a0% of held-out samples, mean squared error ${short(error)}.`);
  }

  drawCharts() {
    const charts = { course: this.course(), map: this.map(), "node-now": this.nodeNow(), "node-course": this.nodeCourse() };
    for (const [name, chart] of Object.entries(charts)) {
      const place = this.parts[name];
      if (!chart) { place.hidden = true; continue; }
      place.hidden = false;
      const size = { width: place.clientWidth, height: place.clientHeight };
      Plotly.react(place, chart.traces, { ...chart.layout, ...size }, { displayModeBar: false });
    }
    if (!this.charted) {
      this.charted = true;
      this.parts.course.removeAllListeners("plotly_click");
      this.parts.course.on("plotly_click", ({ points }) => this.steps && this.go(points[0].pointIndex));
      this.parts.map.removeAllListeners("plotly_click");
      this.parts.map.on("plotly_click", ({ points }) => this.choose(points[0].y - this.story.n));
    }
  }

  layout(x, y, more = {}) {
    const axis = { fixedrange: true, zeroline: false, tickfont: { size: 11 }, titlefont: { size: 12 }, automargin: false };
    return {
      margin: { l: 58, r: 10, t: 8, b: 38 }, showlegend: false, dragmode: false, hovermode: "closest",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { size: 12, family: read("--sans") },
      xaxis: { ...axis, title: { text: x, standoff: 6, font: { size: 12 } }, ...more.xaxis }, yaxis: { ...axis, title: { text: y, standoff: 6, font: { size: 12 } }, ...more.yaxis },
      shapes: more.shapes ?? [], annotations: more.annotations ?? [], ...(more.rest ?? {}),
    };
  }

  cursor() {
    const x = this.story.moments[this.moment].step;
    return { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: read("--mark"), width: 2 } };
  }

  switches() {
    const { moments } = this.story;
    return moments.filter((m, i) => i && m.stage !== moments[i - 1].stage).map((m) => ({
      type: "line", xref: "x", yref: "paper", x0: m.step, x1: m.step, y0: 0, y1: 1, layer: "below", line: { color: read("--other"), width: 1, dash: "dot" },
    }));
  }

  course() {
    const { moments } = this.story;
    if (!this.steps) return this.strip();
    const trace = { x: moments.map((m) => m.step), y: moments.map((m) => Math.max(m.loss, 1e-9)), mode: "lines", line: { color: read("--line"), width: 2 }, hovertemplate: "step %{x}: %{y:.3g}<extra></extra>" };
    const shapes = [...this.switches(), this.cursor()];
    return { traces: [trace], layout: this.layout("gradient step", "loss", { shapes, xaxis: { showgrid: false }, yaxis: { type: "log", exponentformat: "power", dtick: 1 } }) };
  }

  // Algorithm 1: every entry of the stage's layer over its key. Children have their own mark; the chosen node's is larger.
  strip() {
    const { story } = this, now = story.moments[this.moment];
    const groups = { others: [], children: [] };
    story.between(now.layer, now.layer).forEach((node) => story.row(now.act, node).forEach((value, key) => {
      groups[story.children[node].includes(key) ? "children" : "others"].push([key, value, node]);
    }));
    const traces = Object.entries(groups).map(([name, points]) => ({
      x: points.map((p) => p[0]), y: points.map((p) => p[1]), text: points.map((p) => `node ${story.n + p[2]}`), mode: "markers", name,
      marker: { color: read(name === "children" ? "--mark" : "--other"), symbol: name === "children" ? "diamond" : "circle", size: points.map((p) => (p[2] === this.node ? 10 : 5)), opacity: name === "children" ? 1 : 0.65 },
      hovertemplate: `%{text}, key %{x}: %{y:.3g} (${name})<extra></extra>`,
    }));
    const threshold = now.act === "step" && story.threshold !== null;
    const line = { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: story.threshold, y1: story.threshold, line: { color: read("--line"), width: 2, dash: "dash" } };
    const note = { xref: "paper", yref: "y", x: 1, y: story.threshold, xanchor: "right", yanchor: "bottom", showarrow: false, text: "threshold: rounds to K above, to 0 below" };
    const label = now.act === "gradient" ? "gradient" : "in units of K";
    return { traces, layout: this.layout("key (◆ children, ● others)", label, {
      shapes: threshold ? [line] : [], annotations: threshold ? [note] : [], xaxis: { range: [-1, story.level_end[now.layer]] }, yaxis: { exponentformat: "none", nticks: 5 },
    }) };
  }

  map() {
    const { story, moment } = this, { nodes, name } = this.shown, z = nodes.map((node) => story.row(name, node, moment));
    const keys = z.at(-1).length, first = story.n + nodes[0], dense = keys > 60; // rows end where the mask does
    const colors = [0, 1, 2, 3].map((i) => [i / 3, read(`--heat-${i}`)]);
    const ends = name === "attention" ? [0, 0.5] : name === "gradient" ? [0, story.maps.gradient.lowest] : [0, 1];
    const heat = {
      type: "heatmap", z, x: z.at(-1).map((_, key) => key), y: nodes.map((node) => story.n + node), zmin: Math.min(...ends), zmax: Math.max(...ends),
      colorscale: name === "gradient" ? colors.map(([at, c]) => [1 - at, c]).reverse() : colors, xgap: dense ? 0 : 1, ygap: dense ? 0 : 1, hoverongaps: false,
      colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10 }, nticks: 4, len: 1, x: 1.01 }, hovertemplate: "node %{y}, key %{x}: %{z:.3g}<extra></extra>",
    };
    const marks = { x: [], y: [] };
    for (const node of nodes) for (const child of story.children[node]) { marks.x.push(child); marks.y.push(story.n + node); }
    const frames = { ...marks, mode: "markers", hoverinfo: "skip", marker: { symbol: "square-open", size: dense ? 4 : z.length > 8 ? 8 : 10, color: read("--mark"), line: { width: dense ? 1 : 1.5 } } };
    const row = story.n + this.node;
    const band = { type: "rect", xref: "paper", yref: "y", x0: 0, x1: 1, y0: row - 0.5, y1: row + 0.5, line: { color: read("--ink"), width: 1.5 }, fillcolor: "rgba(0,0,0,0)" };
    return { traces: [heat, frames], layout: this.layout("key", "node", {
      shapes: nodes.includes(this.node) ? [band] : [], xaxis: { range: [-0.5, keys - 0.5], showgrid: false },
      yaxis: { range: [first + z.length - 0.5, first - 0.5], showgrid: false, tick0: first, dtick: Math.ceil(z.length / 8), tickformat: "d" }, rest: { margin: { l: 58, r: 46, t: 8, b: 38 } },
    }) };
  }

  nodeNow() {
    const { story, node, moment } = this, row = story.row("attention", node, moment);
    const color = row.map((_, key) => read(story.children[node].includes(key) ? "--mark" : "--line"));
    const trace = { type: "bar", x: row.map((_, key) => key), y: row, marker: { color: color }, hovertemplate: "key %{x}: %{y:.3f}<extra></extra>" };
    return { traces: [trace], layout: this.layout("key", "attention", { yaxis: { range: [0, Math.max(0.52, ...row)], nticks: 4 }, xaxis: { range: [-0.6, row.length - 0.4] } }) };
  }

  nodeCourse() {
    if (!this.steps) return null;
    const { story, node } = this, { moments } = story, x = moments.map((m) => m.step);
    const rows = moments.map((_, i) => story.row("attention", node, i));
    const line = (y, name, color, dash) => ({ x, y, name, mode: "lines", line: { color: read(color), width: 2, dash }, hovertemplate: `step %{x}: %{y:.3f}, ${name}<extra></extra>` });
    const traces = [
      ...story.children[node].map((child, which) => line(rows.map((row) => row[child]), story.name(child), "--mark", which ? "dash" : "solid")),
      line(moments.map((m) => m.nodes[node][2]), "largest elsewhere", "--line", "dot"),
    ];
    return { traces, layout: this.layout("gradient step", "attention", { shapes: [...this.switches(), this.cursor()], xaxis: { showgrid: false }, yaxis: { range: [0, 0.55], nticks: 4 } }) };
  }
}

// Sortable tables: by the number that a cell begins with, otherwise by its text. Empty cells come last.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const value = (row, column) => {
    const text = row.cells[column].textContent.trim(), found = parseFloat(text.replace(/(\d)\s(?=\d{3})/g, "$1"));
    return text === "–" ? null : Number.isNaN(found) ? text : found;
  };
  heads.forEach((head, column) => head.querySelector("button.sort")?.addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => (a === null ? 1 : b === null ? -1 : sign * (typeof a === typeof b && typeof a === "number" ? a - b : String(a).localeCompare(String(b)))));
    body.append(...rows.map(([, row]) => row));
  }));
}

function filters(form) {
  const table = document.getElementById(form.dataset.filters), groups = [...table.tBodies];
  const update = () => {
    const { verdict, words } = form.elements, wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    groups.forEach((group) => {
      const text = group.textContent.toLowerCase();
      group.hidden = (verdict.value && !group.dataset.verdicts.split("|").includes(verdict.value)) || !wanted.every((word) => text.includes(word));
    });
    form.querySelector("output").textContent = `${groups.filter((group) => !group.hidden).length} of ${groups.length}`;
  };
  form.addEventListener("input", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  table.addEventListener("click", (event) => {
    const button = event.target.closest("button.expand");
    if (!button) return;
    const numbers = document.getElementById(button.getAttribute("aria-controls"));
    numbers.hidden = !numbers.hidden;
    button.setAttribute("aria-expanded", !numbers.hidden);
  });
}

document.querySelectorAll("table.sorts").forEach(sortable);
document.querySelectorAll("form[data-filters]").forEach(filters);
const stories = JSON.parse(document.getElementById("stories")?.textContent ?? "{}");
const explorers = Array.from(document.querySelectorAll("[data-explorer]"), (root) => new Explorer(root, stories[root.dataset.explorer]));
const redraw = () => explorers.forEach((explorer) => { explorer.drawTree(); explorer.drawCharts(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { document.documentElement.classList.add("printing"); redraw(); });
addEventListener("afterprint", () => { document.documentElement.classList.remove("printing"); redraw(); });
