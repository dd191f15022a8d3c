// One query of a real head: the keys that it looks at most, and how their weights come about.
import { count, dropdown, h, shown, weight } from "../dom.js";
import { csv, escaped, png, saveMenu } from "../save.js";

export class QueryView {
  #asked = null;

  constructor(app, body, controls, told) {
    Object.assign(this, { app, body, controls, told });
    this.update();
  }

  update() {
    const { app } = this, { subject, state } = app;
    const { queries } = subject.calls[state.call], tokens = subject.tokens(state.call, state.batch, "query");
    this.query = /^\d+$/.test(state.token ?? "") && +state.token < queries ? +state.token : queries - 1;
    const place = h("input", { type: "number", min: 0, max: queries - 1, value: this.query, "aria-label": "Position of the query", onchange: (event) => this.#choose(+event.target.value) });
    const words = tokens && queries <= 400 ? dropdown("Query", tokens.map((t, n) => [n, `${n}  ${shown(t)}`]), this.query, (n) => this.#choose(n)) : place;
    this.controls.replaceChildren(dropdown("Head", subject.allHeads, `${state.call}.${state.head}`, (value) => { const [call, head] = value.split("."); app.go({ call, head }); }), h("label", { class: "slider" }, "query", words),
      saveMenu(() => "steps of a query", { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => csv(this.#table()) }));
    this.#ask();
  }

  #choose(n) {
    this.app.go({ token: n });
    this.update();
  }

  async #ask() {
    const { app } = this, { call, head, batch } = app.state;
    this.#asked?.abort();
    this.#asked = new AbortController();
    try {
      const { data, arrays } = await app.source.ask("query", { call, head, batch, query: this.query }, { signal: this.#asked.signal });
      this.#show(data, arrays);
    } catch (error) {
      if (error.name !== "AbortError") this.told.textContent = error.message;
    }
  }

  /** The keys and their numbers, with a row of names. */
  #table() {
    const { subject, state } = this.app, { data } = this.found, tokens = subject.tokens(state.call, state.batch, "key");
    return [["key", "token", "score", "scaled", "capped", "biased", "weight"], ...data.keys.map((key, n) => [key, tokens?.[key] ?? "", data.scores[n], data.scaled[n], data.capped[n], data.biased[n], data.weights[n]])];
  }

  #drawing() {
    const style = getComputedStyle(this.app.root), colour = (name) => style.getPropertyValue(name).trim(), [, ...rows] = this.#table(), most = Math.max(1e-12, ...rows.map((row) => row[6]));
    const text = (x, y, content, more = "") => `<text x="${x}" y="${y}" ${more} fill="${colour("--ink")}">${escaped(content)}</text>`;
    const lines = rows.map(([key, token, score, , , , share], n) => text(10, 24 * n + 26, `${shown(token || String(key))} ${key}`) + text(260, 24 * n + 26, score.toFixed(2), 'text-anchor="end"') + text(340, 24 * n + 26, weight(share), 'text-anchor="end"') + `<rect x="356" y="${24 * n + 17}" width="${(230 * share) / most}" height="9" rx="2" fill="${colour("--accent")}"/>`);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="600" height="${24 * rows.length + 20}" font-family="system-ui, sans-serif" font-size="13"><rect width="100%" height="100%" fill="${colour("--panel")}"/>${lines.join("")}</svg>`;
  }

  #show(data, arrays) {
    this.found = { data, arrays };
    const { subject, state } = this.app, keys = subject.tokens(state.call, state.batch, "key"), queries = subject.tokens(state.call, state.batch, "query");
    const [, width] = arrays.k.shape, most = Math.max(1e-12, ...data.weights), hot = data.temperature !== 1;
    const columns = [["score", "q · k", data.scores], ["scaled", `× ${data.scale.toPrecision(3)}`, data.scaled]];
    if (data.softcap !== null) columns.push(["capped", `${data.softcap} tanh(x / ${data.softcap})`, data.capped]);
    if (data.bias) columns.push(["biased", "+ bias", data.biased]);
    const number = (x) => x.toFixed(Math.abs(x) < 100 ? 2 : 0).replace("-", "−");
    const own = queries ? shown(queries[this.query]) : String(this.query);
    this.bars = h("div", { class: "products" });
    const rows = data.keys.map((key, n) => {
      const row = h("tr", { tabindex: 0 }, h("th", { scope: "row" }, keys ? shown(keys[key]) : "", h("small", {}, ` ${count(key)}`)), columns.map(([, , values]) => h("td", {}, number(values[n]))),
        h("td", {}, data.masked[n] ? "−∞" : weight(data.weights[n])), h("td", { class: "meter" }, h("i", { style: { width: `${(100 * data.weights[n]) / most}%` } })));
      for (const event of ["pointerenter", "focusin"]) row.addEventListener(event, () => this.#products(data, arrays, n));
      return row;
    });
    const rest = data.others > 0 ? h("tr", { class: "soft" }, h("th", { scope: "row" }, `${count(data.others)} others`), columns.map(() => h("td", {})), h("td", {}, data.rest === null ? "" : weight(data.rest)), h("td", { class: "meter" }, h("i", { style: { width: `${Math.min(100, (100 * (data.rest ?? 0)) / most)}%` } }))) : "";
    this.body.replaceChildren(
      h("section", { class: "step" }, h("h2", {}, `What “${own}” looks at, and why`), h("p", { class: "soft" }, `Its query of ${width} numbers meets the key of every token that it may see. softmax makes shares of the ${data.bias ? "biased" : "scaled"} scores${hot ? `, divided by the temperature ${data.temperature}` : ""}${data.logsumexp === null ? "" : `: weight = exp(score − ${data.logsumexp.toFixed(2)})`}.`),
        h("div", { class: "wide" }, h("table", { class: "query" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "key"), columns.map(([name, how]) => h("th", { scope: "col" }, name, h("small", {}, how))), h("th", { scope: "col" }, "weight", h("small", {}, "softmax")), h("td", {}))), h("tbody", {}, rows, rest)))),
      h("section", { class: "step" }, h("h2", {}, "Where a score comes from"), this.bars));
    if (data.keys.length) this.#products(data, arrays, 0);
  }

  /** The products of the numbers of query and key, whose sum is the score. */
  #products(data, arrays, n) {
    const { subject, state } = this.app, keys = subject.tokens(state.call, state.batch, "key"), [, width] = arrays.k.shape;
    const k = arrays.k.values.subarray(n * width, (n + 1) * width), q = arrays.q.values, products = Array.from(q, (v, d) => v * k[d]), most = Math.max(1e-12, ...products.map(Math.abs));
    const name = keys ? shown(keys[data.keys[n]]) : count(data.keys[n]);
    const strip = (title, values) => {
      const top = Math.max(1e-12, ...Array.from(values, Math.abs));
      return h("div", { class: "vector" }, h("span", { class: "soft" }, title), h("div", { class: "cells" }, Array.from(values, (v, d) => h("i", { title: `${d}: ${v.toFixed(3)}`, style: { backgroundColor: `color-mix(in srgb, ${v < 0 ? "var(--focus)" : "var(--accent)"} ${Math.round((90 * Math.abs(v)) / top)}%, transparent)` } }))));
    };
    this.bars.replaceChildren(strip("q", q), strip(`k of “${name}”`, k),
      h("div", { class: "vector" }, h("span", { class: "soft" }, "q · k"), h("div", { class: "cells bars-of" }, products.map((p, d) => h("i", { title: `${d}: ${q[d].toFixed(3)} · ${k[d].toFixed(3)} = ${p.toFixed(3)}`, class: p < 0 ? "below" : "", style: { height: `${(46 * Math.abs(p)) / most}%` } })))),
      h("p", {}, `${width} products add up to the score `, h("b", {}, data.scores[n].toFixed(2).replace("-", "−")), "."));
    for (const [m, row] of [...this.body.querySelectorAll(".query tbody tr")].entries()) row.classList.toggle("chosen", m === n);
    this.told.textContent = `“${name}”: score ${data.scores[n].toFixed(2)}, weight ${data.masked[n] ? "masked" : weight(data.weights[n])}`;
  }

  close() {
    this.#asked?.abort();
  }
}
