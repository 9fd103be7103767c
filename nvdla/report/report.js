"use strict";
(function () {
  const root = document.documentElement;

  // Dark or light: the reader's choice, else what the system says.
  const store = {
    get: function () { try { return localStorage.getItem("nvdla-theme"); } catch (error) { return null; } },
    set: function (value) { try { localStorage.setItem("nvdla-theme", value); } catch (error) { /* not allowed */ } }
  };
  if (store.get()) root.dataset.theme = store.get();
  document.getElementById("theme").addEventListener("click", function () {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = root.dataset.theme || system;
    root.dataset.theme = now === "dark" ? "light" : "dark";
    store.set(root.dataset.theme);
  });

  // Tables: a heading's button sorts by its column, up, then down.
  function value(row, column) {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  }
  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }
  function sort(table, column) {
    const heading = table.tHead.rows[0].cells[column];
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const each of table.tHead.rows[0].cells) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort(function (first, second) {
      const a = value(first, column), b = value(second, column);
      if (a === "" || b === "") return compare(a, b);
      return down ? compare(b, a) : compare(a, b);
    });
    table.tBodies[0].append.apply(table.tBodies[0], rows);
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach(function (cell, column) {
      cell.querySelector("button").addEventListener("click", function () { sort(table, column); });
    });
    rove(table);
  }

  // Arrow keys, Home and End move through the rows; one row can be reached with Tab.
  function rove(table) {
    const body = table.tBodies[0];
    if (body.rows.length) body.rows[0].tabIndex = 0;
    body.addEventListener("keydown", function (event) {
      const rows = Array.from(body.rows).filter(function (row) { return !row.hidden; });
      const at = rows.indexOf(document.activeElement);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
      if (at < 0 || to === undefined || !rows[to]) return;
      event.preventDefault();
      rows[at].tabIndex = -1;
      rows[to].tabIndex = 0;
      rows[to].focus();
    });
  }

  // Search: rows that hold every word stay.
  for (const box of document.querySelectorAll("input[data-table]")) {
    const body = document.getElementById(box.dataset.table).tBodies[0];
    const count = box.parentElement.querySelector("[aria-live]");
    box.addEventListener("input", function () {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0, first = true;
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.includes(word); });
        if (!row.hidden) { shown += 1; row.tabIndex = first ? 0 : -1; first = false; }
      }
      count.textContent = shown + " of " + body.rows.length + " operations";
    });
  }
  document.addEventListener("keydown", function (event) {
    const box = document.querySelector("input[data-table]");
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (!box) return;
    if (event.key === "/" && !typing) { event.preventDefault(); box.focus(); box.select(); }
    if (event.key === "Escape" && document.activeElement === box) {
      box.value = "";
      box.dispatchEvent(new Event("input"));
      box.blur();
    }
  });

  // Paper cannot be unfolded.
  addEventListener("beforeprint", function () {
    for (const each of document.querySelectorAll("details")) each.open = true;
  });
})();
