// The side panel: everything about what is chosen, each name in it leads on.
{
  const open = new Set(["figures", "tensors"]); // parts that the reader has opened

  view.opText = function (side, op) {
    const lines = [view.title(op), op.short === op.layer ? null : op.layer, op.what].filter(Boolean);
    if (op.output) lines.push(`${view.shape(op.input)} to ${view.shape(op.output)} ${op.precision || ""}`);
    if (op.cycles && op.leads) lines.push(`${view.count(op.cycles)} cycles, bound by ${op.bound}`);
    return lines.join("\n");
  };
  view.valueText = function (side, value) {
    const shape = value.shape ? `${view.shape(value.shape)}, ` : "";
    const place = value.address === null ? "not allocated" : view.hex(value.address);
    return `${value.name} (${value.kind})\n${shape}${view.counted(value.bytes, "byte")} at ${place}`;
  };

  view.link = function (side, kind, id, text) {
    const name = text || (kind === "op" ? view.title(side.operations[id]) : side.values[id].short);
    return view.el("button", { type: "button", class: "link", [`data-${kind}`]: id, onclick: () => view.choose(side.number, kind, id) }, name);
  };

  view.fillPanel = function (panel) {
    const chosen = view.chosen;
    panel.hidden = !chosen;
    document.body.classList.toggle("with-panel", Boolean(chosen));
    if (!chosen) return;
    const side = view.sides[chosen.side];
    const close = view.el("button", { type: "button", class: "close", "aria-label": "Close (Escape)", title: "Close (Escape)", onclick: () => view.choose() }, "×");
    const makers = { op: operation, value, subgraph };
    const content = makers[chosen.kind](side, chosen.id);
    panel.replaceChildren(close, ...content.flat().filter(Boolean));
    panel.scrollTop = 0;
  };

  function part(name, title, ...content) {
    const inner = content.flat().filter(Boolean);
    if (!inner.length) return null;
    const details = view.el("details", { "data-part": name, open: open.has(name) }, view.el("summary", {}, title), inner);
    details.addEventListener("toggle", () => (details.open ? open.add(name) : open.delete(name)));
    return details;
  }

  // A part whose content is made when it is opened first.
  function later(name, title, make) {
    const details = view.el("details", { "data-part": name }, view.el("summary", {}, title));
    let made = false;
    const fill = () => {
      if (details.open && !made) {
        made = true;
        details.append(...[make()].flat().filter(Boolean));
      }
    };
    details.addEventListener("toggle", () => {
      if (details.open) open.add(name);
      else open.delete(name);
      fill();
    });
    if (open.has(name)) {
      details.open = true;
      fill();
    }
    return details;
  }

  function pairs(rows) {
    return view.el("dl", {}, rows.filter(([, text]) => text !== null && text !== undefined && text !== "").flatMap(([name, text]) => [view.el("dt", {}, name), view.el("dd", {}, ...[text].flat())]));
  }

  function listed(items) { return items.length ? view.el("span", { class: "list" }, items.flatMap((each, at) => (at ? [", ", each] : [each]))) : null; }

  function heading(side, engine, text, soft) {
    const which = view.sides.length > 1 ? `${side.number ? "B" : "A"}: ` : "";
    return view.el("header", {}, engine ? view.el("span", { class: `badge ${engine}` }, engine.toUpperCase()) : null, view.el("h2", {}, which + text), soft ? view.el("p", { class: "soft" }, soft) : null);
  }

  // ---- an operation

  function operation(side, id) {
    const op = side.operations[id], flat = side.chains.flat(), at = flat.indexOf(id);
    const step = (by, text) => view.el("button", { type: "button", disabled: flat[at + by] === undefined, onclick: () => view.choose(side.number, "op", flat[at + by]) }, text);
    const chain = side.chains[side.chainOf[id]];
    const here = [["Show in graph", "Graph"], ["Timeline", "Timeline"]].map(([text, tab]) => view.el("button", { type: "button", onclick: () => view.show(tab, true) }, text));
    return [
      heading(side, op.engine, `${op.label}${op.short ? " " + op.short : ""}`, op.what),
      view.el("div", { class: "row" }, step(-1, "‹ previous"), step(1, "next ›"), here),
      findings(op),
      part("figures", "Metrics", figures(side, op, chain)),
      part("flow", "Dependencies and data", flow(side, op, chain)),
      later("tensors", "Tensors", () => tensors(side, op)),
      op.weights?.length ? later("weights", "Weights and operands", () => op.weights.map((row) => weights(side, row))) : null,
      op.ways?.length ? part("ways", "Execution", view.el("ul", {}, op.ways.map((line) => view.el("li", {}, line)))) : null,
      op.fields ? later("fields", "Descriptor fields", () => op.fields.map((each) => fields(side, each))) : null,
      op.writes?.length ? later("writes", `Register writes (${op.writes.length})`, () => registers(side, op)) : null,
    ];
  }

  function findings(op) {
    return op.findings.map((each) => view.el("p", { class: `finding ${each.severity}` }, view.el("b", {}, `${each.severity}: ${each.headline} [${each.rule}] `), `${each.evidence} `, view.el("span", { class: "soft" }, each.advice)));
  }

  function figures(side, op, chain) {
    const counted = side.run?.counted?.[op.id];
    const lead = side.operations[chain[0]];
    const cycles = op.leads ? view.count(op.cycles) : op.cycles === null ? null : ["with ", view.link(side, "op", lead.id, lead.label), `: ${view.count(op.cycles)}`];
    const partner = view.partner[side.number].get(op.id);
    return pairs([
      ["Layer", op.short === op.layer ? null : op.layer],
      ["Input to output", op.output ? `${view.shape(op.input)} to ${view.shape(op.output)}` : null],
      ["Precision", op.precision],
      ["Cycles", cycles],
      ["Share of cycles", op.leads && op.cycles ? view.percent(view.shareOf(side, op.cycles)) : null],
      ["Bound by", op.bound],
      ["MACs", op.macs ? view.count(op.macs) : null],
      ["MAC array used", op.use ? view.percent(op.use) : null],
      ["Reads", op.read ? view.bytes(op.read) : null],
      ["Writes", op.written ? view.bytes(op.written) : null],
      ["Active", op.start === null ? "never" : `cycles ${view.count(op.start)} to ${view.count(op.end)}, register group ${op.group ?? "none"}`],
      ["Counters", counted ? Object.entries(counted).map(([name, count]) => `${name.replaceAll("_", " ")} ${view.count(count)}`).join(", ") : null],
      ["Accuracy", op.measured ? null : "an estimate: not measured on the RTL"],
      ["Other side", partner ? [view.link(view.sides[1 - side.number], "op", side.number ? partner.left : partner.right), apart(partner)] : null],
    ]);
  }

  function apart(pair) {
    if (pair.equal === undefined) return "";
    if (pair.equal === 1) return ": the same output";
    return `: ${view.percent(pair.equal)} equal, SNR ${pair.snr === null ? "none" : pair.snr.toFixed(1) + " dB against B"}, largest difference ${view.real(pair.max)}`;
  }
  view.apart = apart;

  function flow(side, op, chain) {
    const number = (list) => listed(list.map(([id, word]) => view.el("span", {}, view.link(side, "op", id, side.operations[id].label), word ? ` (${event(word)})` : "")));
    const event = (word) => word.replace(/^OP_/, "").toLowerCase().replaceAll("_", " ");
    return pairs([
      ["On-the-fly chain with", chain.length > 1 ? listed(chain.filter((id) => id !== op.id).map((id) => view.link(side, "op", id))) : null],
      ["Waits for", number(op.waits)],
      ["Consumers", number(op.waiters)],
      ["Reads", listed(op.reads.map(([id, role]) => view.el("span", {}, view.link(side, "value", id), ` (${role})`)))],
      ["Writes", listed(op.wrote.map((id) => view.link(side, "value", id)))],
      ["Subgraph", op.subgraph ? view.link(side, "subgraph", op.subgraph, op.subgraph) : null],
    ]);
  }

  function tensors(side, op) {
    const run = side.run, shown = [];
    if (!run) return [view.el("p", { class: "soft" }, view.served ? "Drop an image on the page to run it and to see the output of every operation here." : "The loadable was not run. Give --input to see the output of every operation.")];
    if (run.error) return [view.el("p", { class: "bad" }, run.error)];
    if (op.id in run.wrote) shown.push(view.tensor(side, run.wrote[op.id], "Output"));
    else shown.push(view.el("p", { class: "soft" }, "The output goes on the fly to the next engine and is not in memory."));
    const partner = view.partner[side.number].get(op.id), other = view.sides[1 - side.number];
    if (partner && other) {
      const theirs = other.run?.wrote?.[side.number ? partner.left : partner.right];
      if (theirs !== undefined) shown.push(view.tensor(other, theirs, `Output of ${side.number ? "A" : "B"}${apart(partner)}`));
    }
    for (const [id, role] of op.reads) {
      const value = side.values[id], tensor = tensorOf(side, value);
      if (tensor !== null) shown.push(view.tensor(side, tensor, `Input ${role}: ${value.short}`));
    }
    return shown;
  }

  function tensorOf(side, value) {
    if (!side.run || side.run.error) return null;
    if (value.kind === "input") return side.run.inputs.find(([title]) => title === value.name || title === `${value.name}, image 0`)?.[1] ?? null;
    return side.run.wrote[value.writer] ?? null;
  }

  function weights(side, row) {
    const note = [view.shape(row.shape), view.counted(row.bytes, "byte"), row.layout, row.compressed ? "compressed" : ""].filter(Boolean).join(", ");
    return view.el("div", {}, view.tensor(side, row.tensor, `${row.kind} (${row.part})`), view.el("p", { class: "soft" }, note));
  }

  function fields(side, [name, schema, values]) {
    const rows = side.schemas[schema].map(([field, type, explanation], at) => {
      const given = values[at], [value, meaning] = Array.isArray(given) && given.length === 2 && typeof given[1] === "string" ? given : [given, null];
      const text = Array.isArray(value) ? `${value.slice(0, 12).join(", ")}${value.length > 12 ? ", …" : ""}` : String(value);
      const plain = value === 0 || value === -1;
      return view.el("tr", { class: plain ? "dim" : null, title: type }, view.el("th", { scope: "row" }, field), view.el("td", { class: "number" }, text), view.el("td", {}, meaning ? view.el("b", {}, meaning + " ") : null, explanation));
    });
    return view.el("div", { class: "scroll" }, view.el("table", { class: "fields" }, view.el("caption", {}, name), view.el("tbody", {}, rows)));
  }

  function registers(side, op) {
    const rows = op.writes.map(([address, value, times]) => {
      const [, name, parts] = side.byAddress.get(address);
      const cut = (high, low) => Number((BigInt(value) >> BigInt(low)) & ((1n << BigInt(high - low + 1)) - 1n));
      const inside = parts.length === 1 ? "" : parts.map(([field, high, low]) => `${field} ${cut(high, low)}`).join(", ");
      return view.el("tr", { title: view.hex(address) }, view.el("th", { scope: "row" }, name), view.el("td", { class: "number" }, view.hex(value) + (times > 1 ? ` (last of ${times})` : "")), view.el("td", { class: "soft" }, inside));
    });
    return view.el("div", { class: "scroll" }, view.el("table", { class: "fields" }, view.el("tbody", {}, rows)));
  }

  // ---- a value in memory

  function value(side, id) {
    const each = side.values[id], [start, end] = view.life(side, each), tensor = tensorOf(side, each);
    const rows = pairs([
      ["Name", each.short === each.name ? null : each.name],
      ["Kind", each.kind],
      ["Shape", each.shape ? view.shape(each.shape) : null],
      ["Bytes", view.count(each.bytes)],
      ["Address", each.address === null ? "not allocated" : `${view.hex(each.address)} (${each.space?.toUpperCase() || "not allocated"}), memory ${each.memory} + ${view.count(each.offset)}`],
      ["Layout", each.layout + (each.line_stride ? `, line stride ${view.count(each.line_stride)}, surface stride ${view.count(each.surface_stride)}` : "")],
      ["Live", `cycles ${view.count(start)} to ${view.count(end)}`],
      ["Written by", each.writer === null ? "before the run" : view.link(side, "op", each.writer)],
      ["Read by", listed(each.readers.map(([op, role]) => view.el("span", {}, view.link(side, "op", op), ` (${role})`)))],
      ["Overwritten too early by", listed(each.damaged.map((op) => view.link(side, "op", op)))],
    ]);
    return [
      heading(side, null, each.short, each.kind),
      view.el("div", { class: "row" }, [["Show in graph", "Graph"], ["Show in memory", "Memory"]].map(([text, tab]) => view.el("button", { type: "button", onclick: () => view.show(tab, true) }, text))),
      part("figures", "Metrics", rows),
      tensor === null ? null : later("tensors", "Tensors", () => view.tensor(side, tensor, each.short)),
    ];
  }

  // ---- a subgraph of connected layers

  view.relabel = () => {}; // writes on the button of the subgraph in the panel what it does
  function subgraph(side, name) {
    const ops = side.operations.filter((op) => op.subgraph === name), cycles = view.cyclesOf(side, ops.map((op) => op.id));
    const graph = view.graphs[side.number], button = view.el("button", { type: "button", onclick: () => graph.toggle(name) });
    view.relabel = () => { button.textContent = graph.closed.has(name) ? "Open subgraph" : "Close subgraph"; };
    view.relabel();
    return [
      heading(side, null, name, [view.counted(ops.length, "operation"), `${view.count(cycles)} cycles`, view.percent(view.shareOf(side, cycles))].filter(Boolean).join(", ")),
      view.overlap(side),
      view.el("div", { class: "row" }, button),
      view.el("ul", { class: "plain" }, ops.map((op) => view.el("li", {}, view.link(side, "op", op.id)))),
    ];
  }
}
