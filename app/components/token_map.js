// The map of one lane at a time. Other parts of the page hear of the run ("lantern-run"), of the
// lane on show ("lantern-lane") and of tokens that are opened ("lantern-token").
const canvas = element.querySelector("canvas");
const cellText = element.querySelector(".cell");
const title = element.querySelector(".title");
const lanesBox = element.querySelector(".lanes");
const legend = element.querySelector("ul");
const scale = element.querySelector(".scale");
const layerBox = element.querySelector("select");
const NAMES = { ar: "AR", eagle2: "EAGLE-2", lantern: "LANTERN", "eagle2-coupled": "EAGLE-2 coupled", "lantern-coupled": "LANTERN coupled" };
const LAYERS = ["kind", "length", "mass", "rank", "distance", "p", "entropy", "difference"];
const COLOURS = ["#fde68a", "#fbbf24", "#f59e0b", "#ea580c", "#c2410c"];
const asker = (window.lanternAsker ||= Math.random().toString(36).slice(2));
let run = null; // the payload
let loaded = null; // its text
let lane = null; // the lane on show: columns, picture, values of layers by name
let marked = []; // positions of the pass on show
let chosen = -1;

const announce = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));

function drawRelaxed(ctx, x, y, s) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, s, s);
  ctx.clip();
  ctx.fillStyle = "rgba(245, 158, 11, 0.45)";
  ctx.fillRect(x, y, s, s);
  ctx.strokeStyle = "rgba(124, 45, 18, 0.85)";
  ctx.lineWidth = s / 9;
  for (let d = -s; d < s; d += s / 2.5) {
    ctx.beginPath();
    ctx.moveTo(x + d, y + s);
    ctx.lineTo(x + d + s, y);
    ctx.stroke();
  }
  ctx.restore();
}

function drawTarget(ctx, x, y, s) {
  ctx.beginPath();
  ctx.arc(x + s / 2, y + s / 2, s / 6, 0, 2 * Math.PI);
  ctx.fillStyle = "#38bdf8";
  ctx.fill();
  if (s < 10 * (window.devicePixelRatio || 1)) return; // an outline would drown the picture
  ctx.lineWidth = s / 16;
  ctx.strokeStyle = "#0c4a6e";
  ctx.stroke();
}

// Size says the same as colour.
function drawValue(ctx, x, y, s, share) {
  const side = s * (0.15 + 0.75 * Math.sqrt(share));
  const [left, top] = [x + (s - side) / 2, y + (s - side) / 2];
  ctx.fillStyle = COLOURS[Math.min(COLOURS.length - 1, Math.floor(share * COLOURS.length))];
  ctx.fillRect(left, top, side, side);
  ctx.strokeStyle = "#431407";
  ctx.lineWidth = s / 20;
  ctx.strokeRect(left, top, side, side);
}

function frame(ctx, i, s, outer, inner) {
  const [x, y] = [(i % lane.grid) * s, Math.floor(i / lane.grid) * s];
  ctx.lineWidth = Math.max(2, s / 7);
  ctx.strokeStyle = outer;
  ctx.strokeRect(x, y, s, s);
  ctx.lineWidth = Math.max(1, s / 18);
  ctx.strokeStyle = inner;
  ctx.strokeRect(x, y, s, s);
}

function draw() {
  const began = performance.now();
  const side = 256 * Math.max(1, Math.round(window.devicePixelRatio || 1));
  if (canvas.width !== side) canvas.width = canvas.height = side;
  const ctx = canvas.getContext("2d");
  ctx.clearRect(0, 0, side, side);
  if (!lane) return;
  ctx.imageSmoothingQuality = "high";
  ctx.drawImage(lane.picture, 0, 0, side, side);
  const s = side / lane.grid;
  const kinds = lane.tokens.kind;
  const values = lane.values[layerBox.value];
  for (let i = 0; i < kinds.length; i++) {
    const [x, y] = [(i % lane.grid) * s, Math.floor(i / lane.grid) * s];
    if (values) {
      if (values[i] !== null) drawValue(ctx, x, y, s, lane.share(values, i));
    } else if (layerBox.value === "kind") {
      if (kinds[i] === "r") drawRelaxed(ctx, x, y, s);
      if (kinds[i] === "t") drawTarget(ctx, x, y, s);
    }
  }
  for (const i of marked) frame(ctx, i, s, "#1d4ed8", "#ffffff");
  if (chosen >= 0) frame(ctx, chosen, s, "#ffffff", "#000000");
  canvas.dataset.ms = (performance.now() - began).toFixed(2);
}

// The pixels of a picture, one value a channel, to compare two of them.
function pixels(picture) {
  const [width, height] = [picture.naturalWidth, picture.naturalHeight];
  const sheet = Object.assign(document.createElement("canvas"), { width, height });
  const ctx = sheet.getContext("2d", { willReadFrequently: true });
  ctx.drawImage(picture, 0, 0);
  return ctx.getImageData(0, 0, width, height);
}

// Mean difference of the colour channels in each cell, 0 to 255.
function difference(mine, other, grid) {
  const [a, b] = [pixels(mine), pixels(other)];
  const cell = a.width / grid;
  const sums = new Array(grid * grid).fill(0);
  for (let y = 0; y < a.height; y++) {
    for (let x = 0; x < a.width; x++) {
      const at = 4 * (y * a.width + x);
      const d = Math.abs(a.data[at] - b.data[at]) + Math.abs(a.data[at + 1] - b.data[at + 1]) + Math.abs(a.data[at + 2] - b.data[at + 2]);
      sums[Math.floor(y / cell) * grid + Math.floor(x / cell)] += d;
    }
  }
  return sums.map((sum) => sum / (3 * cell * cell));
}

async function layerValues(name) {
  const t = lane.tokens;
  const relaxed = (column) => column.map((value, i) => (t.kind[i] === "r" ? value : null));
  if (name === "length") return lane.lengthOf;
  if (name === "mass") return relaxed(t.relaxed_mass);
  if (name === "rank") return relaxed(t.rank);
  if (name === "distance") return relaxed(t.distance);
  if (name === "p") return t.p_token;
  if (name === "difference") {
    const ar = run.lanes.find((other) => other.mode === "ar");
    if (!ar || ar.grid !== lane.grid) return [];
    await Promise.all([lane.picture.decode(), ar.picture.decode()]);
    return difference(lane.picture, ar.picture, lane.grid);
  }
  if (name === "entropy") {
    const answer = (await server.measure({ asker, model: lane.model, prompt: lane.prompt, options: lane.options, tokens: t.token })) || { error: T.lost };
    if (answer.error) throw new Error(answer.error);
    return answer.entropy;
  }
  return null;
}

const rounded = (value) => (Math.abs(value) >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toPrecision(2));

async function showLayer() {
  const [name, mine] = [layerBox.value, lane];
  legend.hidden = name !== "kind";
  scale.hidden = name === "kind" || !lane;
  const range = element.querySelector(".range");
  if (lane && name !== "kind" && !lane.values[name]) {
    range.textContent = T.measuring;
    try {
      mine.values[name] = await layerValues(name);
    } catch (error) {
      range.textContent = error.message;
      return draw();
    }
    if (mine !== lane || name !== layerBox.value) return;
  }
  if (lane && name !== "kind") {
    const known = lane.values[name].filter((value) => value !== null);
    range.textContent = known.length ? say(T.scale, { low: rounded(Math.min(...known)), high: rounded(Math.max(...known)) }) : T.none;
  }
  canvas.dataset.layer = name;
  draw();
}

function describe(i) {
  if (!lane || i < 0 || i >= lane.tokens.kind.length) return T.idle;
  const t = lane.tokens;
  const kind = t.kind[i];
  let text = say(T.place, { row: Math.floor(i / lane.grid) + 1, column: (i % lane.grid) + 1, kind: T[`name.${kind}`], token: t.token[i], p: t.p_token[i] });
  if (kind === "r") text += " " + say(T.drew, { choice: t.choice[i], p: t.p_choice[i], near: t.rank[i] ? say(T.rank, { rank: t.rank[i] }) : T.far });
  const values = lane.values[layerBox.value];
  if (values && values[i] !== null && values[i] !== undefined) text += " " + say(T.value, { layer: T[`layer.${layerBox.value}`], value: rounded(values[i]) });
  return text;
}

function choose(i) {
  if (i === chosen) return;
  chosen = i;
  cellText.textContent = describe(i);
  draw();
}

function show(shown) {
  lane = shown;
  chosen = -1;
  marked = [];
  cellText.textContent = T.idle;
  title.textContent = say(T.title, { lane: lane ? NAMES[lane.mode] : "LANTERN" });
  const counts = { e: 0, r: 0, t: 0 };
  for (const kind of lane ? lane.tokens.kind : "") counts[kind] += 1;
  const texts = { e: T.exact, r: T.relaxed, t: T.target };
  for (const node of element.querySelectorAll("[data-kind]")) {
    const kind = node.dataset.kind;
    node.textContent = lane ? `${Math.round((100 * counts[kind]) / lane.tokens.kind.length)} % ${texts[kind]}` : texts[kind];
  }
  canvas.setAttribute("aria-label", lane ? say(T.aria, { lane: NAMES[lane.mode], ...counts }) : T.empty);
  canvas.dataset.relaxed = lane ? counts.r : "";
  window.lanternLane = lane; // for parts of the page that come to life later
  announce("lantern-lane", { lane });
  if (lane) lane.picture.decode().then(draw, draw);
  showLayer();
}

function prepare(data) {
  data.picture = new Image();
  data.picture.src = data.image;
  data.values = {};
  data.lengthOf = [];
  data.stepOf = [];
  data.steps.length.forEach((length, step) => {
    for (let i = 0; i < length; i++) {
      data.lengthOf.push(length);
      data.stepOf.push(step);
    }
  });
  data.share = (values, i) => {
    if (values.low === undefined) {
      const known = values.filter((value) => value !== null);
      values.low = Math.min(...known);
      values.high = Math.max(...known);
    }
    return values.high > values.low ? (values[i] - values.low) / (values.high - values.low) : 0.5;
  };
  return data;
}

function laneChoice(data, first) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "radio";
  input.name = "lt-map-lane";
  input.checked = first;
  input.addEventListener("change", () => show(data));
  input.setAttribute("aria-label", NAMES[data.mode]);
  label.append(input, NAMES[data.mode]);
  return label;
}

function load() {
  const text = props.value && props.value.lanes ? JSON.stringify(props.value) : "";
  if (text === loaded) return; // Gradio may tell of one value twice, and a replay should not stop for that
  loaded = text;
  run = text ? JSON.parse(text) : null;
  const lanes = run ? run.lanes.map(prepare) : [];
  const first = lanes.find((data) => data.mode === "lantern") || lanes[lanes.length - 1] || null;
  lanesBox.hidden = lanes.length < 2;
  lanesBox.replaceChildren(...(lanes.length < 2 ? [] : lanes.map((data) => laneChoice(data, data === first))));
  window.lanternRun = run;
  announce("lantern-run", { run });
  show(first);
}

function at(event) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * lane.grid);
  const row = Math.floor(((event.clientY - box.top) / box.height) * lane.grid);
  return Math.min(lane.grid ** 2 - 1, Math.max(0, row * lane.grid + column));
}

const open = () => lane && chosen >= 0 && announce("lantern-token", { lane, position: chosen });
canvas.addEventListener("mousemove", (event) => lane && choose(at(event)));
canvas.addEventListener("mouseleave", () => choose(-1));
canvas.addEventListener("click", (event) => {
  if (!lane) return;
  choose(at(event));
  open();
});
canvas.addEventListener("keydown", (event) => {
  if (!lane) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    event.stopPropagation();
    return open();
  }
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -lane.grid, ArrowDown: lane.grid }[event.key];
  if (!move) return;
  event.preventDefault();
  event.stopPropagation();
  choose(Math.min(lane.grid ** 2 - 1, Math.max(0, chosen + move)));
});
document.addEventListener("lantern-step", (event) => {
  marked = event.detail.positions;
  draw();
});
lanesBox.setAttribute("aria-label", T.lane);
element.querySelector(".layer span").textContent = T.layer;
layerBox.setAttribute("aria-label", T.layer);
layerBox.replaceChildren(...LAYERS.map((name) => new Option(T[`layer.${name}`], name)));
layerBox.addEventListener("change", showLayer);
watch("value", load);
load();
