// The frame: views, search, what is chosen, colours, keys; and the server, where there is one.
{
  const root = document.documentElement, app = document.getElementById("app");
  view.served = document.body.dataset.served === "1";
  view.chosen = null;
  view.graphs = [];
  view.side = 0;
  const tabs = new Map(); // name -> {button, section, make, made, show}

  const store = { get: (key) => { try { return localStorage.getItem(key); } catch { return null; } }, set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* not allowed */ } } };
  view.dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (store.get("nvdla-theme")) root.dataset.theme = store.get("nvdla-theme");

  function recolour() {
    view.forgetColours();
    for (const graph of view.graphs) graph.small = null;
    redraw();
  }
  const drawings = [];
  function redraw() { for (const each of drawings) each.plane.redraw(); }
  view.redraw = redraw;

  // ---- what is chosen: an operation, a value, a subgraph, or nothing

  view.choose = function (side = null, kind = null, id = null, from = null) {
    view.chosen = side === null ? null : { side, kind, id };
    if (side !== null && view.sides.length > 1) view.takeSide(side);
    view.fillPanel(document.getElementById("panel"));
    for (const each of drawings) {
      if (each !== from && view.chosen && kind !== "subgraph" && each.side.number === side && each.plane.width && fits(each, kind)) each.reveal(kind, id);
      else each.plane.redraw();
    }
    const partner = view.chosen && kind === "op" && view.partner[side]?.get(id);
    if (partner && view.graphs[1 - side]) view.graphs[1 - side].reveal("op", side ? partner.left : partner.right);
    for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
    if (kind === "op") document.querySelector(`#operations-${side} tr[data-row="${id}"]`)?.classList.add("chosen");
    said.textContent = view.chosen ? document.querySelector("#panel h2").textContent : "";
    remember();
  };
  // What is chosen on a side: itself, or the counterpart of an operation of the other side.
  view.chosenOn = function (side) {
    if (!view.chosen || view.chosen.side === side) return view.chosen;
    const pair = view.chosen.kind === "op" && view.partner[view.chosen.side].get(view.chosen.id);
    return pair ? { side, kind: "op", id: side ? pair.right : pair.left } : null;
  };
  function fits(drawing, kind) {
    if (drawing instanceof view.Timeline) return kind === "op";
    return drawing instanceof view.Memory ? kind === "value" : true;
  }

  // The address says what is shown, so that it can be passed on; every step is one of the browser's history.
  let recalling = false;
  function remember() {
    if (recalling) return;
    const words = new URLSearchParams({ view: current });
    if (view.chosen) {
      const { side, kind, id } = view.chosen;
      words.set(kind, kind === "op" ? view.sides[side].operations[id].label : id);
      if (side) words.set("side", "B");
    }
    const first = !location.hash, now = `#${words}`;
    if (location.hash === now) return;
    try { history[first ? "replaceState" : "pushState"](null, "", now); } catch { /* pages without an address */ }
  }

  // Shows what the address says: at the start, after Back and Forward, and after the address was edited.
  function recall() {
    if (view.data.kind === "index") return;
    recalling = true;
    const words = new URLSearchParams(location.hash.slice(1)), side = words.get("side") === "B" && view.sides[1] ? 1 : 0;
    const name = [...tabs.keys()].find((each) => each === words.get("view")) || tabs.keys().next().value;
    show(name);
    const op = view.sides[side].operations.find((each) => each.label === words.get("op"));
    if (op) view.choose(side, "op", op.id);
    else if (words.get("value") && view.sides[side].values[words.get("value")]) view.choose(side, "value", Number(words.get("value")));
    else if (view.chosen) view.choose();
    recalling = false;
    remember();
  }
  addEventListener("popstate", recall);

  // ---- the views

  let current = "";
  function show(name, reveal = false) {
    const tab = tabs.get(name);
    if (!tab) return;
    current = name;
    for (const [each, { button, section }] of tabs) {
      section.hidden = each !== name;
      button.setAttribute("aria-selected", each === name);
      button.tabIndex = each === name ? 0 : -1;
    }
    inStrip();
    make(tab);
    redraw();
    if (reveal && view.chosen) {
      const { side, kind, id } = view.chosen;
      requestAnimationFrame(() => { for (const each of drawings) if (each.side.number === side && tab.section.contains(each.drawing) && fits(each, kind) && kind !== "subgraph") each.reveal(kind, id); });
      if (matchMedia("(max-width: 760px)").matches) view.choose();
    }
    remember();
  }
  view.show = show;

  // The strip of tabs is scrolled where it is wider than the window.
  function inStrip() { tabs.get(current)?.button.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  addEventListener("resize", inStrip);

  function make(tab) {
    if (tab.made) return;
    tab.made = true;
    tab.make(tab.section);
  }

  function add(name, fill) {
    const id = name.toLowerCase();
    const button = view.el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id, onclick: () => show(name) }, name);
    const section = view.el("section", { id, role: "tabpanel", "aria-labelledby": `tab-${id}`, tabindex: 0, hidden: true });
    tabs.set(name, { button, section, make: fill, made: false });
    return [button, section];
  }

  // A view of the one side that is looked at; with two sides there are buttons to change it.
  function ofSide(fill) {
    return function (section) {
      const holders = view.sides.map((side) => view.el("div", { class: "of-side", "data-side": side.number, hidden: side.number !== view.side }));
      section.append(...holders);
      view.sides.forEach((side, at) => fill(holders[at], side));
    };
  }
  view.takeSide = function (number) {
    view.side = number;
    for (const each of document.querySelectorAll(".of-side")) each.hidden = Number(each.dataset.side) !== number;
    for (const each of document.querySelectorAll("#sides button")) each.setAttribute("aria-pressed", Number(each.dataset.side) === number);
  };

  function chart(Kind, tools) {
    return ofSide((holder, side) => {
      const frame = view.el("div", { class: `chart-frame ${Kind.name}` });
      const bar = view.el("div", { class: "tools" });
      holder.append(bar, frame);
      const drawing = new Kind(frame, side);
      drawings.push(drawing);
      bar.append(...view.zoomButtons(drawing.plane), ...(tools ? tools(drawing) : []));
    });
  }

  function graphs(section) {
    const bar = view.el("div", { class: "tools" }), both = view.el("div", { class: "graphs" });
    section.append(bar, both);
    for (const side of view.sides) {
      const frame = view.el("div", { class: "graph-frame" });
      if (view.sides.length > 1) frame.append(view.el("h2", {}, `${side.number ? "B" : "A"}: ${side.title}`));
      both.append(frame);
      const graph = new view.Graph(frame, side);
      view.graphs.push(graph);
      drawings.push(graph);
    }
    const each = (call) => () => view.graphs.forEach(call);
    const tick = (name, key) => view.el("label", {}, view.el("input", { type: "checkbox", id: `show-${key}`, onchange: (event) => { view.graphs.forEach((graph) => { graph[key] = event.target.checked; graph.plane.redraw(); }); } }), ` ${name}`);
    const kinds = [["engine", "engine"], ["cycles", "cycles"], ["use", "MAC array used"]];
    if (view.sides.some((side) => side.run && !side.run.error)) kinds.push(["saturated", "saturation"], ["zeros", "zeros"]);
    if (view.data.pairs?.some((pair) => pair.equal !== undefined)) kinds.push(["difference", "difference of A and B"]);
    const legend = view.el("span", { class: "legend", id: "graph-legend" });
    const colourBy = (by) => {
      for (const graph of view.graphs) {
        graph.by = by;
        graph.plane.redraw();
      }
      legend.replaceChildren(...view.graphs[0].legend());
    };
    const choose = view.el("select", { id: "colour-by", onchange: (event) => colourBy(event.target.value) }, kinds.map(([value, text]) => view.el("option", { value }, text)));
    const buttons = [["+", 1.4, "Zoom in"], ["−", 1 / 1.4, "Zoom out"]].map(([text, factor, name]) => view.el("button", { type: "button", "aria-label": name, title: name, onclick: each((graph) => graph.plane.zoom(factor)) }, text));
    bar.append(...buttons, view.el("button", { type: "button", onclick: each((graph) => graph.plane.fit()) }, "Fit"));
    if (view.graphs.some((graph) => graph.names.length)) {
      bar.append(view.el("button", { type: "button", id: "close-subgraphs", onclick: each((graph) => graph.all(true)) }, "Close subgraphs"), view.el("button", { type: "button", id: "open-subgraphs", onclick: each((graph) => graph.all(false)) }, "Open subgraphs"));
    }
    bar.append(tick("events", "events"), tick("hazards", "hazards"), view.el("label", {}, "color by ", choose), legend);
    colourBy("engine");
  }

  function frame() {
    const names = [
      add("Graph", graphs),
      add("Overview", ofSide((holder, side) => holder.append(...view.overview(side)))),
      add("Operations", ofSide((holder, side) => holder.append(...view.operations(side)))),
      add("Cycles", ofSide((holder, side) => holder.append(...view.timing(side)))),
      add("Timeline", chart(view.Timeline, () => [view.el("span", { class: "legend" }, ["at work", "programmed ahead"].map((text, thin) => view.el("span", {}, view.el("i", { class: thin ? "thin" : "conv" }), ` ${text}`)), " lower edge: first to last MAC")])),
      add("Memory", chart(view.Memory, (drawing) => [
        view.el("label", {}, view.el("input", { type: "checkbox", onchange: (event) => { drawing.constants = event.target.checked; drawing.build(); drawing.plane.redraw(); } }), " weights"),
        view.el("span", { class: "legend" }, ["input", "intermediate", "output", "constant"].map((kind) => view.el("span", {}, view.el("i", { class: kind }), ` ${kind}`))),
      ])),
      add("Findings", ofSide((holder, side) => holder.append(...view.findingsTable(side)))),
      add("Values", ofSide((holder, side) => holder.append(...view.values(side)))),
      add("File", ofSide((holder, side) => holder.append(...view.fileTables(side)))),
    ];
    if (view.sides.length > 1) names.push(add("Compare", (section) => section.append(...view.compareTable())));
    if (!view.sides.some((side) => side.run)) {
      tabs.delete("Values");
      names.splice(7, 1);
    }
    return names;
  }

  // ---- search

  const said = view.el("output", { class: "hidden", "aria-live": "polite", id: "said" });
  const box = view.el("input", { type: "search", id: "search", placeholder: "Search (/)", "aria-label": "Search operations: engine, layer, shape, rule", autocomplete: "off", spellcheck: "false" });
  const hits = view.el("ul", { id: "hits", hidden: true });
  const count = view.el("span", { class: "soft", id: "count", "aria-live": "polite" });

  function textOf(side, op) {
    op.text ??= [op.label, op.engine, op.layer, op.short, op.what, view.shape(op.input), view.shape(op.output), op.precision, op.bound, ...op.findings.map((each) => `${each.rule} ${each.severity}`)].join(" ").toLowerCase();
    return op.text;
  }
  function search() {
    view.words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const side of view.sides) {
      side.matches = view.words.length ? new Set(side.operations.filter((op) => view.words.every((word) => textOf(side, op).includes(word))).map((op) => op.id)) : null;
    }
    const found = view.sides.flatMap((side) => (side.matches ? [...side.matches].map((id) => [side, id]) : []));
    count.textContent = view.words.length && view.sides.length ? `${found.length} of ${view.sides.reduce((sum, side) => sum + side.operations.length, 0)}` : "";
    hits.replaceChildren(...found.slice(0, 12).map(([side, id]) => view.el("li", {}, view.link(side, "op", id))));
    hits.hidden = !found.length || document.activeElement !== box || !["Graph", "Timeline", "Memory", "Cycles"].includes(current);
    view.tell("search");
    redraw();
  }
  box.addEventListener("input", search);
  box.addEventListener("blur", () => setTimeout(() => { if (!hits.contains(document.activeElement)) hits.hidden = true; }, 200));
  hits.addEventListener("click", () => { hits.hidden = true; });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      const side = view.sides.find((each) => each.matches?.size);
      if (side) view.choose(side.number, "op", Math.min(...side.matches));
      hits.hidden = true;
    } else if (event.key === "ArrowDown" && !hits.hidden) {
      event.preventDefault();
      hits.querySelector("button")?.focus();
    }
  });
  hits.addEventListener("keydown", (event) => {
    const list = [...hits.querySelectorAll("button")], to = list[list.indexOf(document.activeElement) + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] || 0)];
    if (!["ArrowDown", "ArrowUp"].includes(event.key)) return;
    event.preventDefault();
    (to || box).focus();
  });

  // ---- keys and colours

  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName) && document.activeElement.type !== "checkbox";
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      box.focus();
      box.select();
    } else if (event.key === "Escape") {
      if (document.activeElement === box) {
        box.value = "";
        search();
        box.blur();
      } else if (view.chosen) view.choose();
    } else if (!typing && /^[1-9]$/.test(event.key)) show([...tabs.keys()][event.key - 1]);
  });

  function header(names) {
    const title = view.el("h1", {}, document.title);
    const list = view.el("div", { role: "tablist", "aria-label": "Views" }, names.map(([button]) => button));
    list.addEventListener("keydown", (event) => {
      const order = [...tabs.keys()], to = order[order.indexOf(current) + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] || 0)];
      if (!["ArrowRight", "ArrowLeft"].includes(event.key) || !to) return;
      show(to);
      tabs.get(to).button.focus();
    });
    const theme = view.el("button", { type: "button", id: "theme", title: "Dark or light", "aria-label": "Dark or light", onclick: () => {
      root.dataset.theme = view.dark() ? "light" : "dark";
      store.set("nvdla-theme", root.dataset.theme);
      recolour();
    } }, "◐");
    const sides = view.sides.length > 1 ? view.el("div", { id: "sides", role: "group", "aria-label": "Side" }, ["A", "B"].map((name, number) => view.el("button", { type: "button", "data-side": number, "aria-pressed": number === 0, title: view.sides[number].title, onclick: () => view.takeSide(number) }, name))) : null;
    return view.el("header", { id: "head" }, title, list, sides, view.el("div", { class: "search" }, box, count, hits, theme));
  }

  // Paper has no tabs and cannot be unfolded: everything stands one below the other.
  addEventListener("beforeprint", () => {
    for (const tab of tabs.values()) {
      tab.section.hidden = false;
      make(tab);
    }
    for (const table of document.querySelectorAll("table.wide")) table.whole();
  });
  addEventListener("afterprint", () => { if (current) show(current); });

  function begin() {
    app.replaceChildren();
    tabs.clear();
    drawings.length = 0;
    view.graphs.length = 0;
    view.forget();
    view.chosen = null;
    current = "";
    if (view.data.kind === "index") {
      const table = view.index();
      view.on("search", () => table.querySelector("table").refill());
      app.append(header([]), view.el("main", {}, view.el("section", { id: "list" }, table)), said);
      return;
    }
    const names = frame();
    app.append(header(names), view.el("main", {}, names.map(([, section]) => section)), view.el("aside", { id: "panel", hidden: true, "aria-label": "Selected operation or tensor", tabindex: -1 }), said);
    view.takeSide(0);
    recall();
  }
  view.begin = begin;

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  view.load().then(() => {
    begin();
    if (view.served && view.data.kind !== "index") view.serve();
    requestAnimationFrame(() => { performance.mark("ready"); root.dataset.ready = "1"; });
  }).catch((error) => {
    app.replaceChildren(view.el("p", { class: "bad" }, `The page cannot be shown: ${error.message}. It needs a browser of 2023 or later.`));
    root.dataset.ready = "failed";
    throw error;
  });
}
