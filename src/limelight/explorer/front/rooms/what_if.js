// What if: switch heads off, change their temperature, knock pairs out, and see what the model makes of it.
import { Scale } from "../colour.js";
import { dropdown, h, settled, shown } from "../dom.js";
import { HeadGrid } from "../grid.js";
import { HeadLayer } from "../map/layers.js";
import { Plot } from "../map/plot.js";
import { Viewport } from "../map/viewport.js";

export const whatIfRoom = {
  id: "what-if", title: "What if", open: (app, element) => new WhatIfRoom(app, element),
  suits: ({ subject, source }) => Boolean(subject.replays) && source.kind !== "file",
};

const SCOPES = [["head", "this head"], ["layer", "all heads of the layer"], ["all", "all layers"]];

class WhatIfRoom {
  #asked = null;

  constructor(app, element) {
    Object.assign(this, { app, off: new Set(), temperatures: new Map(), knockouts: [], scope: "layer", drag: null });
    this.grid = new HeadGrid(app, { large: false, choose: (call, head, event) => this.#chosen(call, head, event), isChosen: (call, head) => (this.off.has(`${call}/${head}`) ? "var(--focus)" : call === app.state.call && head === app.state.head) });
    this.name = h("h2", { class: "name" });
    this.toggle = h("button", { type: "button", class: "button", onclick: () => this.#toggle(app.state.call, app.state.head) });
    this.slider = h("input", { type: "range", min: -2, max: 2, step: 0.1, value: 0, "aria-label": "Temperature", oninput: () => this.#heat() });
    this.degrees = h("output", {}, "1.0");
    this.canvas = h("canvas", { role: "img", tabindex: 0 });
    this.marks = h("div", { class: "knocked" });
    this.box = h("div", { class: "plot still paint" }, this.canvas, this.marks);
    this.tokens = h("div", { class: "words", role: "group", "aria-label": "Tokens that may be attended to" });
    this.list = h("ul", { class: "edits" });
    this.result = h("div", { class: "outcome", "aria-live": "polite" });
    const clear = h("button", { type: "button", class: "button", onclick: () => this.#clear() }, "Undo all");
    element.append(
      h("section", { class: "wall scrolls", "aria-label": "Heads", tabindex: -1 }, h("p", { class: "soft small" }, "Choose a head; choose it again to switch it off."), this.grid.element),
      h("section", { class: "stage scrolls", "aria-label": "Change", tabindex: -1 },
        h("div", { class: "bar" }, this.name, h("div", { class: "tools" }, this.toggle, clear)),
        h("p", { class: "tools" }, h("label", {}, "temperature ", this.slider, this.degrees), h("label", {}, "changes apply to ", dropdown("Scope", SCOPES, this.scope, (scope) => { this.scope = scope; }))),
        h("p", { class: "soft small" }, "Paint a rectangle to knock its pairs out, or choose tokens that nothing may attend to."),
        this.box, this.tokens, this.list),
      h("aside", { class: "side right scrolls", "aria-label": "Outcome", tabindex: -1 }, h("h2", {}, "What the model makes of it"), this.result));
    this.viewport = new Viewport(app.reduced);
    this.viewport.onchange(() => this.plot?.request());
    this.#paints();
    this.ask = settled(() => this.#run(), 150);
    this.#show();
    this.#run();
  }

  /** The calls and heads that a change applies to: [call, head], with −1 for all heads. */
  #places() {
    const { call, head } = this.app.state, { kind } = this.app.subject.calls[call];
    if (this.scope === "head") return [[call, head]];
    if (this.scope === "layer") return [[call, -1]];
    return this.app.subject.groupOf(call).calls.filter((other) => this.app.subject.calls[other].kind === kind).map((other) => [other, -1]);
  }

  #chosen(call, head, event) {
    const { state } = this.app;
    if ((call === state.call && head === state.head) || event.shiftKey) this.#toggle(call, head);
    else this.app.go({ call, head });
  }

  #toggle(call, head) {
    const name = `${call}/${head}`;
    this.off.has(name) ? this.off.delete(name) : this.off.add(name);
    this.#changed();
  }

  #heat() {
    const t = 2 ** Number(this.slider.value);
    for (const [call, head] of this.#places()) {
      const heads = head < 0 ? Array.from({ length: this.app.subject.calls[call].heads }, (_, n) => n) : [head];
      for (const one of heads) t === 1 ? this.temperatures.delete(`${call}/${one}`) : this.temperatures.set(`${call}/${one}`, t);
    }
    this.#changed();
  }

  /** Knocks a rectangle out, or undoes the same one. */
  knock(top, bottom, left, right, whole = false) {
    for (const [call, head] of this.#places()) {
      const { queries, keys } = this.app.subject.calls[call];
      const box = whole ? [0, queries - 1, left, Math.min(right, keys - 1)] : [top, Math.min(bottom, queries - 1), left, Math.min(right, keys - 1)];
      const item = [call, head, ...box], same = this.knockouts.findIndex((other) => other.join() === item.join());
      same < 0 ? this.knockouts.push(item) : this.knockouts.splice(same, 1);
    }
    this.#changed();
  }

  #clear() {
    this.off.clear();
    this.temperatures.clear();
    this.knockouts.length = 0;
    this.slider.value = 0;
    this.#changed();
  }

  #changed() {
    this.grid.mark();
    this.#described();
    this.ask();
  }

  #show() {
    const { app } = this, { subject } = app, { call, head, batch } = app.state, { queries, keys } = subject.calls[call];
    this.plot?.layer.close();
    this.plot?.close();
    this.viewport.resize({ queries, keys });
    this.names = { query: subject.tokens(call, batch, "query"), key: subject.tokens(call, batch, "key") };
    const plot = (this.plot = new Plot(app, this.canvas, this.viewport, { names: this.names, cursor: () => null }));
    plot.layer = new HeadLayer(app, { call, head, batch, reduce: "mean" }, () => this.#colours());
    plot.scale = new Scale("sqrt", 1, app.theme);
    this.canvas.setAttribute("aria-label", `Attention matrix of ${subject.name(call, head)}; paint a rectangle to knock it out`);
    plot.measure();
    this.viewport.set(this.viewport.whole());
    this.#colours();
    this.#described();
  }

  #colours() {
    this.plot.scale = new Scale("sqrt", this.plot.largest() || 1, this.app.theme);
    this.plot.request();
  }

  /** Everything that depends on what has been changed so far. */
  #described() {
    const { subject, state } = this.app, { call, head } = state, off = this.off.has(`${call}/${head}`);
    this.name.textContent = subject.name(call, head);
    this.toggle.textContent = off ? "Switch on" : "Switch off";
    this.toggle.setAttribute("aria-pressed", off);
    const t = this.temperatures.get(`${call}/${head}`) ?? 1;
    this.slider.value = Math.log2(t);
    this.degrees.textContent = t.toFixed(2);
    const mine = this.knockouts.filter(([c, one]) => c === call && (one < 0 || one === head));
    const { keys, queries } = subject.calls[call];
    const gone = new Set(mine.filter(([, , top, bottom]) => top === 0 && bottom === queries - 1).flatMap(([, , , , left, right]) => Array.from({ length: right - left + 1 }, (_, n) => left + n)));
    const many = Math.min(keys, 200);
    this.tokens.replaceChildren(...Array.from({ length: many }, (_, n) => h("button", { type: "button", class: "chip-word", "aria-pressed": gone.has(n), onclick: () => this.knock(0, queries - 1, n, n, true) }, this.names.key ? shown(this.names.key[n]) : n)));
    this.#marked(mine);
    const lines = [...this.off].map((name) => `${subject.name(...name.split("/").map(Number))} is off`);
    if (this.temperatures.size) lines.push(`${this.temperatures.size} heads have another temperature`);
    if (this.knockouts.length) lines.push(`${this.knockouts.length} rectangles are knocked out`);
    this.list.replaceChildren(...lines.slice(0, 12).map((line) => h("li", {}, line)));
  }

  /** Draws the knocked-out rectangles, and the one that is being painted, over the map. */
  #marked(rectangles) {
    const boxes = rectangles.map(([, , top, bottom, left, right]) => [top, bottom, left, right]);
    if (this.drag) boxes.push(this.#dragged());
    this.marks.replaceChildren(...boxes.map(([top, bottom, left, right]) => {
      const [x, y] = this.plot.toScreen(top, left), [right_, low] = this.plot.toScreen(bottom + 1, right + 1);
      return h("i", { style: { left: `${x}px`, top: `${y}px`, width: `${Math.max(2, right_ - x)}px`, height: `${Math.max(2, low - y)}px` } });
    }));
  }

  #dragged() {
    const { from, to } = this.drag;
    return [Math.min(from.query, to.query), Math.max(from.query, to.query), Math.min(from.key, to.key), Math.max(from.key, to.key)];
  }

  #paints() {
    const at = (event) => { const box = this.canvas.getBoundingClientRect(); return this.plot.toMatrix(event.clientX - box.left, event.clientY - box.top); };
    const mine = () => this.knockouts.filter(([c, one]) => c === this.app.state.call && (one < 0 || one === this.app.state.head));
    this.canvas.addEventListener("pointerdown", (event) => {
      const place = at(event);
      if (event.button !== 0 || !place) return;
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { from: place, to: place };
      this.#marked(mine());
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.drag) return;
      this.drag.to = at(event) ?? this.drag.to;
      this.#marked(mine());
    });
    this.canvas.addEventListener("pointerup", () => {
      if (!this.drag) return;
      const box = this.#dragged();
      this.drag = null;
      this.knock(...box);
    });
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.#marked(mine()); });
  }

  async #run() {
    this.#asked?.abort();
    const control = (this.#asked = new AbortController()), pairs = (name) => name.split("/").map(Number);
    const given = { off: [...this.off].map(pairs), temperatures: [...this.temperatures].map(([name, t]) => [...pairs(name), t]), knockouts: this.knockouts };
    try {
      const { data } = await this.app.source.ask("what_if", given, { signal: control.signal });
      if (!control.signal.aborted) this.#outcome(data);
    } catch (error) {
      if (error.name !== "AbortError") this.result.replaceChildren(h("p", { role: "alert" }, error.message));
    }
  }

  #outcome({ before, after }) {
    const side = (title, part) => h("div", {}, h("h3", {}, title), part);
    this.outcome = { before, after };
    this.result.replaceChildren(side("as it is", this.#part(before, before)), side("with the changes", this.#part(after, before)));
    this.app.say(after.text ?? `likeliest: ${after.tokens?.[0] ?? after.cosine?.toFixed(3)}`);
  }

  #part(found, before) {
    if (found.kind === "translation") {
      const words = this.app.subject.calls.findIndex((call) => call.kind === "cross"), names = words < 0 ? null : this.app.subject.tokens(words, 0, "query");
      const lost = found.probabilities.map((p, n) => [n, p, before.probabilities[n]]);
      return h("div", {}, h("p", { class: "french" }, found.text), h("table", { class: "measures" }, h("tbody", {}, lost.map(([n, p, was]) => h("tr", {}, h("th", { scope: "row" }, names ? shown(names[n] ?? "") : n), h("td", { class: p < was / 2 ? "lost" : "" }, p.toFixed(2)), h("td", { class: "meter" }, h("i", { style: { width: `${100 * p}%` } })))))));
    }
    if (found.kind === "next")
      return h("table", { class: "measures" }, h("tbody", {}, found.tokens.map((token, n) => h("tr", {}, h("th", { scope: "row" }, shown(token)), h("td", {}, found.probabilities[n].toFixed(3)), h("td", { class: "meter" }, h("i", { style: { width: `${100 * found.probabilities[n]}%` } }))))));
    return h("div", {}, h("p", {}, `cosine to the text’s vector as it is: ${found.cosine.toFixed(4)}`), h("table", { class: "measures" }, h("tbody", {}, found.cosines.slice(0, 200).map((x, n) => h("tr", {}, h("th", { scope: "row" }, this.names.key ? shown(this.names.key[n] ?? "") : n), h("td", {}, x.toFixed(3)), h("td", { class: "meter" }, h("i", { style: { width: `${Math.max(0, 100 * x)}%` } })))))));
  }

  update() {
    this.grid.update();
    this.#show();
  }

  retheme() {
    this.plot.colours = null;
    this.grid.retheme();
    this.#colours();
  }

  close() {
    this.#asked?.abort();
    this.plot.layer.close();
    this.plot.close();
    this.grid.close();
  }
}
