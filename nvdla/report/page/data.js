// The page's data, and small helpers that all views use.
{
  async function inflated(text) {
    if (!text) return new Uint8Array(0);
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  view.unpacked = async function (document, elements) {
    const [text, bytes] = await Promise.all([inflated(document), inflated(elements)]);
    return [JSON.parse(new TextDecoder().decode(text)), bytes];
  };

  // Takes the data out of the page; the text is not needed any more.
  view.load = async function () {
    const holders = ["document", "elements"].map((id) => document.getElementById(id));
    const texts = holders.map((holder) => holder.textContent);
    for (const holder of holders) holder.remove();
    view.take(...await view.unpacked(...texts));
  };

  view.take = function (data, elements) {
    view.data = data;
    view.elements = elements;
    view.sides = data.kind === "index" ? [] : data.sides;
    view.sides.forEach(prepare);
    view.partner = [new Map(), new Map()];
    for (const pair of data.pairs || []) {
      view.partner[0].set(pair.left, pair);
      view.partner[1].set(pair.right, pair);
    }
  };

  // What can be said faster from tables than by searching.
  function prepare(side, number) {
    side.number = number;
    const short = (name) => (Object.hasOwn(side.short, name) ? side.short[name] : name);
    side.chainOf = [];
    side.chains.forEach((chain, step) => chain.forEach((op) => { side.chainOf[op] = step; }));
    side.operations.forEach((op, id) => Object.assign(op, { id, wrote: [], reads: [], waiters: [], findings: [], short: op.layer && short(op.layer), shortBlock: short(op.block) }));
    // "c/conv2d_1/BiasAdd" is conv2d_1: the last word is the kind of an operator.
    const last = (name) => {
      const [before, end] = ["", ...name.split("/")].slice(-2);
      return before && /^([^\d]*|[A-Z][A-Za-z]*\d[dD]?)$/.test(end) ? before : end;
    };
    const brief = (op) => op.short && [...new Set(op.short.split("+").map(last))].join("+"), layers = new Map(side.operations.map((op) => [op.short, brief(op)]));
    const counts = new Map();
    for (const name of layers.values()) counts.set(name, (counts.get(name) || 0) + 1);
    side.operations.forEach((op) => { op.brief = counts.get(brief(op)) > 1 ? op.short : brief(op); });
    side.operations.forEach((op) => op.waits.forEach(([from, event]) => {
      side.operations[from].waiters.push([op.id, event]);
    }));
    side.values.forEach((value, id) => {
      value.id = id;
      value.short = value.kind === "intermediate" ? short(value.name) : value.name;
      if (value.writer !== null) side.operations[value.writer].wrote.push(id);
      value.readers.forEach(([op, role]) => side.operations[op].reads.push([id, role]));
    });
    side.findings.forEach((each) => { if (each.operation !== null) side.operations[each.operation].findings.push(each); });
    side.byAddress = new Map(side.registers.map((each) => [each[0], each]));
    side.times = side.chains.map((chain) => {
      const ops = chain.map((op) => side.operations[op]).filter((op) => op.start !== null && op.end !== null);
      if (!ops.length) return [0, 0];
      return [Math.min(...ops.map((op) => op.start)), Math.max(...ops.map((op) => op.end))];
    });
    for (const track of side.tracks) { // the sum up to each point, for averages
      let sum = 0;
      track.sums = track.points.map(([at, value], place) => {
        const before = sum;
        sum += ((track.points[place + 1]?.[0] ?? at) - at) * value;
        return before;
      });
    }
    side.matches = null; // operations that the search box names
  }

  // When a value is in memory: from the beginning of the step that writes it to the beginning of the
  // step after the last that reads it.
  view.life = function (side, value) {
    const first = value.first < 0 ? 0 : side.times[value.first][0];
    const last = value.last < 0 ? 0 : value.last >= side.times.length ? side.cycles : Math.max(side.times[value.last][1], side.times[value.last + 1]?.[0] ?? side.cycles);
    return [first, Math.max(last, first)];
  };

  // Average of a track over some cycles.
  view.average = function (track, from, to) {
    const sum = (at) => {
      let low = -1, high = track.points.length;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (track.points[middle][0] <= at) low = middle;
        else high = middle;
      }
      return low < 0 ? 0 : track.sums[low] + (at - track.points[low][0]) * track.points[low][1];
    };
    return (sum(to) - sum(from)) / (to - from);
  };

  view.title = (op) => `${op.engine.toUpperCase()} ${op.label}${op.short ? " " + op.short : ""}`;
  view.shape = (shape) => (shape ? shape.join("x") : "");
  const grouped = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one for every number
  view.count = (number) => (number === null || number === undefined ? "" : grouped.format(number));
  // Share of a run; null where the run never ends.
  // Operations that overlap take more cycles together than the run: their shares are of the sum.
  const alone = view.alone = (side) => (side.alone ??= side.operations.reduce((sum, op) => sum + (op.leads ? op.cycles || 0 : 0), 0));
  view.shareOf = (side, cycles) => (side.total && cycles ? cycles / Math.max(side.total, alone(side)) : null);
  // Why cycles of operations that overlap add up to more than the total.
  view.overlap = (side) => (side.total && alone(side) > side.total
    ? view.el("p", { class: "soft" }, `Operations overlap: alone they take ${view.count(alone(side))} cycles together, in the run ${view.count(side.total)}. Shares are of the sum.`)
    : null);
  view.counted = (number, what) => `${view.count(number)} ${what}${number === 1 ? "" : "s"}`;
  view.percent = (share, digits = 1) => (share === null || share === undefined ? "" : (100 * share).toFixed(digits) + "%");
  view.hex = (number) => "0x" + number.toString(16);
  view.real = function (number) {
    if (number === null || number === undefined) return "";
    if (Number.isInteger(number) && Math.abs(number) < 1e9) return view.count(number);
    return Number(number.toPrecision(4)).toString();
  };
  view.bytes = function (number) {
    if (number < 10240) return `${view.count(number)} B`;
    return number < 10 << 20 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / 1048576).toFixed(1)} MiB`;
  };
  view.short = (text, limit) => (text.length <= limit ? text : text.slice(0, limit - 1) + "…");

  // An element. Texts become text nodes, so that no name of a file is ever read as markup.
  view.el = function (name, attributes, ...children) {
    const node = name === "svg" || view.el.svg.has(name)
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else node.setAttribute(key, value === true ? "" : value);
    }
    for (const child of children.flat()) {
      if (child !== null && child !== undefined && child !== false) node.append(child);
    }
    return node;
  };
  view.el.svg = new Set(["g", "rect", "line", "path", "circle", "text", "title", "polyline"]);

  // The colours of the page's style sheet, by name.
  let colours = null;
  view.colour = function (name) {
    if (!colours) colours = {};
    if (!(name in colours)) {
      colours[name] = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888888";
    }
    return colours[name];
  };
  view.forgetColours = () => { colours = null; };

  // Round numbers for an axis: 1, 2 or 5 times a power of ten, about `wanted` of them.
  view.ticks = function (low, high, wanted) {
    const span = high - low;
    if (!(span > 0)) return [low];
    const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    const found = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Number(tick.toPrecision(12)));
    return found;
  };

  // Views hear of what happens elsewhere.
  let listeners = {};
  view.forget = () => { listeners = {}; };
  view.on = (what, call) => { (listeners[what] ||= []).push(call); };
  view.tell = (what, ...rest) => { for (const call of listeners[what] || []) call(...rest); };
}
