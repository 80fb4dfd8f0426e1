"use strict";
// Drawing: a rank's numbers as tables, whole matrices as grids with the rank's part filled.
// Nothing here knows the state of the page.

const MATRICES = {
  "attention.qkv.weight": "Q K V",
  "attention.out.weight": "O",
  "mlp.up.weight": "A",
  "mlp.down.weight": "B",
};
const READABLE = 100; // more numbers than this are drawn as colours only
const WIDTH = 8; // columns of numbers side by side

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function shape(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function number(value) {
  const text = value.toFixed(2);
  return (text === "-0.00" ? "0.00" : text).replace("-", "−");
}

// 0, 1, 2, 3, 8 -> "0–3, 8"
function ranges(numbers) {
  const runs = [];
  for (const i of numbers) {
    const last = runs.at(-1);
    if (last && last[1] === i - 1) last[1] = i;
    else runs.push([i, i]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(", ");
}

function valuesOf(event, rank) {
  return event.values[event.same ? 0 : rank];
}

// The tables that a tensor is shown as. Matrices as in the paper, [in, out]: torch keeps them
// transposed. Where a tensor is cut, the labels count on from rank to rank.
function blocksOf(event, rank) {
  const [rows, columns] = event.shape.length > 1 ? event.shape.slice(-2) : [1, event.shape[0]];
  const stack = event.shape.length === 3 ? ["Q", "K", "V"] : [""];
  const turned = event.name.endsWith(".weight.grad") && event.shape.length > 1;
  const fromEnd = event.shape.length - event.dim; // 1: the columns are cut, 2: the rows
  const start = (axis, size) => (event.layout === "cut" && fromEnd === axis ? rank * size : 0);
  return stack.map((label, k) => {
    const at = (r, c) => k * rows * columns + r * columns + c;
    const [rowStart, columnStart] = [start(2, rows), start(1, columns)];
    return turned
      ? { label, rows: columns, columns: rows, rowStart: columnStart, columnStart: rowStart,
          at: (r, c) => at(c, r) }
      : { label, rows, columns, rowStart, columnStart, at };
  });
}

// `correct`: the right run's numbers of this rank, to mark those that differ; null marks nothing.
function tensor(event, rank, correct) {
  const values = valuesOf(event, rank);
  if (values === null) return el("p", { class: "nothing" }, "nothing here: no gradient");
  const all = event.values.filter((v) => v !== null);
  const largest = Math.max(1e-300, ...all.map((v) => Math.max(...v.map(Math.abs))));
  const differs = (i) =>
    correct !== null && Math.abs(values[i] - correct[i]) > 1e-6 * largest;
  const area = el("div", { class: "tensor" });
  const draw = values.length > READABLE ? colours : table;
  for (const block of blocksOf(event, rank)) {
    const step = draw === table ? WIDTH : block.columns;
    for (let from = 0; from < block.columns; from += step) {
      const upTo = Math.min(block.columns, from + step);
      area.append(draw(block, from, upTo, values, largest, differs));
    }
  }
  if (draw === colours) {
    const text = `${values.length} numbers, as colours: blue above zero, orange below`;
    area.append(el("p", { class: "note" }, text));
  }
  return area;
}

function heat(value, largest) {
  return `--heat: ${Math.round((Math.abs(value) / largest) * 100)}%`;
}

function table(block, from, upTo, values, largest, differs) {
  const head = el("tr", {}, el("th", { scope: "col" }, block.label));
  for (let c = from; c < upTo; c++) {
    head.append(el("th", { scope: "col" }, `${block.columnStart + c}`));
  }
  const body = el("tbody");
  for (let r = 0; r < block.rows; r++) {
    const row = el("tr", {}, el("th", { scope: "row" }, `${block.rowStart + r}`));
    for (let c = from; c < upTo; c++) {
      const i = block.at(r, c);
      const sign = values[i] < 0 ? "minus" : "plus";
      const off = differs(i) ? " off" : "";
      row.append(
        el("td", { class: sign + off, style: heat(values[i], largest) }, number(values[i])),
      );
    }
    body.append(row);
  }
  return el("table", { class: "numbers" }, el("thead", {}, head), body);
}

function colours(block, from, upTo, values, largest, differs) {
  const name = `${block.label} ${block.rows} by ${block.columns} numbers, as colours`;
  const area = shape("svg", {
    class: "colours", role: "img", "aria-label": name.trim(),
    viewBox: `0 0 ${block.columns} ${block.rows}`,
    style: `--columns: ${block.columns}`,
  });
  for (let r = 0; r < block.rows; r++) {
    for (let c = from; c < upTo; c++) {
      const i = block.at(r, c);
      const kind = (values[i] < 0 ? "minus" : "plus") + (differs(i) ? " off" : "");
      area.append(shape("rect", {
        x: c + 0.05, y: r + 0.05, width: 0.9, height: 0.9, class: kind,
        style: heat(values[i], largest),
      }));
    }
  }
  return area;
}

// One matrix as in the paper, [in, out], with what the rank holds filled in.
function slice(hold) {
  const [outs, ins] = hold.shape;
  const groups = hold.name === "attention.qkv.weight" ? 3 : 1;
  const per = outs / groups;
  const x = (i) => i + Math.floor(i / per); // a gap between Q, K and V
  const width = outs + groups - 1;
  const picture = shape("svg", {
    viewBox: `-0.5 -0.5 ${width + 1} ${ins + 1}`, style: `--w: ${width + 1}`, "aria-hidden": "true",
  });
  for (let k = 0; k < groups; k++) {
    picture.append(shape("rect", {
      class: "whole", x: x(k * per), y: 0, width: per, height: ins,
    }));
  }
  for (const i of hold.rows) {
    for (const j of hold.columns) {
      picture.append(shape("rect", {
        class: "held", x: x(i) + 0.08, y: j + 0.08, width: 0.84, height: 0.84,
      }));
    }
  }
  const name = MATRICES[hold.name];
  return el("figure", { "data-weight": hold.name }, picture,
    el("figcaption", {}, el("b", {}, name), ` ${part(hold, per, groups)}`));
}

function named(what, numbers) {
  return `${what}${numbers.length > 1 ? "s" : ""} ${ranges(numbers)}`;
}

// In words: which columns or rows of the paper's matrix.
function part(hold, per, groups) {
  if (groups === 3) {
    const held = ["Q", "K", "V"].map((letter, k) => [
      letter, hold.rows.filter((i) => Math.floor(i / per) === k).map((i) => i % per),
    ]).filter(([, columns]) => columns.length);
    const texts = held.map(([, columns]) => ranges(columns));
    if (held.length === 3 && new Set(texts).size === 1) return `${named("column", held[0][1])} of each`;
    return held.map(([letter], i) => `${letter}: ${texts[i]}`).join("; ");
  }
  if (hold.rows.length < hold.shape[0]) return named("column", hold.rows);
  if (hold.columns.length < hold.shape[1]) return named("row", hold.columns);
  return "all of it";
}
