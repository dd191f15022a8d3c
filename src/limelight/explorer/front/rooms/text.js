// Text: choose a token, and every other is tinted by how much it is attended to, or attends to it.
import { OVERLAYS, Scale, ink, largest, rowHigh } from "../colour.js";
import { count, dropdown, h, segments, settled, shown, svg, weight } from "../dom.js";
import { HeadGrid } from "../grid.js";
import { csv, escaped, png, saveMenu } from "../save.js";
import { NextTokens } from "../text/next.js";

export const textRoom = {
  id: "text", title: "Text", open: (app, element) => new TextRoom(app, element),
  suits: ({ subject }) => subject.calls.some(({ texts, grids }) => texts.flat().some((x) => x !== null) && !grids.every(Boolean)),
};

const CHUNK = 256; // tokens that are made at a time, when they come into view
const ARCS = 96; // links of up to so many tokens are drawn as arcs
const SOURCES = [["head", "heads"], ["layer", "mean of the layer"], ["stack", "mean of all layers"], ["rollout", "rollout"]];

class TextRoom {
  #asked = null;
  #matrix = new Map();

  constructor(app, element) {
    Object.assign(this, { app, element, weights: [] });
    this.grid = new HeadGrid(app, { choose: (call, head, event) => this.#choose(call, head, this.several.checked || event.shiftKey || event.ctrlKey || event.metaKey), isChosen: (call, head) => this.#mark(call, head) });
    this.several = h("input", { type: "checkbox" });
    this.of = h("div", { class: "of" });
    this.chosen = h("div", { class: "chips chosen", role: "group", "aria-label": "Heads that are shown" });
    this.blocks = h("div", { class: "blocks" });
    this.panel = h("div", { class: "readout" });
    this.next = new NextTokens(app);
    this.controls = h("div", { class: "tools" });
    this.hint = h("p", { class: "soft hint" });
    element.append(
      h("aside", { class: "side left scrolls", "aria-label": "Heads", tabindex: -1 }, h("h2", {}, "Heads"), this.grid.element, h("label", { class: "check small" }, this.several, "overlay up to four (or Shift-click)")),
      h("section", { class: "stage reading scrolls", "aria-label": "Text", tabindex: -1 }, h("div", { class: "bar" }, h("div", { class: "title" }, this.of, this.chosen), this.controls), this.hint, this.blocks),
      h("aside", { class: "side right scrolls", "aria-label": "Details", tabindex: -1 }, this.panel, this.next.element));
    this.blocks.addEventListener("keydown", (event) => this.#key(event));
    this.tint = settled(() => this.#ask(), 0);
    this.resized = new ResizeObserver(settled(() => this.#arcs(), 60));
    this.resized.observe(this.blocks);
    this.restore();
  }

  restore() {
    const { state, subject } = this.app;
    this.heads = (state.heads ?? "").split(" ").map((x) => x.split(".").map(Number)).filter(([call, head]) => subject.calls[call] && head < subject.calls[call].heads && subject.groupOf(call) === subject.groupOf(state.call)).slice(0, 4);
    if (!this.heads.some(([call, head]) => call === state.call && head === state.head)) this.heads = [[state.call, state.head]];
    this.kind = SOURCES.some(([of]) => of === state.of) ? state.of : "head";
    this.side = state.side === "key" ? "key" : "query";
    this.arcs = state.arcs === "1";
    this.#texts();
    this.#bar();
    const most = this.#length(this.side), token = /^\d+$/.test(state.token ?? "") ? Number(state.token) : most - 1;
    this.#select(this.side, Math.min(most - 1, token), false);
    this.grid.update();
  }

  update(before) {
    const { state, subject } = this.app, other = subject.groupOf(before.call) !== subject.groupOf(state.call) || before.batch !== state.batch;
    if (other || !this.heads.some(([call, head]) => call === state.call && head === state.head)) this.heads = [[state.call, state.head]];
    if (other) {
      this.token = null;
      this.app.go({ heads: null, token: null });
      return this.restore();
    }
    this.#bar();
    this.grid.update();
    this.#ask();
  }

  #mark(call, head) {
    if (this.kind !== "head") return call === this.app.state.call && (this.kind === "layer" || head === this.app.state.head);
    const at = this.heads?.findIndex(([c, n]) => c === call && n === head) ?? -1;
    return at < 0 ? false : this.heads.length > 1 ? OVERLAYS[this.app.theme][at] : true;
  }

  #choose(call, head, add) {
    const at = this.heads.findIndex(([c, n]) => c === call && n === head);
    if (!add || this.kind !== "head") this.heads = [[call, head]];
    else if (at >= 0 && this.heads.length > 1) this.heads.splice(at, 1);
    else if (at < 0) this.heads = [...this.heads, [call, head]].slice(-4);
    const [main] = this.heads.slice(-1);
    this.app.go({ call: main[0], head: main[1], heads: this.heads.length > 1 ? this.heads.map((x) => x.join(".")).join(" ") : null }, !add);
    this.#bar();
    this.grid.mark();
    this.#ask();
  }

  #length(side) {
    return this.app.subject.calls[this.app.state.call][side === "query" ? "queries" : "keys"];
  }

  #bar() {
    const { app } = this, { subject, state } = app, one = subject.isOneText(state.call), saved = app.source.kind === "file";
    const kinds = SOURCES.filter(([of]) => of !== "rollout" || (one && !saved));
    if (!kinds.some(([of]) => of === this.kind)) this.kind = "head";
    this.of.replaceChildren(dropdown("What is shown", kinds, this.kind, (of) => { this.kind = of; app.go({ of: of === "head" ? null : of }); this.#bar(); this.grid.mark(); this.#ask(); }));
    const name = (call, head) => `${subject.calls[call].layer ?? call}.${head}`;
    this.chosen.replaceChildren(...(this.kind === "head" ? this.heads.map(([call, head], n) => {
      const row = subject.row(call, head), colour = this.heads.length > 1 ? OVERLAYS[app.theme][n] : null;
      return h("button", { type: "button", class: "chip", title: this.heads.length > 1 ? "Remove" : subject.name(call, head), onclick: () => this.heads.length > 1 && this.#choose(call, head, true) }, colour ? h("i", { class: "dot", style: { backgroundColor: colour } }) : "", `layer ${name(call, head).replace(".", " head ")}`, row ? h("small", {}, row.label) : "");
    }) : this.kind === "layer" ? [h("span", { class: "tag" }, `layer ${subject.calls[state.call].layer ?? ""}`)] : []));
    const short = Math.max(this.#length("query"), this.#length("key")) <= ARCS;
    this.controls.replaceChildren(
      one ? segments("Direction", [["query", "looks at", "Tint what the token attends to"], ["key", "is seen by", "Tint what attends to the token"]], this.side, (side) => this.#select(side, this.token, true)) : "",
      short ? h("label", { class: "check" }, h("input", { type: "checkbox", checked: this.arcs, onchange: (event) => { this.arcs = event.target.checked; app.go({ arcs: this.arcs ? 1 : null }); this.#arcs(); } }), "arcs") : "",
      saveMenu(() => `${subject.title} text`, { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() }));
    this.hint.textContent = one ? "Choose a token; arrow keys move to the next." : "Choose a token on either side.";
  }

  /** The text, or both texts of a cross-attention, in parts that are made when they come into view. */
  #texts() {
    const { subject, state } = this.app, one = subject.isOneText(state.call), key = `${subject.groupOf(state.call).title}/${state.batch}`;
    if (this.built === key) return;
    this.built = key;
    this.seen?.disconnect();
    this.seen = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && this.#make(entry.target)), { rootMargin: "400px" });
    const block = (side, title) => {
      const tokens = subject.tokens(state.call, state.batch, side), chunks = [];
      for (let from = 0; from < this.#length(side); from += CHUNK) {
        const chunk = h("span", { class: "chunk" });
        Object.assign(chunk, { side, from, to: Math.min(this.#length(side), from + CHUNK), tokens, made: false });
        chunk.style.minHeight = `${Math.ceil(((chunk.to - from) * 46) / 700) * 26}px`;
        this.seen.observe(chunk);
        chunks.push(chunk);
      }
      const list = h("div", { class: "tokens", role: "listbox", "aria-label": title, tabindex: -1 }, chunks);
      list.addEventListener("click", (event) => event.target.role === "option" && this.#select(one ? this.side : side, event.target.n, true));
      return { side, chunks, list, element: h("div", { class: "block" }, one ? "" : h("h2", {}, title), list) };
    };
    const { kind } = subject.calls[state.call];
    this.parts = one ? [block("query", "Text")] : [block("query", kind === "cross" ? "Written (queries)" : "Queries"), block("key", kind === "cross" ? "Read (keys)" : "Keys")];
    this.svg = svg("svg", { class: "arcs", "aria-hidden": "true" });
    this.blocks.classList.toggle("two", !one);
    this.blocks.classList.toggle("brief", Math.max(this.#length("query"), this.#length("key")) <= ARCS);
    this.blocks.replaceChildren(...this.parts.map((part) => part.element), this.svg);
    for (const { chunks } of this.parts) this.#make(chunks[0]);
  }

  #make(chunk) {
    if (chunk.made) return;
    chunk.made = true;
    chunk.style.minHeight = "";
    this.seen.unobserve(chunk);
    chunk.options = Array.from({ length: chunk.to - chunk.from }, (_, k) => {
      const n = chunk.from + k, token = chunk.tokens?.[n] ?? String(n), begins = /^[▁Ġ \n]/.test(token) || !/[▁Ġ ]/.test(this.#sample(chunk.tokens));
      const option = h("span", { role: "option", "aria-selected": "false", tabindex: -1, class: begins ? "word" : "piece" }, shown(token));
      option.n = n;
      return option;
    });
    chunk.replaceChildren(...chunk.options.flatMap((option) => (option.textContent.endsWith("↵") ? [option, h("br")] : [option])));
    this.#paint(chunk);
  }

  /** Some of the tokens: whether words are marked in them tells how to space them. */
  #sample(tokens) {
    return (this.sampled ??= new Map()).get(tokens) ?? (this.sampled.set(tokens, (tokens ?? []).slice(0, 400).join("")), this.sampled.get(tokens));
  }

  /** The part that holds the chosen token, and the one that is tinted. */
  #part(side) {
    return this.parts.length === 1 ? this.parts[0] : this.parts.find((part) => part.side === side);
  }

  #option(side, n) {
    const part = this.#part(side), chunk = part.chunks[Math.floor(n / CHUNK)];
    this.#make(chunk);
    return chunk.options[n - chunk.from];
  }

  #select(side, token, focus) {
    const before = this.token === null || this.token === undefined ? null : this.#option(this.side, this.token);
    before?.setAttribute("aria-selected", "false");
    if (before) before.tabIndex = -1;
    Object.assign(this, { side, token });
    const option = this.#option(side, token);
    option.setAttribute("aria-selected", "true");
    option.tabIndex = 0;
    if (focus) option.focus();
    this.app.go({ token, side: side === "query" ? null : side });
    this.tint();
  }

  #key(event) {
    if (event.target.role !== "option" || event.ctrlKey || event.metaKey || event.altKey) return;
    const n = event.target.n, side = this.parts.length === 1 ? this.side : event.target.parentElement.side, last = this.#length(side) - 1;
    const line = (step) => this.#vertical(event.target, side, step);
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: last, ArrowDown: event.key === "ArrowDown" && line(1), ArrowUp: event.key === "ArrowUp" && line(-1), Enter: n, " ": n }[event.key];
    if (typeof to !== "number") return;
    event.preventDefault();
    this.#select(side, Math.max(0, Math.min(last, to)), true);
  }

  /** The token below or above one. */
  #vertical(from, side, step) {
    const box = from.getBoundingClientRect(), middle = box.left + box.width / 2;
    for (let n = from.n + step; n >= 0 && n < this.#length(side); n += step) {
      const other = this.#option(side, n).getBoundingClientRect();
      if (Math.abs(other.top - box.top) > 4 && (step > 0 ? other.right >= middle : other.left <= middle)) return n;
      if (Math.abs(n - from.n) > 400) break;
    }
    return from.n;
  }

  async #ask() {
    const { app } = this, { batch, call } = app.state, { token, side } = this;
    const sources = this.kind === "head" ? this.heads.map(([c, head]) => ({ call: c, head })) : [{ call, of: this.kind }];
    this.#asked?.abort();
    const control = (this.#asked = new AbortController());
    this.element.classList.toggle("waiting", true);
    try {
      const { arrays } = await app.source.ask("attention", { sources, batch, token, side }, { signal: control.signal });
      if (app.open !== this) return;
      this.weights = sources.map((_, n) => arrays[n].values);
      this.#tinted();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.panel.replaceChildren(h("p", { role: "alert" }, error.message));
    }
    this.element.classList.toggle("waiting", false);
  }

  #tinted() {
    const { theme, subject, state } = this.app, colours = OVERLAYS[theme];
    this.scales = this.weights.map((w) => new Scale("sqrt", rowHigh(w), theme));
    this.lit = this.side === "query" ? "key" : "query";
    for (const part of this.parts) for (const chunk of part.chunks) if (chunk.made) this.#paint(chunk);
    const tokens = subject.tokens(state.call, state.batch, this.lit), own = subject.tokens(state.call, state.batch, this.side);
    const listed = (w) => [...w.keys()].filter((n) => w[n] > 0).sort((a, b) => w[b] - w[a] || a - b).slice(0, this.weights.length > 1 ? 5 : 10);
    const name = own ? shown(own[this.token]) : String(this.token);
    this.panel.replaceChildren(
      h("h2", {}, this.side === "query" ? "Looks at" : "Is seen by"), h("p", { class: "big" }, `“${name}”`, h("small", {}, ` ${this.side === "query" ? "query" : "key"} ${count(this.token)}`)),
      ...this.weights.map((w, k) => {
        const most = Math.max(1e-12, largest(w));
        return h("ol", { class: "bars" }, listed(w).map((n) => h("li", {}, h("button", { type: "button", title: `position ${count(n)}`, onclick: () => this.#select(this.parts.length === 1 ? this.side : this.lit, n, true) }, h("span", {}, tokens ? shown(tokens[n]) : n), h("small", {}, count(n))),
          h("i", { style: { width: `${(100 * w[n]) / most}%`, backgroundColor: this.weights.length > 1 ? colours[k] : "" } }), h("em", {}, weight(w[n])))));
      }));
    this.next.show(state.call, this.token);
    const [best] = this.weights.length ? listed(this.weights[0]) : [];
    this.app.say(best === undefined ? `${name}: no weight` : `${name}: strongest ${tokens ? shown(tokens[best]) : best}, ${weight(this.weights[0][best])}`);
    this.#arcs();
  }

  /** Colours of a part: a tint for one source, a lane for each of several. */
  #paint(chunk) {
    if (!this.weights.length || !this.scales) return;
    const lit = this.parts.length === 1 || chunk.side === this.lit, colours = OVERLAYS[this.app.theme];
    for (const option of chunk.options) {
      const { style } = option, values = lit ? this.weights.map((w) => w[option.n]) : [];
      if (values.length === 1) {
        const w = Math.max(0, values[0]), rgb = this.scales[0].rgb(w), strong = this.scales[0].place(w) > 0.03;
        style.background = strong ? `rgb(${rgb.join(" ")})` : "";
        style.color = strong ? ink(rgb) : "";
      } else if (values.length) {
        const lanes = values.map((w, k) => [k, this.scales[k].place(Math.max(0, w))]), high = 100 / lanes.length;
        style.background = `linear-gradient(180deg, ${lanes.map(([k, t]) => `color-mix(in srgb, ${colours[k]} ${Math.round(85 * t)}%, transparent) ${k * high}% ${(k + 1) * high}%`).join(", ")})`;
        style.color = "";
      } else style.background = style.color = "";
      option.classList.toggle("masked", lit && values.length > 0 && values.every((w) => w < 0));
      option.title = values.length ? values.map((w) => (w < 0 ? "masked" : weight(w))).join(" · ") : "";
    }
  }

  /** Links between tokens as arcs: all strong ones, and those of the chosen token before the others. */
  async #arcs() {
    const { app } = this, { call, batch } = app.state, short = Math.max(this.#length("query"), this.#length("key")) <= ARCS;
    this.blocks.classList.toggle("arched", this.arcs && short);
    this.svg.replaceChildren();
    if (!this.arcs || !short) return;
    const sources = this.kind === "head" ? this.heads.map(([c, head]) => ({ call: c, head, batch })) : [{ call, of: this.kind, batch }];
    let matrices;
    try {
      matrices = await Promise.all(sources.map((source) => {
        const key = JSON.stringify(source);
        if (!this.#matrix.has(key)) this.#matrix.set(key, app.source.ask("matrix", source));
        return this.#matrix.get(key);
      }));
    } catch (error) {
      return app.say(error.message);
    }
    if (app.open !== this) return;
    const around = this.blocks.getBoundingClientRect(), one = this.parts.length === 1, colours = OVERLAYS[app.theme];
    const box = (side, n) => this.#option(side, n).getBoundingClientRect(), lines = [];
    matrices.forEach(({ arrays: { weights: { values, shape: [rows, cols] } } }, k) => {
      for (let i = 0; i < rows; i++)
        for (let j = 0; j < cols; j++) {
          const w = values[i * cols + j], mine = this.side === "query" ? i === this.token : j === this.token;
          if (w < (mine ? 0.02 : 0.2) || (one && i === j)) continue;
          const a = box("query", i), b = box("key", j), ax = a.left + a.width / 2 - around.left, bx = b.left + b.width / 2 - around.left;
          const ay = (one ? a.top : a.bottom) - around.top, by = b.top - around.top, high = Math.min(70, 14 + Math.abs(bx - ax) / 4);
          const d = one ? `M${ax} ${ay}C${ax} ${ay - high} ${bx} ${by - high} ${bx} ${by}` : `M${ax} ${ay}C${ax} ${(ay + by) / 2} ${bx} ${(ay + by) / 2} ${bx} ${by}`;
          lines.push([mine, w, svg("path", { d, class: mine ? "mine" : "", stroke: colours[matrices.length > 1 ? k : 0], "stroke-width": 0.75 + 3 * w, "stroke-opacity": mine ? 0.35 + 0.65 * w : 0.1 + 0.25 * w })]);
        }
    });
    this.svg.setAttribute("width", this.blocks.scrollWidth);
    this.svg.setAttribute("height", this.blocks.scrollHeight);
    this.svg.replaceChildren(...lines.sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([, , path]) => path));
  }

  /** The tokens as they stand on the screen, as SVG. */
  #drawing() {
    const around = this.blocks.getBoundingClientRect(), style = getComputedStyle(this.app.root), items = [];
    const options = this.parts.flatMap((part) => part.chunks.filter((chunk) => chunk.made).flatMap((chunk) => chunk.options));
    for (const option of options.slice(0, 3000)) {
      const box = option.getBoundingClientRect(), own = getComputedStyle(option), x = box.left - around.left, y = box.top - around.top;
      const lanes = this.weights.length > 1 ? this.weights.map((w, k) => [OVERLAYS[this.app.theme][k], this.scales[k].place(Math.max(0, w[option.n])) * 0.85]) : [[own.backgroundColor, 1]];
      lanes.forEach(([fill, opacity], k) => items.push(`<rect x="${x}" y="${y + (k * box.height) / lanes.length}" width="${box.width}" height="${box.height / lanes.length}" fill="${fill}" fill-opacity="${opacity}"/>`));
      if (option.getAttribute("aria-selected") === "true") items.push(`<rect x="${x}" y="${y}" width="${box.width}" height="${box.height}" fill="none" stroke="${style.getPropertyValue("--accent").trim()}" stroke-width="2"/>`);
      items.push(`<text x="${x + box.width / 2}" y="${y + box.height * 0.7}" text-anchor="middle" font-size="${own.fontSize}" font-family="system-ui, sans-serif" fill="${own.color}">${escaped(option.textContent)}</text>`);
    }
    const arcs = this.svg.children.length ? new XMLSerializer().serializeToString(this.svg).replace("<svg", '<svg fill="none"') : "";
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${around.width}" height="${this.blocks.scrollHeight}"><rect width="100%" height="100%" fill="${style.getPropertyValue("--panel").trim()}"/>${arcs}${items.join("")}</svg>`;
  }

  #table() {
    const { subject, state } = this.app, tokens = subject.tokens(state.call, state.batch, this.lit);
    const names = this.kind === "head" ? this.heads.map(([c, n]) => subject.name(c, n)) : [SOURCES.find(([of]) => of === this.kind)[1]];
    return csv([["position", "token", ...names], ...Array.from(this.weights[0], (_, n) => [n, tokens?.[n] ?? "", ...this.weights.map((w) => (w[n] < 0 ? "" : w[n]))])]);
  }

  retheme() {
    this.grid.retheme();
    this.#tinted();
    this.#bar();
    this.grid.mark();
  }

  close() {
    this.#asked?.abort();
    this.tint.cancel();
    this.seen?.disconnect();
    this.resized.disconnect();
    this.grid.close();
    this.next.close();
  }
}
