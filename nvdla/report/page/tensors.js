// Tensors as people hold them: feature maps that can be enlarged, histograms, in real numbers where the scale is known.
{
  const HALVES = new Float32Array(1 << 16);
  let halvesKnown = false;

  // Bits of halves as numbers.
  function halves() {
    if (halvesKnown) return HALVES;
    for (let bits = 0; bits < 1 << 16; bits += 1) {
      const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
      if (exponent === 31) HALVES[bits] = fraction ? NaN : sign * Infinity;
      else HALVES[bits] = sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
    }
    halvesKnown = true;
    return HALVES;
  }

  function decoded(bytes, dtype) {
    const copy = bytes.slice().buffer;
    if (dtype === "int8") return new Int8Array(copy);
    if (dtype === "uint8") return new Uint8Array(copy);
    if (dtype === "int16") return new Int16Array(copy);
    const table = halves();
    return Float32Array.from(new Uint16Array(copy), (bits) => table[bits]);
  }

  const SIZES = { int8: 1, uint8: 1, int16: 2, float16: 2 };
  function elements(row) {
    if (row.all) return real(row, row.all);
    const count = row.shown.reduce((product, each) => product * each, 1);
    return real(row, decoded(view.elements.subarray(row.offset, row.offset + count * SIZES[row.dtype]), row.dtype));
  }

  // Elements with units per channel as real numbers, as range and histogram of such a row are; others as they are.
  function real(row, data) {
    if (!row.factors) return data;
    const plane = row.shown[1] * row.shown[2], zeros = [row.zero || 0].flat();
    return Float32Array.from(data, (value, at) => {
      const channel = Math.floor(at / plane);
      return (value - zeros[zeros.length > 1 ? channel : 0]) * row.scale * row.factors[channel];
    });
  }
  // The real number of one unit of integers; numbers of fp16 that are real already have none.
  function unitOf(row) { return row.factors || (row.dtype?.startsWith("float") && row.scale === 1) ? null : row.scale; }
  function zeroOf(row) { return row.factors ? 0 : row.zero || 0; } // the number that is shown as 0

  view.amount = (row, value) => (unitOf(row) ? view.real((value - zeroOf(row)) * row.scale) : view.real(value));

  // `level`: of the heading; without a title there is none.
  view.tensor = function (side, id, title, level = "h3") {
    const row = side.tensors[id], made = view.el("div", { class: "tensor" });
    const parts = [title === null ? null : view.el(level, { class: "small" }, title || row.what || "tensor"), view.el("p", { class: "soft" }, facts(row)), view.histogram(row)];
    const fill = () => made.replaceChildren(...parts.filter(Boolean), isVector(row) ? bars(row) : maps(row), ...partly(side, id, row, fill));
    fill();
    return made;
  };

  // What of a tensor is shown, where it is not all; served pages get the rest when it is asked for.
  function partly(side, id, row, fill) {
    if (row.stride === 1 && row.shown[0] === row.shape[0]) return [];
    const every = row.stride > 1 ? `, every ${nth(row.stride)} row and column` : "";
    const said = view.el("p", { class: "soft" }, `Shown: ${row.shown[0]} of ${row.shape[0]} channels${every}.`);
    if (!view.served) {
      said.append(" 'nvdla view' shows all of it.");
      return [said];
    }
    const bytes = row.shape.reduce((product, each) => product * each, SIZES[row.dtype]);
    const button = view.el("button", { type: "button", class: "whole", onclick: async () => {
      button.disabled = true;
      try {
        row.all = decoded(await view.whole(side, id), row.dtype);
        Object.assign(row, { shown: row.shape, stride: 1 });
        fill();
      } catch (error) {
        said.textContent = error.message;
        button.disabled = false;
      }
    } }, `Full resolution (${view.bytes(bytes)})`);
    return [said, button];
  }

  function nth(number) { return number === 2 ? "second" : number === 3 ? "third" : `${number}th`; }
  function isVector(row) { return row.shape[1] === 1 && row.shape[2] === 1; }

  function facts(row) {
    const words = [`${view.shape(row.shape)} ${row.dtype}`, `${view.amount(row, row.min)} to ${view.amount(row, row.max)}`, `mean ${view.amount(row, row.mean)}`, `${view.percent(row.zeros)} zero`];
    if (row.saturated) words.push(`${view.percent(row.saturated, 2)} saturated`);
    if (row.dead && row.shape[0] > 1) words.push(`${row.dead} of ${row.shape[0]} channels always zero`);
    if (row.special) words.push(`${row.special} NaN or infinite`);
    words.push(row.factors ? "a scale per channel" : unitOf(row) ? `step ${view.real(row.scale)}${row.zero ? `, 0 is ${row.zero}` : ""}` : row.dtype.startsWith("int") ? "integers (unknown scale)" : "");
    return words.filter(Boolean).join(", ");
  }

  // Bars grow with the logarithm of the count, so that rare values show.
  view.histogram = function (row) {
    const { low, high, counts } = row.histogram, W = 320, H = 74, top = Math.log1p(Math.max(...counts)) || 1;
    const svg = view.el("svg", { viewBox: `0 0 ${W} ${H + 18}`, class: "histogram", role: "img", "aria-label": `Histogram, ${view.amount(row, row.min)} to ${view.amount(row, row.max)}` });
    const step = (high - low) / counts.length || 1, wide = W / counts.length, told = view.el("title", {});
    const outline = counts.map((count, at) => {
      const height = count ? Math.max((Math.log1p(count) / top) * H, 1) : 0, right = Math.max(wide - 0.6, 0.6);
      return count ? `M${(at * wide).toFixed(1)} ${H}v${(-height).toFixed(1)}h${right.toFixed(1)}v${height.toFixed(1)}z` : "";
    });
    svg.append(told, view.el("path", { d: outline.join(""), class: "conv" }));
    svg.addEventListener("pointermove", (event) => { // says which bar is under the pointer
      const at = Math.min(Math.floor((event.offsetX / svg.clientWidth) * counts.length), counts.length - 1), from = low + at * step;
      told.textContent = `${view.amount(row, from)} to ${view.amount(row, from + step)}: ${view.count(counts[at])}`;
    });
    svg.append(view.el("line", { x1: 0, x2: W, y1: H, y2: H, class: "grid" }));
    const zero = ((zeroOf(row) - low) / (high - low)) * W;
    if (zero > 0 && zero < W) svg.append(view.el("line", { x1: zero, x2: zero, y1: 0, y2: H, class: "zero" }));
    for (const [x, text] of marks(row, low, high, W)) svg.append(view.el("text", { x, y: H + 13, "text-anchor": x < 24 ? "start" : x > W - 24 ? "end" : "middle" }, text), view.el("line", { x1: x, x2: x, y1: H, y2: H + 3, class: "grid" }));
    return svg;
  };

  // Round numbers below a histogram, real ones where the scale is known: places and texts.
  function marks(row, low, high, wide) {
    const unit = unitOf(row) || 1, zero = unitOf(row) ? zeroOf(row) : 0;
    if (!(high > low)) return [[0, view.amount(row, low)]];
    return view.ticks((low - zero) * unit, (high - zero) * unit, 5).map((tick) => [((tick / unit + zero - low) / (high - low)) * wide, view.real(tick)]);
  }

  // A vector as bars; a bar says its number and value.
  function bars(row) {
    const data = elements(row), W = 320, H = 70, count = data.length;
    const base = zeroOf(row), low = Math.min(row.min, base), high = Math.max(row.max, base), span = high - low || 1, zero = H - ((base - low) / span) * H;
    const canvas = view.el("canvas", { class: "vector", role: "img", "aria-label": view.counted(count, "value") }), ratio = 2;
    canvas.width = W * ratio;
    canvas.height = H * ratio;
    const context = canvas.getContext("2d");
    context.fillStyle = view.colour("sdp");
    for (let at = 0; at < count; at += 1) {
      const y = H - ((data[at] - low) / span) * H;
      context.fillRect((at / count) * W * ratio, Math.min(y, zero) * ratio, Math.max((W / count) * ratio - 1, 1), Math.max(Math.abs(zero - y), 1) * ratio);
    }
    const said = view.el("output", { class: "soft" });
    canvas.addEventListener("pointermove", (event) => {
      const at = Math.min(Math.floor((event.offsetX / canvas.clientWidth) * count), count - 1);
      said.textContent = `${at}: ${told(row, data[at])}`;
    });
    return view.el("div", { class: "maps" }, canvas, said);
  }

  function told(row, value) { return unitOf(row) ? `${view.real((value - zeroOf(row)) * row.scale)} (${value})` : view.real(value); }

  const SHEET = 1 << 24; // pixels of a picture of all channels; of larger tensors one channel is shown at a time

  // Channels side by side; a click enlarges one, and lets all be seen again.
  function maps(row) {
    const data = elements(row), [channels, height, width] = row.shown;
    const canvas = view.el("canvas", { class: "sheet", tabindex: 0, role: "img", "aria-label": `Feature maps: ${view.counted(channels, "channel")}; Enter enlarges, arrow keys select` });
    const said = view.el("output", { class: "soft" }, row.color ? "Enter or a click shows single channels." : "Black: smallest value, white: largest.");
    const buttons = [["−", -1], ["+", 1]].map(([text, step]) => view.el("button", { type: "button", "aria-label": step > 0 ? "Larger" : "Smaller", onclick: () => { state.zoom = Math.min(Math.max(state.zoom + step, -2), 4); paint(); } }, text));
    const all = view.el("button", { type: "button", onclick: () => { state.one = null; paint(); } }, "All channels");
    const large = channels * (height + 1) * (width + 1) > SHEET, state = { one: large ? 0 : null, zoom: 0 };
    const number = view.el("input", { type: "number", min: 0, max: channels - 1, "aria-label": "Channel", placeholder: "all", onchange: () => {
      const asked = Math.trunc(Number(number.value));
      state.one = number.value === "" && !large ? null : Math.min(Math.max(asked || 0, 0), channels - 1);
      paint();
    } });
    const inColor = () => Boolean(row.color) && state.one === null, planes = row.color === "rgb" ? [0, 1, 2] : [2, 1, 0];
    const grid = () => (inColor() ? { first: 0, count: 1, columns: 1 } : state.one === null ? { first: 0, count: channels, columns: Math.min(channels, Math.max(1, Math.ceil(Math.sqrt(channels)))) } : { first: state.one, count: 1, columns: 1 });

    function paint() {
      const { first, count, columns } = grid(), gap = count > 1 ? 1 : 0, rows = Math.ceil(count / columns);
      canvas.width = columns * (width + gap) - gap;
      canvas.height = rows * (height + gap) - gap;
      const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
      const scale = row.max > row.min ? 255 / (row.max - row.min) : 0;
      for (let at = 0; at < count; at += 1) {
        const left = (at % columns) * (width + gap), top = Math.floor(at / columns) * (height + gap);
        for (let y = 0; y < height; y += 1) {
          for (let x = 0; x < width; x += 1) {
            const pixel = ((top + y) * canvas.width + left + x) * 4;
            for (let color = 0; color < 3; color += 1) {
              const plane = inColor() ? planes[color] : first + at;
              image.data[pixel + color] = (data[(plane * height + y) * width + x] - row.min) * scale;
            }
            image.data[pixel + 3] = 255;
          }
        }
      }
      context.putImageData(image, 0, 0);
      const usual = Math.min(320 / canvas.width, 320 / canvas.height, count > 1 ? 8 : 40);
      canvas.style.width = `${Math.max(canvas.width * usual * 2 ** state.zoom, 4)}px`;
      all.hidden = state.one === null || large || channels === 1;
      number.value = state.one ?? "";
    }

    function at(event) {
      const { first, count, columns } = grid(), gap = count > 1 ? 1 : 0;
      const x = Math.floor((event.offsetX / canvas.clientWidth) * canvas.width), y = Math.floor((event.offsetY / canvas.clientHeight) * canvas.height);
      const channel = first + Math.floor(y / (height + gap)) * columns + Math.floor(x / (width + gap));
      const px = x % (width + gap), py = y % (height + gap);
      return channel >= first + count || px >= width || py >= height || px < 0 || py < 0 ? null : { channel, px, py };
    }
    canvas.addEventListener("pointermove", (event) => {
      const place = at(event);
      if (!place) return;
      const value = (channel) => told(row, data[(channel * height + place.py) * width + place.px]);
      const where = `row ${place.py * row.stride}, column ${place.px * row.stride}`;
      said.textContent = inColor() ? `${where}: red, green, blue ${planes.map(value).join(", ")}` : `channel ${place.channel}, ${where}: ${value(place.channel)}`;
    });
    canvas.addEventListener("click", (event) => {
      const place = at(event);
      if (large) return;
      state.one = state.one === null && place && channels > 1 ? place.channel : null;
      paint();
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter") state.one = state.one === null || large ? state.one || 0 : null;
      else if (event.key === "+" || event.key === "-") state.zoom = Math.min(Math.max(state.zoom + (event.key === "+" ? 1 : -1), -2), 4);
      else if (step && state.one !== null) state.one = Math.min(Math.max(state.one + step, 0), channels - 1);
      else return;
      event.preventDefault();
      if (state.one !== null) said.textContent = `channel ${state.one}`;
      paint();
    });
    paint();
    return view.el("div", { class: "maps" }, view.el("div", { class: "row" }, buttons, channels > 1 ? view.el("label", {}, "channel ", number) : null, all), view.el("div", { class: "scroll" }, canvas), said);
  }
}
