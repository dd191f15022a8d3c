// The whole matrix in a corner, with a frame around what is in view.
import { Scale, picture } from "../colour.js";
import { h } from "../dom.js";

export class Minimap {
  constructor(app, plot, viewport) {
    Object.assign(this, { app, plot, viewport });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.frame = h("i", {});
    this.element = h("div", { class: "minimap", hidden: true }, this.canvas, this.frame);
    this.element.addEventListener("pointerdown", (event) => {
      this.element.setPointerCapture(event.pointerId);
      this.#go(event);
      this.element.onpointermove = (moved) => this.#go(moved);
    });
    this.element.addEventListener("pointerup", () => (this.element.onpointermove = null));
  }

  #go(event) {
    const box = this.element.getBoundingClientRect(), { keys, queries, width, height, s } = this.viewport;
    const key = ((event.clientX - box.left) / box.width) * keys, query = ((event.clientY - box.top) / box.height) * queries;
    this.viewport.stop();
    this.viewport.set({ s, x: key - width / s / 2, y: query - height / s / 2 });
    event.preventDefault();
  }

  update() {
    const { viewport, plot } = this, { x, y, s, width, height, keys, queries } = viewport;
    this.element.hidden = viewport.s < 1.5 * viewport.least;
    if (this.element.hidden) return;
    const tile = plot.layer?.tile(plot.layer.top, 0, 0);
    const most = Math.max(keys, queries), side = width < 500 ? 72 : 112, wide = Math.max(8, (side * keys) / most), high = Math.max(8, (side * queries) / most);
    Object.assign(this.element.style, { width: `${wide}px`, height: `${high}px`, right: `${plot.edge.right + 8}px`, top: `${plot.edge.top + 8}px` });
    const drawn = tile && `${plot.layer.prefix}/${this.app.theme}`;
    if (tile && this.drawn !== drawn) {
      picture(tile.values, tile.shape, new Scale("sqrt", tile.max, this.app.theme, plot.layer.signed), this.canvas);
      this.drawn = drawn;
    }
    const left = Math.max(0, x), top = Math.max(0, y), share = (n, of) => `${(100 * n) / of}%`;
    Object.assign(this.frame.style, { left: share(left, keys), top: share(top, queries), width: share(Math.min(keys, x + width / s) - left, keys), height: share(Math.min(queries, y + height / s) - top, queries) });
  }
}
