// One pass's draft tree as SVG. ``nodes``: {token, parent, depth, score, accepted, mark}, parents
// first; mark is "exact", "relaxed" or "refused".
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = { exact: "✓", relaxed: "≈", refused: "×" };
const [BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y] = [72, 36, 26, 8];

function svg(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Leaves get rows of their own; a parent stands in the middle of its children.
function layOut(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => i && children[node.parent].push(i));
  let rows = 0;
  const place = (i) => {
    const inner = children[i].map(place);
    nodes[i].row = inner.length ? (inner[0] + inner[inner.length - 1]) / 2 : rows++;
    return nodes[i].row;
  };
  place(0);
  return { rows, columns: Math.max(...nodes.map((node) => node.depth)) + 1 };
}

function drawTree(nodes, label) {
  const { rows, columns } = layOut(nodes);
  const width = columns * (BOX_WIDTH + GAP_X) - GAP_X + 4;
  const height = rows * (BOX_HEIGHT + GAP_Y) - GAP_Y + 4;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (node) => 2 + node.depth * (BOX_WIDTH + GAP_X);
  const y = (node) => 2 + node.row * (BOX_HEIGHT + GAP_Y);
  nodes.forEach((node, i) => {
    if (!i) return;
    const parent = nodes[node.parent];
    picture.append(svg("line", {
      x1: x(parent) + BOX_WIDTH, y1: y(parent) + BOX_HEIGHT / 2, x2: x(node), y2: y(node) + BOX_HEIGHT / 2,
      ...(node.accepted ? { class: "taken" } : {}),
    }));
  });
  nodes.forEach((node, i) => {
    const group = svg("g", { class: !i ? "taken" : `${node.mark}${node.accepted ? " taken" : ""}` });
    group.append(svg("rect", { x: x(node), y: y(node), width: BOX_WIDTH, height: BOX_HEIGHT, rx: 6 }));
    group.append(svg("text", { x: x(node) + 8, y: y(node) + 15 }, i ? `${SIGNS[node.mark]} ${node.token}` : `● ${node.token}`));
    if (i) group.append(svg("text", { x: x(node) + 8, y: y(node) + 29, class: "small" }, `${(100 * node.confidence).toFixed(node.confidence < 0.1 ? 1 : 0)} %`));
    picture.append(group);
  });
  return picture;
}
