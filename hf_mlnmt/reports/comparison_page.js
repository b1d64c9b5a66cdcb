"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Light or dark: what the system says, until the reader says otherwise.
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

// Tables: a click on a head sorts by it, another one the other way round.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const numeric = (column) => [...body.rows].some((row) => row.cells[column].className === "number");
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    if (numeric(column)) head.className = "number";
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => {
        const text = row.cells[column].textContent;
        return numeric(column) ? parseFloat(text) : text;
      };
      const compare = (x, y) => {
        const a = key(x), b = key(y);
        if (typeof a === "string") return a.localeCompare(b, undefined, {numeric: true}) * (up ? 1 : -1);
        if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
        return (a - b) * (up ? 1 : -1);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

// Sentences.
const PAGE = 25;
let shown = PAGE;

function common(a, b) {
  // Which words of a and of b belong to their longest common subsequence.
  const table = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const inA = new Set(), inB = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { inA.add(i++); inB.add(j++); }
    else if (table[i + 1][j] >= table[i][j + 1]) i++;
    else j++;
  }
  return [inA, inB];
}

function marked(words, kept) {
  const line = document.createDocumentFragment();
  words.forEach((word, i) => {
    if (i) line.append(" ");
    if (kept.has(i)) { line.append(word); return; }
    const mark = document.createElement("mark");
    mark.textContent = word;
    line.append(mark);
  });
  return line;
}

function chosenOrder(a, b) {
  const A = data.chrf[a], B = data.chrf[b];
  const gap = (i) => B[i] - A[i];
  const orders = {
    gap: (i, j) => Math.abs(gap(j)) - Math.abs(gap(i)), gain: (i, j) => gap(j) - gap(i),
    loss: (i, j) => gap(i) - gap(j), worst: (i, j) => B[i] - B[j],
    long: (i, j) => data.reference[j].length - data.reference[i].length, line: () => 0,
  };
  return orders[byId("order").value];
}

function entry(i, a, b) {
  const item = document.createElement("li");
  const head = item.appendChild(document.createElement("div"));
  head.className = "head";
  const difference = data.chrf[b][i] - data.chrf[a][i];
  const told = [data.line[i], `chrF ${data.chrf[a][i].toFixed(1)} → ${data.chrf[b][i].toFixed(1)}`,
    `difference ${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(1)}`];
  for (const text of told) head.appendChild(document.createElement("span")).textContent = text;
  const list = item.appendChild(document.createElement("dl"));
  const add = (name, content) => {
    list.appendChild(document.createElement("dt")).textContent = name;
    list.appendChild(document.createElement("dd")).append(content);
  };
  const first = data.outputs[a][i].split(/\s+/), second = data.outputs[b][i].split(/\s+/);
  const [inA, inB] = common(first, second);
  if (data.source) add("source", data.source[i]);
  add("reference", data.reference[i]);
  add(`A: ${a}`, marked(first, inA));
  add(`B: ${b}`, marked(second, inB));
  return item;
}

function render() {
  const a = byId("a").value, b = byId("b").value, find = byId("find").value.trim().toLowerCase();
  const texts = [data.source, data.reference, data.outputs[a], data.outputs[b]].filter(Boolean);
  const lines = data.reference.map((_, i) => i);
  const found = lines.filter((i) => !find || texts.some((of) => of[i].toLowerCase().includes(find)));
  found.sort(chosenOrder(a, b));
  byId("count").textContent = `${Math.min(shown, found.length)} of ${found.length} sentences`;
  byId("list").replaceChildren(...found.slice(0, shown).map((i) => entry(i, a, b)));
  byId("more").hidden = shown >= found.length;
}

if (byId("list")) {
  for (const id of ["a", "b", "order", "find"])
    byId(id).addEventListener("input", () => { shown = PAGE; render(); });
  byId("more").addEventListener("click", () => { shown += PAGE; render(); });
  render();
}
