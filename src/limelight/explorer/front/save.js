// Views as files: PNG, SVG and CSV.
import { h } from "./dom.js";

export function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const url = URL.createObjectURL(blob);
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A menu with what a view can be saved as: { PNG: f, SVG: f, CSV: f }, each returning text or a Blob. */
export function saveMenu(name, makers) {
  const types = { PNG: "image/png", SVG: "image/svg+xml", CSV: "text/csv" };
  const list = h("div", { class: "menu", role: "group", "aria-label": "Save as" }, Object.entries(makers).map(([kind, make]) =>
    h("button", {
      type: "button",
      onclick: async () => {
        box.open = false;
        download(`${name()}.${kind.toLowerCase()}`, await make(), types[kind]);
      },
    }, kind)));
  const box = h("details", { class: "dropdown" }, h("summary", {}, "Save"), list);
  box.addEventListener("focusout", (event) => {
    if (!box.contains(event.relatedTarget)) box.open = false;
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && box.open) {
      box.open = false;
      box.firstChild.focus();
      event.stopPropagation();
    }
  });
  return box;
}

/** Rows as CSV; what holds a comma, a quotation mark or a line's end is quoted. */
export function csv(rows) {
  const field = (x) => (/[",\n\r]/.test(String(x)) ? `"${String(x).replaceAll('"', '""')}"` : String(x));
  return rows.map((row) => row.map(field).join(",")).join("\n") + "\n";
}

/** A PNG of an SVG text or of a canvas. */
export async function png(drawing) {
  if (drawing instanceof HTMLCanvasElement) return new Promise((resolve) => drawing.toBlob(resolve, "image/png"));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing)}`;
  await image.decode();
  const ratio = 2, canvas = h("canvas", { width: image.width * ratio, height: image.height * ratio });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return png(canvas);
}

export const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
