// --- dark and light ---

const theme = {
  choice: "auto",
  listeners: [],
  cache: {},
  dark: window.matchMedia("(prefers-color-scheme: dark)"),

  probe: document.body.appendChild(element("i", { hidden: true })),

  // colour is the value of a variable of the style, of the light or the dark one.
  colour(name) {
    this.probe.style.color = `var(--${name})`;
    return this.cache[name] ||= getComputedStyle(this.probe).color;
  },
  series(i) { return this.colour("series-" + (i % 8)); },
  changed() {
    this.cache = {};
    for (const f of this.listeners) f();
  },
  choose(choice) {
    this.choice = choice;
    if (choice === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", choice);
    try { localStorage.setItem("penstock-theme", choice); } catch { /* a page from a file may have no storage */ }
    const button = byId("theme");
    button.textContent = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[choice];
    button.setAttribute("aria-label", `Colours: ${choice}. Change`);
    this.changed();
  },
  start() {
    let choice = "auto";
    try { choice = localStorage.getItem("penstock-theme") || "auto"; } catch { /* as above */ }
    this.choose(["auto", "light", "dark"].includes(choice) ? choice : "auto");
    this.dark.addEventListener("change", () => this.changed());
    byId("theme").addEventListener("click", () => this.choose({ auto: "light", light: "dark", dark: "auto" }[this.choice]));
  },
};

// Dashes tell series apart without colour.
const dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2], [1, 2], [6, 2, 1, 2, 1, 2]];
