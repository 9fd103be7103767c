// Tables and lists: overview, operations, findings, values of a run, both sides, the index of a folder.
{
  const FIRST = 60; // rows that are made at once; as many again whenever the last of them comes into sight

  // columns: [heading, (row) => value, (row) => shown]; a click on a heading sorts, up, then down.
  view.table = function (rows, columns, { caption, id, pick, words, chosen }) {
    const body = view.el("tbody", {}), numeric = columns.map(([, value]) => rows.some((row) => typeof value(row) === "number"));
    const heads = columns.map(([name], at) => view.el("th", { scope: "col", "aria-sort": "none", class: numeric[at] ? "number" : null },
      view.el("button", { type: "button", onclick: () => sort(at) }, name)));
    // Columns are as wide as the longest text of all rows, so that they stay where they are when rows are added.
    heads.forEach((head, at) => { head.style.minWidth = `${Math.min(longest(rows, columns[at][1]), 24)}ch`; });
    const table = view.el("table", { id, class: "wide" }, view.el("caption", { class: "hidden" }, caption), view.el("thead", {}, view.el("tr", {}, heads)), body);
    let order = rows, shown = [];
    const watch = new IntersectionObserver((seen) => { if (seen.some((each) => each.isIntersecting)) more(FIRST); });

    function line(row) {
      const cells = columns.map(([, value, shown], at) => view.el("td", { class: numeric[at] ? "number" : null }, ...[shown ? shown(row) : plain(value(row))].flat()));
      const made = view.el("tr", { tabindex: -1, "data-row": row.id, class: chosen?.(row) ? "chosen" : null }, cells);
      if (pick) made.addEventListener("click", (event) => { if (!event.target.closest("a")) pick(row); });
      return made;
    }
    function fill() {
      shown = words ? order.filter(words) : order;
      body.replaceChildren();
      more(FIRST);
      if (body.rows.length) body.rows[0].tabIndex = 0;
      table.dataset.shown = shown.length;
    }
    function more(count) {
      const made = body.rows.length;
      watch.disconnect();
      body.append(...shown.slice(made, made + count).map(line));
      if (body.rows.length < shown.length) watch.observe(body.rows[body.rows.length - 1]);
    }
    function sort(at) {
      const down = heads[at].getAttribute("aria-sort") === "ascending", value = columns[at][1];
      for (const head of heads) head.setAttribute("aria-sort", "none");
      heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
      order = [...rows].sort((one, other) => compare(value(one), value(other), down));
      fill();
    }
    body.addEventListener("keydown", (event) => {
      if (event.key === "End") more(shown.length);
      const list = [...body.rows], at = list.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: list.length - 1 }[event.key];
      if (at < 0) return;
      if (event.key === "Enter") list[at].querySelector("a")?.click() ?? list[at].click();
      if (to === undefined || !list[to]) return;
      event.preventDefault();
      list[at].tabIndex = -1;
      list[to].tabIndex = 0;
      list[to].focus();
    });
    fill();
    table.refill = fill;
    table.whole = () => more(shown.length);
    return table;
  };

  function longest(rows, value) { return rows.reduce((most, row) => Math.max(most, plain(value(row)).length), 0); }

  function plain(value) { return value === null || value === undefined ? "" : typeof value === "number" ? view.count(value) : String(value); }

  // Numbers as numbers, "0/10" behind "0/9", what is missing last.
  function compare(one, other, down) {
    const missing = (value) => value === null || value === undefined || value === "";
    if (missing(one) || missing(other)) return missing(one) - missing(other);
    const found = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return down ? -found : found;
  }

  const scroll = (table, label) => view.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
  const badge = (engine) => view.el("span", { class: `badge ${engine}` }, engine.toUpperCase());

  view.overview = function (side) {
    const cards = side.figures.map(([name, value]) => view.el("div", { class: "card" }, view.el("b", {}, value), view.el("span", {}, name)));
    const about = view.el("dl", {}, side.about.flatMap(([name, text]) => [view.el("dt", {}, name), view.el("dd", {}, text)]));
    const notes = [...side.notes, ...side.missing];
    return [view.el("div", { class: "cards" }, cards), result(side), about, notes.length ? view.el("ul", { class: "soft" }, notes.map((note) => view.el("li", {}, note))) : null].filter(Boolean);
  };

  function result(side) {
    const { run } = side;
    if (!run) return null;
    if (run.error) return view.el("p", { class: "bad" }, `The loadable cannot run: ${run.error}`);
    const ranks = run.outputs.map(([name, tensor, rows]) => {
      const row = side.tensors[tensor];
      return view.el("table", { class: "ranks" }, view.el("caption", {}, `${name}: largest values`), view.el("tbody", {}, rows.map(([index, value, label]) => view.el("tr", {}, view.el("th", { scope: "row" }, label ? `${index} ${label}` : String(index)), view.el("td", { class: "number" }, view.amount(row, value))))));
    });
    const inputs = run.inputs.map(([name, tensor]) => view.tensor(side, tensor, `input ${name}`, "h2"));
    return view.el("div", { class: "side" }, ranks, inputs);
  }

  view.operations = function (side) {
    const columns = [
      ["Operation", (op) => op.label],
      ["Engine", (op) => op.engine, (op) => badge(op.engine)],
      ["Layer", (op) => op.short, (op) => view.el("span", { title: op.layer }, op.short)],
      ["Input", (op) => view.shape(op.input)],
      ["Output", (op) => view.shape(op.output)],
      ["Type", (op) => op.precision],
      ["MACs", (op) => op.macs || null],
      ["Cycles", (op) => (op.leads ? op.cycles : null)],
      ["Share", (op) => (op.leads ? view.shareOf(side, op.cycles) : null), (op) => (op.leads ? view.percent(view.shareOf(side, op.cycles)) : "")],
      ["Bound by", (op) => (op.leads ? op.bound : `with ${side.operations[side.chains[side.chainOf[op.id]][0]].label}`)],
      ["MAC use", (op) => op.use, (op) => view.percent(op.use)],
      ["Read", (op) => op.read],
      ["Written", (op) => op.written],
      ["Description", (op) => op.what, (op) => view.el("span", { class: "what" }, op.what)],
    ].filter(([, value]) => side.operations.some((op) => ![null, undefined, ""].includes(value(op))));
    const table = view.table(side.operations, columns, {
      caption: "Operations", id: `operations-${side.number}`, pick: (op) => view.choose(side.number, "op", op.id),
      words: (op) => !side.matches || side.matches.has(op.id), chosen: (op) => isChosen(side, op),
    });
    view.on("search", () => table.refill());
    return [view.overlap(side), scroll(table, "Operations")].filter(Boolean);
  };

  function isChosen(side, op) { return view.chosen?.side === side.number && view.chosen.kind === "op" && view.chosen.id === op.id; }

  view.findingsTable = function (side) {
    if (!side.findings.length) return [view.el("p", {}, `No findings. nvdla doctor checked the loadable${side.run && !side.run.error ? " and one run of it" : "; it was not run"}.`)];
    const columns = [
      ["Severity", (each) => ["error", "warning", "note"].indexOf(each.severity), (each) => view.el("span", { class: `severity ${each.severity}` }, each.severity)],
      ["Where", (each) => each.place, (each) => (each.operation === null ? each.place : view.link(side, "op", each.operation))],
      ["Finding", (each) => `${each.headline} [${each.rule}]`],
      ["Evidence", (each) => each.evidence, (each) => view.el("span", { class: "what" }, each.evidence)],
      ["Remedy", (each) => each.advice, (each) => view.el("span", { class: "what" }, each.advice)],
    ];
    return [scroll(view.table(side.findings, columns, { caption: "Findings of nvdla doctor", id: `findings-${side.number}` }), "Findings")];
  };

  // The tables of the file, as nvdla inspect --all prints them.
  view.fileTables = function (side) {
    return Object.entries(side.tables).flatMap(([name, rows]) => {
      const columns = Object.keys(rows[0] ?? {}).map((key) => [key.replaceAll("_", " "), (row) => (Array.isArray(row[key]) ? row[key].join(", ") : row[key])]);
      const shown = rows.length ? scroll(view.table(rows, columns, { caption: name, id: `${name}-${side.number}` }), name) : view.el("p", { class: "soft" }, "none");
      return [view.el("h2", { class: "small" }, name), shown];
    });
  };

  // What every operation wrote, one card each; a card is drawn when it comes into sight.
  view.values = function (side) {
    if (!side.run || side.run.error) return [view.el("p", { class: side.run ? "bad" : "soft" }, side.run?.error || "The loadable was not run.")];
    const watch = new IntersectionObserver((seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting || target.dataset.drawn) continue;
        target.dataset.drawn = "1";
        target.append(view.tensor(side, Number(target.dataset.tensor), null));
      }
    }, { rootMargin: "300px" });
    const cards = side.chains.flat().filter((id) => id in side.run.wrote).map((id) => {
      const card = view.el("article", { class: "value", "data-tensor": side.run.wrote[id], "data-of": id }, view.el("h2", { class: "small" }, view.link(side, "op", id)));
      watch.observe(card);
      return card;
    });
    const show = () => cards.forEach((card) => { card.hidden = side.matches && !side.matches.has(Number(card.dataset.of)); });
    view.on("search", show);
    return [view.el("div", { class: "values" }, cards)];
  };

  view.compareTable = function () {
    const [left, right] = view.sides, ran = left.run && right.run && !left.run.error && !right.run.error;
    const rows = view.data.pairs.map((pair, id) => ({ ...pair, id, a: left.operations[pair.left], b: right.operations[pair.right] }));
    const leading = (side, ids) => ids.filter((id) => side.operations[id].leads), groupOf = new Map();
    const layers = (view.data.layers || []).map((row, id) => ({ name: left.short[row.name] || right.short[row.name] || row.name || "(no layer name)", id, a: leading(left, row.left), b: leading(right, row.right), ids: row.left }));
    for (const row of layers) row.ids.forEach((id) => groupOf.set(id, row));
    // A part of a layer has no counterpart in a layer that the other side computes whole: their layers are compared.
    const alike = (row) => !groupOf.has(row.left) || groupOf.get(row.left).a.length === groupOf.get(row.left).b.length;
    const cycles = (row, op) => (op.leads && alike(row) ? op.cycles : null);
    const sum = (side, ids) => ids.reduce((total, id) => total + (side.operations[id].cycles || 0), 0);
    const columns = [
      ["A", (row) => row.a.label, (row) => view.link(left, "op", row.left)],
      ["B", (row) => row.b.label, (row) => view.link(right, "op", row.right)],
      ["Cycles A", (row) => cycles(row, row.a)],
      ["Cycles B", (row) => cycles(row, row.b)],
      ["B - A", (row) => (cycles(row, row.a) === null || cycles(row, row.b) === null ? null : row.b.cycles - row.a.cycles)],
      ["Equal", (row) => row.equal ?? null, (row) => view.percent(row.equal, 2)],
      ["SNR, dB against B", (row) => (row.equal === undefined ? null : row.snr ?? 1e9), (row) => (row.equal === undefined ? "" : row.snr === null ? "same" : row.snr.toFixed(1))],
      ["Largest difference", (row) => row.max ?? null, (row) => view.real(row.max)],
    ].slice(0, ran ? 8 : 5);
    const table = view.table(rows, columns, { caption: "Operations", id: "compare" });
    const byLayer = view.table(layers, [
      ["Layer", (row) => row.name],
      ["Cycles A", (row) => sum(left, row.a)],
      ["Cycles B", (row) => sum(right, row.b)],
      ["B - A", (row) => sum(right, row.b) - sum(left, row.a)],
    ], { caption: "Layers", id: "compare-layers" });
    const totals = [["cycles of the run", (side) => side.total], ["cycles of all operations, each alone", view.alone], ["operations", (side) => side.operations.length], ["findings", (side) => side.findings.length]];
    const sums = view.el("table", { class: "ranks" }, view.el("tbody", {}, view.el("tr", {}, view.el("td", {}), view.el("th", {}, `A: ${left.title}`), view.el("th", {}, `B: ${right.title}`)), totals.map(([name, of]) => view.el("tr", {}, view.el("th", { scope: "row" }, name), view.el("td", { class: "number" }, view.count(of(left))), view.el("td", { class: "number" }, view.count(of(right)))))));
    const unmatched = `Without a counterpart: ${view.counted(left.operations.length - rows.length, "operation")} of A, ${view.count(right.operations.length - rows.length)} of B.`;
    return [scroll(sums, "Totals"), left.operations.length + right.operations.length > 2 * rows.length ? view.el("p", { class: "soft" }, unmatched) : null, layers.length ? view.el("h3", {}, "Layers") : null, layers.length ? view.el("p", { class: "soft" }, "Cycles are those that the operations of a layer take alone. In the run, operations may overlap, and the firmware takes time between them.") : null, layers.length ? scroll(byLayer, "Layers") : null, layers.length ? view.el("h3", {}, "Operations") : null, ran ? view.el("p", { class: "soft" }, "SNR and largest difference: of real values where the scales of both are known, else of elements.") : null, rows.length ? scroll(table, "Operations") : null].filter(Boolean);
  };

  view.index = function () {
    const columns = [
      ["Loadable", (row) => row.name, (row) => view.el("div", {}, row.page ? view.el("a", { href: row.page }, row.name) : row.name, row.error ? view.el("div", { class: `reason ${row.host ? "soft" : "bad"}` }, row.error) : null)],
      ["Configuration", (row) => row.configuration],
      ["Operations", (row) => row.operations ?? null],
      ["Cycles", (row) => row.cycles ?? null],
      ["MACs", (row) => row.macs ?? null],
      ["Peak bytes", (row) => row.peak ?? null],
      ["File", (row) => row.bytes ?? null],
    ];
    view.data.rows.forEach((row, id) => { row.id = id; });
    const table = scroll(view.table(view.data.rows, columns, { caption: "Loadables", id: "index", words: (row) => !view.words?.length || view.words.every((word) => row.name.toLowerCase().includes(word)) }), "Loadables");
    if (!view.data.rows.some((row) => row.host)) return table;
    const cycles = view.data.rows.reduce((sum, row) => sum + (row.cycles ?? 0), 0);
    return view.el("div", {}, view.el("p", {}, `${view.counted(cycles, "cycle")} on the accelerator; parts on the host are not timed.`), table);
  };
}
