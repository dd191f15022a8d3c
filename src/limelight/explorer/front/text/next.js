// The predictions of a decoder after the chosen token, and the token that came.
import { count, h, shown } from "../dom.js";

export class NextTokens {
  #asked = null;

  constructor(app) {
    this.app = app;
    this.element = h("section", { class: "next", "aria-live": "polite", hidden: true });
  }

  /** Shows what is expected after a token; nothing for attention that is not a decoder's own. */
  async show(call, token) {
    const { source, subject } = this.app, { predicts } = subject.calls[call];
    this.#asked?.abort();
    this.element.hidden = predicts === null || predicts === undefined || token < predicts;
    if (this.element.hidden) return;
    const control = (this.#asked = new AbortController());
    try {
      const { data } = await source.ask("next", { call, token }, { signal: control.signal });
      if (!control.signal.aborted) this.#list(data);
    } catch (error) {
      if (error.name !== "AbortError") this.element.replaceChildren(h("p", { role: "alert" }, error.message));
    }
  }

  #list({ likeliest, came }) {
    const most = likeliest[0][1], is = (n) => came && came[2] === n + 1 && likeliest[n][0] === came[0];
    const line = ([token, p], n) => h("li", { class: is(n) ? "came" : "" }, h("span", {}, shown(token)), h("i", { style: { width: `${(100 * p) / most}%` } }), h("em", {}, p.toFixed(3)));
    this.element.replaceChildren(
      h("h2", {}, "Probable next tokens"), h("ol", { class: "bars plain" }, likeliest.map(line)),
      came ? h("p", { class: "soft small" }, "It was ", h("b", {}, `“${shown(came[0])}”`), `, ${came[1].toFixed(3)}, the ${came[2] === 1 ? "" : `${ordinal(came[2])} `}likeliest.`) : "");
  }

  close() {
    this.#asked?.abort();
  }
}

/** 2 → "2nd", 12 → "12th". */
function ordinal(n) {
  const teen = n % 100 > 10 && n % 100 < 14;
  return count(n) + (teen ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th"));
}
