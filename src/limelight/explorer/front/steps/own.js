// Every step of a layer of the model for a text of one's own: from the tokens to the layer's output.
import { Scale, ink, picture } from "../colour.js";
import { dropdown, h, settled, shown } from "../dom.js";
import { explained, number } from "./explained.js";
import { csv, escaped, png, saveMenu } from "../save.js";

const EXAMPLE = "The cat is sleeping on the table because it is tired.";
const NUMBERED = 14; // tokens, up to which square matrices show their numbers
const WIDE = 520; // pixels of a matrix whose columns are features, at most
const TELLS = {
  x: "The vectors that come into the layer.", q: "What each token looks for.", k: "What each token offers.", v: "What each token passes on.",
  scores: "How well every query fits every key.", scaled: "Smaller numbers, so that no key takes all.", capped: "Kept within bounds.", biased: "What depends on the distance.",
  masked: "−∞ where a query may not look.", weights: "Shares: every row sums to 1.", heads: "A mixture of values, by these shares.",
  concatenated: "The frame is this head’s slice.", contributions: "What this head adds to each token.", lengths: "Which head adds most to which token.",
};
const HEAD = new Set(["q", "k", "v", "scores", "scaled", "capped", "biased", "masked", "weights", "heads", "contributions"]);

/** The part of the layer that a step belongs to. Steps come in order: embeddings, x, …, q, …, heads, …, W_O, … */
function parts(steps) {
  const place = (name) => steps.findIndex((step) => step.name === name), x = place("x"), q = place("q"), heads = place("heads");
  const after = steps.findIndex((step, n) => n > heads && step.of.includes("concatenated") && step.name !== "lengths" && step.name !== "contributions");
  const ends = [["Tokens become vectors", Math.max(0, x)], ["The layer reads them", q], ["Queries, keys and values of this head", place("scores")], ["Scores", place("scaled") + 1 + (place("capped") > 0) + (place("biased") > 0)],
    ["Shares", heads], ["This head’s output", heads + 1], ["All heads together", (after < 0 ? Math.max(place("lengths"), place("concatenated")) : after) + 1], ["Residual, norm and feed-forward", steps.length]];
  let from = 0;
  return ends.map(([title, end]) => [title, steps.slice(from, (from = Math.max(from, end)))]).filter(([, own]) => own.length);
}

export class OwnView {
  #asked = null;

  constructor(app, body, controls, told) {
    Object.assign(this, { app, body, controls, told });
    this.field = h("input", { type: "text", class: "own-text", maxlength: 400, value: app.state.own ?? EXAMPLE, "aria-label": "Your own text", oninput: settled(() => this.#changed(), 300) });
    this.where = h("span", {});
    controls.replaceChildren(this.where, saveMenu(() => "steps of a layer", { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() }));
    this.content = h("div", { class: "own-steps" });
    body.replaceChildren(h("label", { class: "own-label" }, h("span", { class: "soft" }, "Your text"), this.field), this.content);
    this.update();
  }

  update() {
    const { app } = this, { subject, state } = app;
    this.where.replaceChildren(dropdown("Head", subject.allHeads, `${state.call}.${state.head}`, (value) => { const [call, head] = value.split("."); app.go({ call, head }); }));
    this.#ask();
  }

  #changed() {
    this.app.go({ own: this.field.value === EXAMPLE ? null : this.field.value });
    this.#ask();
  }

  async #ask() {
    const { app } = this, { call, head } = app.state, text = this.field.value;
    this.#asked?.abort();
    const control = (this.#asked = new AbortController());
    if (!text.trim()) return this.#tell("Write something.");
    this.content.classList.add("waiting");
    try {
      const { data, arrays } = await app.source.ask("own", { call, head, text }, { signal: control.signal });
      if (control.signal.aborted) return;
      this.found = { data, arrays };
      this.#show();
    } catch (error) {
      if (error.name !== "AbortError") this.#tell(error.message);
    }
    this.content.classList.remove("waiting");
  }

  #tell(text) {
    this.told.textContent = text;
  }

  #step(name) {
    return this.found.data.steps.find((step) => step.name === name);
  }

  /** The names of the rows and columns of a step. */
  #names(name) {
    const { rows, square } = this.#step(name), { keys } = this.found.data;
    return [rows, square ? keys : Array.from({ length: this.found.arrays[name].shape[1] }, (_, d) => String(d))];
  }

  #show() {
    const { queries, steps, module } = this.found.data, last = queries.length - 1;
    this.marks = {};
    this.content.replaceChildren(h("p", { class: "soft small" }, `${module}, ${steps.length} steps. Point at a number to see what it is made of.`), ...parts(steps).map(([title, own], n) =>
      h("section", { class: "step" }, h("h2", {}, h("b", {}, n + 1), title), h("div", { class: "matrices own" }, own.map((step) => this.#matrix(step))))));
    this.#slice();
    this.#explain("weights", last, this.#strongest(last));
  }

  /** Frames the slice of the concatenated outputs that is this head's. */
  #slice() {
    const at = this.marks.concatenated, width = this.found.arrays.heads?.shape[1];
    if (!at || !width) return;
    const frame = h("i", { class: "mark-slice" });
    at.mark.before(frame);
    at.place(frame, 0, this.app.state.head * width, at.rows, width);
  }

  #strongest(row) {
    const { values, shape: [, cols] } = this.found.arrays.weights, own = [...values.subarray(row * cols, (row + 1) * cols)];
    return own.indexOf(Math.max(...own));
  }

  /** A matrix as cells on a canvas, below it a frame for what is chosen; arrow keys move from cell to cell. */
  #matrix({ name, title, sizes, square, each }) {
    const { values, shape: [rows, cols] } = this.found.arrays[name], [rowNames, colNames] = this.#names(name);
    const side = rows <= NUMBERED && cols <= NUMBERED ? 38 : Math.max(9, Math.min(22, Math.floor(560 / Math.max(rows, cols)))), numbered = square && side >= 38;
    const most = Math.max(200, Math.min(WIDE, this.body.clientWidth - 110)), wide = square ? side : Math.min(HEAD.has(name) && name !== "contributions" ? 10 : 14, most / cols), high = square ? Math.min(side, 26) : Math.max(11, Math.min(18, Math.floor(420 / rows)));
    const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": `${title}: use the arrow keys` });
    const mark = h("i", { class: "mark-cell", hidden: true }), terms = h("i", { class: "mark-terms", hidden: true }), others = h("i", { class: "mark-others", hidden: true });
    const grid = h("div", { class: "own-grid", style: { width: `${wide * cols}px`, height: `${high * rows}px` } }, canvas, terms, others, mark);
    Object.assign(canvas.style, { width: `${wide * cols}px`, height: `${high * rows}px` });
    const paint = () => this.#paint(canvas, name, wide, high, numbered);
    paint();
    const place = (element, top, left, tall, broad) => { element.hidden = false; Object.assign(element.style, { top: `${top * high}px`, left: `${left * wide}px`, height: `${tall * high}px`, width: `${broad * wide}px` }); };
    const at = this.marks[name] = { rows, cols, mark, terms, others, place, i: 0, j: 0, repaint: paint };
    const point = (event) => {
      const box = canvas.getBoundingClientRect(), i = Math.floor((event.clientY - box.top) / high), j = Math.floor((event.clientX - box.left) / wide);
      if (i >= 0 && j >= 0 && i < rows && j < cols) this.#explain(name, i, j);
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("focus", () => this.#explain(name, at.i, at.j));
    canvas.addEventListener("keydown", (event) => {
      const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [];
      if (down === undefined) return;
      event.preventDefault();
      this.#explain(name, Math.max(0, Math.min(rows - 1, at.i + down)), Math.max(0, Math.min(cols - 1, at.j + right)));
    });
    const line = { height: `${high}px`, lineHeight: `${high}px` };
    const labels = h("div", { class: "own-rows", "aria-hidden": "true" }, rowNames.map((token) => h("span", { style: line, title: shown(token) }, shown(token))));
    const head = square ? h("div", { class: "own-cols", "aria-hidden": "true" }, colNames.map((token) => h("span", { style: { width: `${wide}px` } }, h("b", {}, shown(token))))) : h("div", { class: "own-width soft", "aria-hidden": "true" }, name === "lengths" ? `${cols} heads` : `${cols} numbers each`);
    const sum = (i) => values.subarray(i * cols, (i + 1) * cols).reduce((a, b) => a + b, 0);
    const sums = name === "weights" ? h("div", { class: "own-sums" }, Array.from({ length: rows }, (_, i) => h("span", { style: line }, `Σ ${sum(i).toFixed(3)}`))) : "";
    const { head: chosen } = this.app.state;
    return h("figure", { class: "matrix own" }, h("figcaption", {}, h("code", {}, title), h("span", { class: "soft" }, `${each ? `head ${chosen} of ` : ""}${sizes}`), TELLS[name] ? h("span", { class: "soft" }, TELLS[name]) : ""),
      h("div", { class: "own-frame" }, h("div", { class: square ? "own-corner" : "own-corner flat" }), head, labels, h("div", { class: "own-line" }, grid, sums)));
  }

  #paint(canvas, name, wide, high, numbered) {
    const { values, shape: [rows, cols] } = this.found.arrays[name], ratio = devicePixelRatio || 1, signed = name !== "weights" && name !== "lengths";
    let most = 0;
    for (const v of values) if (Number.isFinite(v) && Math.abs(v) > most) most = Math.abs(v);
    const scale = new Scale(signed ? "linear" : "sqrt", name === "weights" ? 1 : most, this.app.theme, signed), cells = Float32Array.from(values, (v) => (Number.isFinite(v) ? v : NaN));
    const small = picture(cells, [rows, cols], scale), pen = canvas.getContext("2d");
    canvas.width = Math.round(wide * cols * ratio);
    canvas.height = Math.round(high * rows * ratio);
    pen.imageSmoothingEnabled = wide * ratio < 1; // several columns share a pixel
    pen.drawImage(small, 0, 0, canvas.width, canvas.height);
    if (!numbered) return;
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let i = 0; i < rows; i++)
      for (let j = 0; j < cols; j++) {
        const v = values[i * cols + j];
        pen.fillStyle = Number.isFinite(v) ? ink(scale.rgb(v)) : getComputedStyle(this.app.root).getPropertyValue("--soft");
        pen.fillText(name === "weights" ? v.toFixed(2) : number(v), (j + 0.5) * wide, (i + 0.5) * high);
      }
  }

  /** What a number is made of: in words, and by frames around the numbers that it comes from. */
  #explain(name, i, j) {
    const { arrays } = this.found, step = this.#step(name);
    for (const m of Object.values(this.marks)) m.mark.hidden = m.terms.hidden = m.others.hidden = true;
    const own = this.marks[name];
    Object.assign(own, { i, j });
    own.place(own.mark, i, j, 1, 1);
    const at = (of, a, b) => arrays[of].values[a * arrays[of].shape[1] + b];
    const mark = (of, top, left, tall, broad, kind = "terms") => this.marks[of]?.place(this.marks[of][kind], top, left, tall, broad);
    const row = (of, a, kind) => arrays[of] && mark(of, a, 0, 1, arrays[of].shape[1], kind);
    this.#tell(explained({ name, step, i, j, at, mark, row, arrays, data: this.found.data, head: this.app.state.head }));
  }

  #table() {
    const { arrays } = this.found, rows = [["step", "row", "row_name", "column", "column_name", "value"]];
    for (const name of Object.keys(arrays)) {
      const [rowNames, colNames] = this.#names(name), [, cols] = arrays[name].shape;
      arrays[name].values.forEach((v, n) => rows.push([name, Math.floor(n / cols), rowNames[Math.floor(n / cols)], n % cols, colNames[n % cols], v]));
    }
    return csv(rows);
  }

  #drawing() {
    const around = this.content.getBoundingClientRect(), style = getComputedStyle(this.app.root), colour = (name) => style.getPropertyValue(name).trim(), items = [];
    for (const canvas of this.content.querySelectorAll("canvas")) { const b = canvas.getBoundingClientRect(); items.push(`<image x="${b.left - around.left}" y="${b.top - around.top}" width="${b.width}" height="${b.height}" href="${canvas.toDataURL("image/png")}"/>`); }
    for (const text of this.content.querySelectorAll("figcaption code, .own-rows span, h2")) { const b = text.getBoundingClientRect(); items.push(`<text x="${b.left - around.left}" y="${b.top - around.top + b.height * 0.75}" font-size="11" font-family="system-ui, sans-serif" fill="${colour("--ink")}">${escaped(text.textContent)}</text>`); }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${around.width}" height="${around.height}"><rect width="100%" height="100%" fill="${colour("--panel")}"/>${items.join("")}</svg>`;
  }

  retheme() {
    for (const mark of Object.values(this.marks ?? {})) mark.repaint();
  }

  close() {
    this.#asked?.abort();
  }
}
