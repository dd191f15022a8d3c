// Explains a number of a step in words, and frames the numbers that it comes from.
import { shown, weight } from "../dom.js";

export const number = (x) => (x === -Infinity ? "−∞" : x.toFixed(Math.abs(x) < 10 ? 2 : 1).replace("-", "−"));

const quoted = (names, n) => `“${shown(names[n])}”`;

/**
 * Explains number i, j of a step. `at(step, i, j)` reads a number, `row(step, i, kind)` frames a row and
 * `mark(step, top, left, tall, broad, kind)` a part of another step; kind is "terms" or "others".
 */
export function explained(given) {
  const { name, step, i, j, at, mark, row } = given, tell = TELLERS[name] ?? (step.square ? becomes : step.of.length === 2 ? sum : computed);
  return tell({ ...given, value: at(name, i, j), token: quoted(step.rows, i), mark, row });
}

const TELLERS = { scores, scaled, weights, heads, concatenated, contributions, lengths, q: projected, k: projected, v: projected };

function projected({ name, j, token, value, step, row, i, arrays }) {
  for (const source of step.of) if (arrays[source].shape[0] === arrays[name].shape[0]) row(source, i);
  return `number ${j} of the ${{ q: "query", k: "key", v: "value" }[name]} of ${token}: the products of its vector with a column of W_${name.toUpperCase()}, added up: ${number(value)}`;
}

function scores({ i, j, at, row, value, arrays, data: { queries, keys } }) {
  row("q", i);
  row("k", j, "others");
  const width = arrays.q.shape[1], products = Array.from({ length: width }, (_, d) => at("q", i, d) * at("k", j, d)).sort((a, b) => Math.abs(b) - Math.abs(a));
  return `query of ${quoted(queries, i)} · key of ${quoted(keys, j)} = ${number(value)}: ${width} products, the largest ${products.slice(0, 3).map(number).join(", ")}`;
}

function scaled({ i, j, at, mark, value, data: { scale } }) {
  mark("scores", i, j, 1, 1);
  return `${scale.toPrecision(3)} · ${number(at("scores", i, j))} = ${number(value)}`;
}

/** A step that changes every number by itself: capped, biased, masked. */
function becomes({ name, step, i, j, at, mark, value, data: { queries, keys } }) {
  const [before] = step.of;
  mark(before, i, j, 1, 1);
  if (value === -Infinity) return `${quoted(queries, i)} may not look at ${quoted(keys, j)}`;
  return `${name}: ${number(at(before, i, j))} becomes ${number(value)}`;
}

function weights({ step, i, j, at, row, value, data: { queries, keys } }) {
  const [before] = step.of, own = Math.exp(at(before, i, j));
  row(before, i);
  let sum = 0;
  for (let b = 0; b < keys.length; b++) sum += Math.exp(at(before, i, b));
  const told = `${quoted(queries, i)} looks at ${quoted(keys, j)} with ${weight(value)}`;
  // A sink or a temperature takes part as well: then this is not the whole formula.
  return Math.abs(own / sum - value) > 1e-3 ? told : `${told} = exp(${number(at(before, i, j))}) / ${sum.toPrecision(3)}, the sum of the exponentials of its row`;
}

function heads({ i, j, at, mark, row, value, token, arrays, data: { keys } }) {
  row("weights", i);
  mark("v", 0, j, arrays.v.shape[0], 1, "others");
  const terms = keys.map((_, b) => [at("weights", i, b), at("v", b, j)]).sort((a, b) => Math.abs(b[0] * b[1]) - Math.abs(a[0] * a[1])).slice(0, 3);
  return `number ${j} of this head’s output for ${token}: ${number(value)} = ${terms.map(([w, v]) => `${weight(w)} · ${number(v)}`).join(" + ")}${keys.length > 3 ? " + …" : ""}`;
}

function concatenated({ i, j, mark, value, token, arrays, head }) {
  const width = arrays.heads.shape[1], from = Math.floor(j / width);
  if (from === head) mark("heads", i, j % width, 1, 1);
  return `number ${j} for ${token}: number ${j % width} of the output of head ${from}: ${number(value)}`;
}

function contributions({ i, j, row, value, token }) {
  row("heads", i);
  return `this head adds ${number(value)} to number ${j} of ${token}: its output · a column of its rows of W_O`;
}

function lengths({ i, j, row, value, token, head }) {
  if (j === head) row("contributions", i);
  return `what head ${j} adds to ${token} is a vector of length ${number(value)}`;
}

function sum({ step, i, j, at, mark, value, token }) {
  const [a, b] = step.of;
  mark(a, i, j, 1, 1);
  mark(b, i, j, 1, 1, "others");
  return `number ${j} of ${token}: ${number(at(a, i, j))} (${a}) + ${number(at(b, i, j))} (${b}) = ${number(value)}`;
}

/** A step of a module, which reads whole rows, or one whose origin is not known. */
function computed({ name, step, i, j, value, token, row, arrays }) {
  for (const source of step.of) if (arrays[source]?.shape[0] === arrays[name].shape[0]) row(source, i);
  const from = step.of.length ? `, computed from the row of ${step.of.join(" and ")}` : "";
  return `${name}: number ${j} of ${token}${from}: ${number(value)}`;
}
