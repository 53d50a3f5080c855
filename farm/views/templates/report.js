"use strict";
// The theme is the system's until the button is pressed; then the choice is stored, if the browser allows it.
const root = document.documentElement, button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const kept = { get() { try { return localStorage.getItem("farm-theme"); } catch { return null; } }, set(value) { try { localStorage.setItem("farm-theme", value); } catch { } } };
const shown = () => root.dataset.theme || (system.matches ? "dark" : "light");
const say = () => { button.textContent = shown() === "dark" ? "Light theme" : "Dark theme"; };
if (kept.get()) root.dataset.theme = kept.get();
button.hidden = false;
button.addEventListener("click", () => { root.dataset.theme = shown() === "dark" ? "light" : "dark"; kept.set(root.dataset.theme); say(); });
system.addEventListener("change", say);
say();
// Unfold a folded detail when a link to it is followed.
const unfold = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.closest("details");
  if (folded) { folded.open = true; target.focus({ preventScroll: true }); target.scrollIntoView(); }
};
addEventListener("hashchange", unfold);
unfold();
