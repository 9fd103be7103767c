// A drawing that is moved and zoomed: by pointer, wheel, fingers and keyboard. Coordinates of the drawing are "world".
{
  const LEAST = 1e-9, MOST = 1e9;
  view.frames = []; // milliseconds that the latest drawings took

  view.Plane = class {
    // options: draw(context, plane), hit(x, y, plane), pick(what, event), hover(what), key(event) true when it was used,
    // apart: true when the two directions have scales of their own, label, most, least: scales
    constructor(host, options) {
      this.options = options;
      this.x = 0;
      this.y = 0;
      this.sx = 1;
      this.sy = 1;
      this.width = 0;
      this.height = 0;
      this.canvas = view.el("canvas", { tabindex: 0, role: "application", "aria-label": options.label });
      this.tip = view.el("div", { class: "tip", hidden: true });
      host.append(this.canvas, this.tip);
      this.host = host;
      this.pointers = new Map();
      this.#listen();
      new ResizeObserver(() => this.#resize()).observe(host);
    }

    toScreen(x, y) { return [(x - this.x) * this.sx, (y - this.y) * this.sy]; }
    toWorld(x, y) { return [x / this.sx + this.x, y / this.sy + this.y]; }

    redraw() {
      if (this.waiting || !this.width) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        if (!this.host.closest("[hidden]")) this.#draw(); // a view is drawn anew when it is shown
      });
    }

    #draw() {
      const began = performance.now(), context = this.canvas.getContext("2d");
      context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      context.clearRect(0, 0, this.width, this.height);
      this.options.draw(context, this);
      view.frames.push(performance.now() - began);
      if (view.frames.length > 600) view.frames.shift();
    }

    #resize() {
      const { clientWidth, clientHeight } = this.host;
      if (!clientWidth || !clientHeight) return;
      const before = [this.width, this.height], ratio = Math.min(devicePixelRatio || 1, 2);
      if (clientWidth === this.width && clientHeight === this.height && ratio === this.ratio) return;
      this.ratio = ratio;
      this.width = clientWidth;
      this.height = clientHeight;
      this.canvas.width = Math.round(clientWidth * this.ratio);
      this.canvas.height = Math.round(clientHeight * this.ratio);
      if (!before[0]) this.fitted = true;
      if (this.fitted) this.options.fit?.(this);
      else { // what is in the middle stays there
        this.x += (before[0] - clientWidth) / 2 / this.sx;
        this.y += (before[1] - clientHeight) / 2 / this.sy;
        this.options.limit?.(this);
      }
      this.waiting = false;
      this.#draw();
    }

    // Shows a rectangle of the world.
    show(x, y, width, height, margin = 20) {
      const sx = (this.width - 2 * margin) / Math.max(width, LEAST), sy = (this.height - 2 * margin) / Math.max(height, LEAST);
      this.sx = this.options.apart ? sx : this.#limited(Math.min(sx, sy));
      this.sy = this.options.apart ? sy : this.sx;
      this.x = x + width / 2 - this.width / 2 / this.sx;
      this.y = y + height / 2 - this.height / 2 / this.sy;
      this.redraw();
    }

    centre(x, y) {
      this.x = x - this.width / 2 / this.sx;
      if (y !== null) this.y = y - this.height / 2 / this.sy;
      this.fitted = false;
      this.redraw();
    }

    move(dx, dy) {
      this.x += dx / this.sx;
      this.y += dy / this.sy;
      this.#moved();
    }

    // Zooms around a place of the screen; `across` only changes the height of things.
    zoom(factor, x = this.width / 2, y = this.height / 2, across = false) {
      const [wx, wy] = this.toWorld(x, y);
      if (!across) this.sx = this.#limited(this.sx * factor);
      if (!this.options.apart) this.sy = this.sx;
      else if (across) this.sy = this.#limited(this.sy * factor);
      this.x = wx - x / this.sx;
      this.y = wy - y / this.sy;
      this.#moved();
    }

    fit() {
      this.fitted = true;
      this.options.fit?.(this);
      this.redraw();
    }

    #limited(scale) { return Math.min(Math.max(scale, this.options.least || LEAST), this.options.most || MOST); }

    #moved() {
      this.fitted = false;
      this.options.limit?.(this);
      this.redraw();
    }

    #listen() {
      const canvas = this.canvas;
      canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        const unit = event.deltaMode === 1 ? 16 : 1;
        if (event.ctrlKey || event.metaKey) {
          this.zoom(Math.exp(-(event.deltaY || event.deltaX) * unit * 0.0022), event.offsetX, event.offsetY, event.shiftKey);
        } else this.move(event.deltaX * unit, event.deltaY * unit);
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => this.#down(event));
      canvas.addEventListener("pointermove", (event) => this.#moving(event));
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.#up(event));
      canvas.addEventListener("pointerleave", () => this.#hover(null));
      canvas.addEventListener("dblclick", (event) => {
        const what = this.options.hit?.(...this.toWorld(event.offsetX, event.offsetY), this);
        if (what && this.options.open) this.options.open(what);
        else this.zoom(event.shiftKey ? 0.5 : 2, event.offsetX, event.offsetY);
      });
      canvas.addEventListener("keydown", (event) => this.#key(event));
    }

    #key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const used = this.options.key?.(event) || this.#usual(event.key);
      if (used) event.preventDefault();
    }

    #usual(key) {
      const step = 60, moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
      if (key in moves) this.move(...moves[key]);
      else if (key === "+" || key === "=") this.zoom(1.25);
      else if (key === "-") this.zoom(0.8);
      else if (key === "0") this.fit();
      else return false;
      return true;
    }

    #down(event) {
      this.canvas.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
      if (this.pointers.size === 1) this.travelled = 0;
      this.#hover(null);
    }

    #moving(event) {
      const before = this.pointers.get(event.pointerId), now = [event.offsetX, event.offsetY];
      if (!before) {
        const what = this.options.hit?.(...this.toWorld(...now), this) || null;
        this.#hover(what, ...now);
        return;
      }
      const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      this.pointers.set(event.pointerId, now);
      this.travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (others.length) {
        const far = (place) => Math.hypot(place[0] - others[0][0], place[1] - others[0][1]) || 1;
        this.zoom(far(now) / far(before), (now[0] + others[0][0]) / 2, (now[1] + others[0][1]) / 2);
      } else if (this.travelled > 4) this.move(before[0] - now[0], before[1] - now[1]);
    }

    #up(event) {
      const was = this.pointers.delete(event.pointerId);
      if (!was || event.type === "pointercancel" || this.travelled > 4 || this.pointers.size) return;
      const what = this.options.hit?.(...this.toWorld(event.offsetX, event.offsetY), this) || null;
      this.options.pick?.(what, event);
    }

    #hover(what, x, y) {
      const text = what ? this.options.tell?.(what) : null;
      this.tip.hidden = !text;
      this.canvas.style.cursor = what ? "pointer" : "";
      if (!text) return;
      this.tip.textContent = text;
      this.tip.style.left = `${Math.max(Math.min(x + 14, this.width - this.tip.offsetWidth - 4), 0)}px`;
      const above = y - this.tip.offsetHeight - 8;
      this.tip.style.top = `${y + 18 + this.tip.offsetHeight > this.height ? Math.max(above, 0) : y + 18}px`;
    }
  };

  // Buttons that every drawing has.
  view.zoomButtons = (plane) => [
    view.el("button", { type: "button", title: "Zoom in (+)", "aria-label": "Zoom in", onclick: () => plane.zoom(1.4) }, "+"),
    view.el("button", { type: "button", title: "Zoom out (-)", "aria-label": "Zoom out", onclick: () => plane.zoom(1 / 1.4) }, "−"),
    view.el("button", { type: "button", title: "Show all (0)", onclick: () => plane.fit() }, "Fit"),
  ];
}
