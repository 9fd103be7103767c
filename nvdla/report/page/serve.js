// Where the page comes from 'nvdla view': files that are dropped on it are run there.
{
  let busy = false, resize = false;

  view.serve = function () {
    const sheet = view.el("div", { id: "drop", hidden: true }, "Drop an image, .npy, .dimg or .bin to run it");
    const toast = view.el("div", { id: "toast", role: "status", hidden: true });
    document.body.append(sheet, toast);
    const say = (text, seconds = 0) => {
      toast.textContent = text;
      toast.hidden = !text;
      if (seconds) setTimeout(() => { if (toast.textContent === text) toast.hidden = true; }, seconds * 1000);
    };
    addEventListener("dragover", (event) => {
      event.preventDefault();
      sheet.hidden = false;
    });
    for (const name of ["dragleave", "drop"]) addEventListener(name, (event) => { if (name === "drop" || !event.relatedTarget) sheet.hidden = true; });
    addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) given(event.dataTransfer.files[0], say);
    });
    view.choosers(say);
  };

  // A button for who has no mouse; the choice of the input, where there are several.
  view.choosers = function (say) {
    const file = view.el("input", { type: "file", id: "file", hidden: true, accept: ".pgm,.ppm,.png,.jpg,.jpeg,.npy,.dimg,.bin" });
    file.addEventListener("change", () => {
      if (file.files.length) given(file.files[0], say);
      file.value = "";
    });
    const button = view.el("button", { type: "button", id: "run", onclick: () => file.click() }, "Run an image …");
    const names = view.sides[0].inputs;
    const choice = names.length > 1 ? view.el("select", { id: "input", "aria-label": "Input" }, names.map((name) => view.el("option", { value: name }, name))) : null;
    const box = view.el("input", { type: "checkbox", id: "resize", checked: resize, onchange: () => { resize = box.checked; } });
    const label = view.el("label", {}, box, " resize");
    document.querySelector("#head .search").before(...[choice, button, label, file].filter(Boolean));
  };

  // The answer of the server to a request with the words of this page's address.
  async function answerOf(path, values) {
    const words = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) words.set(name, value);
    let answer;
    try {
      answer = await fetch(`${path}?${words}`);
    } catch {
      throw new Error("nvdla view does not respond. Is it still running?");
    }
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }

  // All bytes of a tensor of which the page holds a part.
  view.whole = async function (side, id) {
    const answer = await answerOf("tensor", { side: side.number, tensor: id, mark: view.data.mark });
    return new Uint8Array(await answer.arrayBuffer());
  };

  // The cycles with another memory.
  view.remoteTiming = async function (side, memory) {
    return (await answerOf("timing", { side: side.number, ...memory })).json();
  };

  async function given(file, say) {
    if (busy) return say("A run is in progress.", 3);
    busy = true;
    say(`Running ${file.name} …`);
    const words = new URLSearchParams(location.search);
    words.set("name", file.name);
    words.set("input", document.getElementById("input")?.value || "");
    words.set("resize", resize ? "1" : "");
    try {
      const answer = await fetch(`run?${words}`, { method: "POST", body: file });
      const [wanted, choice] = [answer.headers.get("Nvdla-Input"), document.getElementById("input")];
      if (wanted && choice) choice.value = decodeURIComponent(wanted);
      if (!answer.ok) throw new Error(await answer.text());
      const found = await answer.json();
      view.take(...await view.unpacked(found.document, found.elements));
      view.begin();
      view.choosers(say);
      say(`${file.name} has run.`, 4);
    } catch (error) {
      say(error.message || "nvdla view does not respond. Is it still running?", 12);
    } finally {
      busy = false;
    }
  }
}
