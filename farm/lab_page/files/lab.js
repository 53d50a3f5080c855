// One stream tells that the page has changed; what has is fetched and put in its place.
(() => {
  const body = document.body, state = document.getElementById("state");
  if (!body.dataset.version) return;
  let fetching = false, wanted = false;
  const tell = (text, lost) => { if (state.textContent !== text) state.textContent = text; state.classList.toggle("lost", lost); };
  // Keep the focus where it is, at the same control of the new part.
  const replace = (old, put) => {
    const controls = (part) => [part, ...part.querySelectorAll("a, button, input, select, [tabindex]")];
    const at = old.contains(document.activeElement) ? controls(old).indexOf(document.activeElement) : -1;
    const scrolled = old.querySelector(".scroll")?.scrollLeft;
    put();
    const now = document.getElementById(old.id);
    if (at >= 0) controls(now)[at]?.focus({ preventScroll: true });
    if (scrolled) now.querySelector(".scroll")?.scrollTo(scrolled, 0);
  };
  const whole = async () => {
    const found = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
    const content = document.getElementById("content");
    replace(content, () => content.replaceChildren(...found.getElementById("content").childNodes));
    body.dataset.version = found.body.dataset.version;
  };
  const update = async () => {
    const answer = await (await fetch("/changes?version=" + encodeURIComponent(body.dataset.version))).json();
    if (answer.parts === null) return whole();
    for (const [id, html] of Object.entries(answer.parts)) {
      const old = document.getElementById(id);
      if (!old) continue;
      const made = document.createElement("template");
      made.innerHTML = html;
      if (old.isEqualNode(made.content.firstElementChild)) continue;
      replace(old, () => old.replaceWith(made.content));
    }
    body.dataset.version = answer.version;
  };
  const soon = async () => {
    wanted = true;
    if (fetching) return;
    fetching = true;
    while (wanted) {
      wanted = false;
      try { await update(); } catch { /* the stream says when the server is back */ }
      await new Promise((done) => setTimeout(done, 500));
    }
    fetching = false;
  };
  const stream = new EventSource("/stream?version=" + encodeURIComponent(body.dataset.version));
  stream.addEventListener("page", soon);
  stream.addEventListener("open", () => tell("live", false));
  stream.addEventListener("error", () => tell("not connected; trying again", true));
})();
