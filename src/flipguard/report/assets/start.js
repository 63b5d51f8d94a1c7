/* -- all of it ----------------------------------------------------------------------------- */

for (const part of all(".needs-script")) part.hidden = false;
theme();
for (const table of all("table[data-fold]")) foldable(table);
for (const table of all("table[data-sortable]")) sortable(table);
window.flipguard = { samples: all("[data-flips]").map((section) => new Samples(section)) };
pickable();
let unfolded = [];
window.addEventListener("beforeprint", () => {
  unfolded = all("details:not([open])");
  for (const part of unfolded) part.open = true;
});
window.addEventListener("afterprint", () => { for (const part of unfolded) part.open = false; });
window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
// The charts' script is the last of the page, after this one.
document.addEventListener("DOMContentLoaded", charts);
document.documentElement.dataset.ready = "yes";
