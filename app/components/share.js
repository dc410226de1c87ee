// Links, downloads and the log of runs, which never leaves this browser.
const KEY = "lantern-runs";
const MOST = 50;
const LONGEST = 16000; // of an address that servers take
const SHORT = { prompt: "p", seed: "s" };
const said = element.querySelector(".said");
const list = element.querySelector("ol");
const [linkButton, zipButton, clearButton] = [".link", ".zip", ".clear"].map((name) => element.querySelector(name));
const fileInput = element.querySelector("input");
let run = null;

function address(params) {
  const query = new URLSearchParams();
  for (const name in params) if (name !== "mode") query.set(SHORT[name] || name, params[name]);
  // What is not a parameter of a run stays: presentation mode, the theme.
  for (const [name, value] of new URLSearchParams(location.search)) if (["present", "__theme"].includes(name)) query.set(name, value);
  return `${location.origin}${location.pathname}?${query}`;
}

// The text chunk "lantern" of a PNG: tEXt or iTXt without compression.
function parameters(bytes) {
  const view = new DataView(bytes);
  const text = (start, end) => new TextDecoder("utf-8").decode(new Uint8Array(bytes, start, end - start));
  if (view.byteLength < 8 || view.getUint32(0) !== 0x89504e47) throw new Error(T.nopng);
  for (let at = 8; at + 12 <= view.byteLength; ) {
    const [size, kind] = [view.getUint32(at), text(at + 4, at + 8)];
    if (at + 12 + size > view.byteLength) break;
    if (kind === "tEXt" || kind === "iTXt") {
      const parts = text(at + 8, at + 8 + size).split("\0");
      if (parts[0] === "lantern") return JSON.parse(parts[parts.length - 1]);
    }
    at += 12 + size;
  }
  throw new Error(T.nochunk);
}

// Settings as this page writes them: plain values, a prompt and a seed among them.
function checked(params) {
  const plain = params && typeof params === "object" && Object.values(params).every((value) => ["string", "number", "boolean"].includes(typeof value));
  if (!plain || typeof params.prompt !== "string" || typeof params.seed !== "number") throw new Error(T.nochunk);
  return params;
}

function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(found) ? found.filter((entry) => entry && typeof entry.params === "object") : [];
  } catch {
    return [];
  }
}

function keep(entries) {
  try {
    localStorage.setItem(KEY, JSON.stringify(entries.slice(0, MOST)));
  } catch {
    said.textContent = T.nolog; // private windows, full storage
  }
  showLog();
}

function showLog() {
  const entries = stored();
  element.querySelector("summary").textContent = say(T.log, { count: entries.length });
  clearButton.hidden = !entries.length;
  list.replaceChildren(...entries.map((entry) => {
    const [item, button] = [document.createElement("li"), document.createElement("button")];
    button.type = "button";
    const figures = document.createElement("span");
    figures.className = "figures";
    figures.textContent = ` ${entry.when} · ${T.seed} ${entry.params.seed} · k ${entry.params.k} · delta ${entry.params.delta} · ${entry.figures}`;
    button.append(String(entry.params.prompt), figures);
    button.addEventListener("click", () => location.assign(address(entry.params)));
    item.append(button);
    return item;
  }));
}

function note(data) {
  run = data;
  linkButton.disabled = zipButton.disabled = !run || !run.params;
  if (!run || !run.params || run.recorded) return;
  const seconds = {};
  for (const lane of run.lanes) seconds[lane.mode] = Object.values(lane.steps.seconds).flat().reduce((a, b) => a + b, 0);
  const figures = Object.keys(seconds).filter((mode) => mode !== "ar").map((mode) => `${mode} ${(seconds.ar / seconds[mode]).toFixed(2)}×`);
  const when = new Date().toISOString().slice(0, 16).replace("T", " ");
  keep([{ when, params: run.params, figures: figures.join(", ") }, ...stored()]);
}

linkButton.addEventListener("click", async () => {
  const link = address(run.params);
  history.replaceState(null, "", link);
  try {
    await navigator.clipboard.writeText(link);
    said.textContent = T.copied;
  } catch {
    said.textContent = link; // no clipboard without https; it can be copied by hand
  }
});
zipButton.addEventListener("click", async () => {
  zipButton.disabled = true;
  said.textContent = T.packing;
  const answer = (await server.bundle({ run }).catch((error) => ({ error: String(error.message || error) }))) || { error: T.lost };
  zipButton.disabled = false;
  said.textContent = answer.error || "";
  if (answer.error) return;
  const link = Object.assign(document.createElement("a"), { href: answer.url, download: `lantern-run-${run.params.seed}.zip` });
  link.click();
});
fileInput.addEventListener("change", async () => {
  const [file] = fileInput.files;
  if (!file) return;
  try {
    if (file.size > 20e6) throw new Error(T.large);
    const link = address(checked(parameters(await file.arrayBuffer())));
    if (link.length > LONGEST) throw new Error(T.nochunk);
    location.assign(link);
  } catch (error) {
    said.textContent = error instanceof SyntaxError ? T.nochunk : error.message;
  }
  fileInput.value = "";
});
clearButton.addEventListener("click", () => {
  localStorage.removeItem(KEY);
  showLog();
});
document.addEventListener("lantern-run", (event) => note(event.detail.run));
linkButton.textContent = T.link;
zipButton.textContent = T.zip;
clearButton.textContent = T.clear;
element.querySelector(".file span").textContent = T.restore;
fileInput.setAttribute("aria-label", T.restore);
showLog();
run = window.lanternRun || null;
linkButton.disabled = zipButton.disabled = !run || !run.params;
