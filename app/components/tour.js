// Three steps, each beside the part of the page it speaks of. Nothing is asked of the server.
const STEPS = [
  { at: ".lt-lanes", text: "lanes" },
  { at: "#lt-map", text: "relaxed" },
  { at: "#lt-k", text: "knobs" },
];
const box = element.querySelector(".box");
const start = element.querySelector(".start");
const [back, next, end] = ["back", "next", "end"].map((name) => element.querySelector(`.buttons .${name}`));
let at = -1;
let marked = null;

function place() {
  if (at < 0 || !marked) return;
  const [target, own] = [marked.getBoundingClientRect(), box.getBoundingClientRect()];
  // getBoundingClientRect counts zoomed pixels, styles unzoomed ones.
  const zoom = box.offsetWidth ? own.width / box.offsetWidth : 1;
  const room = innerHeight - target.bottom > own.height + 16;
  const above = target.top > own.height + 16;
  const top = room ? target.bottom + 10 : above ? target.top - own.height - 10 : innerHeight - own.height - 12;
  const left = Math.min(Math.max(8, target.left), innerWidth - own.width - 8);
  box.style.top = `${Math.max(8, Math.min(top, innerHeight - own.height - 8)) / zoom}px`;
  box.style.left = `${left / zoom}px`;
}

function show(step) {
  if (marked) marked.style.outline = "";
  at = step;
  box.hidden = at < 0;
  if (at < 0) {
    marked = null;
    return start.focus();
  }
  const { at: where, text } = STEPS[at];
  element.querySelector(".count").textContent = say(T.count, { step: at + 1, steps: STEPS.length });
  element.querySelector("h3").textContent = T[`${text}.title`];
  element.querySelector(".text").textContent = T[`${text}.text`];
  back.disabled = at === 0;
  next.textContent = at === STEPS.length - 1 ? T.done : T.next;
  marked = document.querySelector(where);
  if (marked) {
    marked.style.outline = "3px solid #d97706";
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    marked.scrollIntoView({ block: "center", behavior: calm ? "auto" : "smooth" });
  }
  place();
  box.focus({ preventScroll: true });
}

start.textContent = T.start;
back.textContent = T.back;
end.textContent = T.end;
start.addEventListener("click", () => {
  const tab = [...document.querySelectorAll('[role="tab"]')][0];
  if (tab && tab.getAttribute("aria-selected") !== "true") tab.click();
  requestAnimationFrame(() => show(0));
});
back.addEventListener("click", () => show(at - 1));
next.addEventListener("click", () => show(at + 1 < STEPS.length ? at + 1 : -1));
end.addEventListener("click", () => show(-1));
box.addEventListener("keydown", (event) => {
  if (event.key === "Escape") show(-1);
  else if (event.key === "ArrowRight") next.click();
  else if (event.key === "ArrowLeft" && at > 0) back.click();
  else return;
  event.preventDefault();
  event.stopPropagation();
});
addEventListener("scroll", place, { passive: true, capture: true });
addEventListener("resize", () => {
  if (marked) marked.scrollIntoView({ block: "center" });
  place();
});
