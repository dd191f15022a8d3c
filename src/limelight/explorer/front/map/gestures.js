// Mouse, touch, trackpad and keyboard, turned into moves of a viewport and of the place that is pointed at.

/** Listens on a canvas; `on.point(place or null)`, `on.zoom(factor, x, y, smooth)`, `on.pan(dx, dy)`, `on.press(place)`. */
export function gestures(canvas, plot, on) {
  const pointers = new Map();
  let moved = 0, spread = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  /** How far two fingers are from each other; 0 where there are not two. */
  const apart = () => {
    const [a, b] = [...pointers.values()];
    return pointers.size === 2 ? Math.hypot(a[0] - b[0], a[1] - b[1]) : 0;
  };
  const inPlot = ([x, y]) => [x - plot.edge.left, y - plot.edge.top];

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    moved = 0;
    spread = apart();
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = at(event), before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") on.point(plot.toMatrix(...now));
      return;
    }
    pointers.set(event.pointerId, now);
    if (pointers.size === 1) {
      moved += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (moved > 4) on.pan(now[0] - before[0], now[1] - before[1]);
    } else if (pointers.size === 2) {
      const [a, b] = [...pointers.values()], width = apart();
      if (spread) on.zoom(width / spread, ...inPlot([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2]), false);
      on.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      spread = width;
      moved = 99;
    }
  });
  const end = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    spread = 0;
    if (event.type === "pointerup" && moved <= 4 && pointers.size === 0) on.press(plot.toMatrix(...at(event)));
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => pointers.size === 0 && on.point(null));
  canvas.addEventListener("dblclick", (event) => on.zoom(event.shiftKey ? 1 / 4 : 4, ...inPlot(at(event)), true));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    // A pinch comes as a wheel with Ctrl. Two fingers on a trackpad scroll both ways and in small steps: that pans.
    const trackpad = event.deltaMode === 0 && (event.deltaX !== 0 || Math.abs(event.deltaY) < 40) && !event.ctrlKey;
    if (trackpad) on.pan(-event.deltaX, -event.deltaY);
    else on.zoom(Math.exp((-event.deltaY * (event.deltaMode === 1 ? 20 : 1)) / (event.ctrlKey ? 100 : 320)), ...inPlot(at(event)), false);
  }, { passive: false });
}
