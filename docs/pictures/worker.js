// Pages of a disk may start no worker. The search needs one: here it runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.deliver = (data) => {
        const event = new MessageEvent("message", { data });
        inside.dispatchEvent(event);
      };
      inside.postMessage = answer;
      inside.importScripts = (...files) => Promise.all(files.map((file) => this.add(frame, file)));
      this.add(frame, address).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach(this.deliver);
      });
    }
    add(frame, address) {
      return new Promise((done, failed) => {
        const script = frame.contentDocument.createElement("script");
        Object.assign(script, { src: address, onload: done, onerror: failed });
        frame.contentDocument.body.append(script);
      });
    }
    postMessage(data) { if (this.ready) this.deliver(data); else this.waiting.push(data); }
    terminate() {}
  };
}
