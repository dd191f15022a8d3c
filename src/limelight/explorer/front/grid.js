// Heads as thumbnails, by layer or sorted by a measure: large in their own room, small next to the other rooms.
import { Scale, largest, picture } from "./colour.js";
import { dropdown, h, reach, roving } from "./dom.js";

export const MEASURES = ["entropy", "spread", "first", "self", "previous", "next", "near", "separators", "distance", "duplicate", "induction", "similarity"];

export class HeadGrid {
  /** Options: `large` for captions and sorting; `choose(call, head, event)`; `isChosen(call, head)`. */
  constructor(app, options) {
    Object.assign(this, { app, ...options });
    this.controls = h("div", { class: "head-controls" });
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Labels" });
    this.list = h("div", { class: `heads-grid${this.large ? " large" : ""}`, role: "group", "aria-label": "Heads" });
    this.empty = h("p", { class: "soft", hidden: true }, "There is no such head.");
    this.element = h("div", { class: "head-picker" }, this.controls, this.chips, this.list, this.empty);
    roving(this.list, () => this.columns);
    this.label = app.state.label ?? "";
    this.sort = app.state.sort ?? "";
    this.least = Number(app.state.least) || 0; // heads below this share of the largest measure are left out
    this.shown = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && this.#draw(entry.target)));
    if (this.large) {
      this.resized = new ResizeObserver(() => this.#size());
      this.resized.observe(app.main);
    }
    this.build();
  }

  /** Thumbnails as large as lets all layers be in view, within reason. */
  #size() {
    const room = this.app.main.clientHeight - 108, rows = this.group.calls.length;
    this.list.style.setProperty("--side", `${Math.round(Math.max(42, Math.min(96, room / rows - 19)))}px`);
  }

  get group() {
    return this.app.subject.groupOf(this.app.state.call);
  }

  build() {
    const { app, group } = this, { subject, state } = app;
    this.built = `${group.title}/${state.batch}`;
    const many = subject.groups.length > 1, batches = subject.calls[group.calls[0]].batch;
    this.controls.replaceChildren(
      many ? dropdown("Attention", subject.groups.map((g) => [g, g.title]), group, (g) => app.go({ call: g.calls[0], head: 0 }, true)) : "",
      batches > 1 ? dropdown("Batch element", Array.from({ length: batches }, (_, b) => [b, `text ${b + 1}`]), state.batch, (b) => app.go({ batch: b }, true)) : "",
      this.large ? h("label", {}, "sort by ", dropdown("Sort by", [["", "layer"], ["label", "label"], ...MEASURES.map((m) => [m, m])], this.sort, (m) => this.#arrange({ sort: m, least: 0 }))) : "",
      this.large ? this.#threshold() : "");
    this.#arrange({});
    for (const call of group.calls) subject.report(call).then(() => this.#labelled(), () => {});
  }

  /** A slider that leaves out heads with less of the measure that is sorted by. */
  #threshold() {
    this.slider = h("input", { type: "range", min: 0, max: 1, step: 0.01, value: this.least, "aria-label": "At least", oninput: (event) => this.#arrange({ least: +event.target.value }) });
    this.said = h("output", {});
    return (this.limit = h("label", { class: "slider" }, "at least", this.slider, this.said));
  }

  #heads() {
    const { subject } = this.app, heads = [];
    for (const call of this.group.calls)
      for (let head = 0; head < subject.calls[call].heads; head++) heads.push({ call, head, row: subject.row(call, head) });
    return heads;
  }

  /** Lays the thumbnails out anew, by another sort or label. */
  #arrange({ sort = this.sort, label = this.label, least = this.least }) {
    Object.assign(this, { sort, label, least });
    if (this.large) this.app.go({ sort, label, least: least || null });
    const { subject } = this.app;
    let heads = this.#heads();
    const byLayer = !sort, measured = MEASURES.includes(sort);
    if (label) heads = heads.filter(({ row }) => row?.label === label);
    if (this.limit) {
      const most = measured ? Math.max(0, ...heads.map(({ row }) => row?.[sort] ?? 0)) : 0;
      this.limit.hidden = !measured;
      this.slider.value = least;
      this.said.textContent = (least * most).toFixed(2);
      if (measured && least) heads = heads.filter(({ row }) => (row?.[sort] ?? -1) >= least * most);
    }
    if (measured) heads.sort((a, b) => (b.row?.[sort] ?? -Infinity) - (a.row?.[sort] ?? -Infinity));
    else if (sort) heads.sort((a, b) => (a.row?.label ?? "").localeCompare(b.row?.label ?? ""));
    const widest = Math.max(...this.group.calls.map((call) => subject.calls[call].heads));
    this.columns = byLayer && !label ? widest : Math.min(widest, 12);
    this.list.style.setProperty("--columns", this.columns);
    this.list.classList.toggle("by-layer", byLayer && !label);
    this.list.classList.toggle("dense", this.columns > 9);
    const items = [];
    let layer = null;
    for (const { call, head, row } of heads) {
      if (byLayer && !label && call !== layer) {
        layer = call;
        items.push(h("span", { class: "layer", title: subject.calls[call].name }, subject.calls[call].layer ?? "·"));
      }
      items.push(this.#button(call, head, row));
    }
    this.list.replaceChildren(...items);
    this.empty.hidden = heads.length > 0;
    this.#chips();
    this.mark();
    if (this.large) this.#size();
  }

  #button(call, head, row) {
    const canvas = h("canvas", { width: 1, height: 1 });
    const caption = this.large ? h("span", { class: "caption" }, this.#caption(call, head, row)) : "";
    const button = h("button", { type: "button", class: "thumb", onclick: (event) => this.choose(call, head, event) }, canvas, caption);
    Object.assign(button, { call, head });
    this.#name(button, row);
    this.shown.observe(button);
    return button;
  }

  #caption(call, head, row) {
    const { layer } = this.app.subject.calls[call], place = this.sort || this.label ? `${layer ?? "·"}.${head} ` : "";
    if (MEASURES.includes(this.sort) && row) return `${place}${row[this.sort] === null ? "–" : row[this.sort].toFixed(this.sort === "distance" ? 1 : 2)}`;
    return `${place}${row?.label ?? "…"}`;
  }

  #name(button, row) {
    const name = `${this.app.subject.name(button.call, button.head)}${row ? `: ${row.label}` : ""}`;
    button.setAttribute("aria-label", name);
    button.title = name;
  }

  async #draw(button) {
    this.shown.unobserve(button);
    try {
      const { values, shape } = await this.app.subject.thumbnail(button.call, this.app.state.batch, button.head);
      button.thumbnail = { values, shape };
      this.#paint(button);
    } catch (error) {
      button.classList.add("failed");
    }
  }

  #paint(button) {
    const { values, shape } = button.thumbnail;
    picture(values, shape, new Scale("sqrt", largest(values), this.app.theme), button.querySelector("canvas"));
    button.classList.add("drawn");
  }

  /** Reports have come: labels, chips, and the order where it depends on them. */
  #labelled() {
    if (this.label || this.sort) return this.#arrange({});
    for (const button of this.list.querySelectorAll("button")) {
      const row = this.app.subject.row(button.call, button.head);
      this.#name(button, row);
      if (this.large) button.querySelector(".caption").textContent = this.#caption(button.call, button.head, row);
    }
    this.#chips();
  }

  #chips() {
    const counts = new Map(), heads = this.#heads();
    for (const { row } of heads) if (row) counts.set(row.label, (counts.get(row.label) ?? 0) + 1);
    const chip = (value, text, n) => h("button", { type: "button", class: "chip", "aria-pressed": this.label === value, onclick: () => this.#arrange({ label: value }) }, text, h("small", {}, n));
    this.chips.replaceChildren(chip("", "all", heads.length), ...[...counts].sort((a, b) => b[1] - a[1]).map(([name, n]) => chip(name, name, n)));
  }

  /** Marks what is chosen. */
  mark() {
    let first = null;
    for (const button of this.list.querySelectorAll("button")) {
      const chosen = this.isChosen(button.call, button.head);
      button.setAttribute("aria-pressed", Boolean(chosen));
      button.style.setProperty("--mark", typeof chosen === "string" ? chosen : "var(--accent)");
      if (chosen && !first) first = button;
    }
    reach(this.list, first ?? this.list.querySelector("button"));
    this.marked = first;
  }

  update() {
    if (this.built !== `${this.group.title}/${this.app.state.batch}`) this.build();
    this.mark();
    const box = this.element.closest(".scrolls");
    if (this.marked && box) {
      const own = this.marked.getBoundingClientRect(), around = box.getBoundingClientRect();
      if (own.top < around.top || own.bottom > around.bottom) this.marked.scrollIntoView({ block: "nearest" });
    }
  }

  retheme() {
    for (const button of this.list.querySelectorAll("button")) if (button.thumbnail) this.#paint(button);
  }

  close() {
    this.resized?.disconnect();
    this.shown.disconnect();
  }
}
