// Steps: what attention does, number by number. First the worked example, then a query of a real head.
import { dropdown, h, segments, settled } from "../dom.js";
import { csv, escaped, png, saveMenu } from "../save.js";
import { OwnView } from "../steps/own.js";
import { QueryView } from "../steps/query.js";

export const stepsRoom = {
  id: "steps", title: "Steps", open: (app, element) => new StepsRoom(app, element),
  suits: ({ source }) => source.kind !== "file",
};

const GIVEN = ["x", "W_Q", "W_K", "W_V"];
const MASKS = { none: "no mask", causal: "causal mask", window: "window of 1" };
const TELLS = {
  x: ["x", "Each word is a vector."], W_Q: ["W_Q", "What a word looks for."], W_K: ["W_K", "What a word offers."], W_V: ["W_V", "What a word passes on."],
  q: ["q = x W_Q", "Queries."], k: ["k = x W_K", "Keys."], v: ["v = x W_V", "Values."],
  scores: ["scores = q kᵀ", "How well every query fits every key."], scaled: ["scaled = scale · scores", "Smaller numbers, so that no key takes all."],
  masked: ["masked", "−∞ where a query may not look."], weights: ["weights = softmax(masked / τ)", "Shares: every row sums to 1."], output: ["output = weights v", "A mixture of values, by these shares."],
};

class StepsRoom {
  constructor(app, element) {
    Object.assign(this, { app, element, at: null });
    const views = [["example", "A worked example"], ["own", "A layer, your text"], ["model", "A query of this text"]].filter(([show]) => show !== "own" || app.subject.reads);
    this.tabs = segments("What is worked out", views, views.some(([show]) => show === app.state.show) ? app.state.show : "example", (show) => {
      app.go({ show: show === "example" ? null : show });
      this.#open();
    });
    this.controls = h("div", { class: "tools" });
    this.told = h("p", { class: "explained", role: "status", "aria-live": "polite" });
    this.body = h("div", { class: "steps-body" });
    element.append(h("section", { class: "stage scrolls lesson", "aria-label": "Steps", tabindex: -1 }, h("div", { class: "bar" }, this.tabs, this.controls), this.told, this.body));
    this.compute = settled(() => this.#compute(), 60);
    this.#open();
  }

  async #open() {
    this.body.replaceChildren();
    this.told.textContent = "";
    this.controls.replaceChildren();
    this.view?.close();
    this.view = null;
    const View = { model: QueryView, own: this.app.subject.reads && OwnView }[this.app.state.show];
    if (View) {
      this.view = new View(this.app, this.body, this.controls, this.told);
      return;
    }
    this.example ??= (await this.app.source.ask("example")).data;
    if (this.app.open && this.app.open !== this) return;
    this.#restoreNumbers();
    this.#build();
    await this.#compute();
  }

  restore() {
    this.#open();
    return true;
  }

  update() {
    this.view?.update();
  }

  /** The numbers of the address, or those of the example. */
  #restoreNumbers() {
    const given = (this.app.state.numbers ?? "").split(",").filter(Boolean).map(Number), all = GIVEN.flatMap((name) => this.example[name].flat());
    const numbers = given.length === all.length && given.every(Number.isFinite) ? given : all;
    let at = 0;
    this.matrices = Object.fromEntries(GIVEN.map((name) => [name, this.example[name].map((row) => row.map(() => numbers[at++]))]));
    this.changed = numbers !== all;
    const { state } = this.app, number = (text, otherwise) => (Number.isFinite(parseFloat(text)) ? parseFloat(text) : otherwise);
    Object.assign(this, { mask: MASKS[state.mask] ? state.mask : "none", temperature: number(state.temperature, 1), scale: state.factor === undefined ? null : number(state.factor, null), heads: state.heads === "2" ? 2 : 1 });
  }

  #store() {
    const numbers = GIVEN.flatMap((name) => this.matrices[name].flat());
    this.app.go({
      numbers: this.changed ? numbers.join(",") : null, mask: this.mask === "none" ? null : this.mask, temperature: this.temperature === 1 ? null : this.temperature,
      factor: this.scale === null ? null : this.scale, heads: this.heads === 1 ? null : this.heads,
    });
  }

  #build() {
    const own = 1 / Math.sqrt(this.example.W_Q[0].length / this.heads);
    const slider = (label, least, most, value, text, set) => {
      const said = h("output", {}, text(value));
      return h("label", { class: "slider" }, label, h("input", { type: "range", min: least, max: most, step: 0.01, value, "aria-label": label, oninput: (event) => { set(+event.target.value); said.textContent = text(+event.target.value); this.compute(); this.#store(); } }), said);
    };
    this.controls.replaceChildren(
      slider("temperature τ", -2, 2, Math.log2(this.temperature), (t) => (2 ** t).toFixed(2), (t) => (this.temperature = +(2 ** t).toFixed(3))),
      slider("scale", 0, 3, this.scale ?? own, (s) => s.toFixed(2), (s) => (this.scale = s)),
      h("button", { type: "button", class: "button", title: "Divide by the square root of the width", onclick: () => { this.scale = null; this.#store(); this.#build(); this.#compute(); } }, "1/√d"),
      dropdown("Mask", Object.entries(MASKS), this.mask, (mask) => { this.mask = mask; this.#store(); this.#compute(); }),
      segments("Heads", [[1, "1 head"], [2, "2 heads"]], this.heads, (heads) => { this.heads = heads; this.#store(); this.#build(); this.#compute(); }),
      h("button", { type: "button", class: "button", onclick: () => { this.app.go({ numbers: null, mask: null, temperature: null, factor: null, heads: null }); this.#open(); } }, "Reset"),
      saveMenu(() => "steps of attention", { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() }));
    this.cells = {};
    const one = this.heads === 1, heads = [...Array(this.heads).keys()];
    const computed = (name, head) => this.#matrix(name, head);
    this.body.replaceChildren(
      this.#step(1, "Words become vectors", "Numbers with a frame can be changed.", [this.#matrix("x")]),
      this.#step(2, "Three projections", "Each word's vector is multiplied by three matrices, which a model learns.", ["W_Q", "W_K", "W_V"].map((name) => this.#matrix(name))),
      ...heads.map((head) => h("div", { class: "of-head" }, one ? "" : h("h3", {}, `Head ${head + 1}`),
        this.#step(3, "Queries, keys and values", "", ["q", "k", "v"].map((name) => computed(name, head))),
        this.#step(4, "Scores", "Every query meets every key: the products of their numbers, added up.", ["scores", "scaled"].map((name) => computed(name, head))),
        this.#step(5, "Shares", "What is masked is left out; the exponentials of the rest, divided by their sum, are shares.", ["masked", "weights"].map((name) => computed(name, head))),
        this.#step(6, "Output", "Each word becomes the mean of the values, weighted by its shares.", [computed("output", head)]))));
    this.told.textContent = "Point at a number, or reach it with Tab, to see what it is made of.";
  }

  #step(n, title, text, matrices) {
    return h("section", { class: "step" }, h("h2", {}, h("b", {}, n), title), text ? h("p", { class: "soft" }, text) : "", h("div", { class: "matrices" }, matrices));
  }

  /** The names of the rows and columns of a matrix. */
  #names(name) {
    const { tokens } = this.example, numbers = (n) => Array.from({ length: n }, (_, d) => String(d + 1)), wide = this.example.W_Q[0].length / this.heads;
    if (name === "x") return [tokens, numbers(this.example.x[0].length)];
    if (name.startsWith("W_")) return [numbers(this.example.x[0].length), numbers(this.example[name][0].length)];
    if (["q", "k", "v", "output"].includes(name)) return [tokens, numbers(name === "v" || name === "output" ? this.example.W_V[0].length / this.heads : wide)];
    return [tokens, tokens];
  }

  #matrix(name, head = null) {
    const [rows, cols] = this.#names(name), editable = head === null, key = editable ? name : `${name}/${head}`, cells = (this.cells[key] = []);
    const body = rows.map((row, i) => h("tr", {}, h("th", { scope: "row" }, row), cols.map((col, j) => {
      const field = editable ? h("input", { type: "text", inputmode: "decimal", value: plain(this.matrices[name][i][j]), "aria-label": `${name}, ${row}, ${col}`, oninput: (event) => this.#edit(name, i, j, event.target) }) : h("button", { type: "button" }, "…");
      const cell = h("td", {}, field);
      for (const event of ["pointerenter", "focusin"]) cell.addEventListener(event, () => this.#explain(name, head, i, j));
      (cells[i] ??= [])[j] = { cell, field };
      return cell;
    })));
    return h("figure", { class: "matrix" }, h("figcaption", {}, h("code", {}, TELLS[name][0]), h("span", { class: "soft" }, TELLS[name][1])), h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), cols.map((col) => h("th", { scope: "col" }, col)))), h("tbody", {}, body)));
  }

  #edit(name, i, j, field) {
    const number = Number(field.value.replace("−", "-").replace(",", "."));
    const fits = field.value.trim() !== "" && Number.isFinite(number) && Math.abs(number) <= 1000;
    field.setAttribute("aria-invalid", String(!fits));
    if (!fits) return;
    this.matrices[name][i][j] = number;
    this.changed = true;
    this.#store();
    this.compute();
  }

  async #compute() {
    const { mask, temperature, heads } = this, given = { ...this.matrices, mask, temperature, heads };
    if (this.scale !== null) given.scale = this.scale;
    try {
      const { data } = await this.app.source.ask("trace", given);
      if (this.app.open && this.app.open !== this) return;
      this.found = data;
      this.#fill();
    } catch (error) {
      this.told.textContent = error.message;
    }
  }

  #fill() {
    for (const [key, cells] of Object.entries(this.cells)) {
      const [name, head] = key.split("/");
      const values = head === undefined ? this.matrices[name] : this.found[name][head];
      const most = Math.max(1e-9, ...values.flat().map((v) => Math.abs(v ?? 0)));
      values.forEach((row, i) => row.forEach((value, j) => {
        const { cell, field } = cells[i][j];
        if (head !== undefined) field.textContent = plain(value);
        const tint = value === null ? 0 : Math.round((34 * Math.abs(value)) / (name === "weights" ? 1 : most));
        cell.style.backgroundColor = `color-mix(in srgb, ${value < 0 ? "var(--focus)" : "var(--accent)"} ${tint}%, transparent)`;
        cell.classList.toggle("infinite", value === null);
      }));
    }
    if (this.at) this.#explain(...this.at);
  }

  /** What a number is made of: in words, and by marking the numbers that it comes from. */
  #explain(name, head, i, j) {
    this.at = [name, head, i, j];
    for (const cells of Object.values(this.cells)) for (const row of cells) for (const { cell } of row) cell.classList.remove("chosen", "term", "other");
    if (!this.found) return;
    const mark = (key, what, kind = "term") => this.cells[key]?.forEach((row, a) => row.forEach(({ cell }, b) => what(a, b) && cell.classList.add(kind)));
    const value = head === null ? this.matrices[name][i][j] : this.found[name][head][i][j];
    const f = head === null ? null : (step) => this.found[step][head];
    mark(head === null ? name : `${name}/${head}`, (a, b) => a === i && b === j, "chosen");
    const product = (x, y) => x.map((v, n) => `${plain(v)} · ${plain(y[n])}`).join(" + ");
    const { tokens } = this.example, wide = head === null ? 0 : f("q")[0].length;
    let text = "";
    if (name === "x") text = `number ${j + 1} of the vector of “${tokens[i]}”`;
    else if (name.startsWith("W_")) text = `a learned number: it carries number ${i + 1} of a word into number ${j + 1} of its ${{ Q: "query", K: "key", V: "value" }[name[2]]}`;
    else if (["q", "k", "v"].includes(name)) {
      const W = `W_${name.toUpperCase()}`, col = j + head * f(name)[0].length;
      mark("x", (a) => a === i);
      mark(W, (_, b) => b === col, "other");
      text = `${product(this.matrices.x[i], this.matrices[W].map((row) => row[col]))}`;
    } else if (name === "scores") {
      mark(`q/${head}`, (a) => a === i);
      mark(`k/${head}`, (a) => a === j, "other");
      text = `query of “${tokens[i]}” · key of “${tokens[j]}” = ${product(f("q")[i], f("k")[j])}`;
    } else if (name === "scaled") {
      mark(`scores/${head}`, (a, b) => a === i && b === j);
      text = `${plain(this.found.scale)} · ${plain(f("scores")[i][j])}${this.scale === null ? `, with scale = 1/√${wide}` : ""}`;
    } else if (name === "masked") {
      mark(`scaled/${head}`, (a, b) => a === i && b === j);
      text = value === null ? `“${tokens[i]}” may not look at “${tokens[j]}”` : `allowed: as it was, ${plain(f("scaled")[i][j])}`;
    } else if (name === "weights") {
      mark(`masked/${head}`, (a, b) => a === i && b === j);
      mark(`masked/${head}`, (a, b) => a === i && b !== j, "other");
      const e = f("masked")[i].map((v) => (v === null ? "0" : `exp(${plain(v)}${this.temperature === 1 ? "" : ` / ${this.temperature}`})`));
      text = `${e[j]} / (${e.join(" + ")})`;
    } else {
      mark(`weights/${head}`, (a) => a === i);
      mark(`v/${head}`, (_, b) => b === j, "other");
      text = product(f("weights")[i], f("v").map((row) => row[j]));
    }
    this.told.replaceChildren(h("b", {}, plain(value)), name === "x" || name.startsWith("W_") ? ": " : " = ", text);
  }

  #every() {
    return Object.keys(this.cells).map((key) => {
      const [name, head] = key.split("/");
      return { name, head, values: head === undefined ? this.matrices[name] : this.found[name][head], names: this.#names(name) };
    });
  }

  #table() {
    const rows = [["step", "head", "row", "column", "value"]];
    for (const { name, head, values, names: [down, across] } of this.#every()) values.forEach((row, i) => row.forEach((v, j) => rows.push([name, head === undefined ? "" : +head + 1, down[i], across[j], v === null ? "-inf" : v])));
    return csv(rows);
  }

  #drawing() {
    const items = [];
    let y = 20, widest = 0;
    for (const { name, head, values, names: [down, across] } of this.#every()) {
      items.push(`<text x="16" y="${y}" font-weight="600">${escaped(TELLS[name][0] + (head !== undefined && this.heads > 1 ? ` (head ${+head + 1})` : ""))}</text>`);
      across.forEach((col, j) => items.push(`<text x="${130 + 74 * j}" y="${y + 20}" text-anchor="end" fill="#6d6975">${escaped(col)}</text>`));
      values.forEach((row, i) => {
        items.push(`<text x="16" y="${y + 40 + 20 * i}" fill="#6d6975">${escaped(down[i])}</text>`);
        row.forEach((v, j) => items.push(`<text x="${130 + 74 * j}" y="${y + 40 + 20 * i}" text-anchor="end">${plain(v)}</text>`));
        widest = Math.max(widest, 150 + 74 * row.length);
      });
      y += 20 * values.length + 60;
    }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${widest}" height="${y}" font-family="system-ui, sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>${items.join("")}</svg>`;
  }

  retheme() {
    this.view?.retheme?.();
  }

  close() {
    this.compute.cancel();
    this.view?.close();
  }
}

/** A number in at most four digits. */
function plain(v) {
  if (v === null || v === undefined) return "−∞";
  const text = Math.abs(v) >= 100 ? v.toFixed(0) : Number.isInteger(v) ? String(v) : v.toFixed(3).replace(/(\.\d\d)0$/, "$1");
  return text.replace("-", "−");
}
