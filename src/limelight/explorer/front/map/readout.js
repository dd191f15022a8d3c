// The panel that describes the place that is pointed at, in words and numbers.
import { count, h, weight } from "../dom.js";
import { name } from "./plot.js";

/** The panel next to the map. */
export class Readout {
  constructor(app, jump) {
    Object.assign(this, { app, jump });
    this.facts = h("dl", { class: "facts" });
    this.looks = bars("This query looks at");
    this.seen = bars("This key is seen by");
    this.profile = h("canvas", { role: "img", "aria-label": "Mean weight by distance from the query" });
    this.distance = h("section", { hidden: true }, h("h2", {}, "By distance"), this.profile, h("p", { class: "ends" }, h("span", {}, ""), h("span", {}, "query"), h("span", {}, "")));
    this.hint = h("p", { class: "soft hint" }, "Point at a cell, or move with the arrow keys.");
    this.element = h("div", { class: "readout" }, h("h2", {}, "Under the pointer"), this.hint, this.facts, this.looks.element, this.seen.element, this.distance, keys());
  }

  clear() {
    this.facts.replaceChildren();
    this.hint.hidden = false;
    this.looks.element.hidden = this.seen.element.hidden = true;
  }

  /** Shows at once what the tiles hold. */
  point({ query, key, level, value, names, signed, reduce }) {
    const cell = 1 << level, place = (n, most) => (cell === 1 ? count(n) : `${count(n - (n % cell))}–${count(Math.min(most, n - (n % cell) + cell) - 1)}`);
    const { queries, keys } = this.app.subject.calls[this.app.state.call];
    this.hint.hidden = true;
    const what = signed ? "difference" : cell === 1 ? "weight" : `${reduce} weight`;
    this.number = h("b", {});
    const shownValue = this.know(value);
    this.facts.replaceChildren(
      h("dt", {}, `query ${place(query, queries)}`), h("dd", {}, cell === 1 ? quoted(name(names.query, query)) : ""),
      h("dt", {}, `key ${place(key, keys)}`), h("dd", {}, cell === 1 ? quoted(name(names.key, key)) : ""),
      h("dt", {}, what), h("dd", {}, this.number));
    return `query ${place(query, queries)} ${cell === 1 ? name(names.query, query) : ""}, key ${place(key, keys)} ${cell === 1 ? name(names.key, key) : ""}: ${what} ${shownValue}`;
  }

  /** The value of the cell, as text; undefined until its tile has come. */
  know(value) {
    this.isWaiting = value === undefined;
    return (this.number.textContent = this.isWaiting ? "…" : Number.isNaN(value) ? "masked" : (value < 0 ? "−" : "") + weight(Math.abs(value)));
  }

  /** Shows what the server answers, a little later. */
  describe(found, { level, names }) {
    const fact = (term, value) => [h("dt", {}, term), h("dd", {}, value)];
    if (level > 0 && !found.masked)
      this.facts.append(...fact("strongest in it", weight(found.weight)), ...fact(`query ${count(found.query)}`, quoted(name(names.query, found.query))), ...fact(`key ${count(found.key)}`, quoted(name(names.key, found.key))));
    if (!found.masked && found.rank !== null) this.facts.append(...fact("rank in its row", `${count(found.rank)} of ${count(found.visible)}`));
    if (found.entropy !== null) this.facts.append(...fact("entropy of the row", `${found.entropy.toFixed(2)} nats`), ...fact("received by the key", found.received.toFixed(found.received < 10 ? 3 : 1)));
    this.looks.show(found.looks_at, names.key, (key) => this.jump(found.query, key));
    this.seen.show(found.attended_by, names.query, (query) => this.jump(query, found.key));
    const spoken = found.rank === null ? "" : `, rank ${found.rank} of ${found.visible}, entropy ${found.entropy.toFixed(2)}`;
    return level > 0 && !found.masked ? `, strongest ${weight(found.weight)} from ${name(names.query, found.query)} to ${name(names.key, found.key)}${spoken}` : spoken;
  }

  /** The mean weight by distance. */
  distances(profile) {
    this.distance.hidden = !profile;
    if (!profile) return;
    const reach = (profile.length - 1) / 2, ratio = devicePixelRatio || 1, width = this.profile.clientWidth || 260, height = 56;
    const pen = this.profile.getContext("2d"), style = getComputedStyle(this.app.root);
    this.profile.width = width * ratio;
    this.profile.height = height * ratio;
    pen.scale(ratio, ratio);
    const max = Math.max(1e-12, ...profile), step = width / profile.length;
    profile.forEach((v, n) => {
      const high = Math.sqrt(v / max) * (height - 2);
      pen.fillStyle = style.getPropertyValue(n === reach ? "--focus" : "--accent");
      pen.fillRect(n * step, height - high, Math.max(1, step - (step > 3 ? 1 : 0)), high);
    });
    const [left, , right] = this.distance.querySelectorAll(".ends span");
    left.textContent = `−${reach}`;
    right.textContent = `+${reach}`;
  }
}

const quoted = (text) => `“${text}”`;

/** A list of tokens with bars; each leads to its place. */
function bars(title) {
  const list = h("ol", { class: "bars" }), element = h("section", { hidden: true }, h("h2", {}, title), list);
  return {
    element,
    show(found, names, jump) {
      element.hidden = found.length === 0;
      const most = Math.max(1e-12, ...found.map(([, w]) => w));
      list.replaceChildren(...found.map(([n, w]) => h("li", {},
        h("button", { type: "button", onclick: () => jump(n), title: `position ${count(n)}` }, h("span", {}, name(names, n)), names ? h("small", {}, count(n)) : ""),
        h("i", { style: { width: `${(100 * w) / most}%` } }), h("em", {}, weight(w)))));
    },
  };
}

function keys() {
  const key = (k, what) => [h("kbd", {}, k), ` ${what} `];
  return h("section", { class: "keys" }, h("h2", {}, "Keys"), h("p", {}, key("← ↑ ↓ →", "move"), key("Shift", "further"), key("+", ""), key("−", "zoom"), key("0", "whole"), key("/", "find"), key("[", ""), key("]", "head")));
}
