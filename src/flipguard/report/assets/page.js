const PAGE = 25;
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
// Names from files only ever become text nodes, each in an element that isolates its direction.
const named = (text, attributes = {}) => make("bdi", attributes, text);
const count = (n) => n.toLocaleString("en-US");

/* -- light and dark ------------------------------------------------------------------------ */

const theme = () => {
  const button = document.querySelector(".theme");
  const root = document.documentElement;
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  const kept = (value) => {
    // Some browsers keep nothing for a file from disk; the choice then lasts as long as the page.
    try {
      if (value === undefined) return localStorage.getItem("flipguard-theme");
      localStorage.setItem("flipguard-theme", value);
    } catch { /* nothing to do */ }
    return null;
  };
  const current = () => root.dataset.theme || (prefers.matches ? "dark" : "light");
  const told = () => {
    button.textContent = current() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${current() === "dark" ? "light" : "dark"} theme`);
  };
  const before = kept();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    kept(root.dataset.theme);
    told();
  });
  prefers.addEventListener("change", told);
  told();
};

/* -- candidates ---------------------------------------------------------------------------- */

const pickable = () => {
  const buttons = all("[data-pick]");
  const keyOf = (place) => (/^#(c\d+)(-|$)/.exec(place) || [])[1];
  const pick = (key) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.pick === key));
    for (const part of all("[data-candidate]")) part.hidden = part.dataset.candidate !== key;
    for (const link of all(".contents a")) {
      link.setAttribute("href", link.getAttribute("href").replace(/^#c\d+-/, `#${key}-`));
      // What this one has no data for is not there to be jumped to.
      link.hidden = !document.getElementById(link.hash.slice(1));
    }
  };
  // An address may point into any candidate: one that was sent, or one that the back button returns to.
  const follow = () => {
    const key = keyOf(window.location.hash);
    if (!buttons.some((button) => button.dataset.pick === key)) return false;
    pick(key);
    document.getElementById(window.location.hash.slice(1))?.scrollIntoView();
    return true;
  };
  for (const button of buttons) button.addEventListener("click", () => pick(button.dataset.pick));
  if (buttons.length && !follow()) pick(buttons[0].dataset.pick);
  if (buttons.length) window.addEventListener("hashchange", follow);
};
