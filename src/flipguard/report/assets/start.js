/* -- all of it ----------------------------------------------------------------------------- */

for (const part of all(".needs-script")) part.hidden = false;
theme();
for (const table of all("table[data-fold]")) foldable(table);
for (const table of all("table[data-sortable]")) sortable(table);
window.flipguard = { samples: all("[data-flips]").map((section) => new Samples(section)) };
pickable();
window.addEventListener("beforeprint", () => { for (const part of all("details")) part.open = true; });
window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
// The charts' script is the last of the page, after this one.
document.addEventListener("DOMContentLoaded", charts);
document.documentElement.dataset.ready = "yes";
