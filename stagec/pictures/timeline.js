// A timeline on a canvas. data: { span, palette, groups: [{ name, rows: [{ name, bars: [[start, end, colour, label, share]] }] }] }, in µs; a bar without `share` is busy all the time.
function drawTimeline(id, data) {
  const canvas = document.getElementById(id + "-canvas");
  const told = document.getElementById(id + "-told");
  const LEFT = 110, TOP = 26, HIGH = 20, GAP = 10, context = canvas.getContext("2d");
  const lines = [];
  let y = TOP;
  for (const group of data.groups) {
    for (const [i, row] of group.rows.entries()) {
      const high = i ? 9 : HIGH;
      lines.push({ y, high, name: i ? row.name : group.name, bars: row.bars, main: !i, group: group.name });
      y += high + 2;
    }
    y += GAP;
  }
  const height = y + 4;
  let from = 0, to = data.span, width = 0;
  const x = (t) => LEFT + ((t - from) / (to - from)) * (width - LEFT - 6);
  const time = (px) => from + ((px - LEFT) / (width - LEFT - 6)) * (to - from);
  const shown = (t) => {
    const [unit, size] = data.span >= 1e6 ? ["s", 1e6] : data.span >= 1e3 ? ["ms", 1e3] : ["µs", 1];
    return Number((t / size).toPrecision(6)) + " " + unit;
  };

  function draw() {
    const ratio = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    ticks();
    for (const line of lines) {
      context.fillStyle = "#1c1e21";
      context.textAlign = "right";
      if (line.main || line.high > 8) context.fillText(line.name.slice(0, 16), LEFT - 6, line.y + line.high / 2);
      context.fillStyle = line.main ? "#e9ebee" : "#f6f7f8";
      context.fillRect(LEFT, line.y, width - LEFT - 6, line.high);
      context.save();
      context.beginPath();
      context.rect(LEFT, line.y, width - LEFT - 6, line.high);
      context.clip();
      context.textAlign = "left";
      for (const [start, end, colour, label, share = 1] of line.bars) {
        if (end < from || start > to) continue;
        const left = x(start), wide = Math.max(x(end) - left, 0.4);
        context.fillStyle = data.palette[colour];
        context.globalAlpha = 0.1 + 0.9 * share;
        context.fillRect(left, line.y, wide > 3 ? wide - 0.6 : wide, line.high);
        context.globalAlpha = 1;
        if (line.main && wide > 8 + 6 * label.length) {
          context.fillStyle = "#fff";
          context.fillText(label, Math.max(left, LEFT) + 4, line.y + line.high / 2);
        }
      }
      context.restore();
    }
  }

  function ticks() {
    const rough = (to - from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((s) => s * power).find((s) => s >= rough);
    context.fillStyle = "#5c6570";
    context.textAlign = "center";
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      context.fillText(shown(t), x(t), 10);
      context.fillRect(x(t), 18, 1, height - 20);
    }
  }

  function move(begin, end) {
    const span = Math.min(Math.max(end - begin, data.span / 1e5), data.span);
    from = Math.min(Math.max(begin, 0), data.span - span);
    to = from + span;
    draw();
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = time(event.offsetX), factor = Math.exp(event.deltaY / 400);
    move(at - (at - from) * factor, at + (to - at) * factor);
  }, { passive: false });
  canvas.addEventListener("dblclick", () => move(0, data.span));
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = [event.offsetX, from, to]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { held = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const shift = ((held[0] - event.offsetX) / (width - LEFT - 6)) * (held[2] - held[1]);
      move(held[1] + shift, held[2] + shift);
      return;
    }
    const line = lines.find((l) => event.offsetY >= l.y && event.offsetY < l.y + l.high), t = time(event.offsetX);
    const bar = line && line.bars.find((b) => b[0] <= t && t < b[1]);
    if (!bar) return;
    const busy = bar.length > 4 ? `, ${Math.round(100 * bar[4])} % of it` : "";
    told.textContent = `${line.group}: ${bar[3]}, from ${shown(bar[0])} to ${shown(bar[1])} (${shown(bar[1] - bar[0])})${busy}`;
  });
  canvas.addEventListener("keydown", (event) => {
    const span = to - from, keys = { ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], "+": [0.2, -0.2], "-": [-0.3, 0.3] };
    if (event.key in keys) move(from + keys[event.key][0] * span, to + keys[event.key][1] * span);
    if (event.key === "Escape") move(0, data.span);
  });
  window.addEventListener("resize", draw);
  canvas.zoomTo = move;
  canvas.shownRange = () => [from, to];
  draw();
}
