// Every step of a real head for a text of one's own: from the layer's input to the head's output.
import { Scale, ink, picture } from "../colour.js";
import { dropdown, h, settled, shown, weight } from "../dom.js";
import { csv, escaped, png, saveMenu } from "../save.js";

const EXAMPLE = "The cat is sleeping on the table because it is tired.";
const NUMBERED = 14; // tokens, up to which square matrices show their numbers
const TELLS = {
  x: ["x", "The vectors that come into the layer."], q: ["q = x W_Q", "Queries: what each token looks for."], k: ["k = x W_K", "Keys: what each token offers."], v: ["v = x W_V", "Values: what each token passes on."],
  scores: ["scores = q kᵀ", "How well every query fits every key."], scaled: ["scaled", "Smaller numbers, so that no key takes all."], capped: ["capped = c · tanh(scaled / c)", "Kept within bounds."],
  biased: ["biased = scaled + bias", "What depends on the distance."], masked: ["masked", "−∞ where a query may not look."], weights: ["weights = softmax(masked)", "Shares: every row sums to 1."], output: ["output = weights v", "A mixture of values, by these shares."],
};
const GROUPS = [
  ["Vectors come in", ["x"]], ["Queries, keys and values", ["q", "k", "v"]], ["Scores", ["scores", "scaled", "capped", "biased"]], ["Shares", ["masked", "weights"]], ["Output", ["output"]],
];
const number = (x) => (x === -Infinity ? "−∞" : x.toFixed(Math.abs(x) < 10 ? 2 : 1).replace("-", "−"));

export class OwnView {
  #asked = null;

  constructor(app, body, controls, told) {
    Object.assign(this, { app, body, controls, told });
    this.field = h("input", { type: "text", class: "own-text", maxlength: 400, value: app.state.own ?? EXAMPLE, "aria-label": "Your own text", oninput: settled(() => this.#changed(), 300) });
    this.where = h("span", {});
    controls.replaceChildren(this.where, saveMenu(() => "steps of a head", { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() }));
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

  #names(name) {
    const { queries, keys } = this.found.data, width = (n) => Array.from({ length: n }, (_, d) => String(d));
    const rows = name === "k" || name === "v" ? keys : queries, [high, wide] = this.found.arrays[name].shape;
    const square = !["x", "q", "k", "v", "output"].includes(name);
    // The input of a decoder's cross-attention has a row for each query.
    return [name === "x" && high !== queries.length ? width(high) : rows, square ? keys : width(wide), square];
  }

  #show() {
    const { arrays } = this.found;
    this.marks = {};
    let n = 0;
    this.content.replaceChildren(...GROUPS.filter(([, names]) => names.some((name) => arrays[name])).map(([title, names]) =>
      h("section", { class: "step" }, h("h2", {}, h("b", {}, ++n), title), h("div", { class: "matrices own" }, names.filter((name) => arrays[name]).map((name) => this.#matrix(name))))));
    this.#explain("weights", this.found.data.queries.length - 1, this.#strongest(this.found.data.queries.length - 1));
  }

  #strongest(row) {
    const { values, shape: [, cols] } = this.found.arrays.weights, own = [...values.subarray(row * cols, (row + 1) * cols)];
    return own.indexOf(Math.max(...own));
  }

  /** A matrix as cells on a canvas, below it a frame for what is chosen; arrow keys move from cell to cell. */
  #matrix(name) {
    const { values, shape: [rows, cols] } = this.found.arrays[name], [rowNames, colNames, square] = this.#names(name);
    const side = square ? (rows <= NUMBERED && cols <= NUMBERED ? 38 : Math.max(9, Math.min(22, Math.floor(560 / Math.max(rows, cols))))) : 22;
    const wide = square ? side : Math.max(2, Math.min(10, Math.floor((name === "x" ? 1060 : 330) / cols))), high = square ? Math.min(side, 26) : Math.max(11, Math.min(name === "x" ? 13 : 18, Math.floor(420 / rows)));
    const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": `${TELLS[name][0]}: use the arrow keys` });
    const mark = h("i", { class: "mark-cell", hidden: true }), terms = h("i", { class: "mark-terms", hidden: true }), others = h("i", { class: "mark-others", hidden: true });
    const grid = h("div", { class: "own-grid", style: { width: `${wide * cols}px`, height: `${high * rows}px` } }, canvas, terms, others, mark);
    Object.assign(canvas.style, { width: `${wide * cols}px`, height: `${high * rows}px` });
    this.#paint(canvas, name, wide, high, square && side >= 38);
    const place = (element, top, left, tall, broad) => { element.hidden = false; Object.assign(element.style, { top: `${top * high}px`, left: `${left * wide}px`, height: `${tall * high}px`, width: `${broad * wide}px` }); };
    const at = this.marks[name] = { rows, cols, mark, terms, others, place, i: 0, j: 0, repaint: () => this.#paint(canvas, name, wide, high, square && side >= 38) };
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
    const labels = h("div", { class: "own-rows", "aria-hidden": "true" }, rowNames.map((token) => h("span", { style: { height: `${high}px`, lineHeight: `${high}px` } }, shown(token))));
    const head = square ? h("div", { class: "own-cols", "aria-hidden": "true" }, colNames.map((token) => h("span", { style: { width: `${wide}px` } }, h("b", {}, shown(token))))) : h("div", { class: "own-width soft", "aria-hidden": "true" }, `${cols} numbers each`);
    return h("figure", { class: "matrix own" }, h("figcaption", {}, h("code", {}, name === "scaled" ? `scaled = ${this.found.data.scale.toPrecision(3)} · scores` : TELLS[name][0]), h("span", { class: "soft" }, TELLS[name][1])),
      h("div", { class: "own-frame" }, h("div", { class: square ? "own-corner" : "own-corner flat" }), head, labels, grid));
  }

  #paint(canvas, name, wide, high, numbered) {
    const { values, shape: [rows, cols] } = this.found.arrays[name], ratio = devicePixelRatio || 1, signed = name !== "weights";
    let most = 0;
    for (const v of values) if (Number.isFinite(v) && Math.abs(v) > most) most = Math.abs(v);
    const scale = new Scale(signed ? "linear" : "sqrt", signed ? most : 1, this.app.theme, signed), cells = Float32Array.from(values, (v) => (Number.isFinite(v) ? v : NaN));
    const small = picture(cells, [rows, cols], scale), pen = canvas.getContext("2d");
    canvas.width = Math.round(wide * cols * ratio);
    canvas.height = Math.round(high * rows * ratio);
    pen.imageSmoothingEnabled = false;
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
    const { arrays, data } = this.found, { queries, keys } = data, at = (step, a, b) => arrays[step].values[a * arrays[step].shape[1] + b];
    for (const m of Object.values(this.marks)) m.mark.hidden = m.terms.hidden = m.others.hidden = true;
    const own = this.marks[name];
    Object.assign(own, { i, j });
    own.place(own.mark, i, j, 1, 1);
    const row = (step, a) => this.marks[step]?.place(this.marks[step].terms, a, 0, 1, arrays[step].shape[1]);
    const other = (step, top, left, tall, broad) => this.marks[step]?.place(this.marks[step].others, top, left, tall, broad);
    const token = (list, n) => `“${shown(list[n])}”`, width = arrays.q.shape[1], before = { scaled: "scores", capped: "scaled", biased: arrays.capped ? "capped" : "scaled", masked: arrays.biased ? "biased" : arrays.capped ? "capped" : "scaled" }[name];
    let text = "";
    if (name === "x") text = `number ${j} of the vector of ${token(queries, i)} that comes into the layer: ${number(at("x", i, j))}`;
    else if (["q", "k", "v"].includes(name)) {
      if (arrays.x && arrays.x.shape[0] === arrays[name].shape[0]) row("x", i);
      text = `number ${j} of the ${{ q: "query", k: "key", v: "value" }[name]} of ${token(name === "q" ? queries : keys, i)}: the products of its vector with a column of W_${name.toUpperCase()}, added up: ${number(at(name, i, j))}`;
    } else if (name === "scores") {
      row("q", i);
      other("k", j, 0, 1, arrays.k.shape[1]);
      const products = Array.from({ length: width }, (_, d) => at("q", i, d) * at("k", j, d)).sort((a, b) => Math.abs(b) - Math.abs(a));
      text = `query of ${token(queries, i)} · key of ${token(keys, j)} = ${number(at("scores", i, j))}: ${width} products, the largest ${products.slice(0, 3).map(number).join(", ")}`;
    } else if (before) {
      this.marks[before].place(this.marks[before].terms, i, j, 1, 1);
      text = at(name, i, j) === -Infinity ? `${token(queries, i)} may not look at ${token(keys, j)}` : name === "scaled" ? `${data.scale.toPrecision(3)} · ${number(at("scores", i, j))} = ${number(at("scaled", i, j))}` : `${name}: ${number(at(before, i, j))} becomes ${number(at(name, i, j))}`;
    } else if (name === "weights") {
      const from = ["masked", "biased", "capped", "scaled"].find((step) => arrays[step]), x = at(from, i, j);
      row(from, i);
      let sum = 0;
      for (let b = 0; b < keys.length; b++) sum += Math.exp(at(from, i, b));
      text = `${token(queries, i)} looks at ${token(keys, j)} with ${weight(at("weights", i, j))}${data.sink ? "" : ` = exp(${number(x)}) / ${sum.toPrecision(3)}, the sum of the exponentials of its row`}`;
    } else if (name === "output") {
      row("weights", i);
      other("v", 0, j, arrays.v.shape[0], 1);
      const terms = keys.map((_, b) => [at("weights", i, b), at("v", b, j)]).sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1])).slice(0, 3);
      text = `number ${j} of the output of ${token(queries, i)}: ${number(at("output", i, j))} = ${terms.map(([w, v]) => `${weight(w)} · ${number(v)}`).join(" + ")}${keys.length > 3 ? " + …" : ""}`;
    }
    this.#tell(text);
  }

  #table() {
    const { arrays } = this.found, rows = [["step", "row", "row_name", "column", "column_name", "value"]];
    for (const name of Object.keys(TELLS).filter((step) => arrays[step])) {
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
