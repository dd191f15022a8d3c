// From weights to colours: ramps that read in grey as well, and scales that are looked up, not computed, for every cell.

const RAMPS = {
  light: [[255, 255, 255], [253, 222, 200], [244, 153, 117], [204, 68, 90], [120, 28, 109], [33, 12, 58]],
  dark: [[26, 25, 31], [72, 25, 96], [160, 45, 110], [231, 93, 74], [254, 178, 96], [253, 246, 190]],
};
// Differences: blue where the second head has more, orange where the first has.
const DIVERGING = {
  light: [[18, 62, 130], [74, 138, 200], [178, 210, 234], [255, 255, 255], [248, 208, 176], [224, 122, 60], [140, 44, 4]],
  dark: [[156, 206, 255], [70, 134, 200], [34, 66, 104], [26, 25, 31], [104, 54, 26], [208, 110, 50], [255, 200, 150]],
};
// Heads that are laid over each other in a text.
export const OVERLAYS = {
  light: ["#b8410e", "#1f6f8b", "#6b4ba3", "#4d7c0f"],
  dark: ["#ff9a5c", "#6cc4e0", "#b79cf0", "#a3d64f"],
};

/** The colour at t from 0 to 1: [r, g, b]. */
export function mixed(stops, t) {
  const x = Math.max(0, Math.min(1, t)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(x)), f = x - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
}

const STEPS = 4096; // colours of a ramp
const ramps = new Map();

/** A ramp as pixels; the last one stands for 1. */
function rampOf(stops) {
  if (!ramps.has(stops)) ramps.set(stops, Uint32Array.from({ length: STEPS + 1 }, (_, n) => pixel(mixed(stops, n / STEPS))));
  return ramps.get(stops);
}

const number = new Float32Array(1), bits = new Uint32Array(number.buffer);
const LOW = 1e-4; // a logarithmic scale begins at this share of the largest weight
const FIRST = 24832, LAST = 65280; // entries of the table for 2⁻³⁰ and for infinity

/** A scale from weights to colours: "linear", "sqrt" or "log", up to `high`; or of differences, from −high to high. */
export class Scale {
  constructor(kind, high, theme, signed = false) {
    Object.assign(this, { kind, theme, signed, high: high > 0 ? high : 1 });
    this.stops = (signed ? DIVERGING : RAMPS)[theme];
    this.key = `${kind}/${this.high}/${theme}/${signed}`;
  }

  /** Where a weight stands on the ramp, from 0 to 1. */
  place(x) {
    if (this.signed) return 0.5 + 0.5 * Math.sign(x) * this.#share(Math.abs(x));
    return this.#share(x);
  }

  #share(x) {
    const share = Math.min(1, x / this.high);
    if (this.kind === "linear") return share;
    if (this.kind === "sqrt") return Math.sqrt(share);
    return share <= LOW ? 0 : 1 - Math.log(share) / Math.log(LOW);
  }

  /** The weight at a place of the ramp. */
  at(t) {
    if (this.signed) return Math.sign(t - 0.5) * this.#value(Math.abs(2 * t - 1));
    return this.#value(t);
  }

  #value(t) {
    if (this.kind === "linear") return t * this.high;
    if (this.kind === "sqrt") return t * t * this.high;
    return this.high * LOW ** (1 - t);
  }

  rgb(x) {
    return mixed(this.stops, this.place(x));
  }

  /**
   * Colours by the upper 17 bits of a float: sign, exponent and 8 bits of the fraction, which is finer than the ramp.
   * One look-up serves every kind of scale. NaN, and of unsigned scales what is below 0, is masked: transparent.
   */
  get table() {
    if (this.made) return this.made;
    const table = new Uint32Array(1 << 17), ramp = rampOf(this.stops), zero = ramp[Math.round(STEPS * this.place(0))];
    const half = (sign, from) => {
      table.fill(zero, from, from + FIRST);
      for (let n = FIRST; n < LAST; n++) {
        bits[0] = (n << 15) | (1 << 14);
        table[from + n] = ramp[Math.round(STEPS * this.place(sign * number[0]))];
        if (number[0] > this.high) {
          table.fill(table[from + n], from + n, from + LAST);
          break;
        }
      }
    };
    half(1, 0);
    if (this.signed) half(-1, 65536);
    else table[65536] = zero; // −0
    return (this.made = table);
  }

  /** Paints values into an ImageData of the same size. */
  paint(values, image) {
    const table = this.table, source = new Uint32Array(values.buffer, values.byteOffset, values.length), target = new Uint32Array(image.data.buffer);
    for (let n = 0; n < source.length; n++) target[n] = table[source[n] >>> 15];
  }

  /** The ramp as a CSS gradient. */
  gradient() {
    return `linear-gradient(90deg, ${this.stops.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
  }
}

const pixel = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

/** A canvas with one pixel for each value. */
export function picture(values, [rows, cols], scale, canvas = document.createElement("canvas")) {
  canvas.width = cols;
  canvas.height = rows;
  const image = new ImageData(cols, rows);
  scale.paint(values, image);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The largest of some values; 0 where all are masked. */
export function largest(values) {
  let max = 0;
  for (let n = 0; n < values.length; n++) if (values[n] > max) max = values[n];
  return max;
}

/** Where the colours of a row or column end: at its largest weight, but no lower than three times an even share. */
export function rowHigh(weights) {
  let visible = 0;
  for (let n = 0; n < weights.length; n++) if (weights[n] >= 0) visible += 1;
  return Math.max(largest(weights), 3 / Math.max(3, visible));
}

/** Black or white ink, whichever reads better on a colour. */
export const ink = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#1d1b22" : "#ffffff");
