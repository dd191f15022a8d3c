// The text around the query that is pointed at, tinted by what it looks at.
import { Scale, ink, rowHigh } from "../colour.js";
import { h, shown } from "../dom.js";

const AROUND = 48; // tokens before and after

export class TextStrip {
  constructor(app, choose) {
    Object.assign(this, { app, choose });
    this.element = h("div", { class: "strip", "aria-label": "Text around the query", role: "group" });
  }

  async show(given, signal) {
    const { call, head, batch, query, key } = given, { subject, source } = this.app;
    const tokens = subject.tokens(call, batch, "key");
    if (!tokens) return;
    const { arrays } = await source.ask("attention", { sources: [{ call, head }], batch, token: query, side: "query" }, { signal });
    this.last = { tokens, weights: arrays[0].values, query: subject.isOneText(call) ? query : null, key };
    this.#draw();
  }

  #draw() {
    const { tokens, weights, query, key } = this.last, middle = query ?? key;
    const scale = new Scale("sqrt", rowHigh(weights), this.app.theme);
    const begin = Math.max(0, middle - AROUND), end = Math.min(tokens.length, Math.max(middle + 12, begin + 2 * AROUND));
    const far = key < begin || key >= end ? [key] : [];
    const word = (n) => {
      const w = Math.max(0, weights[n]), rgb = scale.rgb(w), tinted = scale.place(w) > 0.06;
      const style = tinted ? { backgroundColor: `rgb(${rgb.join(" ")})`, color: ink(rgb) } : {};
      return h("span", { class: `${n === query ? "own" : ""} ${n === key ? "at" : ""}`, style }, shown(tokens[n]));
    };
    const items = [];
    if (far.length && key < begin) items.push(word(key), h("span", { class: "soft" }, " … "));
    else if (begin > 0) items.push(h("span", { class: "soft" }, "… "));
    for (let n = begin; n < end; n++) items.push(word(n), " ");
    if (far.length && key >= end) items.push(h("span", { class: "soft" }, " … "), word(key));
    this.element.replaceChildren(...items);
    const own = this.element.querySelector(".own") ?? this.element.querySelector(".at");
    if (own) this.element.scrollTop = Math.max(0, own.offsetTop - this.element.offsetTop - 24);
  }

  retheme() {
    if (this.last) this.#draw();
  }
}
