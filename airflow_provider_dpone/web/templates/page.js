"use strict";
// A page that reloads itself keeps its place, and waits while somebody selects text or looks elsewhere.
const key = "dpone:" + location.pathname;
const main = document.querySelector("main[data-refresh]");
const details = [...document.querySelectorAll("details[id]")];
try {
  const kept = JSON.parse(sessionStorage.getItem(key) || "{}");
  for (const one of details) one.open = (kept.open || []).includes(one.id);
  if (kept.y) scrollTo(0, kept.y);
} catch { /* Without storage the page begins at its top. */ }
addEventListener("pagehide", () => {
  try {
    const open = details.filter((one) => one.open).map((one) => one.id);
    sessionStorage.setItem(key, JSON.stringify({ y: scrollY, open }));
  } catch { /* see above */ }
});
if (main) {
  setInterval(() => {
    if (!document.hidden && getSelection().isCollapsed) location.reload();
  }, 1000 * Number(main.dataset.refresh));
}
