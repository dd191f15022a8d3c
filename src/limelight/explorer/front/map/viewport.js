// Which part of a matrix is in view: the key and query at the upper left corner, and how many pixels a weight has.

const LARGEST = 96; // pixels of a weight, at most

export class Viewport {
  #listeners = new Set();
  #animation = 0;

  constructor(reduced) {
    Object.assign(this, { reduced, x: 0, y: 0, s: 1, keys: 1, queries: 1, width: 1, height: 1 });
  }

  onchange(listener) {
    this.#listeners.add(listener);
  }

  /** Changes to another matrix or another area of the screen; the corner and the zoom relative to the whole stay. */
  resize({ keys = this.keys, queries = this.queries, width = this.width, height = this.height }) {
    const times = this.s / this.least;
    Object.assign(this, { keys, queries, width: Math.max(1, width), height: Math.max(1, height) });
    this.set({ x: this.x, y: this.y, s: times * this.least });
  }

  get least() {
    return Math.min(LARGEST, this.width / this.keys, this.height / this.queries);
  }

  get isWhole() {
    return this.s <= this.least * 1.0001;
  }

  whole() {
    return { x: 0, y: 0, s: this.least };
  }

  /** Sets what is in view, no further than the matrix goes. */
  set({ x, y, s }) {
    this.s = Math.max(this.least, Math.min(LARGEST, s));
    const within = (from, n, size) => {
      const room = size / this.s;
      return n <= room ? (n - room) / 2 : Math.max(0, Math.min(n - room, from));
    };
    this.x = within(x, this.keys, this.width);
    this.y = within(y, this.queries, this.height);
    for (const listener of this.#listeners) listener();
  }

  stop() {
    cancelAnimationFrame(this.#animation);
  }

  pan(dx, dy) {
    this.stop();
    this.set({ x: this.x - dx / this.s, y: this.y - dy / this.s, s: this.s });
  }

  /** Zooms by a factor around a point of the screen, which stays where it is. */
  zoom(factor, px = this.width / 2, py = this.height / 2, smooth = false) {
    const s = Math.max(this.least, Math.min(LARGEST, this.s * factor));
    const to = { s, x: this.x + px / this.s - px / s, y: this.y + py / this.s - py / s };
    if (smooth) this.glide(to);
    else {
      this.stop();
      this.set(to);
    }
  }

  /** Goes somewhere in a fifth of a second, or at once where motion is not wanted. */
  glide(to) {
    this.stop();
    if (this.reduced.matches) return this.set(to);
    const from = { x: this.x, y: this.y, s: this.s }, begin = performance.now();
    const step = (now) => {
      const t = Math.min(1, Math.max(0, (now - begin) / 200)), f = t * (2 - t), s = from.s * (to.s / from.s) ** f;
      // The part of the way that zooming has gone, so that the point that stays does stay.
      const g = Math.abs(to.s - from.s) < 1e-9 ? f : (1 / from.s - 1 / s) / (1 / from.s - 1 / to.s);
      this.set({ s, x: from.x + g * (to.x - from.x), y: from.y + g * (to.y - from.y) });
      if (t < 1) this.#animation = requestAnimationFrame(step);
    };
    this.#animation = requestAnimationFrame(step);
  }

  /** Moves as little as is needed for a weight to be in view. */
  reveal(query, key, cells = 1) {
    const nearest = (from, at, size) => Math.min(Math.max(from, at + cells - size / this.s), at);
    const x = nearest(this.x, key, this.width), y = nearest(this.y, query, this.height);
    if (x !== this.x || y !== this.y) this.set({ x, y, s: this.s });
  }

  /** Puts a weight in the middle, at least so large. */
  centre(query, key, s = this.s) {
    const scale = Math.max(this.s, s);
    this.glide({ s: scale, x: key + 0.5 - this.width / scale / 2, y: query + 0.5 - this.height / scale / 2 });
  }
}
