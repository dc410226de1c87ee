// Walks through a lane's passes and looks into single tokens. Hears of the lane and of opened
// tokens from the token map, tells it which tokens the pass on show committed.
const look = element.querySelector(".look");
const passTitle = element.querySelector(".pass .title");
const slider = element.querySelector("input");
const [back, next] = [element.querySelector(".back"), element.querySelector(".next")];
const treeBox = element.querySelector(".tree");
const summary = element.querySelector(".summary");
const tokenTitle = element.querySelector(".token .title");
const whereLine = element.querySelector(".where");
const pairBox = element.querySelector(".pair");
const strictLine = element.querySelector(".strict");
const details = element.querySelector(".details");
const asker = (window.lanternAsker ||= Math.random().toString(36).slice(2));
let lane = null;
let asked = 0; // only the latest question's answer is shown

const make = (name, className, text) => {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};
const percent = (p) => `${(100 * p).toFixed(p < 0.0995 ? 1 : 0)} %`;

// The nodes of one pass with what became of them, and its tokens' positions.
function pass(step) {
  const first = lane.nodes.count.slice(0, step).reduce((a, b) => a + b, 0);
  const start = lane.steps.length.slice(0, step).reduce((a, b) => a + b, 0);
  const positions = Array.from({ length: lane.steps.length[step] }, (_, i) => start + i);
  const nodes = [];
  for (let i = first; i < first + lane.nodes.count[step]; i++) {
    const node = { depth: lane.nodes.depth[i], parent: lane.nodes.parent[i], token: lane.nodes.token[i], score: lane.nodes.score[i], accepted: lane.nodes.accepted[i] === "1" };
    node.confidence = nodes.length ? Math.min(1, Math.exp(node.score - (node.parent ? nodes[node.parent].score : 0))) : 1;
    const kind = node.accepted ? lane.tokens.kind[start + node.depth - 1] : "";
    node.mark = { e: "exact", r: "relaxed" }[kind] || "refused";
    nodes.push(node);
  }
  return { nodes, positions };
}

function showPass(step) {
  const { nodes, positions } = pass(step);
  slider.value = step;
  slider.setAttribute("aria-valuetext", say(T["tree.title"], { step: step + 1, steps: lane.steps.length.length }));
  back.disabled = step === 0;
  next.disabled = step === lane.steps.length.length - 1;
  passTitle.textContent = say(T["tree.title"], { step: step + 1, steps: lane.steps.length.length });
  const accepted = nodes.filter((node, i) => i && node.accepted).length;
  const drafts = Math.max(0, nodes.length - 1);
  treeBox.replaceChildren();
  if (step === 0) summary.textContent = T["tree.none"];
  else if (!drafts) summary.textContent = T["tree.ar"];
  else {
    summary.textContent = say(T["tree.summary"], { nodes: drafts, accepted, length: positions.length });
    treeBox.append(drawTree(nodes, say(T["tree.aria"], { step: step + 1, nodes: drafts, accepted })));
  }
  element.querySelector(".about").textContent = drafts ? T["tree.legend"] : "";
  document.dispatchEvent(new CustomEvent("lantern-step", { detail: { positions } }));
}

// The siblings that were tried before a token, in draft order, and all of them with confidence.
function siblings(step, position) {
  const { nodes, positions } = pass(step);
  const depth = position - positions[0] + 1;
  const node = nodes.findIndex((n, i) => i && n.accepted && n.depth === depth);
  const parent = node > 0 ? nodes[node].parent : nodes.findIndex((n) => n.depth === depth - 1 && (n.accepted || depth === 1));
  const all = nodes.filter((n, i) => i && n.parent === parent && n.depth === depth);
  const place = all.indexOf(nodes[node]);
  return { all, before: place > 0 ? all.slice(0, place).map((n) => n.token) : [], depth };
}

function picture(source, caption, className) {
  const figure = make("figure", className);
  const image = make("img");
  image.src = source;
  image.alt = caption;
  figure.append(image, make("figcaption", "", caption));
  return figure;
}

function bars(rows) {
  const box = make("div", "bars");
  const most = Math.max(...rows.map((row) => row.share), 1e-9);
  for (const row of rows) {
    const bar = make("div", `bar ${row.className || ""}`);
    const fill = make("i");
    fill.style.width = `${(100 * row.share) / most}%`;
    bar.append(fill);
    box.append(make("span", "", row.name), bar, make("span", "", row.text));
  }
  return box;
}

function showAnswer(answer, drafts) {
  const mine = answer.pictures[answer.token];
  pairBox.replaceChildren(picture(mine, `${answer.token}: ${T.there}`));
  if (answer.choice !== answer.token) pairBox.append(picture(answer.pictures[answer.choice], `${answer.choice}: ${T.drew}`));
  const parts = [];
  const drawn = lane.tokens.choice[answer.position];
  if (drawn !== answer.choice) parts.push(make("p", "bad", say(T.differs, { drawn, choice: answer.choice })));
  if (answer.nearest.length) {
    parts.push(make("div", "head", say(T.neighbours, { token: answer.token })));
    const about = !answer.relaxed ? T["neighbours.exact"] : answer.budget ? say(T["neighbours.about"], { budget: answer.budget, members: answer.members }) : say(T["neighbours.rule"], { members: answer.members });
    parts.push(make("p", "note", about));
    if (answer.refused.length && answer.relaxed) parts.push(make("p", "note", say(T.refused, { codes: answer.refused.join(", ") })));
    const row = make("div", "row");
    let inside = true;
    let last = 0;
    for (const near of answer.nearest) {
      if (near.rank > last + 1) row.append(make("div", "gap", "…"));
      last = near.rank;
      if (answer.relaxed && inside && !near.member) {
        row.append(make("div", "line"));
        inside = false;
      }
      const caption = `${near.rank}. ${near.code}\n${percent(near.p)}\nΣ ${percent(near.running)}`;
      row.append(picture(answer.pictures[near.code], caption, `${near.code === answer.choice ? "drew" : ""} ${answer.relaxed && !near.member ? "out" : ""}`));
    }
    parts.push(row);
  }
  parts.push(make("div", "head", say(T.likeliest, { entropy: answer.entropy.toFixed(2) })));
  parts.push(bars(answer.likeliest.map((c) => ({
    name: c.code === answer.token ? `▸ ${c.code}` : `${c.code}`,
    share: c.p,
    text: `${percent(c.p)} · ${c.code === answer.choice ? T.won : c.behind === null ? T.filtered : say(T.behind, { behind: c.behind.toFixed(2) })}`,
    className: c.code === answer.choice ? "drew" : c.code === answer.token ? "mine" : "",
  }))));
  if (drafts.length) {
    parts.push(make("div", "head", T.drafts));
    parts.push(bars(drafts.map((n) => ({ name: `${SIGNS[n.mark]} ${n.token}`, share: n.confidence, text: percent(n.confidence), className: n.accepted ? "mine" : "" }))));
  }
  details.replaceChildren(...parts);
}

async function showToken(position) {
  const question = ++asked;
  const step = lane.stepOf[position];
  const kind = lane.tokens.kind[position];
  showPass(step);
  const found = siblings(step, position);
  tokenTitle.textContent = say(T.title, { position });
  const place = { row: Math.floor(position / lane.grid) + 1, column: (position % lane.grid) + 1, step: step + 1, depth: found.depth };
  whereLine.textContent = say(kind === "t" ? T["where.target"] : T.where, place);
  strictLine.textContent = { e: `${T.same} ${T["strict.yes"]}`, r: T["strict.no"], t: T["strict.target"] }[kind];
  pairBox.replaceChildren();
  details.replaceChildren(make("p", "note", T.wait));
  element.dataset.token = "";
  let answer;
  try {
    answer = (await server.look({ asker, model: lane.model, prompt: lane.prompt, options: lane.options, tokens: lane.tokens.token, position, refused: found.before })) || { error: T.lost };
  } catch (error) {
    answer = { error: String(error.message || error) };
  }
  if (question !== asked) return;
  if (answer.error) return details.replaceChildren(make("p", "bad", say(T.failed, { reason: answer.error })));
  showAnswer(answer, found.all);
  element.dataset.token = position;
}

function idle() {
  asked += 1;
  tokenTitle.textContent = T.hint;
  whereLine.textContent = strictLine.textContent = "";
  pairBox.replaceChildren();
  details.replaceChildren();
  element.dataset.token = "";
}

function step(move) {
  const to = Math.min(lane.steps.length.length - 1, Math.max(0, Number(slider.value) + move));
  showPass(to);
}

slider.addEventListener("input", () => lane && showPass(Number(slider.value)));
back.addEventListener("click", () => step(-1));
next.addEventListener("click", () => step(1));
treeBox.addEventListener("keydown", (event) => {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!lane || !move) return;
  event.preventDefault();
  step(move);
});
function showLane(shown) {
  lane = shown;
  look.hidden = !lane;
  idle();
  if (!lane) return;
  slider.max = lane.steps.length.length - 1;
  showPass(Math.min(1, lane.steps.length.length - 1));
}

document.addEventListener("lantern-lane", (event) => showLane(event.detail.lane));
document.addEventListener("lantern-token", (event) => {
  lane = event.detail.lane;
  showToken(event.detail.position);
  look.querySelector(".token").scrollIntoView({ block: "nearest" });
});
element.querySelector(".slider span").textContent = T["tree.slider"];
slider.setAttribute("aria-label", T["tree.slider"]);
back.setAttribute("aria-label", "−1");
next.setAttribute("aria-label", "+1");
treeBox.setAttribute("aria-label", T["tree.slider"]);
treeBox.setAttribute("role", "group");
showLane(window.lanternLane || null);
