// Elements, without markup in strings.

/** An element: h("button", { class: "chip", onclick: f, "aria-pressed": true }, "text", child, …). */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value); // as properties: the policy forbids style attributes
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A row of buttons of which one is chosen. */
export function segments(label, options, chosen, choose) {
  const buttons = options.map(([value, text, title]) =>
    h("button", { type: "button", "aria-pressed": value === chosen, title, onclick: () => set(value) }, text));
  const set = (value) => {
    buttons.forEach((button, n) => button.setAttribute("aria-pressed", options[n][0] === value));
    choose(value);
  };
  return h("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

/** A drop-down list. */
export function dropdown(label, options, chosen, choose, hidden = false) {
  const list = h("select", { "aria-label": label, onchange: () => choose(options[list.selectedIndex][0]) },
    options.map(([value, text]) => h("option", { selected: value === chosen }, text)));
  list.hidden = hidden;
  return list;
}

/** Lets arrow keys move between the buttons of a grid with so many columns; one of them can be reached by Tab. */
export function roving(container, columns) {
  const items = () => [...container.querySelectorAll("button")].filter((button) => !button.hidden);
  container.addEventListener("keydown", (event) => {
    const all = items(), at = all.indexOf(document.activeElement ?? null);
    const within = at < 0 ? all.indexOf(event.target) : at;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() };
    const to = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : within + (steps[event.key] ?? NaN);
    if (within < 0 || !all[to] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    reach(container, all[to]);
    all[to].focus();
  });
}

/** Makes one button of a roving container the one that Tab reaches. */
export function reach(container, chosen) {
  for (const button of container.querySelectorAll("button")) button.tabIndex = button === chosen ? 0 : -1;
}

/** Calls that wait for quiet, by their timers. */
export const waiting = new Set();

/** Calls f once things have been quiet for so many milliseconds. */
export function settled(f, wait) {
  let timer = 0;
  const later = (...given) => {
    later.cancel();
    timer = setTimeout(() => {
      waiting.delete(timer);
      f(...given);
    }, wait);
    waiting.add(timer);
  };
  later.cancel = () => {
    clearTimeout(timer);
    waiting.delete(timer);
  };
  return later;
}

/** A token as a person can see it: white space has marks, and a word's beginning is a plain space. */
export function shown(token) {
  const text = token.replace(/^[▁Ġ]/, " ").replaceAll("▁", " ").replaceAll("Ċ", "\n");
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +(?=\S)/, "").replace(/^ +$/, "␣") || "∅";
}

/** Numbers as they are written here: three digits, and positions with thin spaces as commas. */
export const weight = (x) => (x === 0 ? "0" : x >= 0.0995 ? x.toFixed(3) : x >= 0.001 ? x.toFixed(4) : x < 1e-30 ? "0" : x.toExponential(1).replace("-", "−"));
export const count = (n) => n.toLocaleString("en");
