// Drawings over time: the schedule and the memory; and the roofline, and the layers that take longest.
{
  const AXIS = 26, LEFT = 104, ROW = 30, TRACK = [34, 110]; // pixels; the heights of a track
  const TRACKS = { "memory reads": "input", "memory writes": "output", CBUF: "cdp", "MAC array": "conv" }; // colors

  // What both drawings over time share: an axis of cycles, a strip of names on the left.
  class OverTime {
    constructor(host, side, label) {
      this.side = side;
      this.total = Math.max(side.cycles, 1);
      this.drawing = view.el("div", { class: "drawing" });
      host.append(this.drawing);
      this.plane = new view.Plane(this.drawing, {
        label, apart: true, most: 50,
        draw: (context) => this.draw(context),
        fit: (plane) => this.fit(plane),
        hit: (x, y) => this.hit(x, y),
        pick: (what) => what && what.kind !== "track" && view.choose(side.number, what.kind, what.id, this),
        open: (what) => what.kind !== "track" && this.span(what),
        tell: (what) => this.text(what),
        limit: (plane) => this.limit(plane),
      });
    }

    fit(plane) {
      plane.sx = (plane.width - LEFT - 16) / this.total;
      plane.x = -LEFT / plane.sx;
    }

    // Time does not leave the picture.
    limit(plane) {
      const least = (plane.width - LEFT - 16) / this.total;
      if (plane.sx < least) plane.sx = least;
      plane.x = Math.min(Math.max(plane.x, -LEFT / plane.sx), Math.max(this.total - (plane.width - 16) / plane.sx, -LEFT / plane.sx));
    }

    // Zooms to an operation or the life of a value.
    span(what) {
      const [start, end] = this.extent(what), { plane } = this;
      const room = Math.max(end - start, 1) * 3;
      plane.sx = (plane.width - LEFT) / room;
      this.limit(plane);
      plane.x = (start + end) / 2 - (plane.width + LEFT) / 2 / plane.sx;
      this.limit(plane);
      plane.redraw();
    }

    extent(what) {
      if (what.kind === "value") return view.life(this.side, this.side.values[what.id]);
      const op = this.side.operations[what.id];
      return [op.start || 0, op.end || 0];
    }

    reveal(kind, id) {
      const [start, end] = this.extent({ kind, id }), { plane } = this;
      if (plane.toScreen(end, 0)[0] < LEFT || plane.toScreen(start, 0)[0] > plane.width) plane.centre((start + end) / 2, null);
      else plane.redraw();
    }

    axis(context, bottom) {
      const { plane } = this, [low] = plane.toWorld(LEFT, 0), [high] = plane.toWorld(plane.width, 0);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.strokeStyle = view.colour("line");
      context.fillStyle = view.colour("soft");
      context.lineWidth = 1;
      for (const tick of view.ticks(Math.max(low, 0), Math.min(high, this.total), Math.max(plane.width / 130, 2))) {
        const x = Math.round(plane.toScreen(tick, 0)[0]) + 0.5;
        context.beginPath();
        context.moveTo(x, AXIS - 6);
        context.lineTo(x, bottom);
        context.stroke();
        context.textAlign = "center";
        const text = view.count(tick), half = context.measureText(text).width / 2;
        context.fillText(text, Math.min(Math.max(x, LEFT + half), plane.width - half - 2), AXIS - 14);
      }
      context.textAlign = "left";
      context.clearRect(0, 0, LEFT - 6, AXIS);
      context.fillText("cycles", 8, AXIS - 14);
    }
  }

  view.Timeline = class extends OverTime {
    constructor(host, side) {
      super(host, side, "Timeline of the operations");
      const used = new Map();
      for (const op of side.operations) if (op.start !== null) used.set(`${op.engine} ${op.group ?? ""}`, [op.engine, op.group]);
      const rank = ["bdma", "conv", "sdp", "pdp", "cdp", "rubik", "cpu"];
      this.rows = [...used.values()].sort((one, other) => rank.indexOf(one[0]) - rank.indexOf(other[0]) || one[1] - other[1]);
      this.rowOf = new Map(this.rows.map(([engine, group], at) => [`${engine} ${group ?? ""}`, at]));
      this.tracks = side.tracks.filter((track) => track.points.length);
      this.top = AXIS + this.rows.length * ROW + 10; // of the tracks
    }

    #track() { return Math.min(Math.max((this.plane.height - this.top - 8) / this.tracks.length, TRACK[0]), TRACK[1]); }

    draw(context) {
      const { plane, side } = this, bottom = this.top + this.tracks.length * this.#track();
      plane.y = 0;
      plane.sy = 1;
      this.axis(context, bottom);
      context.save();
      context.beginPath();
      context.rect(LEFT, 0, plane.width - LEFT, bottom + 4);
      context.clip();
      for (const op of side.operations) this.#bar(context, op);
      context.restore();
      context.fillStyle = view.colour("ink");
      context.font = "12px system-ui, sans-serif";
      this.rows.forEach(([engine, group], at) => {
        const name = engine === "cpu" ? "CPU" : `${engine.toUpperCase()} group ${group}`;
        context.fillText(name, 8, AXIS + at * ROW + ROW / 2);
      });
      this.tracks.forEach((track, at) => this.#use(context, track, this.top + at * this.#track()));
    }

    // The use of a part of the hardware: the average of every pixel, to the limit of the hardware.
    #use(context, track, y) {
      const { plane } = this, height = this.#track() - 8, bottom = y + height, most = Math.max(track.limit, ...track.points.map(([, value]) => value));
      const unit = track.unit === "%" ? "100%" : `${view.real(track.limit)} B/cycle`;
      context.fillStyle = view.colour("ink");
      context.font = "12px system-ui, sans-serif";
      context.fillText(track.name, 8, y + 8);
      context.fillStyle = view.colour("soft");
      context.font = "11px system-ui, sans-serif";
      context.fillText(`of ${unit}`, 8, y + 22);
      context.fillStyle = view.colour("panel");
      context.fillRect(LEFT, y, plane.width - LEFT, height);
      context.fillStyle = view.colour(TRACKS[track.name]);
      context.globalAlpha = 0.75;
      context.beginPath();
      for (let x = LEFT; x < plane.width; x += 1) {
        const value = view.average(track, plane.toWorld(x, 0)[0], plane.toWorld(x + 1, 0)[0]);
        if (value > 0) context.rect(x, bottom - (value / most) * height, 1, (value / most) * height);
      }
      context.fill();
      context.globalAlpha = 1;
    }

    #bar(context, op) {
      if (op.start === null || op.end === null) return;
      const { plane } = this, y = AXIS + this.rowOf.get(`${op.engine} ${op.group ?? ""}`) * ROW;
      const [x] = plane.toScreen(op.start, 0), [right] = plane.toScreen(op.end, 0);
      if (right < LEFT || plane.toScreen(op.programmed ?? op.start, 0)[0] > plane.width) return;
      const dim = this.side.matches && !this.side.matches.has(op.id);
      context.fillStyle = view.colour(op.engine);
      if (op.programmed !== null && op.programmed < op.start) {
        context.globalAlpha = 0.3;
        const [from] = plane.toScreen(op.programmed, 0);
        context.fillRect(from, y + ROW / 2 - 2, x - from, 4);
      }
      context.globalAlpha = dim ? 0.15 : 0.85;
      context.fillRect(x, y + 3, Math.max(right - x, 1), ROW - 6);
      if (op.mac) { // a convolution multiplies from its first to its last MAC
        context.globalAlpha = dim ? 0.15 : 1;
        const [from] = plane.toScreen(op.mac[0], 0), [to] = plane.toScreen(Math.min(op.mac[1], op.end), 0);
        context.fillRect(from, y + ROW - 8, Math.max(to - from, 1), 5);
      }
      context.globalAlpha = 1;
      const from = Math.max(x, LEFT);
      if (right - from > 44) {
        context.fillStyle = view.colour("badge");
        context.font = "11px system-ui, sans-serif";
        context.fillText(view.short(`${op.label} ${op.short || ""}`.trim(), Math.floor((right - from - 8) / 6.2)), from + 4, y + ROW / 2 - 1);
      }
      if (view.chosen?.side === this.side.number && view.chosen.kind === "op" && view.chosen.id === op.id) frame(context, x, y + 2, right - x, ROW - 4);
    }

    hit(x, y) {
      const row = Math.floor((y - AXIS) / ROW), slack = 2 / this.plane.sx, track = Math.floor((y - this.top) / this.#track());
      if (track >= 0 && this.tracks[track] && x >= 0 && x < this.total) return { kind: "track", id: track, at: x };
      const found = this.side.operations.find((op) => op.start !== null && op.end !== null && this.rowOf.get(`${op.engine} ${op.group ?? ""}`) === row && x >= op.start - slack && x <= op.end + slack);
      return found ? { kind: "op", id: found.id } : null;
    }

    text(what) {
      if (what.kind === "track") {
        const track = this.tracks[what.id], value = view.average(track, what.at, what.at + 1 / this.plane.sx);
        return `${track.name} at cycle ${view.count(Math.round(what.at))}: ${view.real(value)} ${track.unit}`;
      }
      const op = this.side.operations[what.id];
      return `${view.title(op)}\n${view.count(op.start)} to ${view.count(op.end)}: ${view.count(op.end - op.start)} cycles\n${op.what}`;
    }
  };

  // Memory over time, to scale: bytes upwards by address, cycles to the right; above it the bytes that are alive.
  const CURVE = 74;
  view.Memory = class extends OverTime {
    constructor(host, side) {
      super(host, side, "Memory: addresses of the tensors over time");
      this.constants = false;
      this.build();
    }

    build() {
      this.places = new Map();
      let bytes = 0;
      for (const each of this.side.allocations) {
        if (each.use === "constant" && !this.constants) continue;
        this.places.set(each.memory, { ...each, from: bytes });
        bytes += each.size;
      }
      this.bytes = Math.max(bytes, 1);
      this.shown = this.side.values.filter((value) => this.places.has(value.memory));
      const used = new Set(this.shown.map((value) => value.memory));
      this.others = [...this.places.values()].filter((each) => !used.has(each.memory));
      if (this.plane.width) this.plane.fit();
    }

    fit(plane) {
      super.fit(plane);
      plane.sy = (plane.height - AXIS - CURVE - 12) / this.bytes;
      plane.y = -(AXIS + CURVE) / plane.sy;
    }

    limit(plane) {
      super.limit(plane);
      const least = (plane.height - AXIS - CURVE - 12) / this.bytes;
      if (plane.sy < least) plane.sy = least;
      plane.y = Math.min(Math.max(plane.y, -(AXIS + CURVE) / plane.sy), Math.max(this.bytes - (plane.height - 12) / plane.sy, -(AXIS + CURVE) / plane.sy));
    }

    draw(context) {
      const { plane } = this;
      this.axis(context, plane.height);
      context.save();
      context.beginPath();
      context.rect(LEFT, AXIS + CURVE, plane.width - LEFT, plane.height);
      context.clip();
      for (const each of this.others) this.#descriptors(context, each);
      for (const value of this.shown) this.#rectangle(context, value);
      context.restore();
      this.#gutter(context);
      this.#curve(context);
    }

    #place(value) {
      const [start, end] = view.life(this.side, value), from = this.places.get(value.memory).from + value.offset;
      const [x, y] = this.plane.toScreen(start, from), [right, bottom] = this.plane.toScreen(end, from + value.size);
      return [x, y, Math.max(right - x, 1.5), Math.max(bottom - y, 1)];
    }

    #rectangle(context, value) {
      const [x, y, width, height] = this.#place(value);
      if (x > this.plane.width || x + width < LEFT || y > this.plane.height || y + height < AXIS + CURVE) return;
      context.globalAlpha = 0.78;
      context.fillStyle = view.colour(value.damaged.length ? "bad" : value.kind);
      context.fillRect(x, y, width, height);
      context.globalAlpha = 1;
      if (width > 3 && height > 3) {
        context.strokeStyle = view.colour("page");
        context.lineWidth = 1;
        context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
      }
      const from = Math.max(x, LEFT);
      if (x + width - from > 60 && height > 14) {
        context.fillStyle = view.colour("badge");
        context.font = "11px system-ui, sans-serif";
        context.fillText(view.short(value.short, Math.floor((x + width - from - 8) / 6.2)), from + 4, Math.max(y, AXIS + CURVE) + 8);
      }
      if (view.chosen?.side === this.side.number && view.chosen.kind === "value" && view.chosen.id === value.id) frame(context, x, y, width, height);
    }

    // What no operation reads: lists for the firmware.
    #descriptors(context, { name, from, size }) {
      const [x, y] = this.plane.toScreen(0, from), [right, bottom] = this.plane.toScreen(this.side.cycles, from + size), left = Math.max(x, LEFT);
      context.globalAlpha = 0.25;
      context.fillStyle = view.colour("soft");
      context.fillRect(x, y, right - x, Math.max(bottom - y, 1));
      context.globalAlpha = 1;
      if (bottom - y < 14) return;
      context.fillStyle = view.colour("ink");
      context.font = "11px system-ui, sans-serif";
      context.fillText(view.short(`${name || "unused"}: for the firmware, ${view.bytes(size)}`, Math.floor((right - left - 8) / 6.2)), left + 4, Math.max(y, AXIS + CURVE) + 8);
    }

    #gutter(context) {
      context.font = "11px system-ui, sans-serif";
      let last = -20;
      for (const each of this.places.values()) {
        const y = this.plane.toScreen(0, each.from)[1];
        context.strokeStyle = view.colour("line");
        if (y < AXIS + CURVE - 1 || y > this.plane.height) continue;
        context.beginPath();
        context.moveTo(LEFT - 8, y);
        context.lineTo(this.plane.width, y);
        context.stroke();
        if (y - last < 13) continue;
        last = y;
        context.fillStyle = view.colour("soft");
        context.fillText(view.hex(each.address), 8, y + 7);
      }
    }

    #curve(context) {
      const { plane, side } = this, bottom = AXIS + CURVE - 8, spaces = Object.entries(side.live).filter(([, live]) => live.some(Boolean));
      context.fillStyle = view.colour("ink");
      spaces.forEach(([space, live], number) => {
        const most = Math.max(...live), height = CURVE - 22;
        context.font = "12px system-ui, sans-serif";
        context.fillStyle = view.colour(number ? "output" : "intermediate");
        context.fillText(`live ${space.toUpperCase()}`, 8, AXIS + 12 + number * 30);
        context.font = "11px system-ui, sans-serif";
        context.fillStyle = view.colour("soft");
        context.fillText(view.bytes(most), 8, AXIS + 26 + number * 30);
        context.save();
        context.beginPath();
        context.rect(LEFT, 0, plane.width - LEFT, bottom + 1);
        context.clip();
        context.beginPath();
        context.moveTo(plane.toScreen(0, 0)[0], bottom);
        live.forEach((amount, step) => {
          const start = step ? side.times[step][0] : 0, end = side.times[step + 1]?.[0] ?? side.cycles, y = bottom - (amount / most) * height;
          context.lineTo(plane.toScreen(start, 0)[0], y);
          context.lineTo(plane.toScreen(Math.max(end, start), 0)[0], y);
        });
        context.lineTo(plane.toScreen(side.cycles, 0)[0], bottom);
        context.fillStyle = view.colour(number ? "output" : "intermediate");
        context.globalAlpha = 0.45;
        context.fill();
        context.restore();
      });
    }

    hit(x, y) {
      if (this.plane.toScreen(x, y)[1] < AXIS + CURVE) return null;
      for (let at = this.shown.length - 1; at >= 0; at -= 1) {
        const value = this.shown[at], [start, end] = view.life(this.side, value), from = this.places.get(value.memory).from + value.offset;
        if (y >= from && y <= from + value.size && x >= start && x <= Math.max(end, start + 1.5 / this.plane.sx)) return { kind: "value", id: value.id };
      }
      return null;
    }

    text(what) { return view.valueText(this.side, this.side.values[what.id]); }
  };

  function frame(context, x, y, width, height) {
    context.strokeStyle = view.colour("link");
    context.lineWidth = 2.5;
    context.strokeRect(x, y, Math.max(width, 3), height);
  }

  // How much is multiplied for a byte moved, and how fast that goes: below the roof of the memory, or of the MAC array.
  // The bandwidth is of each direction unless they share it, so the direction with more bytes counts.
  view.roofline = function (side) {
    const points = side.chains.map((chain) => {
      const ops = chain.map((id) => side.operations[id]), lead = ops.find((op) => op.leads) || ops[0];
      const sum = (key) => ops.reduce((total, op) => total + op[key], 0);
      return { op: lead, macs: sum("macs"), moved: side.roof.shared ? sum("read") + sum("written") : Math.max(sum("read"), sum("written")), cycles: lead.cycles };
    }).filter((point) => point.macs && point.moved && point.cycles);
    if (!points.length) return view.el("p", { class: "soft" }, "No operation has multiplications.");
    const W = 640, H = 330, L = 62, B = 46, T = 18, R = 16, { macs, bytes } = side.roof;
    const xs = points.map((point) => point.macs / point.moved).concat(macs / bytes), ys = points.map((point) => point.macs / point.cycles).concat(macs);
    const range = (list) => [10 ** Math.floor(Math.log10(Math.min(...list))), 10 ** Math.ceil(Math.log10(Math.max(...list) * 1.05))];
    const [x0, x1] = range(xs), [y0, y1] = range(ys);
    const X = (value) => L + (Math.log(value / x0) / Math.log(x1 / x0)) * (W - L - R), Y = (value) => H - B - (Math.log(value / y0) / Math.log(y1 / y0)) * (H - B - T);
    const svg = view.el("svg", { viewBox: `0 0 ${W} ${H}`, class: "chart", role: "group", "aria-label": "Roofline" });
    for (let tick = x0; tick <= x1 * 1.01; tick *= 10) {
      svg.append(view.el("line", { x1: X(tick), x2: X(tick), y1: T, y2: H - B, class: "grid" }), view.el("text", { x: X(tick), y: H - B + 16, "text-anchor": "middle" }, view.real(Number(tick.toPrecision(3)))));
    }
    for (let tick = y0; tick <= y1 * 1.01; tick *= 10) {
      svg.append(view.el("line", { x1: L, x2: W - R, y1: Y(tick), y2: Y(tick), class: "grid" }), view.el("text", { x: L - 7, y: Y(tick) + 4, "text-anchor": "end" }, view.real(Number(tick.toPrecision(3)))));
    }
    const left = Math.max(x0, y0 / bytes), knee = macs / bytes, roof = `${view.count(macs)} MACs per cycle`;
    svg.append(
      view.el("polyline", { points: `${X(left)},${Y(left * bytes)} ${X(knee)},${Y(macs)} ${W - R},${Y(macs)}`, class: "roof" }),
      view.el("text", { x: W - R, y: Y(macs) - 6, "text-anchor": "end" }, roof),
      view.el("text", { x: (L + W) / 2, y: H - 8, "text-anchor": "middle" }, side.roof.shared ? "MACs per byte moved" : "MACs per byte read, or per byte written if these are more"),
      view.el("text", { x: 14, y: H / 2 - 10, transform: `rotate(-90 14 ${H / 2 - 10})`, "text-anchor": "middle" }, "MACs per cycle"),
    );
    // Labels of the longest operations, each layer once, where they cover neither each other nor points nor the roof's text.
    const named = new Set();
    const labels = points.map(({ macs: all, moved, cycles }) => [X(all / moved) - 6, X(all / moved) + 6, Y(all / cycles)]);
    labels.push([W - R - 7 * roof.length, W, Y(macs) - 10]);
    const most = labels.length + 5;
    for (const { op, macs: all, moved, cycles } of [...points].sort((one, other) => other.cycles - one.cycles)) {
      const x = X(all / moved), y = Y(all / cycles), name = view.short(op.short || op.label, 22);
      const late = x > W - R - 150, left = late ? x - 8 - 6 * name.length : x + 8, right = left + 6 * name.length;
      const free = (at) => labels.every(([from, to, height]) => to < left || from > right || Math.abs(height - at) > 11);
      const place = [y, y + 14, y + 26, y - 12].find(free); // beside, below or above the point
      if (labels.length < most && place !== undefined && !named.has(name)) {
        named.add(name);
        labels.push([left, right, place]);
        svg.append(view.el("text", { x: x + (late ? -8 : 8), y: place + 4, "text-anchor": late ? "end" : "start" }, name));
      }
      const point = view.el("circle", { cx: X(all / moved), cy: Y(all / cycles), r: 5, class: `point ${op.engine}`, tabindex: 0, role: "button", "aria-label": view.title(op), "data-op": op.id });
      point.append(view.el("title", {}, `${view.title(op)}: ${view.real(all / moved)} MACs per byte, ${view.real(all / cycles)} MACs per cycle`));
      const choose = () => view.choose(side.number, "op", op.id);
      point.addEventListener("click", choose);
      point.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
      svg.append(point);
    }
    return svg;
  };

  // The cycles with another memory and clock: of the page's table, or computed by its server.
  view.timing = function (side) {
    const charts = view.el("div", { class: "two" }), total = view.el("output", { id: `timing-${side.number}`, "aria-live": "polite" });
    const own = { latency: side.memory.latency, bandwidth: side.roof.bytes };
    const sorted = (list) => [...new Set(list)].sort((one, other) => one - other);
    const known = (key) => sorted([...side.timings.map((row) => row[key]), own[key]]);
    const lists = view.served
      ? { latency: sorted([...Array(101).keys()].map((step) => 10 * step).concat(own.latency)), bandwidth: sorted([...Array(16).keys()].map((step) => side.memory.bus / (step + 1)).concat(own.bandwidth)) }
      : { latency: known("latency"), bandwidth: known("bandwidth") };
    const inputs = {}, texts = {};
    let asked = 0;

    function slider(name, attributes) {
      inputs[name] = view.el("input", { type: "range", id: `${name}-${side.number}`, min: 0, step: 1, oninput: () => change(), ...attributes });
      texts[name] = view.el("span", { class: "soft" });
      return view.el("label", { class: "slider" }, `${name} `, inputs[name], " ", texts[name]);
    }
    const index = (name) => ({ max: lists[name].length - 1, value: lists[name].indexOf(own[name]), disabled: lists[name].length < 2 });
    const offered = side.memory.offered;
    const rate = (bytes) => `${view.real(bytes)} ${offered > bytes && bytes === own.bandwidth ? `of ${view.real(offered)} ` : ""}B/cycle`;
    const value = (name) => (name === "clock" ? Number(inputs.clock.value) : lists[name][inputs[name].value]);
    const tools = view.el("div", { class: "row timing", role: "group", "aria-label": "Memory and clock" },
      slider("latency", index("latency")), slider("bandwidth", index("bandwidth")),
      slider("clock", { min: Math.min(50, side.clock), max: Math.max(2000, side.clock), step: Number.isInteger(side.clock) ? 1 : "any", value: side.clock }),
      view.el("button", { type: "button", onclick: () => { for (const name of ["latency", "bandwidth"]) inputs[name].value = lists[name].indexOf(own[name]); inputs.clock.value = side.clock; change(); } }, "Reset"));

    function fill(shown) {
      charts.replaceChildren(view.el("div", {}, view.el("h2", {}, "Roofline"), view.roofline(shown)), view.el("div", {}, ...uses(shown), ...view.longest(shown).filter(Boolean)));
    }
    function label() {
      const clock = value("clock"), say = { latency: `${view.count(value("latency"))} cycles`, bandwidth: `${rate(value("bandwidth"))} = ${view.real(value("bandwidth") * clock / 1000)} GB/s`, clock: `${view.count(Math.round(clock))} MHz` };
      for (const [name, text] of Object.entries(say)) {
        texts[name].textContent = text;
        inputs[name].setAttribute("aria-valuetext", text);
      }
    }
    async function change() {
      label();
      const wanted = { latency: value("latency"), bandwidth: value("bandwidth") }, number = ++asked;
      const same = (row) => row.latency === wanted.latency && Math.abs(row.bandwidth - wanted.bandwidth) < 1e-9;
      let row = same(own) ? { ...own, total: side.total, uses: side.uses } : side.timings.find(same);
      if (!row) {
        await new Promise((then) => setTimeout(then, 150));
        if (number !== asked) return; // the slider moves on
        try {
          row = await view.remoteTiming(side, wanted);
        } catch (error) {
          total.textContent = error.message;
          return;
        }
        side.timings.push(row);
        if (number !== asked) return;
      }
      const clock = value("clock"), change = side.total && row.total ? row.total / side.total - 1 : 0;
      const speed = row.total && !side.part ? `, ${view.count(Math.round(1e7 * clock / row.total) / 10)} runs per second` : ""; // parts of a package are not a whole run
      total.textContent = row.total === null ? "no total: deadlock" : `${view.count(row.total)} cycles = ${view.real(row.total / clock / 1000)} ms at ${view.count(Math.round(clock))} MHz${speed}${change ? ` (${change > 0 ? "+" : ""}${view.percent(change)} cycles); everywhere else on this page: ${view.count(side.total)} cycles` : ""}`;
      const operations = row.cycles ? side.operations.map((op, id) => ({ ...op, cycles: row.cycles[id], bound: row.bound[id] })) : side.operations;
      fill(Object.assign(Object.create(side), { operations, alone: undefined, total: row.total, uses: row.uses, roof: { ...side.roof, bytes: row.bandwidth } }));
    }
    fill(side);
    change();
    return [tools, view.el("p", {}, total), charts];
  };

  // The longest operations, and the sums by layer and by block where these have several operations and several layers.
  view.longest = function (side, most = 20) {
    const ops = side.operations.filter((op) => op.leads && op.cycles).sort((one, other) => other.cycles - one.cycles);
    const layers = sums(side, (op) => op.layer || op.block, (op) => op.short), blocks = sums(side, (op) => op.block, (op) => op.shortBlock);
    const lists = [["Blocks", blocks, layers], ["Layers", layers.filter((row) => row.cycles), ops]];
    const shown = lists.filter(([, rows, parts]) => rows.length > 1 && rows.length < parts.length && side.operations.some((op) => op.layer));
    return [...shown, ["Longest operations", ops.map((op) => ({ op, cycles: op.cycles, count: 1 }))]].flatMap(([title, rows]) => [
      view.el("h2", {}, title),
      view.overlap(side),
      view.el("ol", { class: "bars" }, rows.slice(0, most).map((row) => bar(side, row, rows[0].cycles))),
      rows.length > most && view.el("p", { class: "soft" }, `and ${view.count(rows.length - most)} more`),
    ]).filter(Boolean);
  };

  // What the cycles of a run go to; they add up to the total.
  function uses(side) {
    const rows = Object.entries(side.uses || {}).filter(([, cycles]) => cycles), most = Math.max(...rows.map(([, cycles]) => cycles));
    return rows.length ? [
      view.el("h2", {}, "Where the cycles go"),
      view.el("ol", { class: "bars", id: `uses-${side.number}` }, rows.map(([use, cycles]) => view.el("li", {},
        view.el("span", { title: side.meanings[use] }, use.replace("_", " ")),
        view.el("span", { class: "bar" }, view.el("span", { class: use === "cpu" ? "cpu" : "conv", style: `width:${(100 * cycles) / most}%` })),
        view.el("span", { class: "soft" }, `${view.count(cycles)}  ${view.percent(side.total ? cycles / side.total : null)}`)))),
    ] : [];
  }

  // As nvdla cycles --by.
  function sums(side, nameOf, shortOf) {
    const rows = new Map();
    for (const op of side.operations) {
      const whole = nameOf(op), row = rows.get(whole) || { name: shortOf(op) || whole, whole, op, cycles: 0, count: 0 };
      row.cycles += op.leads ? op.cycles || 0 : 0;
      row.count += 1;
      rows.set(whole, row);
    }
    return [...rows.values()].sort((one, other) => other.cycles - one.cycles);
  }

  function bar(side, { name, whole, op, cycles, count }, top) {
    const text = name || view.title(op);
    return view.el("li", {},
      view.el("button", { type: "button", class: "link", title: whole || view.opText(side, op), onclick: () => view.choose(side.number, "op", op.id), "data-op": op.id }, text),
      view.el("span", { class: "bar" }, view.el("span", { class: op.engine, style: `width:${(100 * cycles) / top}%` })),
      view.el("span", { class: "soft" }, `${view.count(cycles || null)}  ${view.percent(view.shareOf(side, cycles))}  ${name ? view.counted(count, "operation") : op.bound || ""}`));
  }
}
