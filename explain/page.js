"use strict";
// The page: what is chosen (ranks, step, misconception), and drawing it anew when that changes.

const VERSION = 1; // of the recording's form, as in record.py
const recording = JSON.parse(document.getElementById("recording").textContent);
const $ = (id) => document.getElementById(id);
const state = { ranks: 2, step: "x", replay: false, which: "" };

function run(ranks, mistake) {
  return recording.runs.find((r) => r.ranks === ranks && r.misconception === mistake);
}
const mistake = () => (state.replay ? state.which : null);
const current = () => run(state.ranks, mistake());
const right = () => run(state.ranks, null);

// The step's place in the current run; a run with a mistake may lack a step.
function place() {
  const events = current().events;
  const found = events.findIndex((e) => e.name === state.step);
  if (found >= 0) return found;
  const before = right().events.findIndex((e) => e.name === state.step);
  return Math.max(0, Math.min(before, events.length - 1));
}

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
const small = (x) => (x === 0 ? "0" : Math.abs(x) < 1e-3 ? x.toExponential(0) : `${+x.toPrecision(4)}`);
const size = (dims) => dims.join(" × ");
const wired = (event) => event.sent.some((calls) => calls.length > 0);

// What each rank has handed over up to and with this step, in bytes and calls.
function sentSoFar(events, upTo, rank) {
  const calls = events.slice(0, upTo + 1).flatMap((e) => e.sent[rank]);
  return { calls: calls.length, bytes: calls.reduce((sum, [, , bytes]) => sum + bytes, 0) };
}

function drawMap() {
  const { events, parts_at: partsAt } = current();
  for (const phase of ["forward", "backward"]) {
    $(phase).replaceChildren(...events.flatMap((event, i) => {
      const step = recording.steps[event.name];
      if (step.phase !== phase) return [];
      const kind = [step.mark, wired(event) ? "wired" : "", event.parted ? "parted" : "",
        i === partsAt ? "first" : "", event.same ? "" : "own"].filter(Boolean).join(" ");
      const says = `${step.title}${wired(event) ? ", sends" : ""}${event.parted ? ", not the reference's numbers" : ""}`;
      const chip = el("button", { type: "button", class: `chip ${kind}`, "data-step": event.name,
        "aria-label": says, title: says }, step.short);
      if (i === place()) chip.setAttribute("aria-current", "step");
      chip.addEventListener("click", () => choose({ step: event.name }));
      return [el("li", {}, chip)];
    }));
  }
}

function wireText(event) {
  const calls = event.sent[0];
  if (calls.length) {
    return calls.map(([op, numbers, bytes]) =>
      `${op.replace("_", "-").replace("(sum)", "")} over ${state.ranks} ranks: ` +
      `${numbers} numbers, ${bytes} bytes from each`).join("; ");
  }
  const twin = right().events.find((e) => e.name === event.name);
  if (twin && wired(twin)) return "nothing, where the right code sends an all-reduce";
  return state.ranks === 1 ? "nothing: there is one rank" : "nothing";
}

function drawStep() {
  const { events } = current();
  const i = place();
  const event = events[i];
  const step = recording.steps[event.name];
  $("count").textContent = `Step ${i + 1} of ${events.length}`;
  $("step").max = events.length - 1;
  $("step").value = i;
  $("step").setAttribute("aria-valuetext", `${i + 1}: ${step.title}`);
  $("phase").textContent = `${step.phase} · ${event.name.startsWith("mlp") ? "MLP" :
    event.name.startsWith("attention") ? "attention" : "block"}`;
  $("title").textContent = step.title;
  $("formula").textContent = step.formula;
  $("text").textContent = event.against === event.name ? step.text
    : `In this run the mistake is inside already: compare with “${recording.steps[event.against].title}”.`;
  const turned = event.name.endsWith(".weight.grad") && event.shape.length > 1;
  const paper = (dims) => size(turned ? [...dims.slice(0, -2), dims.at(-1), dims.at(-2)] : dims);
  const same = event.same ? "the same on each" : "to be the same on each, but it is not";
  $("shape").textContent = state.ranks === 1 ? `all of [${paper(event.shape)}]` : {
    replicated: `all of [${paper(event.shape)}], ${same}`,
    cut: `[${paper(event.shape)}] of the whole [${paper(event.whole)}]`,
    partial: `[${paper(event.shape)}], one term of the sum`,
  }[event.layout];
  $("wire").textContent = wireText(event);
  $("wire").classList.toggle("loud", wired(event));
  $("difference").textContent = event.parted
    ? `parts: off by up to ${small(event.difference)}`
    : `equal (largest difference ${small(event.difference)})`;
  $("difference").classList.toggle("wrong", event.parted);
  $("back").disabled = i === 0;
  $("next").disabled = i === events.length - 1;
}

function drawMistake() {
  $("mistake").hidden = !state.replay;
  $("switch").setAttribute("aria-checked", state.replay);
  $("which").disabled = !state.replay;
  $("which").value = state.which;
  document.body.classList.toggle("replaying", state.replay);
  if (!state.replay) return;
  const told = recording.misconceptions.find((m) => m.key === state.which);
  $("mistake-title").textContent = told.title;
  $("belief").textContent = told.belief;
  $("truth").textContent = told.truth;
  const { events, parts_at: at } = current();
  $("go").hidden = at === null;
  $("parting").textContent = at === null
    ? "At 1 rank nothing is wrong: a test with one rank would never see it. Move the slider."
    : `The numbers part at step ${at + 1}, “${recording.steps[events[at].name].title}”: ` +
      `off by up to ${small(events[at].difference)}.`;
}

// A collective with the numbers before it and after it; anything else with what it gave.
function drawTensor(event, before, rank) {
  const twin = right().events.find((e) => e.name === event.name);
  const correct = state.replay && event.parted && twin && `${twin.shape}` === `${event.shape}`
    ? valuesOf(twin, rank) : null;
  const after = tensor(event, rank, correct);
  const { mark } = recording.steps[event.name];
  if (!mark) return [after];
  const sends = event.sent[rank].length > 0;
  const missing = !sends && twin && wired(twin);
  const text = sends ? `Σ  ${mark} adds up over ${state.ranks} ranks`
    : missing ? `✗  ${mark} does not add up here` : `${mark} sends nothing`;
  const bus = el("p", { class: `bus ${mark} ${sends ? "wired" : ""} ${missing ? "missing" : ""}` },
    text);
  const own = before && before.layout === "partial" && (sends || missing);
  return own ? [tensor(before, rank, null), bus, after] : [bus, after];
}

// Hundreds of cells, the same at every step: drawn once for a run.
const drawn = new Map();
function slices(held, rank, used) {
  const key = `${state.ranks} ${mistake()} ${rank}`;
  if (!drawn.has(key)) {
    drawn.set(key, Object.keys(MATRICES).map((name) => slice(held.find((h) => h.name === name))));
  }
  for (const figure of drawn.get(key)) {
    figure.classList.toggle("used", figure.dataset.weight === used);
  }
  return drawn.get(key);
}

function drawCards() {
  const { events, holds } = current();
  const i = place();
  const used = recording.steps[events[i].name].weight;
  $("cards").dataset.ranks = state.ranks;
  $("cards").replaceChildren(...holds.map((held, rank) => {
    const { calls, bytes } = sentSoFar(events, i, rank);
    return el("article", { class: "card", style: `--colour: var(--rank-${rank})`,
      "aria-label": `rank ${rank}` },
    el("h3", {}, el("span", { class: "dot", "aria-hidden": "true" }), `rank ${rank} `,
      el("span", { class: "sent" }, `sent so far: ${plural(bytes, "byte")} in ${plural(calls, "call")}`)),
    el("div", { class: "numbers-of" }, ...drawTensor(events[i], events[i - 1], rank)),
    el("div", { class: "holds", "aria-label": `what rank ${rank} holds` },
      ...slices(held, rank, used)));
  }));
  const copies = holds[0].filter((h) => !(h.name in MATRICES)
    && h.rows.length * h.columns.length === h.shape[0] * h.shape[1]).map((h) => h.name);
  $("copies").textContent = `In full on every rank: ${copies.join(", ")}.`;
}

function drawBill() {
  $("bill-rows").replaceChildren(...recording.ranks.map((n) => {
    const { events, holds } = run(n, mistake());
    const calls = (phase) => events.filter((e) => recording.steps[e.name].phase === phase)
      .reduce((sum, e) => sum + e.sent[0].length, 0);
    const { bytes } = sentSoFar(events, events.length, 0);
    const held = holds[0].reduce((sum, h) => sum + h.rows.length * h.columns.length, 0);
    const cells = [n, calls("forward"), calls("backward"), bytes, held];
    const row = el("tr", {}, ...cells.map((c) => el("td", {}, `${c}`)));
    if (n === state.ranks) row.setAttribute("aria-current", "true");
    return row;
  }));
}

function draw() {
  $("title-ranks").textContent = plural(state.ranks, "rank");
  $("ranks").value = recording.ranks.indexOf(state.ranks);
  $("ranks").setAttribute("aria-valuetext", plural(state.ranks, "rank"));
  for (const tick of $("ticks").children) {
    tick.classList.toggle("here", tick.textContent === `${state.ranks}`);
  }
  for (const part of [drawMap, drawStep, drawMistake, drawCards, drawBill]) part();
}

function choose(change) {
  Object.assign(state, change);
  draw();
  const at = `#ranks=${state.ranks}&step=${state.step}`;
  history.replaceState(null, "", at + (state.replay ? `&mistake=${state.which}` : ""));
}

function stepTo(i) {
  const { events } = current();
  choose({ step: events[Math.max(0, Math.min(i, events.length - 1))].name });
}

function nextMark() {
  const { events } = current();
  const order = [...events.keys()].map((k) => (place() + 1 + k) % events.length);
  stepTo(order.find((i) => recording.steps[events[i].name].mark));
}

function toParting() {
  if (state.replay && current().parts_at !== null) stepTo(current().parts_at);
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // A slider or list that has the focus keeps its own keys.
  const own = event.target.matches("input, select") && /^(Arrow|Home|End|Page)/.test(event.key);
  if (own || (event.target.matches("select") && event.key.length === 1)) return;
  const n = Number(event.key);
  if (recording.ranks.includes(n)) choose({ ranks: n });
  else if (event.key === "ArrowRight") stepTo(place() + 1);
  else if (event.key === "ArrowLeft") stepTo(place() - 1);
  else if (event.key === "Home") stepTo(0);
  else if (event.key === "End") stepTo(current().events.length - 1);
  else if (event.key === "m") choose({ replay: !state.replay });
  else if (event.key === "n") nextMark();
  else if (event.key === "p") toParting();
  else if (event.key === "t") turnTheme();
  else return;
  event.preventDefault();
}

// What the address line asks for, as far as the recording has it.
function fromAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const known = (key) => recording.misconceptions.some((m) => m.key === key);
  if (recording.ranks.includes(Number(asked.get("ranks")))) state.ranks = Number(asked.get("ranks"));
  if (asked.get("step") in recording.steps) state.step = asked.get("step");
  state.replay = known(asked.get("mistake"));
  if (state.replay) state.which = asked.get("mistake");
  draw();
}

function start() {
  if (recording.version !== VERSION) {
    $("refused").hidden = false;
    $("refused").textContent = `This is a recording of version ${recording.version}; this page ` +
      `shows version ${VERSION}. Make a new one with: make explain`;
    return;
  }
  document.querySelector("main").hidden = false;
  const { tokens, hidden, heads } = recording.sizes;
  $("sizes").textContent = `X has ${tokens} tokens of ${hidden} numbers; ${heads} heads; ${recording.dtype}.`;
  $("made").textContent = `Recording of version ${recording.version}, made with torch ${recording.torch}. ` +
    "Numbers are shown to two places; the comparison with one rank is made before rounding.";
  $("ranks").max = recording.ranks.length - 1;
  $("ticks").append(...recording.ranks.map((n) => el("span", {}, `${n}`)));
  $("which").append(...recording.misconceptions.map((m) => el("option", { value: m.key }, m.title)));
  state.which = recording.misconceptions[0].key;

  const on = (id, kind, action) => $(id).addEventListener(kind, action);
  on("ranks", "input", (e) => choose({ ranks: recording.ranks[Number(e.target.value)] }));
  on("step", "input", (e) => stepTo(Number(e.target.value)));
  on("back", "click", () => stepTo(place() - 1));
  on("next", "click", () => stepTo(place() + 1));
  on("next-mark", "click", nextMark);
  on("switch", "click", () => choose({ replay: !state.replay }));
  on("which", "change", (e) => choose({ which: e.target.value }));
  on("go", "click", toParting);
  on("theme", "click", turnTheme);
  for (const button of document.querySelectorAll("[data-go]")) {
    button.addEventListener("click", () => {
      choose({ step: button.dataset.go });
      $("now").scrollIntoView({ block: "center" });
    });
  }
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", fromAddress);
  fromAddress();
}

start();
