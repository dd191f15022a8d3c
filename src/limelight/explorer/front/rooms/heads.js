// Heads: every layer × head as a thumbnail with its label; the chosen one is enlarged beside them.
import { Scale } from "../colour.js";
import { h } from "../dom.js";
import { HeadGrid, MEASURES } from "../grid.js";
import { HeadLayer } from "../map/layers.js";
import { Plot } from "../map/plot.js";
import { Viewport } from "../map/viewport.js";
import { csv, escaped, png, saveMenu } from "../save.js";

export const headsRoom = { id: "heads", title: "Heads", suits: () => true, open: (app, element) => new HeadsRoom(app, element) };

const ABOUT = {
  entropy: "of its rows, in nats", spread: "entropy, as a share of the largest possible", first: "weight on the first token", self: "weight on the token itself",
  previous: "weight on the token before", next: "weight on the token after", near: "weight within 8 tokens", separators: "weight on punctuation and separators",
  distance: "how far away it looks, in tokens", duplicate: "weight on other occurrences of the token", induction: "weight on what followed the token before", similarity: "mean cosine to the other heads of its layer",
};

class HeadsRoom {
  constructor(app, element) {
    this.app = app;
    this.grid = new HeadGrid(app, { large: true, choose: (call, head) => app.go({ call, head }), isChosen: (call, head) => call === app.state.call && head === app.state.head });
    this.name = h("h2", { class: "name" });
    this.canvas = h("canvas", { role: "img" });
    this.box = h("div", { class: "plot still" }, this.canvas);
    this.measures = h("table", { class: "measures" });
    const enter = (room, text) => h("button", { type: "button", class: "button", onclick: () => app.go({ room }, true) }, text);
    const save = saveMenu(() => `${app.subject.title} heads`, { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() });
    element.append(
      h("section", { class: "wall scrolls", "aria-label": "All heads", tabindex: -1 }, this.grid.element),
      h("aside", { class: "side right scrolls chosen-head", "aria-label": "Chosen head", tabindex: -1 }, h("div", { class: "bar" }, this.name, h("div", { class: "tools" }, enter("map", "Map"), enter("text", "Text"), save)), this.box, this.measures));
    this.viewport = new Viewport(app.reduced);
    this.viewport.onchange(() => this.plot?.request());
    this.#show();
  }

  #show() {
    const { app } = this, { subject } = app, { call, head, batch } = app.state, { queries, keys } = subject.calls[call];
    this.plot?.layer.close();
    this.plot?.close();
    this.viewport.resize({ queries, keys });
    const names = { query: subject.tokens(call, batch, "query"), key: subject.tokens(call, batch, "key") };
    const plot = (this.plot = new Plot(app, this.canvas, this.viewport, { names, cursor: () => null }));
    plot.layer = new HeadLayer(app, { call, head, batch, reduce: "mean" }, () => this.#colours());
    plot.scale = new Scale("sqrt", 1, app.theme);
    this.canvas.setAttribute("aria-label", `Attention matrix of ${subject.name(call, head)}`);
    plot.measure();
    this.viewport.set(this.viewport.whole());
    this.#colours();
    this.#described();
    subject.report(call).then(() => app.open === this && this.#described(), () => {});
  }

  #colours() {
    const { plot } = this;
    plot.scale = new Scale("sqrt", plot.largest() || 1, this.app.theme);
    plot.request();
  }

  #described() {
    const { subject, state } = this.app, row = subject.row(state.call, state.head);
    this.name.replaceChildren(subject.name(state.call, state.head), row ? h("span", { class: "tag" }, row.label) : "");
    if (!row) return this.measures.replaceChildren(h("caption", { class: "soft" }, "Measuring…"));
    const all = subject.groupOf(state.call).calls.flatMap((call) => subject.calls[call].report ?? []);
    const most = Object.fromEntries(MEASURES.map((m) => [m, Math.max(1e-9, ...all.map((r) => r[m] ?? 0))]));
    this.measures.replaceChildren(h("caption", { class: "unseen" }, "Measures of this head"), h("tbody", {}, MEASURES.filter((m) => row[m] !== null).map((m) => h("tr", { title: ABOUT[m] },
      h("th", { scope: "row" }, m), h("td", {}, row[m].toFixed(m === "distance" ? 1 : 3)), h("td", { class: "meter" }, h("i", { style: { width: `${(100 * row[m]) / most[m]}%` } }))))));
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

  #buttons() {
    return [...this.grid.list.querySelectorAll("button")].filter((button) => button.thumbnail);
  }

  #drawing() {
    const { columns } = this.grid, side = 72, line = 90, buttons = this.#buttons(), rows = Math.ceil(buttons.length / columns);
    const items = buttons.map((button, n) => {
      const x = (n % columns) * (side + 8) + 8, y = Math.floor(n / columns) * line + 8;
      return `<image x="${x}" y="${y}" width="${side}" height="${side}" preserveAspectRatio="none" image-rendering="pixelated" href="${button.querySelector("canvas").toDataURL()}"/><text x="${x}" y="${y + side + 11}" font-size="9" font-family="system-ui, sans-serif" fill="#6d6975">${escaped(button.title.replace("Layer ", "").replace(", head ", "."))}</text>`;
    });
    const width = columns * (side + 8) + 8, height = rows * line + 8;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><rect width="100%" height="100%" fill="#fff"/>${items.join("")}</svg>`;
  }

  #table() {
    const { subject, state } = this.app, rows = subject.groupOf(state.call).calls.flatMap((call) => subject.calls[call].report ?? []);
    const names = ["module", "stack", "kind", "layer", "head", "label", ...MEASURES];
    return csv([names, ...rows.map((row) => names.map((n) => row[n] ?? ""))]);
  }

  close() {
    this.plot.layer.close();
    this.plot.close();
    this.grid.close();
  }
}
