// What if: switch heads off, change their temperature, knock pairs out, and see the output of the model.
import { Scale } from "../colour.js";
import { dropdown, h, settled, shown } from "../dom.js";
import { HeadGrid } from "../grid.js";
import { HeadLayer } from "../map/layers.js";
import { Plot } from "../map/plot.js";
import { Viewport } from "../map/viewport.js";
import { csv, escaped, png, saveMenu } from "../save.js";

export const whatIfRoom = {
  id: "what-if", title: "What if", open: (app, element) => new WhatIfRoom(app, element),
  suits: ({ subject, source }) => Boolean(subject.replays) && source.kind !== "file",
};

const SIDES = [["before", "as it is"], ["after", "with the changes"]];
const MEANS = {
  translation: "The probability of each word of the first translation.", next: "The likeliest next tokens.", embedding: "How much of each token’s vector is left: its cosine to the one as it is.",
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
    this.none = h("p", { class: "soft small" }, "Nothing is changed yet.");
    this.result = h("div", { class: "outcome", "aria-live": "polite" });
    const clear = h("button", { type: "button", class: "button", onclick: () => this.#clear() }, "Undo all");
    element.append(
      h("section", { class: "wall scrolls", "aria-label": "Heads", tabindex: -1 }, h("p", { class: "soft small" }, "Choose a head; choose it again to switch it off."), this.grid.element),
      h("section", { class: "stage scrolls", "aria-label": "Change", tabindex: -1 },
        h("div", { class: "bar" }, this.name, h("div", { class: "tools" }, this.toggle, clear, saveMenu(() => `${app.subject.title} what if`, { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() }))),
        h("p", { class: "tools" }, h("label", {}, "temperature ", this.slider, this.degrees), h("label", {}, "changes apply to ", dropdown("Scope", SCOPES, this.scope, (scope) => { this.scope = scope; }))),
        h("p", { class: "soft small" }, "Paint a rectangle to knock its pairs out, or choose tokens that nothing may attend to."),
        this.box, this.tokens, h("h2", { class: "label" }, "Changes"), this.none, this.list),
      h("aside", { class: "side right scrolls", "aria-label": "Outcome", tabindex: -1 }, h("h2", {}, "What the model makes of it"), this.result));
    this.viewport = new Viewport(app.reduced);
    this.viewport.onchange(() => this.plot?.request());
    this.#paints();
    this.ask = settled(() => this.#run(), 150);
    this.restore();
  }

  /** The changes that the address names: lists of whole numbers, and a temperature at the end. */
  restore() {
    const { state, subject } = this.app, numbers = (text, count) => (text ?? "").split("_").map((item) => item.split(".").map(Number)).filter((item) => item.length === count && item.every(Number.isFinite));
    const known = ([call, head]) => subject.calls[call] && head >= -1 && head < subject.calls[call].heads;
    const inside = ([call, , top, bottom, left, right]) => top >= 0 && top <= bottom && bottom < subject.calls[call].queries && left >= 0 && left <= right && right < subject.calls[call].keys;
    this.off = new Set(numbers(state.off, 2).filter(known).map((item) => item.join("/")));
    this.temperatures = new Map(numbers(state.hot, 3).filter(known).map(([call, head, tenths]) => [`${call}/${head}`, 2 ** (tenths / 10)]));
    this.knockouts = numbers(state.cut, 6).filter((item) => known(item) && inside(item));
    this.grid.update();
    this.#show();
    this.#run();
    return true;
  }

  #store() {
    const joined = (items) => items.map((item) => item.join(".")).join("_") || null, hot = [...this.temperatures].map(([name, t]) => [...name.split("/"), Math.round(10 * Math.log2(t))]);
    this.app.go({ off: joined([...this.off].map((name) => name.split("/"))), hot: joined(hot), cut: joined(this.knockouts) });
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
    this.#store();
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
    const changes = this.#changes();
    this.list.replaceChildren(...changes.slice(0, 40).map(([text, undo]) => h("li", {}, text, h("button", { type: "button", class: "icon", "aria-label": `Undo: ${text}`, title: "Undo", onclick: () => { undo(); this.#changed(); } }, "×"))));
    this.none.hidden = changes.length > 0;
  }

  /** Every change as [what it is, how it is undone]. */
  #changes() {
    const { subject } = this.app, pair = (name) => name.split("/").map(Number), found = [...this.off].map((name) => [`${subject.name(...pair(name))} is off`, () => this.off.delete(name)]);
    const hot = new Map();
    for (const [name, t] of this.temperatures) {
      const [call, head] = pair(name), key = `${call}/${t}`;
      hot.set(key, [...(hot.get(key) ?? []), head]);
    }
    for (const [key, heads] of hot) {
      const [call, t] = pair(key), all = heads.length === subject.calls[call].heads;
      found.push([`${this.#place(call, all ? -1 : heads.join(", "))}: temperature ${t.toFixed(2)}`, () => heads.forEach((head) => this.temperatures.delete(`${call}/${head}`))]);
    }
    for (const item of this.knockouts) found.push([this.#cut(item), () => this.knockouts.splice(this.knockouts.indexOf(item), 1)]);
    return found;
  }

  #place(call, head) {
    const { layer, name, kind, stack } = this.app.subject.calls[call];
    return `${stack} ${kind}, ${layer === null ? name : `layer ${layer}`}, ${head === -1 ? "all heads" : `head ${head}`}`;
  }

  #cut([call, head, top, bottom, left, right]) {
    const { subject, state } = this.app, { queries } = subject.calls[call];
    const range = (side, from, to) => { const names = subject.tokens(call, state.batch, side), one = (n) => (names ? `“${shown(names[n])}”` : String(n)); return from === to ? one(from) : `${one(from)} to ${one(to)}`; };
    const who = top === 0 && bottom === queries - 1 ? "nothing looks" : `${range("query", top, bottom)} not`;
    return `${this.#place(call, head)}: ${who} at ${range("key", left, right)}`;
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

  #outcome(found) {
    this.outcome = found;
    const { after } = found, cell = (x, lost) => h("td", { class: lost ? "lost" : "" }, x === null ? "–" : x.toFixed(3)), bar = (x) => h("i", { style: { width: `${Math.max(0, 100 * (x ?? 0))}%` } });
    const told = SIDES.map(([side, title]) => { const text = this.#headline(side); return text ? h("div", { class: side }, h("h3", {}, title), h("p", { class: "french" }, text)) : ""; });
    const rows = this.#lines().slice(0, 200).map(([name, was, is]) => h("tr", {}, h("th", { scope: "row", title: name }, name), cell(was), cell(is, is !== null && was !== null && is < was / 2), h("td", { class: "meter both-bars" }, bar(was), bar(is))));
    this.result.replaceChildren(...told, h("table", { class: "measures" }, h("caption", { class: "soft" }, MEANS[after.kind]), h("thead", {}, h("tr", {}, h("td", {}), h("th", { scope: "col" }, "as it is"), h("th", { scope: "col" }, "changed"), h("td", {}))), h("tbody", {}, rows)));
    this.app.say(after.text ?? `likeliest: ${after.tokens?.[0] ?? after.cosine?.toFixed(3)}`);
  }

  /** What the model makes of the text, as lines: [token, number as it is, number with the changes]; null if unknown. */
  #lines() {
    const { before, after } = this.outcome, { subject } = this.app;
    if (after.kind === "next") {
      const of = (found) => new Map(found.tokens.map((token, n) => [token, found.probabilities[n]])), [was, is] = [of(before), of(after)];
      return [...new Set([...is.keys(), ...was.keys()])].map((token) => [shown(token), was.get(token) ?? null, is.get(token) ?? null]);
    }
    const cross = subject.calls.findIndex((call) => call.kind === "cross"), translated = after.kind === "translation", numbers = (found) => (translated ? found.probabilities : found.cosines);
    const names = translated ? cross >= 0 && subject.tokens(cross, 0, "query") : this.names.key, is = numbers(after);
    return numbers(before).map((x, n) => [names ? shown(names[n] ?? "") : String(n), x, is[n] ?? null]);
  }

  #headline(side) {
    const found = this.outcome[side];
    return found.kind === "translation" ? found.text : found.kind === "next" ? "" : `cosine to the text’s vector as it is: ${found.cosine.toFixed(4)}`;
  }

  #table() {
    const written = ([name, ...numbers]) => [name, ...numbers.map((x) => x ?? "")];
    return csv([["token", "as_it_is", "changed"], ["", this.#headline("before"), this.#headline("after")], ...this.#lines().map(written)]);
  }

  #drawing() {
    const style = getComputedStyle(this.app.root), colour = (name) => style.getPropertyValue(name).trim(), items = [];
    let y = 8;
    const text = (x, content, more = "") => items.push(`<text x="${x}" y="${y}" ${more} fill="${colour("--ink")}">${escaped(content)}</text>`);
    const line = (content, more) => { y += 20; text(16, content, more); };
    const changes = this.#changes().map(([told]) => told);
    (changes.length ? changes : ["Nothing is changed."]).forEach((told) => line(told));
    y += 10;
    for (const [side, title] of SIDES) if (this.#headline(side)) line(`${title}: ${this.#headline(side)}`, 'font-weight="600"');
    y += 10;
    for (const [name, was, is] of this.#lines().slice(0, 100)) {
      line(name);
      [was, is].forEach((x, n) => {
        text(240 + 70 * n, x === null ? "–" : x.toFixed(3), 'text-anchor="end"');
        items.push(`<rect x="330" y="${y - 10 + 6 * n}" width="${Math.max(0, 330 * (x ?? 0))}" height="5" rx="1" fill="${colour(n ? "--accent" : "--soft")}"/>`);
      });
    }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="700" height="${y + 20}" font-family="system-ui, sans-serif" font-size="13"><rect width="100%" height="100%" fill="${colour("--panel")}"/>${items.join("")}</svg>`;
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
