// The frame around the rooms: the header, the address, the theme.
import * as address from "./address.js";
import { count, h, waiting } from "./dom.js";
import { headsRoom } from "./rooms/heads.js";
import { mapRoom } from "./rooms/map.js";
import { pictureRoom } from "./rooms/picture.js";
import { stepsRoom } from "./rooms/steps.js";
import { textRoom } from "./rooms/text.js";
import { translateRoom } from "./rooms/translate.js";
import { whatIfRoom } from "./rooms/what_if.js";
import { Subject } from "./subject.js";

const ROOMS = [pictureRoom, headsRoom, mapRoom, textRoom, stepsRoom, translateRoom, whatIfRoom];

/** Starts the explorer in an element, with data from a source. */
export async function start(root, source, { embedded = false } = {}) {
  try {
    const { data } = await source.ask("about");
    return new App(root, source, data, embedded);
  } catch (error) {
    root.replaceChildren(h("p", { class: "starting", role: "alert" }, `This cannot be shown: ${error.message}`));
    throw error;
  }
}

class App {
  constructor(root, source, about, embedded) {
    Object.assign(this, { root, source, embedded, subject: new Subject(source, about) });
    root.explorer = this; // for scripts and tests
    this.rooms = ROOMS.filter((room) => room.suits(this));
    this.reduced = matchMedia("(prefers-reduced-motion: reduce)");
    this.state = this.#valid(embedded ? { room: "" } : address.read(location.hash));
    this.#frame();
    this.#watchTheme();
    this.listener = () => this.#restore();
    if (!embedded) addEventListener("popstate", this.listener);
    this.#enter();
    if (!embedded) history.replaceState(null, "", address.write(this.state));
  }

  /** A state with a room, a call, a head and a batch element that exist. */
  #valid(given) {
    const { calls, opens } = this.subject, whole = (x, n, otherwise) => (/^\d+$/.test(x ?? "") && +x < n ? +x : otherwise);
    const room = this.rooms.some((r) => r.id === given.room) ? given.room : this.rooms[0].id;
    const call = whole(given.call, calls.length, opens?.[0] ?? 0);
    const head = whole(given.head, calls[call].heads, opens?.[0] === call ? opens[1] : 0);
    return { ...given, room, call, head, batch: whole(given.batch, calls[call].batch, 0) };
  }

  get room() {
    return this.rooms.find((room) => room.id === this.state.room);
  }

  /** Changes the state; `push` makes a step that the browser's Back undoes. */
  go(changes, push = false) {
    const before = this.state;
    this.state = this.#valid({ ...before, ...Object.fromEntries(Object.entries(changes).map(([k, v]) => [k, v === null || v === undefined ? undefined : String(v)])), call: String(changes.call ?? before.call), head: String(changes.head ?? before.head), batch: String(changes.batch ?? before.batch) });
    if (!this.embedded) history[push ? "pushState" : "replaceState"](null, "", address.write(this.state));
    if (before.room !== this.state.room) this.#enter();
    else if (["call", "head", "batch"].some((name) => before[name] !== this.state[name])) this.open.update(before);
  }

  #restore() {
    const before = this.state;
    this.state = this.#valid(address.read(location.hash));
    if (before.room !== this.state.room) this.#enter();
    else this.open.restore?.() ?? this.open.update(before);
  }

  #frame() {
    const { title, calls, note } = this.subject;
    this.tabs = this.rooms.map((room) => h("a", {
      href: `#${room.id}`,
      onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.go({ room: room.id }, true);
      },
    }, room.title));
    const longest = Math.max(...calls.map((call) => call.keys)), layers = new Set(calls.map((call) => call.name)).size;
    const heads = Math.max(...calls.map((call) => call.heads));
    this.main = h("main", { id: "room", tabindex: -1 });
    this.live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
    this.root.replaceChildren(
      h("header", { class: "top" },
        h("h1", { class: "mark" }, "lime", h("i", {}, "light")),
        h("nav", { "aria-label": "Rooms" }, this.tabs),
        h("p", { class: "model" }, h("b", {}, title), h("span", {}, ` · ${count(longest)} tokens · ${layers} × ${heads} heads`))),
      note ? h("p", { class: "note" }, note) : "", this.main, this.live);
  }

  #enter() {
    this.open?.close();
    this.tabs.forEach((tab, n) => (this.rooms[n].id === this.state.room ? tab.setAttribute("aria-current", "page") : tab.removeAttribute("aria-current")));
    this.tabs.find((tab) => tab.hasAttribute("aria-current"))?.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (!this.embedded) document.title = `${this.room.title} · ${this.subject.title} · limelight`;
    this.main.replaceChildren();
    this.main.className = `room ${this.room.id}`;
    this.open = this.room.open(this, this.main);
  }

  /** True while nothing is being asked, waited for or drawn. */
  get isIdle() {
    const plots = this.open?.shown ?? [this.open?.plot];
    return this.source.pending === 0 && waiting.size === 0 && !plots.some((plot) => plot?.dirty);
  }

  /** Tells a screen reader. */
  say(text) {
    this.live.textContent = text;
  }

  /** "light" or "dark": the theme of the notebook, or of the system. */
  #watchTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const told = () => {
      if (!this.embedded) return dark.matches;
      const { body, documentElement: page } = document, jupyter = body.dataset.jpThemeLight, colab = page.getAttribute("theme");
      if (jupyter) return jupyter === "false";
      if (colab) return colab === "dark";
      if (/vscode-/.test(body.className)) return /vscode-(dark|high-contrast)(?!-light)/.test(body.className);
      return body.classList.contains("dark") || (dark.matches && !body.classList.contains("light"));
    };
    const apply = () => {
      const theme = told() ? "dark" : "light";
      if (theme === this.theme) return;
      this.theme = this.root.dataset.theme = theme;
      this.open?.retheme?.();
    };
    apply();
    dark.addEventListener("change", apply);
    if (!this.embedded) return;
    this.themes = new MutationObserver(apply);
    for (const element of [document.body, document.documentElement]) this.themes.observe(element, { attributes: true });
  }

  close() {
    this.open?.close();
    removeEventListener("popstate", this.listener);
    this.themes?.disconnect();
  }
}
