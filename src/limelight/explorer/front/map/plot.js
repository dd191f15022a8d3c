// One matrix on a canvas: cells, tokens at the edges, strips of statistics, the place that is pointed at.
import { ink, picture } from "../colour.js";
import { count, shown } from "../dom.js";
import { SIDE } from "./layers.js";

const PAINTING = 4; // milliseconds a frame for colouring tiles
const LABELLED = 11, NUMBERED = 38; // pixels of a weight, from which on tokens and numbers fit
const FONT = "system-ui, sans-serif";

export class Plot {
  /** Options: `names`: tokens by side or null; `strips()`: statistics that have come; `cursor()`: { query, key } or null. */
  constructor(app, canvas, viewport, options) {
    Object.assign(this, { app, canvas, viewport, ...options, pen: canvas.getContext("2d", { alpha: false }), dirty: false, layer: null });
    this.observer = new ResizeObserver(() => this.measure());
    this.observer.observe(canvas.parentElement);
  }

  /** The size on the screen, and what the edges take of it. */
  measure() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement, ratio = devicePixelRatio || 1;
    if (!width || !height) return;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const small = width < 560;
    this.bare = width < 240; // no room for anything at the edges
    this.edge = this.bare ? { left: 5, top: 5, right: 5, bottom: 5 } : { left: small ? 54 : 84, top: small ? 48 : 66, right: small ? 20 : 44, bottom: small ? 18 : 34 };
    this.viewport.resize({ width: width - this.edge.left - this.edge.right, height: height - this.edge.top - this.edge.bottom });
    this.colours = null;
    this.draw();
  }

  request() {
    if (this.dirty) return;
    this.dirty = true;
    requestAnimationFrame(() => {
      this.dirty = false;
      if (this.layer && this.width) this.draw();
    });
  }

  /** The level whose cells have at least one pixel. */
  get level() {
    return Math.max(this.layer.finest, Math.min(this.layer.top, Math.ceil(-Math.log2(this.viewport.s * this.ratio) - 1e-9)));
  }

  /** Tiles of a level that are in view, those in the middle first. */
  inView(level) {
    const { x, y, s, width, height, keys, queries } = this.viewport, span = SIDE << level, found = [];
    const last = (from, size, n) => Math.floor((Math.min(n, from + size / s) - 1e-9) / span);
    for (let row = Math.max(0, Math.floor(y / span)); row <= last(y, height, queries); row++)
      for (let col = Math.max(0, Math.floor(x / span)); col <= last(x, width, keys); col++) found.push([level, row, col]);
    const mid = { row: (y + height / s / 2) / span - 0.5, col: (x + width / s / 2) / span - 0.5 };
    const far = ([, row, col]) => Math.abs(row - mid.row) + Math.abs(col - mid.col);
    return found.sort((a, b) => far(a) - far(b));
  }

  /** The place of a weight on the canvas. */
  toScreen(query, key) {
    const { x, y, s } = this.viewport;
    return [this.edge.left + (key - x) * s, this.edge.top + (query - y) * s];
  }

  /** The part of the canvas that shows the matrix: what is written at its edges stands next to it. */
  get frame() {
    const { edge, viewport } = this, { width, height, queries, keys } = viewport, [left, top] = this.toScreen(0, 0), [right, bottom] = this.toScreen(queries, keys);
    return { left: Math.max(edge.left, left), top: Math.max(edge.top, top), right: Math.min(edge.left + width, right), bottom: Math.min(edge.top + height, bottom) };
  }

  /** The weight at a place of the canvas, or null outside. */
  toMatrix(px, py) {
    const { x, y, s, width, height, keys, queries } = this.viewport;
    const across = px - this.edge.left, down = py - this.edge.top;
    const key = Math.floor(x + across / s), query = Math.floor(y + down / s);
    const inside = across >= 0 && down >= 0 && across < width && down < height && key >= 0 && query >= 0 && key < keys && query < queries;
    return inside ? { query, key } : null;
  }

  draw() {
    if (!this.layer || !this.width) return;
    const { pen, ratio } = this, tiles = this.inView(this.level);
    this.layer.want(this.layer.top > this.level ? [...tiles, [this.layer.top, 0, 0]] : tiles);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.#colour("--panel");
    pen.fillRect(0, 0, this.width, this.height);
    this.#cells(tiles);
    if (!this.bare) {
      this.#labels();
      this.#strips();
    }
    this.#cross();
    if (this.moreToPaint) this.request();
  }

  #colour(name) {
    this.colours ??= {};
    return (this.colours[name] ??= getComputedStyle(this.app.root).getPropertyValue(name).trim());
  }

  #cells(tiles) {
    const { pen, edge, viewport } = this, { width, height, keys, queries } = viewport;
    const begin = performance.now();
    this.moreToPaint = false;
    pen.save();
    pen.beginPath();
    pen.rect(edge.left, edge.top, width, height);
    pen.clip();
    const [left, top] = this.toScreen(0, 0), [right, bottom] = this.toScreen(queries, keys);
    pen.fillStyle = this.#hatch();
    pen.fillRect(left, top, right - left, bottom - top);
    pen.imageSmoothingEnabled = false;
    for (const at of tiles) {
      const tile = this.layer.tile(...at), image = tile && this.#picture(tile, begin);
      if (image) this.#tile(tile, image);
      else this.#ancestor(...at, begin);
    }
    if (this.level === 0 && viewport.s >= NUMBERED) this.#numbers();
    pen.strokeStyle = this.#colour("--line");
    pen.lineWidth = 1;
    pen.strokeRect(left - 0.5, top - 0.5, right - left + 1, bottom - top + 1);
    pen.restore();
  }

  /** A tile with the colours of the scale; where no time is left in this frame, with its former ones, or null. */
  #picture(tile, begin) {
    if (tile.painted !== this.scale.key) {
      if (performance.now() - begin > PAINTING) this.moreToPaint = true;
      else {
        tile.canvas = picture(tile.values, tile.shape, this.scale, tile.canvas ?? undefined);
        tile.painted = this.scale.key;
      }
    }
    return tile.canvas;
  }

  #tile(tile, image) {
    const span = SIDE << tile.level, cell = 1 << tile.level, { keys, queries } = this.viewport;
    const [x0, y0] = this.toScreen(tile.row * span, tile.col * span);
    const [x1, y1] = this.toScreen(Math.min(queries, tile.row * span + tile.shape[0] * cell), Math.min(keys, tile.col * span + tile.shape[1] * cell));
    this.#blit(image, 0, 0, tile.shape[1], tile.shape[0], x0, y0, x1, y1);
  }

  /** The same part from the nearest coarser tile that has come. */
  #ancestor(level, row, col, begin) {
    for (let up = 1; level + up <= this.layer.top; up++) {
      const tile = this.layer.tile(level + up, row >> up, col >> up), image = tile && this.#picture(tile, begin);
      if (!image) continue;
      const part = SIDE / 2 ** up, left = (col * SIDE) / 2 ** up - (col >> up) * SIDE, top = (row * SIDE) / 2 ** up - (row >> up) * SIDE;
      const wide = Math.min(part, tile.shape[1] - left), high = Math.min(part, tile.shape[0] - top);
      if (wide <= 0 || high <= 0) return;
      const span = SIDE << level, cell = 1 << (level + up), [x0, y0] = this.toScreen(row * span, col * span);
      const [x1, y1] = this.toScreen(Math.min(this.viewport.queries, row * span + high * cell), Math.min(this.viewport.keys, col * span + wide * cell));
      return this.#blit(image, left, top, wide, high, x0, y0, x1, y1);
    }
  }

  #blit(image, sx, sy, sw, sh, x0, y0, x1, y1) {
    const r = this.ratio, at = (v) => Math.round(v * r) / r;
    this.pen.drawImage(image, sx, sy, sw, sh, at(x0), at(y0), at(x1) - at(x0), at(y1) - at(y0));
  }

  #hatch() {
    const line = this.#colour("--hatch");
    if (this.hatched?.line !== line) {
      const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
      canvas.width = canvas.height = 6;
      pen.fillStyle = this.#colour("--masked");
      pen.fillRect(0, 0, 6, 6);
      pen.strokeStyle = line;
      pen.lineWidth = 1;
      pen.beginPath();
      for (const d of [-6, 0, 6]) {
        pen.moveTo(d - 1, 7);
        pen.lineTo(d + 7, -1);
      }
      pen.stroke();
      this.hatched = { line, pattern: this.pen.createPattern(canvas, "repeat") };
    }
    return this.hatched.pattern;
  }

  /** The value of a cell of the level in view: NaN where it is masked, undefined where it has not come. */
  value(query, key, level = this.level) {
    const row = query >> level, col = key >> level, tile = this.layer.tile(level, Math.floor(row / SIDE), Math.floor(col / SIDE));
    if (!tile) return undefined;
    const x = tile.values[(row % SIDE) * tile.shape[1] + (col % SIDE)];
    return !this.layer.signed && x < 0 ? NaN : x;
  }

  /** The largest value among the cells in view. */
  largest() {
    const level = this.level, { x, y, s, width, height } = this.viewport;
    let max = 0;
    for (const at of this.inView(level)) {
      const tile = this.layer.tile(...at);
      if (!tile || tile.max <= max) continue;
      const [rows, cols] = tile.shape, cell = 1 << level;
      const from = (start, tileAt) => Math.max(0, Math.floor(start / cell) - tileAt * SIDE), to = (end, tileAt, n) => Math.min(n, Math.ceil(end / cell) - tileAt * SIDE);
      for (let i = from(y, tile.row); i < to(y + height / s, tile.row, rows); i++)
        for (let j = from(x, tile.col); j < to(x + width / s, tile.col, cols); j++) {
          const v = Math.abs(tile.values[i * cols + j]);
          if (v > max && (this.layer.signed || tile.values[i * cols + j] >= 0)) max = v;
        }
    }
    return max;
  }

  #range() {
    const { x, y, s, width, height, keys, queries } = this.viewport;
    return { top: Math.max(0, Math.floor(y)), bottom: Math.min(queries, Math.ceil(y + height / s)), left: Math.max(0, Math.floor(x)), right: Math.min(keys, Math.ceil(x + width / s)) };
  }

  #numbers() {
    const { pen } = this, { top, bottom, left, right } = this.#range(), { s } = this.viewport;
    pen.font = `${Math.min(13, s / 3.6)}px ${FONT}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let i = top; i < bottom; i++)
      for (let j = left; j < right; j++) {
        const v = this.value(i, j, 0);
        if (v === undefined || Number.isNaN(v)) continue;
        const [px, py] = this.toScreen(i + 0.5, j + 0.5);
        pen.fillStyle = ink(this.scale.rgb(v));
        pen.fillText(short(v), px, py);
      }
  }

  #labels() {
    const { pen, edge, frame, names } = this, { s } = this.viewport, { top, bottom, left, right } = this.#range();
    pen.font = `11px ${FONT}`;
    pen.fillStyle = this.#colour("--soft");
    pen.textBaseline = "middle";
    const cursor = this.cursor(), strong = this.#colour("--ink");
    const tokens = s >= LABELLED, step = tokens ? 1 : nice(56 / s);
    pen.save();
    pen.beginPath();
    pen.rect(0, frame.top - 8, frame.left, frame.bottom - frame.top + 16);
    pen.clip();
    pen.textAlign = "right";
    for (let i = Math.ceil(top / step) * step; i < bottom; i += step) {
      const py = this.toScreen(i + (tokens ? 0.5 : 0), 0)[1];
      pen.fillStyle = tokens && cursor?.query === i ? strong : this.#colour("--soft");
      pen.fillText(tokens ? clipped(name(names.query, i), edge.left > 60 ? 13 : 8) : count(i), frame.left - 7, py);
      if (!tokens) pen.fillRect(frame.left - 5, py, 4, 1);
    }
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(frame.left - 2, 0, frame.right - frame.left + 62, frame.top);
    pen.clip();
    pen.textAlign = tokens ? "left" : "center";
    const slope = -Math.PI / 2.9, cos = Math.cos(slope), sin = Math.sin(slope), r = this.ratio;
    for (let j = Math.ceil(left / step) * step; j < right; j += step) {
      const px = this.toScreen(0, j + (tokens ? 0.5 : 0))[0];
      pen.fillStyle = tokens && cursor?.key === j ? strong : this.#colour("--soft");
      if (tokens) {
        pen.setTransform(r * cos, r * sin, -r * sin, r * cos, r * px, r * (frame.top - 6));
        pen.fillText(clipped(name(names.key, j), edge.top > 60 ? 11 : 7), 0, 0);
      } else {
        pen.fillText(count(j), Math.max(px, frame.left + 10), frame.top - 14);
        pen.fillRect(px, frame.top - 5, 1, 4);
      }
    }
    pen.restore();
  }

  /** Entropy along the right edge, received attention along the lower one; a bar is the mean of what it stands for. */
  #strips() {
    const { pen, edge, frame, viewport } = this, strips = this.strips?.();
    if (!strips) return;
    const { s } = viewport, { top, bottom, left, right } = this.#range();
    const step = Math.max(1, 1 << Math.max(0, Math.ceil(-Math.log2(s) + 0.6))), gap = s * step > 5 ? 1 : 0;
    const bars = (sums, from, to, room, put) => {
      const mean = (a) => (sums[Math.min(sums.length - 1, a + step)] - sums[a]) / (Math.min(sums.length - 1, a + step) - a);
      let max = 1e-12;
      const first = Math.floor(from / step) * step;
      for (let a = first; a < to; a += step) max = Math.max(max, mean(a));
      pen.beginPath();
      for (let a = first; a < to; a += step) put(a, (mean(a) / max) * room);
      pen.fill();
    };
    pen.save();
    pen.beginPath();
    pen.rect(frame.left, frame.top, frame.right - frame.left + edge.right, frame.bottom - frame.top + edge.bottom);
    pen.clip();
    pen.fillStyle = this.#colour("--strip");
    bars(strips.entropy, top, bottom, edge.right - 12, (i, long) => {
      const y = this.toScreen(i, 0)[1];
      pen.rect(frame.right + 6, y + gap / 2, long, s * step - gap);
    });
    bars(strips.received, left, right, edge.bottom - 8, (j, long) => {
      const x = this.toScreen(0, j)[0];
      pen.rect(x + gap / 2, frame.bottom + 5, s * step - gap, long);
    });
    pen.restore();
  }

  #cross() {
    const cursor = this.cursor();
    if (!cursor) return;
    const { pen, edge, viewport } = this, { width, height } = viewport, cell = 1 << this.level;
    const top = cursor.query - (cursor.query % cell), left = cursor.key - (cursor.key % cell);
    const [x0, y0] = this.toScreen(top, left), [x1, y1] = this.toScreen(Math.min(viewport.queries, top + cell), Math.min(viewport.keys, left + cell));
    pen.save();
    pen.beginPath();
    pen.rect(edge.left, edge.top, width, height);
    pen.clip();
    pen.strokeStyle = this.#colour("--focus");
    pen.globalAlpha = 0.45;
    pen.lineWidth = 1;
    pen.beginPath();
    const [left0, top0] = this.toScreen(0, 0), [right0, bottom0] = this.toScreen(viewport.queries, viewport.keys);
    const cx = Math.round((x0 + x1) / 2) + 0.5, cy = Math.round((y0 + y1) / 2) + 0.5;
    for (const [a, b, c, d] of [[left0, cy, x0, cy], [x1, cy, right0, cy], [cx, top0, cx, y0], [cx, y1, cx, bottom0]]) {
      pen.moveTo(a, b);
      pen.lineTo(c, d);
    }
    pen.stroke();
    pen.globalAlpha = 1;
    pen.lineWidth = 2;
    const grow = Math.max(0, (7 - (x1 - x0)) / 2);
    pen.strokeRect(x0 - grow, y0 - grow, x1 - x0 + 2 * grow, y1 - y0 + 2 * grow);
    pen.restore();
  }

  /** Ends it; a frame that has been asked for draws nothing, since the viewport may be of another matrix by then. */
  close() {
    this.observer.disconnect();
    this.layer = null;
  }
}

export const name = (tokens, n) => (tokens ? shown(tokens[n]) : String(n));
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

/** A weight in a cell: as short as it can be. */
function short(v) {
  const x = Math.abs(v), sign = v < 0 ? "−" : "";
  if (x < 0.0005) return x === 0 ? "0" : `${sign}·`;
  return sign + (x < 0.01 ? x.toFixed(3) : x.toFixed(2)).replace(/^0/, "");
}

/** The next of 1, 2, 5, 10, … */
function nice(x) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, x)));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= x) ?? 1;
}
