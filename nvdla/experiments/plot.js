// The plot of points over two chosen metrics: Pareto front, details of a point under the pointer, and a comparison of
// selected points. The data is in #plot-data; rows of the table #points are those points in order.
"use strict";
{
  const SVG = "http://www.w3.org/2000/svg", COLORS = 6, SHAPES = ["circle", "square", "diamond", "triangle"];
  const MARGIN = { left: 76, right: 20, top: 16, bottom: 56 };
  const host = document.getElementById("plot");
  const data = JSON.parse(document.getElementById("plot-data").textContent);
  const metrics = Object.fromEntries(data.metrics.map((metric) => [metric.key, metric]));
  const configs = [...new Set(data.points.map((point) => point.config))];
  const networks = [...new Set(data.points.map((point) => point.network))];
  const state = { x: data.x, y: data.y, network: networks[0], hidden: new Set(), front: false, chosen: new Set() };

  const make = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
  const draw = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

  function fill(node, attributes, children) {
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  }

  // A number in plain digits with four significant ones.
  function text(value, metric) {
    if (value === null || value === undefined) return "-";
    if (metric && metric.percent) return `${(value * 100).toFixed(2)}%`;
    const digits = Math.abs(value) >= 1000 ? 0 : 4 - Math.max(1, Math.ceil(Math.log10(Math.abs(value) || 1)));
    const shown = value.toLocaleString("en-US", { maximumFractionDigits: Math.min(Math.max(digits, 0), 9) });
    return metric && metric.unit ? `${shown} ${metric.unit}` : shown;
  }

  const better = (metric, a, b) => (metric.better === "more" ? a > b : a < b);

  // The points that no other point beats: at least as good in both metrics and better in one.
  function front(points) {
    const [x, y] = [metrics[state.x], metrics[state.y]];
    const beats = (a, b) =>
      !better(x, b.values[x.key], a.values[x.key]) && !better(y, b.values[y.key], a.values[y.key]) &&
      (better(x, a.values[x.key], b.values[x.key]) || better(y, a.values[y.key], b.values[y.key]));
    return points.filter((point) => !points.some((other) => beats(other, point)));
  }

  // Scale of an axis with its ticks: logarithmic for values that span a factor of three or more.
  function axis(metric, values, start, end) {
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low > 0 && high / low >= 3 && !metric.percent) {
      const ticks = logTicks(low, high), [first, last] = [Math.log(ticks[0]), Math.log(ticks[ticks.length - 1])];
      return { ticks, log: true, at: (value) => start + ((end - start) * (Math.log(value) - first)) / (last - first) };
    }
    if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
    const step = [1, 2, 5, 10].map((lead) => lead * 10 ** Math.floor(Math.log10((high - low) / 4)))
      .find((size) => (high - low) / size <= 6);
    const begin = Math.floor(low / step), count = Math.ceil(high / step) - begin;
    const ticks = Array.from({ length: count + 1 }, (_, at) => (begin + at) * step);
    const span = ticks[ticks.length - 1] - ticks[0];
    return { ticks, log: false, at: (value) => start + ((end - start) * (value - ticks[0])) / span };
  }

  // 1, 2 and 5 times powers of ten from one below the values to one above; powers of ten alone where these are many.
  function logTicks(low, high) {
    for (const leads of [[1, 2, 5], [1]]) {
      const all = [];
      for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)) + 1; power++) {
        for (const lead of leads) all.push(lead * 10 ** power);
      }
      const begin = all.filter((tick) => tick <= low * (1 + 1e-9)).length - 1;
      const end = Math.max(all.findIndex((tick) => tick >= high * (1 - 1e-9)), begin + 1);
      if (end - begin < 10 || leads.length === 1) return all.slice(begin, end + 1);
    }
    return [];
  }

  function shape(config, x, y, size) {
    const at = configs.indexOf(config), kind = SHAPES[at % SHAPES.length];
    const paths = {
      circle: `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`,
      square: `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      diamond: `M${x} ${y - 1.3 * size}l${1.3 * size} ${1.3 * size}l${-1.3 * size} ${1.3 * size}l${-1.3 * size} ${-1.3 * size}z`,
      triangle: `M${x} ${y - 1.2 * size}l${1.2 * size} ${2.2 * size}h${-2.4 * size}z`,
    };
    return draw("path", { d: paths[kind], class: `mark c${at % COLORS}` });
  }

  const ofNetwork = () => data.points.filter((point) => point.network === state.network);

  function shownPoints() {
    const known = (point, key) => typeof point.values[key] === "number";
    const visible = ofNetwork().filter((point) => !state.hidden.has(point.config));
    const rated = visible.filter((point) => known(point, state.x) && known(point, state.y));
    return { rated, without: visible.length - rated.length };
  }

  const chart = make("div", { class: "chart" }), status = make("p", { class: "count", role: "status" });
  const tip = make("div", { class: "tip", hidden: true }), details = make("div", { class: "details" });

  function redraw() {
    const { rated, without } = shownPoints(), best = new Set(front(rated));
    const points = state.front ? rated.filter((point) => best.has(point)) : rated;
    const focused = document.activeElement && document.activeElement.getAttribute("data-point");
    tip.hidden = true;
    chart.replaceChildren(points.length ? picture(points, best) : make("p", {}, "No point has both values."));
    if (focused !== null) chart.querySelector(`[data-point="${focused}"]`)?.focus();
    const left = without ? `; ${without} without a value on these axes` : "";
    status.textContent = `${points.length} ${points.length === 1 ? "point" : "points"}, ${best.size} on the Pareto front${left}`;
    showDetails();
  }

  function picture(points, best) {
    const width = Math.max(chart.clientWidth, 280), height = Math.min(Math.max(width / 2, 300), 480);
    const [x, y] = [metrics[state.x], metrics[state.y]];
    const across = axis(x, points.map((point) => point.values[x.key]), MARGIN.left, width - MARGIN.right);
    const up = axis(y, points.map((point) => point.values[y.key]), height - MARGIN.bottom, MARGIN.top);
    const place = (point) => [across.at(point.values[x.key]), up.at(point.values[y.key])];
    const line = points.filter((point) => best.has(point)).map(place).sort((a, b) => a[0] - b[0]);
    return draw("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${y.name} over ${x.name}`,
    }, ...grid(across, up, x, y, width, height),
    draw("polyline", { class: "front", points: line.map((at) => at.map((value) => value.toFixed(1)).join(",")).join(" ") }),
    ...points.map((point) => mark(point, place(point), best.has(point))));
  }

  function grid(across, up, x, y, width, height) {
    const bottom = height - MARGIN.bottom, right = width - MARGIN.right, parts = [];
    const wide = across.ticks.some((tick) => text(tick).length > 5);
    const skip = Math.ceil((across.ticks.length * (wide ? 56 : 40)) / (right - MARGIN.left));
    across.ticks.forEach((tick, number) => {
      parts.push(draw("path", { class: "grid", d: `M${across.at(tick)} ${MARGIN.top}V${bottom}` }));
      if (number % skip) return;
      parts.push(draw("text", { x: across.at(tick), y: bottom + 18, "text-anchor": "middle" }, label(tick, x)));
    });
    for (const tick of up.ticks) {
      parts.push(draw("path", { class: "grid", d: `M${MARGIN.left} ${up.at(tick)}H${right}` }));
      parts.push(draw("text", { x: MARGIN.left - 8, y: up.at(tick) + 4, "text-anchor": "end" }, label(tick, y)));
    }
    const title = (metric, scale) => `${metric.name}${metric.unit ? ` (${metric.unit})` : ""}${scale.log ? ", log" : ""}`;
    parts.push(draw("text", { x: (MARGIN.left + right) / 2, y: height - 12, "text-anchor": "middle" }, title(x, across)));
    const turned = `translate(14,${(MARGIN.top + bottom) / 2}) rotate(-90)`;
    parts.push(draw("text", { transform: turned, "text-anchor": "middle" }, title(y, up)));
    return parts;
  }

  const label = (tick, metric) => text(Number(tick.toPrecision(12)), metric.percent ? metric : null);

  function mark(point, [x, y], isBest) {
    const id = data.points.indexOf(point), chosen = state.chosen.has(id);
    const said = `${point.label}: ${[state.y, state.x].map((key) => `${text(point.values[key], metrics[key])} ${metrics[key].name}`).join(", ")}`;
    const show = () => showTip(point, x, y);
    const hide = () => { tip.hidden = true; };
    const toggle = () => choose(id);
    return draw("g", {
      class: `point${isBest ? " best" : ""}${chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-point": id,
      "aria-pressed": String(chosen), "aria-label": isBest ? `${said}, on the Pareto front` : said,
      onpointerenter: show, onpointerleave: hide, onfocus: show, onblur: hide, onclick: toggle,
      onkeydown: (event) => {
        if (event.key === "Escape") hide();
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      },
    }, draw("circle", { cx: x, cy: y, r: 12, class: "area" }), shape(point.config, x, y, 5));
  }

  function choose(id) {
    if (!state.chosen.delete(id)) state.chosen.add(id);
    redraw();
  }

  function rowsOf(points) {
    return data.metrics.filter((metric) => points.some((point) => typeof point.values[metric.key] === "number"));
  }

  function showTip(point, x, y) {
    const rows = rowsOf([point]).map((metric) =>
      make("div", {}, make("span", {}, metric.name), make("b", {}, text(point.values[metric.key], metric))));
    tip.replaceChildren(make("p", {}, point.label), ...rows, ...(point.note ? [make("p", {}, point.note)] : []));
    tip.hidden = false;
    const left = Math.min(Math.max(x - tip.offsetWidth / 2, 0), Math.max(chart.clientWidth - tip.offsetWidth, 0));
    const above = y - tip.offsetHeight - 14;
    tip.style.left = `${left}px`;
    tip.style.top = `${chart.offsetTop + (above < 0 ? y + 14 : above)}px`;
  }

  // A table of the selected points next to each other; the rows of the table of all points show the selection, too.
  function showDetails() {
    const chosen = [...state.chosen].map((id) => data.points[id]);
    const cells = document.querySelectorAll("#points tr:has(td)");
    cells.forEach((row, id) => row.classList.toggle("chosen", state.chosen.has(id)));
    if (!chosen.length) {
      details.replaceChildren(make("p", {}, "Select points to compare them."));
      return;
    }
    const head = make("tr", {}, make("th", { scope: "col" }, "selected"),
      ...chosen.map((point) => make("th", { scope: "col", class: "text" }, point.label)));
    const rows = rowsOf(chosen).map((metric) => make("tr", {}, make("th", { scope: "row" }, metric.name),
      ...chosen.map((point) => make("td", {}, text(point.values[metric.key], metric)))));
    const clear = () => { state.chosen.clear(); redraw(); };
    details.replaceChildren(
      make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "selected points" },
        make("table", {}, head, ...rows)),
      make("button", { type: "button", onclick: clear }, "Clear the selection"));
  }

  function choice(name, key, options) {
    const id = `plot-${key}`;
    const list = make("select", { id, onchange: (event) => { state[key] = event.target.value; redraw(); } },
      ...options.map(([value, shown]) => make("option", { value, selected: value === state[key] }, shown)));
    return make("span", { class: "choice" }, make("label", { for: id }, name), list);
  }

  function legend(config) {
    const box = make("input", { type: "checkbox", checked: true, onchange: (event) => {
      state.hidden[event.target.checked ? "delete" : "add"](config);
      redraw();
    } });
    const swatch = draw("svg", { width: 16, height: 16, "aria-hidden": "true" }, shape(config, 8, 8, 5));
    return make("label", {}, box, swatch, config);
  }

  const axes = data.metrics.map((metric) => [metric.key, metric.unit ? `${metric.name} (${metric.unit})` : metric.name]);
  const only = make("input", { type: "checkbox", onchange: (event) => { state.front = event.target.checked; redraw(); } });
  host.append(
    make("div", { class: "controls" }, choice("Vertical", "y", axes), choice("Horizontal", "x", axes),
      ...(networks.length > 1 ? [choice("Network", "network", networks.map((name) => [name, name]))] : []),
      make("label", {}, only, "Pareto front only")),
    make("fieldset", {}, make("legend", {}, "Configurations"), ...configs.map(legend)),
    chart, tip, status, details);
  redraw();
  document.querySelectorAll("#points tr:has(td)").forEach((row, id) => row.addEventListener("click", () => choose(id)));
  let width = chart.clientWidth;
  new ResizeObserver(() => {
    if (chart.clientWidth === width) return;
    width = chart.clientWidth;
    redraw();
  }).observe(chart);
  document.documentElement.dataset.ready = "";
}
