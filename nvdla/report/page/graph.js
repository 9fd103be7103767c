// The graph: a box a chain of operations that hand over on the fly, a round box a bound tensor, lines for values in
// memory; subgraphs of layers can be closed.
{
  const WIDTH = 236, ROW = 38, PILL = 20, HEAD = 46, FAR = 0.42;
  const OPEN = 60; // operations up to which subgraphs are open at first
  const SMALLEST = 6; // pixels of the smallest text that is drawn

  view.Graph = class {
    constructor(host, side) {
      this.side = side;
      this.closed = new Set();
      this.events = false;
      this.hazards = false;
      this.by = "engine";
      this.drawing = view.el("div", { class: "drawing" });
      host.append(this.drawing);
      this.plane = new view.Plane(this.drawing, {
        label: `Graph of ${side.title}: arrow keys select operations`,
        least: 0.005, most: 4,
        draw: (context) => this.draw(context),
        fit: (plane) => this.#fit(plane),
        hit: (x, y) => this.hit(x, y),
        pick: (what) => this.#pick(what),
        open: (what) => this.#open(what),
        tell: (what) => this.#tell(what),
        key: (event) => this.#key(event),
      });
      this.map = view.el("canvas", { class: "minimap", width: 130, height: 170, "aria-hidden": "true" });
      this.drawing.append(this.map);
      const drag = (event) => { if (event.buttons) this.#jump(event); };
      this.map.addEventListener("pointerdown", (event) => { this.map.setPointerCapture(event.pointerId); this.#jump(event); });
      this.map.addEventListener("pointermove", drag);
      this.names = [...new Set(side.operations.map((op) => op.subgraph).filter(Boolean))];
      if (side.operations.length > OPEN) this.names.forEach((name) => this.closed.add(name));
      this.build();
    }

    // ---- boxes and lines

    build() {
      const { side } = this;
      this.nodes = [];
      this.ofChain = [];
      this.ofValue = new Map();
      const subgraphs = new Map();
      side.chains.forEach((chain, step) => {
        const subgraph = side.operations[chain[0]].subgraph;
        if (subgraph && this.closed.has(subgraph)) {
          if (!subgraphs.has(subgraph)) subgraphs.set(subgraph, this.#add({ kind: "subgraph", subgraph, chains: [], width: WIDTH, height: HEAD }));
          subgraphs.get(subgraph).chains.push(step);
          this.ofChain[step] = subgraphs.get(subgraph);
        } else {
          const pills = chain.flatMap((op) => side.operations[op].wrote);
          const height = chain.length * ROW + pills.length * PILL;
          this.ofChain[step] = this.#add({ kind: "chain", subgraph, chain, pills, width: WIDTH, height });
        }
      });
      this.#connect();
      [this.width, this.height] = view.layout(this.nodes, this.edges);
      this.#frames();
      this.small = null;
      view.relabel();
    }

    #add(node) {
      node.id = this.nodes.length;
      this.nodes.push(node);
      return node;
    }

    #connect() {
      const lines = new Map();
      const join = (from, to, value) => {
        if (from === to) return;
        const key = `${from.id} ${to.id}`;
        if (!lines.has(key)) lines.set(key, { from: from.id, to: to.id, values: [] });
        lines.get(key).values.push(value);
      };
      for (const value of this.side.values) {
        if (value.kind === "constant") continue;
        const writer = value.writer === null ? null : this.ofChain[this.side.chainOf[value.writer]];
        let source = writer;
        if (value.kind === "input" || value.kind === "output" || value.kind === "unset") {
          const node = this.#add({ kind: "value", value: value.id, width: 170, height: 36 });
          this.ofValue.set(value.id, node);
          if (writer) join(writer, node, value.id);
          else source = node;
        }
        for (const [op] of value.readers) if (source) join(source, this.ofChain[this.side.chainOf[op]], value.id);
      }
      this.edges = [...lines.values()];
    }

    // A frame around the nodes of an open subgraph; where it would touch another node or frame, the subgraph gets several.
    #frames() {
      const rooms = new Map(this.nodes.map((node) => [node, { x: node.x - 10, y: node.y - 22, right: node.x + node.width + 10, bottom: node.y + node.height + 10 }]));
      const touch = (one, other) => one.x < other.right && one.right > other.x && one.y < other.bottom && one.bottom > other.y;
      const open = this.nodes.filter((node) => node.subgraph && node.kind !== "subgraph").sort((one, other) => one.y - other.y || one.x - other.x);
      this.frames = [];
      const last = new Map();
      for (const node of open) {
        const room = rooms.get(node), { subgraph } = node, before = last.get(subgraph);
        const wide = before && { subgraph, x: Math.min(before.x, room.x), y: Math.min(before.y, room.y), right: Math.max(before.right, room.right), bottom: Math.max(before.bottom, room.bottom) };
        if (wide && !this.nodes.some((other) => (other.subgraph !== subgraph || other.kind === "subgraph") && touch(wide, rooms.get(other))) && !this.frames.some((frame) => frame !== before && touch(wide, frame))) {
          Object.assign(before, wide);
          continue;
        }
        last.set(subgraph, { subgraph, ...room });
        this.frames.push(last.get(subgraph));
      }
    }

    // ---- drawing

    draw(context) {
      const { plane } = this, [left, top] = plane.toWorld(0, 0), [right, bottom] = plane.toWorld(plane.width, plane.height);
      this.seen = { left, top, right, bottom };
      context.save();
      context.scale(plane.sx, plane.sx);
      context.translate(-plane.x, -plane.y);
      context.textBaseline = "middle";
      this.#drawFrames(context);
      this.#drawLines(context);
      for (const node of this.nodes) {
        if (node.x + node.width < left || node.x > right || node.y + node.height < top || node.y > bottom) continue;
        if (node.kind === "chain") this.#drawChain(context, node);
        else if (node.kind === "subgraph") this.#drawSubgraph(context, node);
        else this.#drawValue(context, node);
      }
      if (this.events) this.#drawArrows(context, this.#eventPairs(), "soft", [5, 4]);
      if (this.hazards) for (const kind of ["reuse", "unordered", "overlap"]) {
        this.#drawArrows(context, this.#hazardPairs(kind), kind === "reuse" ? "warn" : "bad", [3, 3]);
      }
      context.restore();
      this.#drawMap();
    }

    #drawFrames(context) {
      const far = this.plane.sx < FAR;
      for (const frame of this.frames) {
        if (frame.right < this.seen.left || frame.x > this.seen.right || frame.bottom < this.seen.top || frame.y > this.seen.bottom) continue;
        context.fillStyle = view.colour("frame");
        box(context, frame.x, frame.y, frame.right - frame.x, frame.bottom - frame.y, 8);
        context.fill();
        if (far) continue;
        context.fillStyle = view.colour("soft");
        context.font = "600 11px system-ui, sans-serif";
        context.fillText(`− ${view.short(frame.subgraph, 32)}`, frame.x + 8, frame.y + 11);
      }
    }

    #drawLines(context) {
      const chosen = view.chosen?.side === this.side.number && view.chosen.kind === "value" ? view.chosen.id : -1;
      const near = this.#near();
      for (const strong of [false, true]) {
        context.beginPath();
        const heads = [];
        for (const edge of this.edges) {
          if ((edge.values.includes(chosen) || near.has(edge)) !== strong) continue;
          const head = this.#path(context, edge);
          if (head) heads.push(head);
        }
        context.strokeStyle = context.fillStyle = view.colour(strong ? "link" : "edge");
        context.lineWidth = (strong ? 2.2 : 1.3) * Math.max(1, 0.35 / this.plane.sx);
        context.stroke();
        if (this.plane.sx < 0.15) continue;
        context.beginPath();
        for (const [x, y] of heads) {
          context.moveTo(x, y);
          context.lineTo(x - 4, y - 8);
          context.lineTo(x + 4, y - 8);
        }
        context.fill();
      }
    }

    // Lines of the operation that is chosen.
    #near() {
      const chosen = view.chosenOn(this.side.number);
      if (chosen?.kind !== "op") return new Set();
      const node = this.ofChain[this.side.chainOf[chosen.id]];
      return new Set(this.edges.filter((edge) => edge.from === node.id || edge.to === node.id));
    }

    #path(context, edge) {
      const from = this.nodes[edge.from], to = this.nodes[edge.to];
      const x1 = from.x + from.width / 2, y1 = from.y + from.height, x2 = to.x + to.width / 2, y2 = to.y;
      if (Math.max(y1, y2) < this.seen.top || Math.min(y1, y2) > this.seen.bottom) return null;
      context.moveTo(x1, y1);
      let x = x1, y = y1;
      for (const [wx, wy, height] of edge.way) {
        bend(context, x, y, wx, wy);
        context.lineTo(wx, wy + height);
        [x, y] = [wx, wy + height];
      }
      bend(context, x, y, x2, y2);
      return [x2, y2];
    }

    #drawChain(context, node) {
      const { side } = this, far = this.plane.sx < FAR;
      context.globalAlpha = this.#dim(node.chain) ? 0.25 : 1;
      context.fillStyle = view.colour("page");
      context.strokeStyle = view.colour("line");
      context.lineWidth = 1;
      box(context, node.x, node.y, node.width, node.height, 7);
      context.fill();
      context.stroke();
      node.chain.forEach((id, at) => this.#drawOperation(context, side.operations[id], node, node.y + at * ROW, far));
      if (!far) node.pills.forEach((value, at) => this.#drawPill(context, node, value, node.y + node.chain.length * ROW + at * PILL));
      this.#outline(context, node);
      context.globalAlpha = 1;
    }

    #drawOperation(context, op, node, y, far) {
      const colour = this.#colour(op);
      context.fillStyle = colour;
      if (far) {
        box(context, node.x + 2, y + 2, node.width - 4, ROW - 4, 5);
        context.fill();
        this.#drawFar(context, names(op), node, y + ROW / 2, this.#ink(op));
        return;
      }
      box(context, node.x + 4, y + 4, 44, ROW - 8, 5);
      context.fill();
      context.fillStyle = this.#ink(op);
      context.font = "700 10.5px system-ui, sans-serif";
      context.textAlign = "center";
      context.fillText(op.engine.toUpperCase(), node.x + 26, y + ROW / 2 + 0.5);
      context.textAlign = "left";
      context.fillStyle = view.colour("ink");
      context.font = "600 11.5px system-ui, sans-serif";
      context.fillText(fitted(context, names(op), node.width - 64), node.x + 55, y + 12.5);
      context.fillStyle = view.colour("soft");
      context.font = "10.5px system-ui, sans-serif";
      context.fillText(fitted(context, [op.what], node.width - 64), node.x + 55, y + 27);
    }

    // The one text of a box that is seen from far away.
    #drawFar(context, texts, node, y, ink) {
      if (24 * this.plane.sx < SMALLEST) return;
      context.fillStyle = ink;
      context.font = "600 24px system-ui, sans-serif";
      context.fillText(fitted(context, texts, node.width - 20), node.x + 10, y + 1);
    }

    #drawPill(context, node, id, y) {
      const value = this.side.values[id];
      context.fillStyle = view.colour("panel");
      box(context, node.x + 4, y + 1, node.width - 8, PILL - 4, 8);
      context.fill();
      context.fillStyle = view.colour(value.damaged.length ? "bad" : "soft");
      context.font = "10.5px system-ui, sans-serif";
      context.textAlign = "center";
      const shape = value.shape ? view.shape(value.shape) : view.bytes(value.bytes);
      context.fillText(fitted(context, [`${shape}  ${view.bytes(value.bytes)}`], node.width - 30), node.x + node.width / 2, y + PILL / 2 - 1);
      context.textAlign = "left";
    }

    #drawSubgraph(context, node) {
      const ops = node.chains.flatMap((step) => this.side.chains[step]);
      context.globalAlpha = this.#dim(ops) ? 0.25 : 1;
      context.fillStyle = view.colour("panel");
      context.strokeStyle = view.colour("soft");
      context.lineWidth = 1.2;
      for (const shift of [6, 3, 0]) {
        if (!shift && this.by !== "engine") context.fillStyle = view.heat(this.#shareOf(ops));
        box(context, node.x + shift, node.y + shift, node.width - 6, node.height - 6, 7);
        context.fill();
        context.stroke();
      }
      const ink = this.by === "engine" ? null : view.inkOn(this.#shareOf(ops));
      if (this.plane.sx < FAR) this.#drawFar(context, [`+ ${node.subgraph}`], node, node.y + node.height / 2 - 3, ink || view.colour("ink"));
      else {
        context.fillStyle = ink || view.colour("ink");
        context.font = "600 12px system-ui, sans-serif";
        context.fillText(fitted(context, [`+ ${node.subgraph}`], node.width - 30), node.x + 12, node.y + 14);
        context.fillStyle = ink || view.colour("soft");
        context.font = "10.5px system-ui, sans-serif";
        context.fillText(`${view.counted(ops.length, "operation")}, ${view.count(cyclesOf(this.side, ops))} cycles`, node.x + 12, node.y + 29);
      }
      this.#outline(context, node);
      context.globalAlpha = 1;
    }

    #drawValue(context, node) {
      const value = this.side.values[node.value];
      context.fillStyle = view.colour("page");
      context.strokeStyle = view.colour(value.kind);
      context.lineWidth = 2;
      box(context, node.x, node.y, node.width, node.height, node.height / 2);
      context.fill();
      context.stroke();
      context.textAlign = "center";
      context.fillStyle = view.colour("ink");
      context.font = "600 11.5px system-ui, sans-serif";
      context.fillText(fitted(context, [value.short], node.width - 24), node.x + node.width / 2, node.y + 12);
      context.fillStyle = view.colour("soft");
      context.font = "10.5px system-ui, sans-serif";
      context.fillText(`${value.kind} ${view.shape(value.shape)}`, node.x + node.width / 2, node.y + 26);
      context.textAlign = "left";
      this.#outline(context, node);
    }

    // A frame around what is chosen: a row of a box, or the box.
    #outline(context, node) {
      const chosen = view.chosenOn(this.side.number);
      if (!chosen) return;
      let [y, height] = [node.y, node.height];
      if (node.kind === "chain") {
        const op = node.chain.indexOf(chosen.kind === "op" ? chosen.id : -1);
        const pill = node.pills.indexOf(chosen.kind === "value" ? chosen.id : -1);
        if (op < 0 && pill < 0) return;
        [y, height] = op >= 0 ? [node.y + op * ROW, ROW] : [node.y + node.chain.length * ROW + pill * PILL, PILL - 2];
      } else if (node.kind === "subgraph") {
        const holds = chosen.kind === "op" && node.chains.includes(this.side.chainOf[chosen.id]);
        if (!holds && !(chosen.kind === "subgraph" && chosen.id === node.subgraph)) return;
      } else if (chosen.kind !== "value" || chosen.id !== node.value) return;
      context.strokeStyle = view.colour("link");
      context.lineWidth = 3 * Math.max(1, 0.5 / this.plane.sx);
      box(context, node.x, y, node.width, height, 7);
      context.stroke();
    }

    #dim(ops) { return this.side.matches && !ops.some((id) => this.side.matches.has(id)); }

    #colour(op) {
      if (this.by === "engine") return view.colour(op.engine);
      return view.heat(view.measure(this.side, op, this.by));
    }

    #ink(op) { return this.by === "engine" ? view.colour("badge") : view.inkOn(view.measure(this.side, op, this.by)); }

    // The measure of a closed subgraph: its cycles against the longest subgraph; else the largest of its operations.
    #shareOf(ops) {
      if (this.by !== "cycles") {
        const shares = ops.map((id) => view.measure(this.side, this.side.operations[id], this.by)).filter((share) => share !== null && share !== undefined);
        return shares.length ? Math.max(...shares) : null;
      }
      return cyclesOf(this.side, ops) / this.#longest();
    }

    #longest() {
      const subgraphs = this.nodes.filter((node) => node.kind === "subgraph");
      return Math.max(...subgraphs.map((node) => cyclesOf(this.side, node.chains.flatMap((step) => this.side.chains[step]))), 1);
    }

    // What the colours mean: the engines of the network, or the two ends of a scale.
    legend() {
      if (this.by === "engine") {
        const engines = [...new Set(this.side.operations.map((op) => op.engine))];
        return engines.map((engine) => view.el("span", {}, view.el("i", { style: `background:${view.colour(engine)}` }), ` ${engine.toUpperCase()}`));
      }
      const ends = { cycles: ["0 cycles", "most cycles"], use: ["0 %", "100 % of the MAC array"], saturated: ["0 %", "5 % saturated or more"], zeros: ["0 %", "100 % zeros"], difference: ["equal", "0 dB"] }[this.by];
      const colours = [0, 0.1, 0.25, 0.5, 0.75, 1].map((share) => `${view.heat(share)} ${100 * share}%`);
      return [view.el("span", {}, `${ends[0]} `, view.el("i", { class: "scale", style: `background:linear-gradient(90deg, ${colours.join(", ")})` }), ` ${ends[1]}`), view.el("span", {}, view.el("i", { style: `background:${view.colour("line")}` }), " not measured")];
    }

    #drawArrows(context, found, colour, dashes) {
      context.strokeStyle = context.fillStyle = view.colour(colour);
      context.lineWidth = 1.4 * Math.max(1, 0.4 / this.plane.sx);
      context.setLineDash(dashes);
      context.beginPath();
      const heads = [];
      for (const [one, other] of found) {
        const from = this.ofChain[this.side.chainOf[one]], to = this.ofChain[this.side.chainOf[other]];
        if (from === to) continue;
        const x1 = from.x + from.width, y1 = from.y + from.height / 2, x2 = to.x + to.width, y2 = to.y + to.height / 2;
        const out = Math.max(x1, x2) + 24 + Math.min(Math.abs(y2 - y1) / 8, 160);
        context.moveTo(x1, y1);
        context.bezierCurveTo(out, y1, out, y2, x2, y2);
        heads.push([x2, y2]);
      }
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      for (const [x, y] of heads) {
        context.moveTo(x, y);
        context.lineTo(x + 8, y - 4);
        context.lineTo(x + 8, y + 4);
      }
      context.fill();
    }

    #eventPairs() {
      return this.side.operations.flatMap((op) => op.waits.filter(([from]) => this.side.chainOf[from] !== this.side.chainOf[op.id]).map(([from]) => [from, op.id]));
    }

    #hazardPairs(kind) {
      return this.side.hazards.filter((each) => each.kind === kind).map((each) => [each.earlier, each.later]);
    }

    // ---- the small map

    #drawMap() {
      const { map, plane } = this, scale = this.#mapScale(), context = map.getContext("2d");
      map.hidden = plane.width < 420 || (this.width * plane.sx < plane.width && this.height * plane.sx < plane.height);
      if (map.hidden) return;
      if (!this.small || this.smallBy !== this.by) this.#drawSmall(scale);
      context.clearRect(0, 0, map.width, map.height);
      context.drawImage(this.small, 0, 0);
      context.strokeStyle = view.colour("link");
      context.lineWidth = 1.5;
      const x = Math.max(this.seen.left * scale, 0), y = Math.max(this.seen.top * scale, 0);
      context.strokeRect(x + 1, y + 1, Math.min(this.seen.right * scale, map.width) - x - 2, Math.min(this.seen.bottom * scale, map.height) - y - 2);
    }

    #mapScale() { return Math.min(this.map.width / Math.max(this.width, 1), this.map.height / Math.max(this.height, 1)); }

    #drawSmall(scale) {
      this.small = view.el("canvas", { width: this.map.width, height: this.map.height });
      this.smallBy = this.by;
      const context = this.small.getContext("2d");
      for (const node of this.nodes) {
        const op = node.kind === "chain" ? this.side.operations[node.chain[0]] : null;
        context.fillStyle = op ? this.#colour(op) : node.kind !== "subgraph" ? view.colour("line") : this.by === "engine" ? view.colour("soft") : view.heat(this.#shareOf(node.chains.flatMap((step) => this.side.chains[step])));
        context.fillRect(node.x * scale, node.y * scale, Math.max(node.width * scale, 1.5), Math.max(node.height * scale, 1));
      }
    }

    #jump(event) {
      const scale = this.#mapScale();
      this.plane.centre(event.offsetX / scale, event.offsetY / scale);
    }

    // ---- what is where, and what it does

    hit(x, y) {
      for (const node of this.nodes) {
        if (x < node.x || x > node.x + node.width || y < node.y || y > node.y + node.height) continue;
        if (node.kind === "subgraph") return { kind: "subgraph", id: node.subgraph };
        if (node.kind === "value") return { kind: "value", id: node.value };
        const row = Math.floor((y - node.y) / ROW);
        if (row < node.chain.length) return { kind: "op", id: node.chain[row] };
        const pill = Math.floor((y - node.y - node.chain.length * ROW) / PILL);
        return { kind: "value", id: node.pills[Math.min(pill, node.pills.length - 1)] };
      }
      for (const frame of this.frames) {
        if (x >= frame.x && x <= frame.right && y >= frame.y && y <= frame.y + 20) return { kind: "frame", id: frame.subgraph };
      }
      return null;
    }

    #pick(what) {
      if (what?.kind === "frame") this.toggle(what.id);
      else if (what) view.choose(this.side.number, what.kind, what.id, this);
    }

    #open(what) {
      if (what.kind === "subgraph" || what.kind === "frame") this.toggle(what.id);
      else this.reveal(what.kind, what.id, 1);
    }

    #tell(what) {
      if (what.kind === "frame") return `Close ${what.id}`;
      if (what.kind === "subgraph") return `${what.id}: double-click opens it`;
      if (what.kind === "value") return view.valueText(this.side, this.side.values[what.id]);
      return view.opText(this.side, this.side.operations[what.id]);
    }

    #key(event) {
      if (event.shiftKey || !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return false;
      const here = view.chosen?.side === this.side.number && view.chosen.kind === "op" ? view.chosen.id : null;
      if (event.key === "Enter") {
        document.querySelector("#panel button")?.focus();
        return true;
      }
      const flat = this.side.chains.flat(), at = flat.indexOf(here);
      const next = here === null ? flat[0] : flat[at + (event.key === "ArrowDown" ? 1 : -1)];
      if (next !== undefined) {
        view.choose(this.side.number, "op", next, this);
        this.reveal("op", next);
      }
      return true;
    }

    toggle(subgraph) {
      if (!this.closed.delete(subgraph)) this.closed.add(subgraph);
      this.rebuilt();
    }

    // Shows the result from its input on, or what is chosen.
    all(closed) {
      this.closed = new Set(closed ? this.names : []);
      this.build();
      this.started = false;
      this.plane.fit();
      const chosen = view.chosenOn(this.side.number);
      if (chosen && chosen.kind !== "subgraph") this.reveal(chosen.kind, chosen.id);
    }

    // Lays out anew; what was in the middle stays there.
    rebuilt() {
      const { plane } = this, before = this.#middle();
      this.build();
      const node = before && this.ofChain[before.chain];
      if (plane.fitted || !node) plane.fit();
      else plane.centre(node.x + node.width / 2 + before.dx, node.y + before.dy);
    }

    #middle() {
      const { plane } = this, x = plane.x + plane.width / 2 / plane.sx, y = plane.y + plane.height / 2 / plane.sy;
      let best = null;
      this.ofChain.forEach((node, chain) => {
        const far = Math.hypot(node.x + node.width / 2 - x, node.y - y);
        if (!best || far < best.far) best = { far, chain, dx: x - node.x - node.width / 2, dy: y - node.y };
      });
      return best;
    }

    // Brings an operation or value into sight, where it is not.
    reveal(kind, id, scale = null) {
      const { plane } = this;
      const step = kind === "op" ? this.side.chainOf[id] : this.#stepOf(this.side.values[id]);
      const node = (kind === "value" && this.ofValue.get(id)) || this.ofChain[step];
      if (!node || !plane.width) return;
      const [left, top] = plane.toScreen(node.x, node.y), [right, bottom] = plane.toScreen(node.x + node.width, node.y + node.height);
      if (!scale && left >= 0 && top >= 0 && right <= plane.width && bottom <= plane.height && plane.sx >= FAR) return plane.redraw();
      plane.sx = plane.sy = Math.max(scale || plane.sx, 0.8);
      plane.centre(node.x + node.width / 2, node.y + node.height / 2);
    }

    #stepOf(value) { return this.side.chainOf[value.writer ?? value.readers[0]?.[0]]; }

    #fit(plane) {
      // Wide networks whole; long ones by their width, from the top: the first operation in the middle.
      const whole = Math.min(plane.width / this.width, plane.height / this.height);
      if (whole > 0.3 || this.started) plane.show(0, 0, this.width, this.height);
      else {
        plane.sx = plane.sy = Math.min(Math.max(plane.width / (this.width + 60), 0.45), 1);
        const first = this.nodes.reduce((one, other) => (one.kind === "value" || (other.kind !== "value" && other.y < one.y) ? other : one), this.nodes[0]);
        const middle = this.width * plane.sx <= plane.width ? this.width / 2 : first.x + first.width / 2;
        plane.x = middle - plane.width / 2 / plane.sx;
        plane.y = -30;
        plane.redraw();
      }
      this.started = true;
    }
  };

  function cyclesOf(side, ops) {
    return ops.reduce((sum, id) => sum + (side.operations[id].leads ? side.operations[id].cycles || 0 : 0), 0);
  }
  view.cyclesOf = cyclesOf;

  function box(context, x, y, width, height, radius) {
    context.beginPath();
    context.roundRect(x, y, width, height, radius);
  }

  function bend(context, x1, y1, x2, y2) {
    if (y2 >= y1) {
      const middle = (y1 + y2) / 2;
      context.bezierCurveTo(x1, middle, x2, middle, x2, y2);
    } else context.bezierCurveTo(x1 + 160, y1 + 60, x2 + 160, y2 - 60, x2, y2);
  }

  // An operation with its layer, and the same without the scopes of the layer's names, where no other layer is called so.
  const names = (op) => (op.short ? [`${op.label} ${op.short}`, `${op.label} ${op.brief}`] : [op.label]);

  // The first of the texts that is no wider than `width`, else the last, cut; widths are kept, for measuring is slow.
  const cut = new Map();
  function fitted(context, texts, width) {
    const key = `${context.font}|${width}|${texts[0]}`;
    let found = cut.get(key);
    if (found === undefined) {
      found = texts.find((text) => context.measureText(text).width <= width) ?? texts.at(-1);
      while (found.length > 4 && context.measureText(found).width > width) found = found.slice(0, -Math.max(2, found.length >> 4)).trimEnd() + "…";
      cut.set(key, found);
    }
    return found;
  }

  // 0 to 1, null where there is nothing to measure.
  view.measure = function (side, op, by) {
    if (by === "cycles") {
      side.most ??= Math.max(...side.operations.map((each) => each.cycles || 0), 1);
      return op.cycles ? op.cycles / side.most : null;
    }
    if (by === "use") return op.use;
    const partner = view.partner[side.number].get(op.id);
    if (by === "difference") return partner?.equal === undefined ? null : partner.snr === null ? 0 : Math.min(Math.max(1 - partner.snr / 60, 0.05), 1);
    const tensor = side.run?.wrote[op.id];
    if (tensor === undefined) return null;
    return by === "zeros" ? side.tensors[tensor].zeros : Math.min(side.tensors[tensor].saturated * 20, 1);
  };
  // A scale of rising contrast to the page, which is read without telling red from green.
  const LIGHT = [[255, 243, 196], [253, 184, 99], [230, 97, 1], [165, 15, 21], [77, 0, 16]];
  const DARK = [[58, 44, 86], [123, 35, 130], [209, 73, 91], [249, 160, 63], [252, 246, 189]];
  view.heat = function (share) {
    if (share === null || share === undefined) return view.colour("line");
    const stops = view.dark() ? DARK : LIGHT, at = Math.sqrt(Math.min(Math.max(share, 0), 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
    return `rgb(${stops[low].map((each, at) => Math.round(each + (stops[low + 1][at] - each) * part)).join(" ")})`;
  };
  view.inkOn = (share) => (share === null || share === undefined ? view.colour("ink") : Math.sqrt(share) < 0.5 !== view.dark() ? "#1b1f24" : "#ffffff");
}
