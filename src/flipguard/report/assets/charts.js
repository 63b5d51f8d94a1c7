/* -- charts -------------------------------------------------------------------------------- */

const tip = document.getElementById("tip");
const showTip = (handler, event, item, value) => {
  if (value === null || value === undefined || value === "") { tip.hidden = true; return; }
  const list = make("dl");
  const parts = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
  for (const [term, text] of parts) list.append(make("dt", {}, term), make("dd", {}, named(String(text))));
  tip.replaceChildren(list);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = Math.min(event.clientX + 14, window.innerWidth - width - 8);
  const y = event.clientY + 18 + height > window.innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tip.style.left = `${Math.max(x, 8)}px`;
  tip.style.top = `${Math.max(y, 8)}px`;
};

const charts = () => {
  if (!window.flipguardEmbed) return;
  const specs = JSON.parse(document.getElementById("charts-data").textContent);
  const answer = async (drawing) => {
    const still = [...drawing.childNodes];
    const place = make("div");
    drawing.append(place);
    try {
      await window.flipguardEmbed(place, specs[drawing.dataset.chart], {
        mode: "vega", renderer: "svg", ast: true, actions: false, tooltip: showTip, defaultStyle: false, hover: true,
      });
      for (const node of still) node.remove();
      for (const part of all("[role], [aria-roledescription]", place)) {
        for (const name of ["role", "aria-roledescription", "aria-label"]) part.removeAttribute(name);
      }
      const picture = place.querySelector("svg");
      picture.setAttribute("role", "img");
      picture.setAttribute("aria-label", specs[drawing.dataset.chart].description);
      drawing.dataset.live = "yes";
    } catch (problem) {
      // What was drawn before is still true.
      place.remove();
      console.error(problem);
    }
  };
  // A chart answers once it comes into sight, so that the page is there at once.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      answer(entry.target);
    }
  }, { rootMargin: "200px" });
  for (const drawing of all("[data-chart]")) seen.observe(drawing);
};
