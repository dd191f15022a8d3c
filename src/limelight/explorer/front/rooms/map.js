// Map: one head's matrix, from the whole to single weights; another head beside it, or their difference.
import { Scale } from "../colour.js";
import { count, dropdown, h, segments, settled, shown } from "../dom.js";
import { HeadGrid } from "../grid.js";
import { DifferenceLayer, HeadLayer } from "../map/layers.js";
import { exported } from "../map/export.js";
import { gestures } from "../map/gestures.js";
import { Minimap } from "../map/minimap.js";
import { Plot } from "../map/plot.js";
import { Readout } from "../map/readout.js";
import { TextStrip } from "../map/strip.js";
import { Viewport } from "../map/viewport.js";
import { saveMenu } from "../save.js";

export const mapRoom = { id: "map", title: "Map", suits: () => true, open: (app, element) => new MapRoom(app, element) };

/** A number of the legend, in two digits. */
const legible = (v) => (v >= 0.001 ? String(+v.toPrecision(2)) : v.toExponential(0).replace("-", "−"));

class MapRoom {
  #strips = new Map();
  #asked = null;

  constructor(app, element) {
    Object.assign(this, { app, cursor: null, locked: null });
    this.viewport = new Viewport(app.reduced);
    this.#build(element);
    this.viewport.onchange(() => this.#moved());
    this.describe = settled(() => this.#describe(), 50);
    this.settle = settled(() => this.#settled(), 120);
    this.#layers();
    this.restore();
  }

  #build(element) {
    const { app } = this, { state } = app;
    this.grid = new HeadGrid(app, { choose: (call, head) => app.go({ call, head }, true), isChosen: (call, head) => call === app.state.call && head === app.state.head });
    this.title = h("div", { class: "title" });
    this.status = h("span", { class: "soft status" });
    const { reduces = ["mean", "max"] } = app.subject;
    this.reduce = reduces.length < 2 ? "" : segments("Value of a cell", [["mean", "mean", "A cell that covers several weights shows their mean"], ["max", "max", "… shows the largest of them"]], state.reduce === "max" ? "max" : "mean", (reduce) => this.#set({ reduce: reduce === "mean" ? null : reduce }));
    this.kind = segments("Colours", [["linear", "linear"], ["sqrt", "√"], ["log", "log"]], state.scale ?? "sqrt", (scale) => this.#set({ scale: scale === "sqrt" ? null : scale }));
    this.fit = segments("Range of colours", [["fit", "fit", "Colours reach to the largest value in view"], ["lock", "lock", "Colours stay as they are"]], state.high ? "lock" : "fit", (fit) => this.#set({ high: fit === "lock" ? this.high.toPrecision(4) : null }));
    this.compare = h("div", { class: "compare" });
    const tools = h("div", { class: "tools" }, this.reduce, this.kind, this.fit, this.compare, saveMenu(() => this.#fileName(), { PNG: () => exported(this).png(), SVG: () => exported(this).svg(), CSV: () => exported(this).csv() }));
    this.plots = h("div", { class: "plots" });
    this.legend = h("div", { class: "legend" });
    this.find = this.#search();
    const zoom = (factor, label, text) => h("button", { type: "button", class: "icon", "aria-label": label, title: label, onclick: () => this.viewport.zoom(factor, undefined, undefined, true) }, text);
    const foot = h("div", { class: "foot" }, this.legend, this.status, this.find.element, h("div", { class: "zooms" }, zoom(1 / 2, "Zoom out", "−"), zoom(2, "Zoom in", "+"),
      h("button", { type: "button", class: "icon", "aria-label": "Whole matrix", title: "Whole matrix", onclick: () => this.viewport.glide(this.viewport.whole()) }, "⤢")));
    this.readout = new Readout(app, (query, key) => this.#jump(query, key));
    this.text = new TextStrip(app, (query) => this.#jump(query, this.cursor?.key ?? query));
    element.append(
      h("aside", { class: "side left scrolls", "aria-label": "Heads", tabindex: -1 }, h("h2", {}, "Heads"), this.grid.element),
      h("section", { class: "stage", "aria-label": "Matrix" }, h("div", { class: "bar" }, this.title, tools), this.plots, foot, this.text.element),
      h("aside", { class: "side right scrolls", "aria-label": "Details", tabindex: -1 }, this.readout.element));
    element.addEventListener("keydown", (event) => this.#key(event));
    this.element = element;
  }

  /** The heads that are compared: null, or { call, head, how }. */
  get other() {
    const { with: given, how = "beside" } = this.app.state, [call, head] = (given ?? "").split(".").map(Number), own = this.app.subject.calls[this.app.state.call], its = this.app.subject.calls[call];
    const fits = given && its && head < its.heads && its.queries === own.queries && its.keys === own.keys;
    return fits ? { call, head, how } : null;
  }

  /** Makes plots and layers for the head of the state, and the one that it is compared with. */
  #layers() {
    const { app } = this, { call, head, batch } = app.state, { queries, keys } = app.subject.calls[call], reduce = app.state.reduce === "max" ? "max" : "mean";
    this.made = this.#drawn();
    this.shown?.forEach((plot) => (plot.layer.close(), plot.close()));
    this.names = { query: app.subject.tokens(call, batch, "query"), key: app.subject.tokens(call, batch, "key") };
    const layer = (c, n) => new HeadLayer(app, { call: c, head: n, batch, reduce }, () => this.#arrived());
    const { other } = this, own = layer(call, head);
    const layers = !other ? [own] : other.how === "difference" ? [new DifferenceLayer(own, layer(other.call, other.head))] : [own, layer(other.call, other.head)];
    this.text.element.hidden = !this.names.key;
    this.viewport.resize({ queries, keys });
    this.shown = layers.map((one, n) => this.#plot(one, n === 0 ? [call, head] : [other.call, other.head]));
    const focused = this.plots.contains(document.activeElement);
    this.plots.replaceChildren(...this.shown.map((plot) => plot.box));
    if (focused) this.shown[0].canvas.focus({ preventScroll: true });
    this.plots.classList.toggle("two", layers.length > 1);
    this.high = undefined;
    this.shown.forEach((plot) => plot.measure());
    this.#titles();
    this.#colours();
  }

  #plot(layer, [call, head]) {
    const label = `Attention matrix of ${this.app.subject.name(call, head)}: use the arrow keys to move, plus and minus to zoom`;
    const canvas = h("canvas", { tabindex: 0, role: "application", "aria-label": label, "aria-roledescription": "map of weights" });
    const box = h("div", { class: "plot" }, canvas);
    const plot = new Plot(this.app, canvas, this.viewport, { names: this.names, strips: () => this.#strips.get(`${call}/${this.app.state.batch}/${head}`), cursor: () => this.cursor });
    Object.assign(plot, { layer, scale: new Scale("sqrt", 1, this.app.theme, layer.signed) });
    plot.box = box;
    plot.head = [call, head];
    plot.minimap = new Minimap(this.app, plot, this.viewport);
    box.append(plot.minimap.element);
    gestures(canvas, plot, {
      point: (place) => this.#point(place, false),
      press: (place) => {
        if (!place) return;
        canvas.focus({ preventScroll: true });
        this.pinned = this.pinned && this.cursor?.query === place.query && this.cursor?.key === place.key ? false : true;
        this.#point(place, true);
      },
      pan: (dx, dy) => this.viewport.pan(dx, dy),
      zoom: (factor, x, y, smooth) => this.viewport.zoom(factor, x, y, smooth),
    });
    return plot;
  }

  #titles() {
    const { app } = this, { subject, state } = app, { other } = this, all = subject.allHeads;
    const row = subject.row(state.call, state.head), own = subject.calls[state.call];
    this.title.replaceChildren(
      h("h2", { class: "unseen" }, subject.name(state.call, state.head)),
      dropdown("Head", all, `${state.call}.${state.head}`, (value) => { const [call, head] = value.split("."); app.go({ call, head }, true); }),
      row ? h("span", { class: "tag" }, row.label) : "", h("span", { class: "soft axes" }, "queries ↓ keys →"));
    const fitting = all.filter(([value]) => { const c = subject.calls[value.split(".")[0]]; return c.queries === own.queries && c.keys === own.keys && value !== `${state.call}.${state.head}`; });
    this.compare.replaceChildren(
      dropdown("Compare with", [["", "compare…"], ...fitting], other ? `${other.call}.${other.head}` : "", (value) => this.#set({ with: value || null }), fitting.length === 0),
      other ? segments("Comparison", [["beside", "beside"], ["difference", "A − B"]], other.how, (how) => this.#set({ how: how === "beside" ? null : how })) : "");
  }

  /** Changes an option of the view. */
  #set(changes) {
    this.app.go(changes, false);
    if ("reduce" in changes || "with" in changes || "how" in changes) this.#layers();
    else this.#colours();
  }

  /** Another head; what is in view stays. */
  update(before) {
    const { subject, state } = this.app, was = subject.calls[before.call], now = subject.calls[state.call];
    this.grid.update();
    if (was.queries !== now.queries || was.keys !== now.keys) {
      this.cursor = null;
      this.viewport.set(this.viewport.whole());
    }
    this.#layers();
    this.#point(this.cursor, this.pinned);
  }

  /** What the address says. */
  restore() {
    const { state } = this.app, numbers = (text, n) => { const x = (text ?? "").split(",").map(Number); return x.length === n && x.every(Number.isFinite) ? x : null; };
    this.grid.update();
    if (this.made !== this.#drawn()) this.#layers();
    const view = numbers(state.view, 3), cell = numbers(state.cell, 2);
    if (view) this.viewport.set({ y: view[0], x: view[1], s: view[2] * this.viewport.least });
    else this.viewport.set(this.viewport.whole());
    const { queries, keys } = this.viewport;
    this.pinned = Boolean(cell);
    this.#point(cell && cell[0] < queries && cell[1] < keys && cell[0] >= 0 && cell[1] >= 0 ? { query: cell[0], key: cell[1] } : null, true);
  }

  /** What the layers depend on. */
  #drawn() {
    const { call, head, batch, reduce, with: other, how } = this.app.state;
    return [call, head, batch, reduce, other, how].join("/");
  }

  #moved() {
    for (const plot of this.shown ?? []) {
      plot.request();
      plot.minimap.update();
    }
    this.settle?.();
  }

  #arrived() {
    for (const plot of this.shown) plot.request();
    if (this.cursor && this.readout.isWaiting) this.readout.know(this.shown[0].value(this.cursor.query, this.cursor.key));
    if (this.high === undefined || this.shown.every((plot) => !plot.layer.missing)) this.#colours();
    this.settle();
  }

  /** Once nothing moves: the range of colours, the address, statistics that are not there yet. */
  #settled() {
    const { viewport, app } = this, { x, y, s, least } = viewport;
    if (app.open !== this) return;
    this.#colours();
    const round = (n) => +n.toFixed(2);
    app.go({ view: viewport.isWhole ? null : [round(y), round(x), +(s / least).toPrecision(6)].join(","), cell: this.cursor && this.pinned ? `${this.cursor.query},${this.cursor.key}` : null });
    const cell = 1 << this.shown[0].level;
    this.status.textContent = cell === 1 ? "a cell is one weight" : `a cell covers ${count(cell)} × ${count(cell)} weights`;
    for (const plot of this.shown) {
      plot.minimap.update();
      if (!plot.layer.missing) this.#statistics(...plot.head);
    }
    if (this.cursor && this.shown[0].level !== this.pointed) this.#point(this.cursor, this.pinned, false);
  }

  async #statistics(call, head) {
    const { batch } = this.app.state, key = `${call}/${batch}/${head}`;
    if (this.#strips.has(key)) return this.#profile();
    this.#strips.set(key, null);
    try {
      const { arrays } = await this.app.source.ask("strips", { call, head, batch }, { background: 1 });
      const sums = (x) => x.reduce((all, v, n) => ((all[n + 1] = all[n] + v), all), new Float64Array(x.length + 1));
      this.#strips.set(key, { entropy: sums(arrays.entropy.values), received: sums(arrays.received.values), profile: arrays.profile?.values });
      this.shown.forEach((plot) => plot.request());
      this.#profile();
    } catch (error) {
      this.#strips.delete(key);
    }
  }

  #profile() {
    const { call, head, batch } = this.app.state;
    this.readout.distances(this.#strips.get(`${call}/${batch}/${head}`)?.profile);
  }

  /** The scale for what is in view, or the one that is locked. */
  #colours() {
    const { state, theme } = this.app, signed = this.shown[0].layer.signed, locked = Number(state.high);
    const found = Math.max(...this.shown.map((plot) => plot.largest()));
    if (locked > 0) this.high = locked;
    else if (found > 0) this.high = found;
    const scale = new Scale(["linear", "log"].includes(state.scale) ? state.scale : "sqrt", this.high ?? 1, theme, signed);
    if (scale.key !== this.shown[0].scale?.key || !this.legend.hasChildNodes()) {
      this.shown.forEach((plot) => (plot.scale = scale));
      this.#legend(scale);
    } else this.shown.forEach((plot) => (plot.scale = this.shown[0].scale));
    this.shown.forEach((plot) => plot.request());
  }

  #legend(scale) {
    const ticks = scale.signed ? [0, 0.25, 0.5, 0.75, 1] : [0, 1 / 3, 2 / 3, 1], said = (t) => { const v = scale.at(t); return (v < 0 ? "−" : t === 0 && scale.kind === "log" ? "≤ " : "") + (v === 0 ? "0" : legible(Math.abs(v))); };
    this.legend.replaceChildren(
      h("div", { class: "ramp", style: { background: scale.gradient() } }),
      h("div", { class: `ticks${scale.signed ? " signed" : ""}` }, ticks.map((t) => h("span", { style: { left: `${100 * t}%` } }, said(t)))),
      h("span", { class: "masked-key" }, h("i", {}), "masked"));
  }

  /** Something is pointed at. */
  #point(place, pin, speak = true) {
    if (!place && this.pinned) return;
    if (place && !pin && this.pinned) return;
    const same = place && this.cursor && place.query === this.cursor.query && place.key === this.cursor.key;
    this.cursor = place;
    this.shown.forEach((plot) => plot.request());
    if (!place) {
      this.readout.clear();
      this.describe.cancel();
      return;
    }
    const plot = this.shown[0], level = (this.pointed = plot.level), { reduce = "mean" } = this.app.state;
    this.said = this.readout.point({ ...place, level, value: plot.value(place.query, place.key), names: this.names, signed: plot.layer.signed, reduce });
    if (pin && speak && !same) this.app.say(this.said);
    this.settle();
    this.describe();
  }

  async #describe() {
    const { app, cursor } = this;
    if (!cursor || app.open !== this) return;
    this.#asked?.abort();
    const control = (this.#asked = new AbortController()), level = this.shown[0].level, { call, head, batch } = app.state;
    try {
      const given = { call, head, batch, level, row: cursor.query >> level, col: cursor.key >> level };
      const { data } = await app.source.ask("cell", given, { signal: control.signal });
      if (control.signal.aborted || !this.cursor) return;
      const plot = this.shown[0], { reduce = "mean" } = app.state;
      const begin = this.readout.point({ ...this.cursor, level, value: plot.value(this.cursor.query, this.cursor.key), names: this.names, signed: plot.layer.signed, reduce });
      const rest = this.readout.describe(data, { level, names: this.names });
      if (this.pinned) app.say(begin + rest);
      await this.text.show({ call, head, batch, query: data.query, key: data.key }, control.signal);
    } catch (error) {
      if (error.name !== "AbortError") app.say(error.message);
    }
  }

  #jump(query, key) {
    this.pinned = true;
    this.viewport.centre(query, key, 14);
    this.#point({ query, key }, true);
  }

  #key(event) {
    if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const onMap = event.target.tagName === "CANVAS", { viewport, app } = this;
    const cell = 1 << this.shown[0].level, step = cell * (event.shiftKey ? 10 : 1);
    const moves = { ArrowLeft: [0, -step], ArrowRight: [0, step], ArrowUp: [-step, 0], ArrowDown: [step, 0] };
    const actions = {
      "+": () => this.#zoomKey(2), "=": () => this.#zoomKey(2), "-": () => this.#zoomKey(1 / 2), "−": () => this.#zoomKey(1 / 2),
      0: () => viewport.glide(viewport.whole()), Home: () => viewport.glide(viewport.whole()), "/": () => this.find.focus(),
      "[": () => this.#nextHead(-1), "]": () => this.#nextHead(1),
      Escape: () => { this.pinned = false; this.#point(null, false); },
    };
    if (onMap && moves[event.key]) this.#step(...moves[event.key]);
    else if (actions[event.key] && (onMap || event.key !== "Home")) actions[event.key]();
    else return;
    event.preventDefault();
  }

  #step(down, across) {
    const { viewport } = this, cell = 1 << this.shown[0].level;
    const from = this.cursor ?? { query: Math.max(0, Math.floor(viewport.y + viewport.height / viewport.s / 2)), key: Math.max(0, Math.floor(viewport.x + viewport.width / viewport.s / 2)) };
    const within = (n, most) => Math.max(0, Math.min(most - 1, n));
    const query = within(this.cursor ? from.query + down : from.query, viewport.queries), key = within(this.cursor ? from.key + across : from.key, viewport.keys);
    this.pinned = true;
    viewport.stop();
    viewport.reveal(query - (query % cell), key - (key % cell), cell);
    this.#point({ query, key }, true);
  }

  #zoomKey(factor) {
    const plot = this.shown[0], place = this.cursor && plot.toScreen(this.cursor.query + 0.5, this.cursor.key + 0.5);
    this.viewport.zoom(factor, place ? place[0] - plot.edge.left : undefined, place ? place[1] - plot.edge.top : undefined, true);
  }

  #nextHead(step) {
    const { subject, state } = this.app, all = subject.calls.flatMap((c, call) => Array.from({ length: c.heads }, (_, head) => ({ call, head })));
    const at = all.findIndex(({ call, head }) => call === state.call && head === state.head);
    const next = all[(at + step + all.length) % all.length];
    this.app.go(next, true);
    this.app.say(subject.name(next.call, next.head));
  }

  /** The field that finds tokens and positions. */
  #search() {
    const told = h("span", { class: "soft", role: "status" });
    let found = [], at = -1, last = "";
    const look = () => {
      const text = field.value.trim();
      if (text === last) return;
      [last, at, found] = [text, -1, []];
      const { call } = this.app.state, one = this.app.subject.isOneText(call);
      if (!text) return (told.textContent = "");
      const sides = one ? ["query"] : ["query", "key"];
      for (const side of sides) {
        const tokens = this.names[side], most = this.viewport[side === "query" ? "queries" : "keys"];
        if (/^[\d,.\s]+$/.test(text)) {
          const n = Number(text.replace(/[,.\s]/g, ""));
          if (n < most) found.push({ side, n });
        }
        tokens?.forEach((token, n) => shown(token).toLowerCase().includes(text.toLowerCase()) && found.push({ side, n }));
      }
      told.textContent = found.length ? `${count(found.length)} found` : "not found";
    };
    const next = (step) => {
      look();
      if (!found.length) return;
      at = (at + step + found.length) % found.length;
      const { side, n } = found[at], one = this.app.subject.isOneText(this.app.state.call);
      told.textContent = `${at + 1} of ${count(found.length)}`;
      this.#jump(side === "query" ? n : this.cursor?.query ?? 0, side === "key" || one ? n : this.cursor?.key ?? 0);
    };
    const field = h("input", {
      type: "search", placeholder: "Find a token", "aria-label": "Find a token or position", oninput: look,
      onkeydown: (event) => {
        if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
        else if (event.key === "Escape") this.shown[0].canvas.focus();
      },
    });
    return { element: h("div", { class: "find" }, field, told), focus: () => field.focus() };
  }

  #fileName() {
    const { title } = this.app.subject, { call, head } = this.app.state;
    return `${title} ${this.app.subject.name(call, head)}`.replace(/[^\p{L}\p{N}._-]+/gu, "-");
  }

  retheme() {
    this.grid.retheme();
    this.shown.forEach((plot) => (plot.colours = null));
    this.#colours();
    this.#profile();
    this.text.retheme();
    this.shown.forEach((plot) => plot.minimap.update());
  }

  close() {
    this.settle.cancel();
    this.describe.cancel();
    this.#asked?.abort();
    this.shown.forEach((plot) => (plot.layer.close(), plot.close()));
    this.grid.close();
    this.viewport.stop();
  }
}
