// Replays the lanes of a run on one clock, from the times of its passes. The server is not asked.
const race = element.querySelector(".race");
const track = element.querySelector(".track");
const playButton = element.querySelector(".play");
const speedBox = element.querySelector(".speed");
const scrub = element.querySelector(".scrub");
const clockText = element.querySelector(".clock");
const note = element.querySelector(".note");
const NAMES = { ar: "AR", eagle2: "EAGLE-2", lantern: "LANTERN", "eagle2-coupled": "EAGLE-2 coupled", "lantern-coupled": "LANTERN coupled" };
const SPEEDS = { real: 1, quarter: 0.25, pass: 0 };
const PASSES_A_SECOND = 6;
let run = null;
let lanes = [];
let clock = 0; // seconds, or passes if the clock counts passes
let playing = false;
let last = 0;

const byPass = () => speedBox.value === "pass";
const still = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
const end = () => Math.max(...lanes.map((lane) => (byPass() ? lane.times.length : lane.total)), 1e-9);

// When each pass of a lane was over, and how many tokens there were then.
function prepare(data) {
  const seconds = data.steps.seconds;
  let [time, tokens] = [0, 0];
  const [times, counts] = [[], []];
  data.steps.length.forEach((length, i) => {
    for (const phase in seconds) time += seconds[phase][i];
    tokens += length;
    times.push(time);
    counts.push(tokens);
  });
  const picture = new Image();
  picture.src = data.image;
  return { mode: data.mode, grid: data.grid, times, counts, total: time, picture, shown: -1 };
}

function build(lane) {
  const box = document.createElement("div");
  box.className = "lane";
  box.style.setProperty("--lane", `var(--lt-${lane.mode})`);
  const name = document.createElement("div");
  name.className = "name";
  name.append(Object.assign(document.createElement("span"), { textContent: NAMES[lane.mode] }), Object.assign(document.createElement("span"), { className: "place" }));
  lane.canvas = Object.assign(document.createElement("canvas"), { width: 256, height: 256 });
  lane.canvas.setAttribute("role", "img");
  lane.canvas.setAttribute("aria-label", say(T.lane, { lane: NAMES[lane.mode] }));
  const gauge = Object.assign(document.createElement("div"), { className: "gauge" });
  lane.fill = document.createElement("i");
  gauge.append(lane.fill);
  lane.figures = Object.assign(document.createElement("div"), { className: "figures" });
  lane.place = name.lastChild;
  box.append(name, lane.canvas, gauge, lane.figures);
  return box;
}

// Passes that are over at the clock's time.
function passes(lane) {
  if (byPass()) return Math.min(lane.times.length, Math.floor(clock + 1e-9));
  let [low, high] = [0, lane.times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.times[middle] <= clock + 1e-9) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawLane(lane) {
  const done = passes(lane);
  if (done === lane.shown) return;
  lane.shown = done;
  const count = done ? lane.counts[done - 1] : 0;
  const ctx = lane.canvas.getContext("2d");
  const s = lane.canvas.width / lane.grid;
  ctx.fillStyle = "#808080";
  ctx.fillRect(0, 0, lane.canvas.width, lane.canvas.height);
  ctx.save();
  ctx.beginPath();
  const rows = Math.floor(count / lane.grid);
  ctx.rect(0, 0, lane.canvas.width, rows * s);
  ctx.rect(0, rows * s, (count % lane.grid) * s, s);
  ctx.clip();
  ctx.drawImage(lane.picture, 0, 0, lane.canvas.width, lane.canvas.height);
  ctx.restore();
  const total = lane.grid ** 2;
  const time = done ? lane.times[done - 1] : 0;
  lane.fill.style.width = `${(100 * count) / total}%`;
  const over = count === total;
  const rank = 1 + lanes.filter((other) => other.total < lane.total).length;
  lane.place.textContent = over && !byPass() ? say(T.place, { rank }) : "";
  lane.figures.textContent = say(over ? T.over : T.figures, { passes: done, tokens: count, rate: time ? Math.round(count / time) : 0, seconds: lane.total.toFixed(2) });
  lane.canvas.dataset.tokens = count;
}

function draw() {
  lanes.forEach(drawLane);
  scrub.value = Math.round((1000 * clock) / end());
  clockText.textContent = byPass() ? say(T.passes, { n: Math.floor(clock + 1e-9) }) : `${clock.toFixed(2)} s`;
  scrub.setAttribute("aria-valuetext", clockText.textContent);
}

function tick(now) {
  if (!playing) return;
  const passed = Math.max(0, now - last) / 1000; // a frame's time may lie before the key that started it
  // Whoever asked for less motion gets one change a second.
  if (!still() || passed >= 1) {
    clock += passed * (byPass() ? PASSES_A_SECOND : SPEEDS[speedBox.value]);
    last = now;
    if (clock >= end()) {
      clock = end();
      playing = false;
    }
    draw();
    label();
  }
  if (playing) requestAnimationFrame(tick);
}

function label() {
  playButton.textContent = playing ? T.pause : T.play;
}

function play(wanted) {
  if (!lanes.length) return;
  playing = wanted;
  if (playing && clock >= end() - 1e-9) clock = 0;
  last = performance.now();
  label();
  draw();
  if (playing) requestAnimationFrame(tick);
}

// One pass of the lane that is next to finish one.
function step(direction) {
  play(false);
  if (byPass()) clock = Math.min(end(), Math.max(0, direction > 0 ? Math.floor(clock + 1e-9) + 1 : Math.ceil(clock - 1e-9) - 1));
  else {
    const all = lanes.flatMap((lane) => lane.times);
    const ahead = direction > 0 ? all.filter((t) => t > clock + 1e-9) : all.filter((t) => t < clock - 1e-9);
    clock = ahead.length ? (direction > 0 ? Math.min(...ahead) : Math.max(...ahead)) : direction > 0 ? end() : 0;
  }
  draw();
}

function load(data) {
  playing = false;
  run = data;
  lanes = data ? data.lanes.map(prepare) : [];
  race.hidden = !lanes.length;
  track.replaceChildren(...lanes.map(build));
  if (!lanes.length) return;
  clock = end();
  label();
  const made = data.recorded;
  note.textContent = made ? say(T.recorded, made) : T.live;
  for (const lane of lanes) lane.picture.decode().then(() => { lane.shown = -1; draw(); }, () => {});
  draw();
}

async function exportAs(button) {
  button.disabled = true;
  const name = button.textContent;
  button.textContent = T.making;
  try {
    const answer = (await server.animate({ run, format: button.dataset.format })) || { error: T.lost };
    if (answer.error) throw new Error(answer.error);
    const link = document.createElement("a");
    link.href = answer.url;
    link.download = `lantern-race.${button.dataset.format}`;
    link.click();
    element.dataset.exported = `${button.dataset.format} ${answer.url.length}`;
  } catch (error) {
    note.textContent = String(error.message || error);
  }
  button.textContent = name;
  button.disabled = false;
}

playButton.addEventListener("click", () => play(!playing));
speedBox.addEventListener("change", () => {
  clock = 0;
  lanes.forEach((lane) => { lane.shown = -1; });
  play(playing);
});
scrub.addEventListener("input", () => {
  const wanted = Number(scrub.value); // drawing moves it
  play(false);
  clock = (end() * wanted) / 1000;
  draw();
});
track.addEventListener("keydown", (event) => {
  const act = { " ": () => play(!playing), ArrowRight: () => step(1), ArrowLeft: () => step(-1), Home: () => { clock = 0; draw(); }, End: () => { clock = end(); draw(); } }[event.key];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
});
document.addEventListener("lantern-run", (event) => load(event.detail.run));
document.addEventListener("lantern-play", () => play(!playing));
document.addEventListener("lantern-move", (event) => step(event.detail.direction));
element.querySelector(".title").textContent = T.title;
element.querySelector(".visually").textContent = T.speed;
track.setAttribute("aria-label", T.keys);
scrub.setAttribute("aria-label", T.scrub);
speedBox.replaceChildren(...Object.keys(SPEEDS).map((name) => new Option(T[`speed.${name}`], name)));
for (const button of element.querySelectorAll("[data-format]")) {
  button.textContent = say(T.export, { format: button.dataset.format === "webp" ? "WebP" : "GIF" });
  button.addEventListener("click", () => exportAs(button));
}
label();
load(window.lanternRun || null);
