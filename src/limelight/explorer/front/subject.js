// The subject of the page: its calls and tokens, and a cache of answers about heads.

const SMALL = 1024; // tokens, up to which all thumbnails of a call are asked for at once

export class Subject {
  #thumbnails = new Map();
  #reports = new Map();

  constructor(source, about) {
    Object.assign(this, about);
    this.source = source;
    this.groups = grouped(this.calls);
  }

  /** The group (stack and kind of attention, and pass) that a call belongs to. */
  groupOf(call) {
    return this.groups.find((group) => group.calls.includes(call)) ?? this.groups[0];
  }

  /** The tokens of a side of a call, or null where only positions are known. */
  tokens(call, batch, side) {
    const at = this.calls[call].texts[batch]?.[side === "query" ? 0 : 1];
    return at === null || at === undefined ? null : this.texts[at];
  }

  /** True if queries and keys are the same text. */
  isOneText(call) {
    const { queries, keys, kind } = this.calls[call];
    return queries === keys && kind === "self";
  }

  /** A small picture of a head: { shape, values }. */
  thumbnail(call, batch, head) {
    const { queries, keys, heads } = this.calls[call];
    const together = Math.max(queries, keys) <= SMALL ? Math.min(heads, 64) : 1, first = head - (head % together);
    const key = `${call}/${batch}/${first}`;
    if (!this.#thumbnails.has(key)) {
      const given = { call, batch, head: first, count: Math.min(together, heads - first) };
      this.#thumbnails.set(key, this.#kept(this.#thumbnails, key, this.source.ask("thumbnails", given, { background: 1 })));
    }
    return this.#thumbnails.get(key).then(({ arrays }) => arrays[head]);
  }

  /** The measures and labels of all heads of a call. */
  report(call) {
    if (!this.#reports.has(call))
      this.#reports.set(call, this.#kept(this.#reports, call, this.source.ask("report", { call }, { background: 2 })).then(({ data }) => {
        this.calls[call].report = data.rows;
        return data.rows;
      }));
    return this.#reports.get(call);
  }

  #kept(map, key, promise) {
    promise.catch(() => map.delete(key)); // so that it is asked for again
    return promise;
  }

  /** The row of the report on a head, where it has come already. */
  row(call, head) {
    return this.calls[call].report?.[head] ?? null;
  }

  /** All heads for a drop-down list: ["call.head", name]. */
  get allHeads() {
    const named = (c, call, head) => [`${call}.${head}`, this.groups.length > 1 ? `${this.name(call, head)} · ${c.stack} ${c.kind}` : this.name(call, head)];
    return (this.listed ??= this.calls.flatMap((c, call) => Array.from({ length: c.heads }, (_, head) => named(c, call, head))));
  }

  /** A head's name. */
  name(call, head) {
    const { layer, name } = this.calls[call];
    return `${layer === null ? name : `Layer ${layer}`}, head ${head}`;
  }
}

function grouped(calls) {
  const groups = new Map();
  calls.forEach((call, n) => {
    const title = `${call.stack} ${call.kind}-attention${call.pass ? ` · ${call.pass + 1}` : ""}`;
    if (!groups.has(title)) groups.set(title, { title, calls: [] });
    groups.get(title).calls.push(n);
  });
  return [...groups.values()];
}
