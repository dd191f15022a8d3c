// Where numbers come from: the local server, the file itself, or a notebook's messages. All answer the same questions.

const TYPES = { float32: Float32Array, int32: Int32Array, uint16: Uint16Array, uint8: Uint8Array };

const BACKGROUND = 2; // background questions that may wait for an answer at a time

/** Answers questions. Those of the background wait until nothing else is under way, 1 before 2. */
class Source {
  #foreground = 0;
  #waiting = [];
  #background = 0;

  /** Questions that have not been answered. */
  get pending() {
    return this.#foreground + this.#background + this.#waiting.length;
  }

  /** Returns { data, arrays }, or throws; an AbortSignal gives up on the answer. */
  async ask(name, given = {}, { signal, background = 0 } = {}) {
    if (background) return new Promise((resolve, reject) => {
      this.#waiting.push({ name, given, signal, resolve, reject, background });
      this.#waiting.sort((a, b) => a.background - b.background); // stable
      this.#next();
    });
    this.#foreground += 1;
    try {
      return await this.answer(name, given, signal);
    } finally {
      this.#foreground -= 1;
      this.#next();
    }
  }

  async #next() {
    if (this.#foreground || this.#background >= BACKGROUND) return;
    const one = this.#waiting.shift();
    if (!one) return;
    this.#background += 1;
    this.#next();
    try {
      if (one.signal?.aborted) throw new DOMException("no longer wanted", "AbortError");
      one.resolve(await this.answer(one.name, one.given, one.signal));
    } catch (error) {
      one.reject(error);
    } finally {
      this.#background -= 1;
      this.#next();
    }
  }
}

function arraysOf(shapes, bytesOf) {
  const arrays = {};
  let n = 0;
  for (const [name, { type, shape }] of Object.entries(shapes)) {
    const length = shape.reduce((a, b) => a * b, 1);
    arrays[name] = { shape, values: bytesOf(n++, TYPES[type], length) };
  }
  return arrays;
}

/** The local server. */
export class ServerSource extends Source {
  kind = "server";

  async answer(name, given, signal) {
    const response = await fetch(`ask/${name}`, {
      method: "POST", body: JSON.stringify(given), signal, headers: { "content-type": "application/json" },
    });
    if (!response.ok) {
      const told = await response.json().catch(() => ({}));
      throw new Error(told.error ?? `the server answered ${response.status}`);
    }
    const bytes = await response.arrayBuffer();
    const length = new DataView(bytes).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
    let at = 4 + length;
    const arrays = arraysOf(head.arrays, (_, Type, n) => {
      const values = new Type(bytes, at, n);
      at += values.byteLength;
      return values;
    });
    return { data: head.data, arrays };
  }
}

/** A notebook's widget: questions and answers are its messages. Where buffers get lost on the way, numbers come as text. */
export class WidgetSource extends Source {
  kind = "widget";
  #asked = new Map();
  #number = 0;
  #asText = false;

  constructor(model) {
    super();
    this.model = model;
    this.listener = (message, buffers) => this.#told(message, buffers);
    model.on("msg:custom", this.listener);
  }

  answer(name, given, signal) {
    const id = ++this.#number;
    return new Promise((resolve, reject) => {
      this.#asked.set(id, { resolve, reject, name, given });
      signal?.addEventListener("abort", () => {
        if (!this.#asked.delete(id)) return;
        this.model.send({ drop: id });
        reject(new DOMException("no longer wanted", "AbortError"));
      });
      this.#send(id, name, given);
    });
  }

  #send(id, name, given) {
    this.model.send({ id, name, given, ...(this.#asText ? { as: "text" } : {}) });
  }

  #told(message, buffers) {
    const one = this.#asked.get(message.id);
    if (!one) return;
    const parts = message.text?.map((text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0))) ?? buffers ?? [];
    if (!message.error && parts.length < Object.keys(message.head.arrays).length && !message.text) {
      this.#asText = true;
      return this.#send(message.id, one.name, one.given);
    }
    this.#asked.delete(message.id);
    if (message.error) return one.reject(new Error(message.error));
    const arrays = arraysOf(message.head.arrays, (n, Type, length) => {
      const { buffer = parts[n], byteOffset = 0 } = parts[n]; // a view may begin anywhere in a larger buffer
      return new Type(buffer.slice(byteOffset, byteOffset + length * Type.BYTES_PER_ELEMENT));
    });
    one.resolve({ data: message.head.data, arrays });
  }

  close() {
    this.model.off("msg:custom", this.listener);
  }
}

/** A saved page, which holds cells of each head and answers questions from them. */
export class FileSource extends Source {
  kind = "file";
  #heads = new Map();

  constructor(saved) {
    super();
    this.saved = saved;
  }

  async answer(name, given) {
    if (!this[name]) throw new Error("a saved page cannot answer this; open it with limelight explore");
    return { data: {}, arrays: {}, ...this[name](given) };
  }

  about() {
    return { data: this.saved.about };
  }

  report({ call }) {
    return { data: { rows: this.saved.reports[call] } };
  }

  /** The stored cells of a head: { mean, max, rows, cols, side }, where a cell covers side × side weights. */
  #head(call, head, batch = 0) {
    const key = `${call}/${batch}/${head}`;
    if (!this.#heads.has(key)) {
      const stored = this.saved.heads[key];
      const read = ({ top, cells }) => {
        const levels = new Uint16Array(Uint8Array.from(atob(cells), (c) => c.charCodeAt(0)).buffer);
        // 65535 is a masked cell; others are a share of the largest, by its square root, for small ones to keep digits.
        return Float32Array.from(levels, (x) => (x === 65535 ? -1 : (x / 65534) ** 2 * top));
      };
      const { queries, keys } = this.saved.about.calls[call], side = 1 << stored.level;
      const mean = read(stored.mean);
      const size = { rows: Math.ceil(queries / side), cols: Math.ceil(keys / side), side, queries, keys };
      this.#heads.set(key, { ...size, mean, max: stored.max ? read(stored.max) : mean });
    }
    return this.#heads.get(key);
  }

  tiles({ call, batch, head, reduce = "mean", tiles }) {
    const stored = this.#head(call, head, batch), arrays = {};
    for (const [level, row, col] of tiles) {
      const times = (1 << level) / stored.side;
      const rows = Math.min(256, Math.ceil(stored.rows / times) - 256 * row), cols = Math.min(256, Math.ceil(stored.cols / times) - 256 * col);
      const values = new Float32Array(rows * cols);
      for (let i = 0; i < rows; i++)
        for (let j = 0; j < cols; j++)
          values[i * cols + j] = joined(stored, reduce, (256 * row + i) * times, (256 * col + j) * times, times);
      arrays[`${level}/${row}/${col}`] = { shape: [rows, cols], values };
    }
    return { arrays };
  }

  thumbnails({ call, batch, head, count = 1 }) {
    const arrays = {};
    for (let h = head; h < head + count; h++) {
      const stored = this.#head(call, h, batch);
      let level = Math.log2(stored.side);
      while (Math.max(stored.queries, stored.keys) / (1 << level) > 64) level += 1;
      const times = (1 << level) / stored.side, rows = Math.ceil(stored.rows / times), cols = Math.ceil(stored.cols / times);
      const values = Float32Array.from({ length: rows * cols }, (_, n) => joined(stored, "mean", Math.floor(n / cols) * times, (n % cols) * times, times));
      arrays[h] = { shape: [rows, cols], values };
    }
    return { arrays };
  }

  strips({ call, batch = 0, head }) {
    const stored = this.saved.strips[`${call}/${batch}/${head}`], { finest, queries, keys } = this.saved.about.calls[call];
    const read = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    const spread = (text, n) => { const cells = read(text); return { shape: [n], values: Float32Array.from({ length: n }, (_, i) => cells[i >> finest]) }; };
    const profile = read(stored.profile);
    return { arrays: { entropy: spread(stored.entropy, queries), received: spread(stored.received, keys), profile: { shape: [profile.length], values: profile } } };
  }

  cell({ call, batch, head, level, row, col }) {
    const stored = this.#head(call, head, batch), times = (1 << level) / stored.side;
    const mean = joined(stored, "mean", row * times, col * times, times), max = joined(stored, "max", row * times, col * times, times);
    let i = row * times, j = col * times; // the strongest stored cell within
    for (let a = row * times; a < Math.min(stored.rows, (row + 1) * times); a++)
      for (let b = col * times; b < Math.min(stored.cols, (col + 1) * times); b++)
        if (stored.max[a * stored.cols + b] > stored.max[i * stored.cols + j]) [i, j] = [a, b];
    const line = Array.from({ length: stored.cols }, (_, b) => stored.mean[i * stored.cols + b]);
    const column = Array.from({ length: stored.rows }, (_, a) => stored.mean[a * stored.cols + j]);
    const own = line[j], exact = stored.side === 1;
    const listed = (x) => x.map((w, n) => [n * stored.side, w]).filter(([, w]) => w > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 8);
    return { data: {
      query: i * stored.side, key: j * stored.side, masked: mean < 0, weight: Math.max(0, own), mean: Math.max(0, mean), max: Math.max(0, max),
      rank: exact ? line.filter((w) => w > own).length + 1 : null, visible: exact ? line.filter((w) => w >= 0).length : null,
      entropy: exact ? -line.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : 0), 0) : null,
      received: exact ? column.reduce((sum, w) => sum + Math.max(0, w), 0) : null,
      seen_by: exact ? column.filter((w) => w >= 0).length : null, looks_at: listed(line), attended_by: listed(column),
    } };
  }

  attention({ sources, batch, token, side = "query" }) {
    const arrays = {};
    sources.forEach((source, n) => {
      if (source.of === "rollout") return (arrays[n] = this.#rolled(source.call, batch, token, side));
      const all = this.#members(source, batch);
      const { rows, cols, side: cell, queries, keys } = all[0], at = Math.floor(token / cell);
      const length = side === "query" ? keys : queries, values = new Float32Array(length);
      for (const { mean } of all)
        for (let x = 0; x < length; x++) {
          const along = Math.floor(x / cell);
          const w = side === "query" ? mean[at * cols + along] : mean[along * cols + at];
          values[x] += (all.length > 1 ? Math.max(0, w) : w) / all.length;
        }
      arrays[n] = { shape: [length], values };
    });
    return { arrays };
  }

  next({ call, token }) {
    const { text, predicts } = this.saved.about.calls[call];
    return { data: this.saved.next[text][token - predicts] };
  }

  matrix(source) {
    const all = this.#members(source, source.batch), { rows, cols, side } = all[0];
    if (side > 1) throw new Error("this page holds pooled cells only");
    const values = new Float32Array(rows * cols);
    for (const { mean } of all) mean.forEach((w, n) => { values[n] += Math.max(0, w) / all.length; });
    return { arrays: { weights: { shape: [rows, cols], values } } };
  }

  /** What reaches a token through all layers of its stack, or what it sends: half of it passes each layer unchanged. */
  #rolled(call, batch, token, side) {
    const calls = this.saved.about.calls, own = calls[call], layers = new Map(); // the latest pass of each
    if (own.kind !== "self" || own.queries !== own.keys || own.finest > 0) throw new Error("this page holds no rollout of this attention; open it with limelight explore");
    calls.forEach((c, n) => c.kind === "self" && c.stack === own.stack && c.queries === own.queries && c.keys === own.keys && layers.set(c.name, n));
    const size = own.queries, order = [...layers.values()];
    let u = new Float64Array(size);
    u[token] = 1;
    for (const n of side === "query" ? order.reverse() : order) {
      const next = u.map((x) => x / 2), { heads } = calls[n];
      for (let head = 0; head < heads; head++) {
        const { mean } = this.#head(n, head, batch);
        for (let i = 0; i < size; i++)
          for (let j = 0; j < size; j++) {
            const w = Math.max(0, mean[i * size + j]) / (2 * heads);
            if (side === "query") next[j] += w * u[i];
            else next[i] += w * u[j];
          }
      }
      u = next;
    }
    return { shape: [size], values: Float32Array.from(u) };
  }

  #members({ of = "head", call, head = 0 }, batch) {
    const calls = this.saved.about.calls, own = calls[call];
    const range = (n, c) => Array.from({ length: n }, (_, h) => this.#head(c, h, batch));
    if (of === "head") return [this.#head(call, head, batch)];
    if (of === "layer") return range(own.heads, call);
    if (of === "rollout") throw new Error("a saved page has no rollout; open it with limelight explore");
    return calls.flatMap((c, n) => (c.stack === own.stack && c.kind === own.kind && c.queries === own.queries && c.keys === own.keys ? range(c.heads, n) : []));
  }
}

/** The mean or max of times × times stored cells; −1 where all are masked. Cells at the edges count by what they cover. */
function joined(stored, reduce, row, col, times) {
  const { rows, cols, side, queries, keys } = stored, cells = stored[reduce];
  if (times === 1) return cells[row * cols + col];
  let sum = 0, area = 0, max = -1;
  for (let i = row; i < Math.min(rows, row + times); i++)
    for (let j = col; j < Math.min(cols, col + times); j++) {
      const w = cells[i * cols + j], covers = Math.min(side, queries - i * side) * Math.min(side, keys - j * side);
      max = Math.max(max, w);
      sum += Math.max(0, w) * covers;
      area += covers;
    }
  return max < 0 ? -1 : reduce === "max" ? max : sum / area;
}
