// The map as a picture, a drawing and a table.
import { csv, escaped, png } from "../save.js";
import { name } from "./plot.js";

const MOST = 4096; // cells that are drawn as rectangles; more are a picture inside the drawing

export function exported(room) {
  const plots = room.shown;
  return {
    png: () => png(side(plots)),
    svg: () => drawing(plots),
    csv: () => table(room, plots),
  };
}

/** The canvases side by side. */
function side(plots) {
  if (plots.length === 1) return plots[0].canvas;
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  canvas.width = plots.reduce((sum, plot) => sum + plot.canvas.width, 0);
  canvas.height = plots[0].canvas.height;
  let x = 0;
  for (const plot of plots) {
    pen.drawImage(plot.canvas, x, 0);
    x += plot.canvas.width;
  }
  return canvas;
}

function cellsInView(plot) {
  const { x, y, s, width, height, keys, queries } = plot.viewport, level = plot.level, cell = 1 << level, found = [];
  const first = (at) => Math.max(0, Math.floor(at / cell) * cell);
  for (let i = first(y); i < Math.min(queries, y + height / s); i += cell)
    for (let j = first(x); j < Math.min(keys, x + width / s); j += cell) {
      const value = plot.value(i, j, level);
      if (value !== undefined) found.push({ i, j, value });
    }
  return { cell, found };
}

function drawing(plots) {
  const parts = [];
  let offset = 0;
  for (const plot of plots) {
    const { edge, viewport } = plot, { width, height, s } = viewport, { cell, found } = cellsInView(plot);
    const style = getComputedStyle(plot.app.root), soft = style.getPropertyValue("--soft").trim();
    parts.push(`<g transform="translate(${offset} 0)">`, `<rect width="${plot.width}" height="${plot.height}" fill="${style.getPropertyValue("--panel").trim()}"/>`);
    if (found.length > MOST) parts.push(`<image width="${plot.width}" height="${plot.height}" href="${plot.canvas.toDataURL("image/png")}"/>`);
    else {
      const clip = `clip${offset}`;
      parts.push(`<clipPath id="${clip}"><rect x="${edge.left}" y="${edge.top}" width="${width}" height="${height}"/></clipPath><g clip-path="url(#${clip})">`);
      for (const { i, j, value } of found) {
        const [px, py] = plot.toScreen(i, j), size = (s * cell).toFixed(2);
        const fill = Number.isNaN(value) ? style.getPropertyValue("--hatch").trim() : `rgb(${plot.scale.rgb(value).join(",")})`;
        parts.push(`<rect x="${px.toFixed(2)}" y="${py.toFixed(2)}" width="${size}" height="${size}" fill="${fill}"/>`);
      }
      parts.push("</g>", `<g font-family="system-ui, sans-serif" font-size="11" fill="${soft}">`);
      const rows = new Set(found.map(({ i }) => i)), cols = new Set(found.map(({ j }) => j)), every = Math.ceil(11 / (s * cell));
      [...rows].forEach((i, n) => { if (n % every === 0) { const [, py] = plot.toScreen(i + cell / 2, 0); parts.push(`<text x="${edge.left - 7}" y="${py.toFixed(1)}" text-anchor="end" dominant-baseline="middle">${escaped(name(plot.names.query, i))}</text>`); } });
      [...cols].forEach((j, n) => { if (n % every === 0) { const [px] = plot.toScreen(0, j + cell / 2); parts.push(`<text transform="translate(${px.toFixed(1)} ${edge.top - 6}) rotate(-62)">${escaped(name(plot.names.key, j))}</text>`); } });
      parts.push("</g>");
    }
    parts.push("</g>");
    offset += plot.width;
  }
  const [{ height }] = plots;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${offset}" height="${height}" viewBox="0 0 ${offset} ${height}">${parts.join("")}</svg>`;
}

function table(room, plots) {
  const rows = [["head", "query", "query_token", "key", "key_token", "covers", plots[0].layer.signed ? "difference" : `${room.app.state.reduce ?? "mean"}_weight`]];
  for (const plot of plots) {
    const { cell, found } = cellsInView(plot), { names } = plot;
    for (const { i, j, value } of found)
      if (!Number.isNaN(value)) rows.push([room.app.subject.name(...plot.head), i, names.query?.[i] ?? "", j, names.key?.[j] ?? "", `${cell}x${cell}`, value]);
  }
  return csv(rows);
}
