// Make what scrolls inside a page reachable by keyboard: code and tables that are wider than the page.
function reachable() {
  for (const box of document.querySelectorAll("pre, .table-wrapper")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("DOMContentLoaded", reachable);
addEventListener("resize", reachable);
