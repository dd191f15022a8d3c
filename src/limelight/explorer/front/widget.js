// A notebook's widget: its data comes with the widget's own messages.
import { start } from "./app.js";
import { WidgetSource } from "./data.js";
import { h } from "./dom.js";

/** Called by anywidget for every view; returns the function that ends it. */
export function render({ model, el }) {
  // Keys belong to what has the focus: JupyterLab asks for the attribute, others listen further up.
  const root = h("div", { class: "limelight cell", "data-lm-suppress-shortcuts": "true", onkeydown: (event) => event.stopPropagation() }, h("p", { class: "starting" }, "Reading…"));
  const source = new WidgetSource(model);
  el.append(root);
  const started = start(root, source, { embedded: true });
  return () => {
    source.close();
    started.then((app) => app.close());
  };
}
