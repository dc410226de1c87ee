const canvas = element.querySelector("canvas");
const cellText = element.querySelector(".cell");
const IDLE = cellText.textContent;
const LEGEND = {};
for (const node of element.querySelectorAll("[data-kind]")) LEGEND[node.dataset.kind] = [node, node.textContent];
const NAMES = { e: "exact draft", r: "relaxed draft", t: "target's own" };
const laneName = element.querySelector(".lane");
const lanesBox = element.querySelector(".lanes");
const picture = new Image();
let data = null;
let chosen = -1;

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

function draw() {
  const side = 256 * Math.max(1, Math.round(window.devicePixelRatio || 1));
  canvas.width = canvas.height = side;
  const ctx = canvas.getContext("2d");
  ctx.clearRect(0, 0, side, side);
  if (!data) return;
  ctx.imageSmoothingQuality = "high";
  ctx.drawImage(picture, 0, 0, side, side);
  const s = side / data.grid;
  for (let i = 0; i < data.kinds.length; i++) {
    const x = (i % data.grid) * s;
    const y = Math.floor(i / data.grid) * s;
    if (data.kinds[i] === "r") drawRelaxed(ctx, x, y, s);
    if (data.kinds[i] === "t") drawTarget(ctx, x, y, s);
  }
  if (chosen >= 0) {
    ctx.lineWidth = Math.max(2, s / 8);
    ctx.strokeStyle = "#ffffff";
    ctx.strokeRect((chosen % data.grid) * s, Math.floor(chosen / data.grid) * s, s, s);
    ctx.lineWidth = Math.max(1, s / 20);
    ctx.strokeStyle = "#000000";
    ctx.strokeRect((chosen % data.grid) * s, Math.floor(chosen / data.grid) * s, s, s);
  }
}

function describe(i) {
  if (!data || i < 0 || i >= data.kinds.length) return IDLE;
  const [token, choice, rank, pToken, pChoice] = data.tokens[i];
  const place = `Row ${Math.floor(i / data.grid) + 1}, column ${(i % data.grid) + 1}: ${NAMES[data.kinds[i]]}, code ${token} (p ${pToken}).`;
  if (data.kinds[i] !== "r") return place;
  const near = rank ? `its neighbour number ${rank}` : "not among its neighbours";
  return `${place} The target drew ${choice} (p ${pChoice}), ${near}.`;
}

function choose(i) {
  chosen = i;
  cellText.textContent = describe(i);
  draw();
}

function show(lane) {
  data = lane;
  chosen = -1;
  cellText.textContent = IDLE;
  for (const kind in LEGEND) {
    const [node, text] = LEGEND[kind];
    node.textContent = data ? `${data.shares[kind]} % ${text}` : text;
  }
  canvas.setAttribute("aria-label", data
    ? `Token map of ${data.lane}'s image: ${data.counts.e} tokens exact, ${data.counts.r} relaxed, ${data.counts.t} the target's own.`
    : "Token map, empty until a run is complete");
  canvas.dataset.relaxed = data ? data.counts.r : "";
  laneName.textContent = data ? data.lane : "LANTERN";
  if (!data) return draw();
  picture.onload = draw;
  picture.src = data.image;
}

function laneChoice(lane, first) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  input.type = "radio";
  input.name = "lt-map-lane";
  input.checked = first;
  input.addEventListener("change", () => show(lane));
  input.setAttribute("aria-label", lane.lane);
  label.append(input, lane.lane.replace("LANTERN ", "")); // both on one line
  return label;
}

function load() {
  const lanes = (props.value && props.value.lanes) || [];
  lanesBox.hidden = lanes.length < 2;
  lanesBox.replaceChildren(...(lanes.length < 2 ? [] : lanes.map((lane, i) => laneChoice(lane, i === 0))));
  show(lanes[0] || null);
}

canvas.addEventListener("mousemove", (event) => {
  if (!data) return;
  const box = canvas.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * data.grid);
  const row = Math.floor(((event.clientY - box.top) / box.height) * data.grid);
  choose(Math.min(data.kinds.length - 1, Math.max(0, row * data.grid + column)));
});
canvas.addEventListener("mouseleave", () => choose(-1));
canvas.addEventListener("keydown", (event) => {
  if (!data) return;
  const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -data.grid, ArrowDown: data.grid }[event.key];
  if (!move) return;
  event.preventDefault();
  choose(Math.min(data.kinds.length - 1, Math.max(0, chosen + move)));
});
watch("value", load);
load();
