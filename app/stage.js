// Keys for speakers, and ?present=1: large type and nothing on the page that an audience does not need.
() => {
  if (new URLSearchParams(location.search).get("present") === "1") {
    // Written here, since Gradio confines style sheets to what lies inside the app.
    const style = document.createElement("style");
    style.textContent = `
      html.lt-present { zoom: 1.25; }
      .lt-present :is(footer, #lt-tour .start, #lt-share, #lt-dice, #lt-reset, .lt-title p, #lt-model-note) { display: none !important; }
      .lt-present .gradio-container { max-width: none !important; }
      .lt-present .lt-head b { font-size: 32px; }
      .lt-present .lt-sentence { font-size: 19px; }`;
    document.head.append(style);
    document.documentElement.classList.add("lt-present");
  }
  const busyElsewhere = "input, textarea, select, button, a, summary, canvas, [contenteditable], [role], [tabindex]";
  const press = (id) => {
    const button = document.querySelector(id);
    if (button && !button.disabled && button.offsetParent) button.click();
  };
  const send = (name, detail) => document.dispatchEvent(new CustomEvent(name, { detail }));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.key === "Escape") return ["#lt-stop", "#lt-sweep-stop"].forEach(press);
    // Whatever has the focus has keys of its own; these are for a page that is only looked at.
    if (event.target.closest && event.target !== document.body && event.target.closest(busyElsewhere)) return;
    if (event.key === "Enter") press("#lt-run");
    else if (event.key === " ") send("lantern-play");
    else if (event.key === "ArrowRight") send("lantern-move", { direction: 1 });
    else if (event.key === "ArrowLeft") send("lantern-move", { direction: -1 });
    else return;
    event.preventDefault();
  });
  document.documentElement.dataset.lanternKeys = "ready"; // whoever drives the page can wait for it
}
