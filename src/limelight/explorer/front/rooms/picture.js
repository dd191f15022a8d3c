// Picture: choose a patch, a special token or a word, and see over the picture what it looks at, or what looks at it.
import { Scale, ink, rowHigh } from "../colour.js";
import { count, dropdown, h, reach, roving, segments, settled, shown, weight } from "../dom.js";
import { HeadGrid } from "../grid.js";
import { csv, png, saveMenu } from "../save.js";

export const pictureRoom = {
  id: "picture", title: "Picture", open: (app, element) => new PictureRoom(app, element),
  suits: ({ subject }) => subject.calls.some(({ grids }) => grids.some(Boolean)),
};

const SOURCES = [["head", "head"], ["layer", "mean of the heads"], ["stack", "mean of all layers"], ["rollout", "rollout over layers"]];
const VIEWS = [["both", "heat on picture"], ["heat", "heat"], ["picture", "picture"]];
const OPACITY = [0.15, 0.9]; // opacity over the picture without heat, and at the most heat
const ON_PICTURE = "dark"; // the ramp on pictures, in any theme: heat is bright
const LISTED = 8;

class PictureRoom {
  #asked = null;

  constructor(app, element) {
    Object.assign(this, { app, element, weights: null });
    this.grid = new HeadGrid(app, { choose: (call, head) => app.go({ call, head }, true), isChosen: (call, head) => call === app.state.call && (this.kind !== "head" || head === app.state.head) });
    this.title = h("div", { class: "title" });
    this.controls = h("div", { class: "tools" });
    this.image = h("img", { alt: "", draggable: "false" });
    this.canvas = h("canvas", { width: 1, height: 1 });
    this.mark = h("i", { class: "mark-patch", hidden: true });
    this.frame = h("div", { class: "picture-frame", tabindex: 0, role: "application", "aria-roledescription": "patches of a picture" }, this.image, this.canvas, this.mark);
    this.special = h("div", { class: "chips special", role: "group", "aria-label": "Tokens beside the patches" });
    this.hint = h("p", { class: "soft hint" });
    this.panel = h("div", { class: "readout" });
    this.legend = h("p", { class: "soft heat-legend" });
    this.told = h("p", { class: "soft hint", "aria-hidden": "true" });
    element.append(
      h("aside", { class: "side left scrolls", "aria-label": "Heads", tabindex: -1 }, h("h2", {}, "Heads"), this.grid.element),
      h("section", { class: "stage picture-stage scrolls", "aria-label": "Picture", tabindex: -1 }, h("div", { class: "bar" }, this.title, this.controls), this.hint, this.special, this.frame, this.legend, this.told),
      h("aside", { class: "side right scrolls", "aria-label": "Details", tabindex: -1 }, this.panel));
    roving(this.special, () => 1);
    this.frame.addEventListener("keydown", (event) => this.#key(event));
    this.frame.addEventListener("click", (event) => this.#patchAt(event, (n) => this.#choose(this.#pictureSide(), [n])));
    this.frame.addEventListener("pointermove", (event) => this.#patchAt(event, (n) => this.#point(n)));
    this.frame.addEventListener("pointerleave", () => { this.told.textContent = ""; });
    this.ask = settled(() => this.#ask(), 0);
    this.restore();
  }

  get call() {
    return this.app.subject.calls[this.app.state.call];
  }

  get both() {
    return this.call.grids.every(Boolean);
  }

  /** The side whose tokens are patches: of a picture's attention to itself, the one that is chosen from. */
  #pictureSide() {
    return this.both ? this.side : this.call.grids[0] ? "query" : "key";
  }

  #gridOf(side) {
    return this.call.grids[side === "query" ? 0 : 1];
  }

  #length(side) {
    return side === "query" ? this.call.queries : this.call.keys;
  }

  /** The words of a side, each with its positions; tokens where words are not known. */
  #words(side) {
    const { subject, state } = this.app, text = this.call.texts[state.batch]?.[side === "query" ? 0 : 1];
    if (text === null || text === undefined) return Array.from({ length: this.#length(side) }, (_, n) => [String(n), [n]]);
    return subject.words[text] ?? subject.texts[text].map((token, n) => [shown(token), [n]]);
  }

  restore() {
    const { state } = this.app;
    this.kind = SOURCES.some(([of]) => of === state.of) ? state.of : "head";
    this.view = VIEWS.some(([view]) => view === state.view) ? state.view : "both";
    this.#suit();
    this.#frame();
    this.#chips();
    this.#bar();
    this.grid.update();
    this.ask();
  }

  update() {
    this.restore();
  }

  /** Chooses a token that the call has: what the address says, else a class token, a word, or the middle of the picture. */
  #suit() {
    const { state } = this.app, given = (state.token ?? "").split(" ").filter((x) => /^\d+$/.test(x)).map(Number);
    const words = this.call.grids[0] ? "key" : "query";
    this.side = state.side === "key" || state.side === "query" ? state.side : this.both ? "query" : words;
    const fits = given.length && given.every((n) => n < this.#length(this.side));
    if (fits) return (this.chosen = given);
    if (!this.#gridOf(this.side)) return (this.chosen = this.#words(this.side)[0]?.[1] ?? [0]);
    const { rows, cols, first } = this.#gridOf(this.side);
    this.chosen = [first > 0 ? 0 : (rows >> 1) * cols + (cols >> 1)];
  }

  #frame() {
    const { subject, state } = this.app, picture = subject.pictures[state.batch % Math.max(1, subject.pictures.length)], grid = this.#gridOf(this.#pictureSide());
    this.frame.hidden = !grid;
    if (!grid) return;
    this.image.hidden = !picture;
    if (picture && this.image.getAttribute("src") !== picture) this.image.setAttribute("src", picture);
    this.frame.classList.toggle("bare", !picture);
    this.frame.style.aspectRatio = picture ? "" : `${grid.cols} / ${grid.rows}`;
    this.frame.setAttribute("aria-label", `Picture of ${grid.rows} × ${grid.cols} patches. Arrow keys move from patch to patch.`);
    this.frame.dataset.view = this.view;
  }

  /** Chips for the tokens that are not patches: class and register tokens, or the words of a text. */
  #chips() {
    const { subject, state } = this.app, chips = [];
    if (this.both) {
      const { rows, cols, first } = this.#gridOf(this.side), names = subject.tokens(state.call, state.batch, this.side);
      for (let n = 0; n < this.#length(this.side); n++)
        if (n < first || n >= first + rows * cols) chips.push([names ? shown(names[n]) : String(n), this.side, [n]]);
    } else if (this.call.grids.some(Boolean)) {
      const side = this.call.grids[0] ? "key" : "query";
      for (const [word, places] of this.#words(side)) chips.push([word, side, places]);
    }
    this.special.replaceChildren(...chips.map(([name, side, places]) => {
      const button = h("button", { type: "button", class: "chip-word", onclick: () => this.#choose(side, places) }, name);
      return Object.assign(button, { side, places });
    }));
    this.special.hidden = chips.length === 0;
    this.#pressed();
  }

  #pressed() {
    const isChosen = ({ side, places }) => side === this.side && places.join(" ") === this.chosen.join(" ");
    for (const button of this.special.children) button.setAttribute("aria-pressed", isChosen(button));
    reach(this.special, [...this.special.children].find(isChosen) ?? this.special.firstElementChild);
    const grid = this.#gridOf(this.side), patch = grid && this.chosen.length === 1 ? this.chosen[0] - grid.first : -1;
    this.mark.hidden = !grid || patch < 0 || patch >= grid.rows * grid.cols;
    if (!this.mark.hidden) Object.assign(this.mark.style, { left: `${(100 * (patch % grid.cols)) / grid.cols}%`, top: `${(100 * Math.floor(patch / grid.cols)) / grid.rows}%`, width: `${100 / grid.cols}%`, height: `${100 / grid.rows}%` });
  }

  #bar() {
    const { app } = this, { subject, state } = app, saved = app.source.kind === "file", self = subject.isOneText(state.call);
    const kinds = SOURCES.filter(([of]) => of !== "rollout" || (self && (!saved || this.call.finest === 0)));
    if (!kinds.some(([of]) => of === this.kind)) this.kind = "head";
    const heads = subject.allHeads.filter(([value]) => subject.calls[value.split(".")[0]].grids.some(Boolean)), own = `${state.call}.${state.head}`;
    this.title.replaceChildren(
      dropdown("Head", heads.some(([value]) => value === own) ? heads : [[own, subject.name(state.call, state.head)], ...heads], own, (value) => { const [call, head] = value.split("."); app.go({ call, head }, true); }),
      dropdown("What is shown", kinds, this.kind, (of) => { this.kind = of; app.go({ of: of === "head" ? null : of }); this.grid.mark(); this.ask(); }));
    this.controls.replaceChildren(
      this.both ? segments("Direction", [["query", "looks at", "What the token attends to"], ["key", "is seen by", "What attends to the token"]], this.side, (side) => this.#choose(side, this.chosen)) : "",
      segments("View", VIEWS, this.view, (view) => { this.view = view; app.go({ view: view === "both" ? null : view }); this.frame.dataset.view = view; this.#paint(); }),
      saveMenu(() => `${subject.title} picture`, { PNG: () => png(this.#drawing()), CSV: () => this.#table() }));
    const any = this.call.grids.some(Boolean);
    this.hint.textContent = !any ? "This attention is not on the picture; choose another head." : this.both ? "Choose a patch or one of the tokens beside the patches." : "Choose a word to see where on the picture it is, or a patch to see its words.";
  }

  #choose(side, places) {
    Object.assign(this, { side, chosen: places });
    this.app.go({ token: places.join(" "), side: side === "query" ? null : side });
    this.#bar();
    this.#pressed();
    this.ask();
  }

  #key(event) {
    const grid = this.#gridOf(this.#pictureSide());
    if (event.target !== this.frame || event.ctrlKey || event.metaKey || event.altKey || !grid) return;
    const { rows, cols, first } = grid, side = this.#pictureSide();
    const inside = this.side === side && this.chosen[0] >= first && this.chosen[0] < first + rows * cols;
    const at = inside ? this.chosen[0] - first : -1, row = Math.floor(at / cols), col = at % cols;
    const moves = { ArrowRight: [row, col + 1], ArrowLeft: [row, col - 1], ArrowDown: [row + 1, col], ArrowUp: [row - 1, col], Home: [row, 0], End: [row, cols - 1] };
    if (!moves[event.key]) return;
    event.preventDefault();
    const [r, c] = inside ? moves[event.key] : [rows >> 1, cols >> 1];
    this.#choose(side, [first + Math.max(0, Math.min(rows - 1, r)) * cols + Math.max(0, Math.min(cols - 1, c))]);
  }

  /** Calls f with the token whose patch is under the pointer. */
  #patchAt(event, f) {
    const grid = this.#gridOf(this.#pictureSide()), box = this.frame.getBoundingClientRect();
    if (!grid) return;
    const r = Math.floor(((event.clientY - box.top - 1) / (box.height - 2)) * grid.rows), c = Math.floor(((event.clientX - box.left - 1) / (box.width - 2)) * grid.cols);
    if (r >= 0 && c >= 0 && r < grid.rows && c < grid.cols) f(grid.first + r * grid.cols + c);
  }

  #point(n) {
    const grid = this.#gridOf(this.lit);
    if (!this.weights || !grid) return;
    const patch = n - grid.first;
    this.told.textContent = `patch ${Math.floor(patch / grid.cols)}, ${patch % grid.cols}: ${weight(Math.max(0, this.weights[n]))}`;
  }

  async #ask() {
    const { app } = this, { batch, call, head } = app.state, { chosen, side } = this;
    this.#asked?.abort();
    if (!this.call.grids.some(Boolean)) return this.panel.replaceChildren();
    const control = (this.#asked = new AbortController()), sources = [{ call, head, of: this.kind }];
    try {
      const found = await Promise.all(chosen.map((token) => app.source.ask("attention", { sources, batch, token, side }, { signal: control.signal })));
      if (app.open !== this) return;
      // A word has the sum of its pieces; what is masked counts as nothing unless all of it is.
      const parts = found.map(({ arrays }) => arrays[0].values);
      this.weights = parts[0].map((first, n) => parts.slice(1).reduce((sum, part) => Math.max(0, sum) + Math.max(0, part[n]), first));
      this.lit = side === "query" ? "key" : "query";
      this.#paint();
      this.#list();
    } catch (error) {
      if (error.name !== "AbortError") this.panel.replaceChildren(h("p", { role: "alert" }, error.message));
    }
  }

  #paint() {
    if (!this.weights) return;
    const grid = this.#gridOf(this.lit), [least, most] = OPACITY;
    const patches = grid ? this.weights.slice(grid.first, grid.first + grid.rows * grid.cols) : this.weights;
    const high = rowHigh(patches), scale = new Scale("sqrt", high, this.app.theme);
    this.legend.hidden = !grid;
    this.canvas.hidden = !grid || this.view === "picture";
    if (grid) {
      const { rows, cols } = grid, hot = new Scale("sqrt", high, ON_PICTURE), pen = Object.assign(this.canvas, { width: cols, height: rows }).getContext("2d"), image = pen.createImageData(cols, rows);
      patches.forEach((w, n) => {
        const x = Math.max(0, w), opacity = this.view === "heat" ? 1 : least + (most - least) * hot.place(x);
        image.data.set([...hot.rgb(x), Math.round(255 * opacity)], 4 * n);
      });
      pen.putImageData(image, 0, 0);
      this.legend.replaceChildren("0", h("i", { style: { backgroundImage: hot.gradient() } }), weight(high));
    }
    for (const button of this.special.children) {
      const lit = button.side === this.lit || this.both, w = lit ? button.places.reduce((sum, n) => sum + Math.max(0, this.weights[n]), 0) : 0;
      const strong = lit && scale.place(w) > 0.03, rgb = scale.rgb(w);
      button.style.background = strong ? `rgb(${rgb.join(" ")})` : "";
      button.style.color = strong ? ink(rgb) : "";
      button.title = lit ? weight(w) : "";
    }
  }

  /** A token's name and, of a patch, its place. */
  #name(side, places) {
    const grid = this.#gridOf(side), [n] = places;
    if (grid && n >= grid.first && n < grid.first + grid.rows * grid.cols) return `patch ${Math.floor((n - grid.first) / grid.cols)}, ${(n - grid.first) % grid.cols}`;
    const word = grid ? null : this.#words(side).find(([, other]) => other.join(" ") === places.join(" "));
    const { subject, state } = this.app, tokens = subject.tokens(state.call, state.batch, side);
    return word ? word[0] : tokens ? places.map((place) => shown(tokens[place])).join("") : String(n);
  }

  #list() {
    const { lit, side, weights } = this, grid = this.#gridOf(lit);
    const items = (grid ? Array.from(weights, (_, n) => [n]) : this.#words(lit).map(([, places]) => places)).map((places) => [places, places.reduce((sum, n) => sum + Math.max(0, weights[n]), 0)]);
    const best = items.filter(([, w]) => w > 0).sort((a, b) => b[1] - a[1]).slice(0, LISTED), most = Math.max(1e-12, best[0]?.[1] ?? 0);
    const inPicture = grid ? weights.slice(grid.first, grid.first + grid.rows * grid.cols).reduce((sum, w) => sum + Math.max(0, w), 0) : null;
    const name = this.#name(side, this.chosen), to = this.both ? side : lit;
    this.panel.replaceChildren(
      h("h2", {}, side === "query" ? "Looks at" : "Is seen by"), h("p", { class: "big" }, name),
      inPicture === null ? "" : h("p", { class: "soft" }, `${weight(inPicture)} on patches, ${weight(Math.max(0, items.reduce((sum, [, w]) => sum + w, 0) - inPicture))} on other tokens`),
      h("ol", { class: "bars" }, best.map(([places, w]) => h("li", {}, h("button", { type: "button", onclick: () => this.#choose(to, places) }, h("span", {}, this.#name(lit, places))), h("i", { style: { width: `${(100 * w) / most}%` } }), h("em", {}, weight(w))))));
    this.app.say(best.length ? `${name}: strongest ${this.#name(lit, best[0][0])}, ${weight(best[0][1])}` : `${name}: no weight`);
  }

  /** The picture with its heat on a canvas. */
  #drawing() {
    const grid = this.#gridOf(this.#pictureSide()), wide = this.image.naturalWidth || 32 * grid.cols, high = this.image.naturalHeight || 32 * grid.rows;
    const scale = Math.max(1, Math.ceil(448 / wide)), canvas = h("canvas", { width: wide * scale, height: high * scale }), pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    if (!this.image.hidden && this.view !== "heat") pen.drawImage(this.image, 0, 0, canvas.width, canvas.height);
    if (!this.canvas.hidden) pen.drawImage(this.canvas, 0, 0, canvas.width, canvas.height);
    return canvas;
  }

  #table() {
    const grid = this.#gridOf(this.lit), { subject, state } = this.app, tokens = subject.tokens(state.call, state.batch, this.lit);
    const place = (n) => { const patch = n - (grid?.first ?? 0); return grid && patch >= 0 && patch < grid.rows * grid.cols ? [Math.floor(patch / grid.cols), patch % grid.cols] : ["", ""]; };
    return csv([["position", "token", "row", "column", "weight"], ...Array.from(this.weights, (w, n) => [n, tokens?.[n] ?? count(n), ...place(n), Math.max(0, w)])]);
  }

  retheme() {
    this.grid.retheme();
    this.#paint();
  }

  close() {
    this.#asked?.abort();
    this.ask.cancel();
    this.grid.close();
  }
}
