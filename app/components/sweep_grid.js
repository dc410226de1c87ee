// A sweep as it grows: pictures by k and delta, one table a temperature.
const METRICS = ["mal", "speedup", "relaxed", "tokens_differing", "pixel_distance"];
const tables = element.querySelector(".tables");
const metricBox = element.querySelector(".metric");
const said = element.querySelector(".said");
let sweep = null;

const make = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const shownValue = (name, value) => (name === "mal" || name === "speedup" ? value.toFixed(2) + (name === "speedup" ? "×" : "") : `${(100 * value).toFixed(1)} %`);
const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);

function cellButton(cell, high) {
  const name = metricBox.value;
  const button = make("button");
  button.type = "button";
  const image = make("img");
  image.src = cell.image;
  image.alt = "";
  const heat = make("div", "heat");
  const fill = make("i");
  fill.style.width = `${high > 0 ? (100 * cell[name]) / high : 0}%`;
  heat.append(fill);
  button.append(image, heat, make("div", "value", shownValue(name, cell[name])));
  const words = METRICS.map((metric) => `${T[`metric.${metric}`]} ${shownValue(metric, cell[metric])}`).join(", ");
  button.setAttribute("aria-label", say(T.cell, { k: cell.k, delta: cell.delta, temperature: cell.temperature, figures: words }));
  button.title = words;
  button.addEventListener("click", () => trigger("select", { k: cell.k, delta: cell.delta, temperature: cell.temperature }));
  return button;
}

function draw() {
  for (const button of element.querySelectorAll("[data-format]")) button.disabled = !sweep || !sweep.cells.length;
  if (!sweep) {
    said.textContent = T.empty;
    return tables.replaceChildren();
  }
  said.textContent = say(T.progress, { done: sweep.done, total: sweep.total });
  const values = sweep.cells.map((cell) => cell[metricBox.value]);
  const high = Math.max(...values);
  tables.replaceChildren(...sorted(sweep.cells.map((cell) => cell.temperature)).map((temperature) => {
    const cells = sweep.cells.filter((cell) => cell.temperature === temperature);
    const [ks, deltas] = [sorted(cells.map((c) => c.k)), sorted(cells.map((c) => c.delta))];
    const table = make("table");
    table.append(make("caption", "", say(T.caption, { temperature })));
    const head = table.createTHead().insertRow();
    head.append(make("th", "", "AR"), make("th", "", "k \\ delta"), ...deltas.map((delta) => make("th", "", String(delta))));
    const body = table.createTBody();
    ks.forEach((k, i) => {
      const row = body.insertRow();
      const first = row.insertCell();
      const ar = i === 0 && sweep.ar.find((one) => one.temperature === temperature);
      if (ar) {
        const box = make("div", "ar");
        const image = make("img");
        image.src = ar.image;
        image.alt = T.ar;
        box.append(image);
        first.append(box);
      }
      row.append(make("th", "", String(k)));
      for (const delta of deltas) {
        const cell = cells.find((one) => one.k === k && one.delta === delta);
        const place = row.insertCell();
        if (cell) place.append(cellButton(cell, high));
      }
    });
    return table;
  }));
}

function save(name, url) {
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
}

async function exportAs(format) {
  const cells = sweep.cells.map(({ image, ...figures }) => figures);
  if (format === "json") return save("lantern-sweep.json", URL.createObjectURL(new Blob([JSON.stringify({ ...sweep.about, cells }, null, 2)], { type: "application/json" })));
  const answer = (await server.export_sweep({ cells, format }).catch((error) => ({ error: String(error.message || error) }))) || { error: T.lost };
  if (answer.error) said.textContent = answer.error;
  else save(`lantern-sweep.${format}`, answer.url);
}

for (const button of element.querySelectorAll("[data-format]")) button.addEventListener("click", () => exportAs(button.dataset.format));
element.querySelector(".metric-label").textContent = T.metric;
metricBox.replaceChildren(...METRICS.map((name) => new Option(T[`metric.${name}`], name)));
metricBox.addEventListener("change", draw);
function load() {
  sweep = props.value && props.value.cells ? props.value : null;
  draw();
}
watch("value", load);
load();
