// Translate: type English, see French, and the words that each word is written from.
import { h, settled, shown, svg } from "../dom.js";
import { csv, escaped, png, saveMenu } from "../save.js";

export const translateRoom = {
  id: "translate", title: "Translate", open: (app, element) => new TranslateRoom(app, element),
  suits: ({ subject, source }) => Boolean(subject.translates) && source.kind !== "file",
};

const EXAMPLE = "The cat is sleeping on the table because it is tired.";
const LEAST = 0.08; // links with a lower weight are not drawn
const END = "</s>";
const spoken = (word) => (word === END ? "end" : shown(word)), ending = (word) => (word === END ? " ending" : "");

class TranslateRoom {
  #asked = null;

  constructor(app, element) {
    Object.assign(this, { app, sentences: [] });
    this.field = h("textarea", { rows: 3, maxlength: 2000, "aria-label": "English", placeholder: "Write something in English", lang: "en" });
    this.field.value = app.state.text ?? EXAMPLE;
    this.field.addEventListener("input", settled(() => this.#changed(), 200));
    this.whole = h("p", { class: "french", lang: "fr", "aria-live": "polite" });
    this.notes = h("ul", { class: "notes" });
    this.list = h("div", { class: "sentences" });
    const save = saveMenu(() => "translation", { PNG: () => png(this.#drawing()), SVG: () => this.#drawing(), CSV: () => this.#table() });
    element.append(h("section", { class: "stage scrolls lesson", "aria-label": "Translate", tabindex: -1 },
      h("div", { class: "bar" }, h("p", { class: "soft" }, "Lines lead to the words that a word is written from. Choose a French word for others in its place."), h("div", { class: "tools" }, save)),
      h("div", { class: "both" }, h("div", {}, h("h2", {}, "English"), this.field), h("div", {}, h("h2", {}, "French"), this.whole, this.notes)), this.list));
    this.resized = new ResizeObserver(settled(() => this.#lines(), 50));
    this.resized.observe(this.list);
    this.#translate();
  }

  #changed() {
    this.app.go({ text: this.field.value === EXAMPLE ? null : this.field.value, chosen: null });
    this.#translate();
  }

  restore() {
    this.field.value = this.app.state.text ?? EXAMPLE;
    this.#translate();
    return true;
  }

  update() {}

  async #translate() {
    this.#asked?.abort();
    const control = (this.#asked = new AbortController());
    if (!this.field.value.trim()) return this.#show({ text: "", notes: [], sentences: [] });
    try {
      const { data } = await this.app.source.ask("translate", { text: this.field.value }, { signal: control.signal });
      if (control.signal.aborted) return;
      this.#show(data);
      const chosen = /^(\d+):(\d+(?:,\d+)*)$/.exec(this.app.state.chosen ?? "");
      if (chosen && this.sentences[chosen[1]]) await this.#goOn(+chosen[1], chosen[2].split(",").map(Number), false);
    } catch (error) {
      if (error.name !== "AbortError") this.notes.replaceChildren(h("li", {}, error.message));
    }
  }

  #show({ text, notes, sentences }) {
    this.sentences = sentences;
    this.whole.textContent = text;
    this.notes.replaceChildren(...notes.map((note) => h("li", {}, note)));
    this.list.replaceChildren(...sentences.map((sentence, n) => this.#sentence(sentence, n)));
    this.#lines();
  }

  #sentence(sentence, n) {
    const told = h("p", { class: "soft small" }, `cross-attention of ${sentence.head}`, sentence.doubtful ? h("span", { class: "tag" }, "doubtful") : "");
    const read = h("div", { class: "words read", lang: "en" }, sentence.read.map(({ word }) => h("span", { class: `chip-word${ending(word)}` }, spoken(word))));
    const written = h("div", { class: "words", lang: "fr" }, sentence.written.map(({ word, places }, i) => {
      const sure = places.reduce((product, place) => product * sentence.probabilities[place], 1);
      const button = h("button", { type: "button", class: `chip-word${ending(word)}`, "aria-expanded": "false", title: `probability ${sure.toFixed(2)}`, onclick: () => this.#offer(n, i, button) }, spoken(word), h("i", { class: "sure", style: { width: `${Math.round(100 * sure)}%` } }));
      if (sure < 0.3) button.classList.add("unsure");
      for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => this.#light(box, i));
      button.addEventListener("pointerleave", () => this.#light(box, box.chosen));
      return button;
    }));
    const box = h("section", { class: "sentence" }, read, svg("svg", { class: "links", "aria-hidden": "true" }), written, h("div", { class: "offers", hidden: true }), told);
    return Object.assign(box, { sentence, chosen: null, lit: null });
  }

  /** Lines between the words, the stronger the thicker. */
  #lines() {
    for (const box of this.list.children) {
      const lines = box.querySelector(".links"), around = lines.getBoundingClientRect(), { weights } = box.sentence;
      const middle = (element) => { const { left, width } = element.getBoundingClientRect(); return left + width / 2 - around.left; };
      const end = (element, below) => { const { top, bottom } = element.getBoundingClientRect(); return (below ? top : bottom) - around.top; };
      const read = box.querySelectorAll(".read > *"), written = box.querySelectorAll("button.chip-word");
      lines.replaceChildren(...weights.flatMap((row, i) => row.map((w, j) => {
        if (w < LEAST) return null;
        const [x0, y0, x1, y1] = [middle(read[j]), end(read[j], false), middle(written[i]), end(written[i], true)], half = (y0 + y1) / 2;
        const path = svg("path", { d: `M${x0} ${y0}C${x0} ${half} ${x1} ${half} ${x1} ${y1}`, "stroke-width": 0.8 + 4 * w, "stroke-opacity": 0.15 + 0.75 * w });
        path.written = i;
        return path;
      }).filter(Boolean)));
      this.#light(box, box.lit);
    }
  }

  /** One written word: its lines alone, and tints on what it is written from. */
  #light(box, i) {
    box.lit = i;
    box.classList.toggle("lit", i !== null);
    for (const path of box.querySelectorAll("path")) path.classList.toggle("own", path.written === i);
    [...box.querySelectorAll(".read > *")].forEach((word, j) => {
      const w = i === null ? 0 : box.sentence.weights[i][j];
      word.style.backgroundColor = w > 0.02 ? `color-mix(in srgb, var(--accent) ${Math.round(70 * Math.sqrt(w))}%, transparent)` : "";
    });
  }

  /** What else the model would have written in a word's place; choosing it goes on from there. */
  #offer(n, i, button) {
    const box = this.list.children[n], sentence = this.sentences[n], place = sentence.written[i].places[0], offers = box.querySelector(".offers"), open = button.getAttribute("aria-expanded") === "true";
    for (const other of box.querySelectorAll("[aria-expanded]")) other.setAttribute("aria-expanded", "false");
    offers.hidden = open;
    box.chosen = open ? null : i;
    if (open) return;
    button.setAttribute("aria-expanded", "true");
    const most = sentence.alternatives[place][0].probability;
    offers.replaceChildren(h("p", { class: "soft" }, `In place of “${spoken(sentence.written[i].word)}” it might begin with`), h("ol", { class: "bars" }, sentence.alternatives[place].map(({ id, token, probability }) => h("li", {},
      h("button", { type: "button", "aria-pressed": String(id === sentence.ids[place + 1]), onclick: () => this.#goOn(n, [...sentence.ids.slice(0, place + 1), id]) }, h("span", {}, spoken(token))), h("i", { style: { width: `${(100 * probability) / most}%` } }), h("em", {}, probability.toFixed(3))))));
  }

  /** Writes a sentence on from some tokens; the address keeps the latest choice. */
  async #goOn(n, prefix, focus = true) {
    const { source } = this.sentences[n];
    try {
      const { data } = await this.app.source.ask("continue", { source, prefix });
      this.sentences[n] = data.sentence;
      const fresh = this.#sentence(data.sentence, n);
      this.list.children[n].replaceWith(fresh);
      this.whole.textContent = this.sentences.map((sentence) => sentence.text).join(" ");
      this.#lines();
      if (!focus) return;
      this.app.go({ chosen: `${n}:${prefix.join(",")}` });
      const place = prefix.length - 2, word = data.sentence.written.findIndex(({ places }) => places.includes(place));
      fresh.querySelectorAll("button.chip-word")[word]?.focus();
    } catch (error) {
      this.notes.replaceChildren(h("li", {}, error.message));
    }
  }

  #table() {
    const rows = [["sentence", "written", "read", "weight"]];
    this.sentences.forEach((sentence, n) => sentence.weights.forEach((row, i) => row.forEach((w, j) => rows.push([n + 1, sentence.written[i].word, sentence.read[j].word, w]))));
    return csv(rows);
  }

  #drawing() {
    const around = this.list.getBoundingClientRect(), style = getComputedStyle(this.app.root), colour = (name) => style.getPropertyValue(name).trim(), items = [];
    for (const box of this.list.children) {
      const lines = box.querySelector(".links"), { left, top } = lines.getBoundingClientRect();
      for (const path of lines.children) items.push(`<path transform="translate(${left - around.left} ${top - around.top})" d="${path.getAttribute("d")}" fill="none" stroke="${colour("--accent")}" stroke-width="${path.getAttribute("stroke-width")}" stroke-opacity="${path.getAttribute("stroke-opacity")}"/>`);
      for (const word of box.querySelectorAll(".chip-word")) { const b = word.getBoundingClientRect(); items.push(`<text x="${b.left + b.width / 2 - around.left}" y="${b.top + b.height * 0.7 - around.top}" text-anchor="middle" font-size="16" font-family="system-ui, sans-serif" fill="${colour("--ink")}">${escaped(word.textContent)}</text>`); }
    }
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${around.width}" height="${around.height}"><rect width="100%" height="100%" fill="${colour("--panel")}"/>${items.join("")}</svg>`;
  }

  close() {
    this.#asked?.abort();
    this.resized.disconnect();
  }
}
