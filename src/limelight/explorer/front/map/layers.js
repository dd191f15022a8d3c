// The cells of a head, tile by tile, as they are looked at.
import { largest } from "../colour.js";

export const SIDE = 256;
const KEPT = 160; // tiles in memory: the values and the picture of each are half a megabyte
const TOGETHER = 4, AT_ONCE = 3; // tiles in a request, and requests at a time

/** Tiles of all heads that were looked at lately. */
class Cache {
  #tiles = new Map();

  get(key) {
    const tile = this.#tiles.get(key);
    if (tile) {
      this.#tiles.delete(key);
      this.#tiles.set(key, tile);
    }
    return tile;
  }

  set(key, tile) {
    this.#tiles.set(key, tile);
    for (const old of this.#tiles.keys()) {
      if (this.#tiles.size <= KEPT) break;
      this.#tiles.delete(old);
    }
  }
}

const cache = new Cache();

function tileOf(level, row, col, { values, shape }) {
  return { level, row, col, values, shape, max: largest(values), canvas: null, painted: "" };
}

/** One head. */
export class HeadLayer {
  #under = new Map(); // tile → request
  #failed = new Map();
  signed = false;

  constructor(app, { call, head, batch, reduce }, arrived) {
    const { top, finest = 0 } = app.subject.calls[call];
    Object.assign(this, { app, call, head, batch, reduce, arrived, top, finest });
    // The explorers of a notebook's cells have sources of their own.
    this.prefix = `${(app.source.number ??= HeadLayer.count++)}/${call}/${batch}/${head}/${reduce}`;
  }

  static count = 0;

  tile(level, row, col) {
    return cache.get(`${this.prefix}/${level}/${row}/${col}`);
  }

  /** Asks for what is missing of some tiles [level, row, col], the first ones first, and gives up on all others. */
  want(tiles) {
    const wanted = new Set(tiles.map(String));
    for (const request of new Set(this.#under.values()))
      if (!request.tiles.some((tile) => wanted.has(String(tile)))) {
        request.control.abort();
        for (const tile of request.tiles) this.#under.delete(String(tile));
      }
    const missing = tiles.filter((tile) => !this.tile(...tile) && !this.#under.has(String(tile)) && (this.#failed.get(String(tile)) ?? 0) < 3);
    while (missing.length && new Set(this.#under.values()).size < AT_ONCE) this.#request(missing.splice(0, TOGETHER));
    this.missing = missing.length > 0 || this.#under.size > 0;
    this.wanted = tiles;
  }

  async #request(tiles) {
    const request = { tiles, control: new AbortController() };
    for (const tile of tiles) this.#under.set(String(tile), request);
    const { call, head, batch, reduce } = this;
    try {
      const { arrays } = await this.app.source.ask("tiles", { call, head, batch, reduce, tiles }, { signal: request.control.signal });
      for (const tile of tiles) cache.set(`${this.prefix}/${tile.join("/")}`, tileOf(...tile, arrays[tile.join("/")]));
    } catch (error) {
      if (error.name === "AbortError") return;
      for (const tile of tiles) this.#failed.set(String(tile), (this.#failed.get(String(tile)) ?? 0) + 1);
      this.app.say(`Some tiles did not come: ${error.message}`);
    }
    for (const tile of tiles) this.#under.delete(String(tile));
    this.arrived();
  }

  close() {
    for (const request of new Set(this.#under.values())) request.control.abort();
    this.#under.clear();
  }
}

/** The first head minus the second. */
export class DifferenceLayer {
  signed = true;
  #made = new Map();

  constructor(first, second) {
    Object.assign(this, { first, second, call: first.call, top: first.top, finest: first.finest, prefix: `${first.prefix}−${second.prefix}` });
  }

  tile(level, row, col) {
    const a = this.first.tile(level, row, col), b = this.second.tile(level, row, col);
    if (!a || !b) return undefined;
    const key = `${level}/${row}/${col}`, made = this.#made.get(key);
    if (made) return made;
    const values = new Float32Array(a.values.length);
    let max = 0;
    for (let n = 0; n < values.length; n++) {
      values[n] = a.values[n] < 0 || b.values[n] < 0 ? NaN : a.values[n] - b.values[n];
      if (Math.abs(values[n]) > max) max = Math.abs(values[n]);
    }
    const tile = { level, row, col, values, shape: a.shape, max, canvas: null, painted: "" };
    if (this.#made.size > 64) this.#made.clear();
    this.#made.set(key, tile);
    return tile;
  }

  want(tiles) {
    this.first.want(tiles);
    this.second.want(tiles);
    this.missing = this.first.missing || this.second.missing;
  }

  close() {
    this.first.close();
    this.second.close();
  }
}
