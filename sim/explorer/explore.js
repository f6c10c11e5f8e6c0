"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const form = byId("knobs"), answer = byId("answer");
  const controls = [...form.querySelectorAll("input[type=range], select")];
  const values = (c) => c.dataset.values ? JSON.parse(c.dataset.values) : [...c.options].map((o) => o.value);
  const value = (c) => c.dataset.values ? values(c)[Number(c.value)] : c.value;
  const number = (id) => byId(id) ? Number(value(byId(id))) : 1;

  function place(control, wanted) {  // the nearest that the control has
    if (!control.dataset.values) { control.value = wanted; return; }
    let best = 0;
    values(control).forEach((v, i, all) => { if (Math.abs(Number(v) - wanted) < Math.abs(Number(all[best]) - wanted)) best = i; });
    control.value = best;
  }

  function together(moved) {  // GPUs are the product of the axes: dp follows, or is followed
    const gpus = byId("gpus"), dp = byId("parallel.dp");
    if (!gpus || !dp) return;
    const other = number("parallel.tp") * number("parallel.pp") * number("parallel.cp");
    if (moved !== dp && ["gpus", "parallel.tp", "parallel.pp", "parallel.cp"].includes(moved.id)) place(dp, number("gpus") / other);
    if (moved.id === "gpus" || moved.id.startsWith("parallel.")) place(gpus, number("parallel.dp") * other);
  }

  function label(control) {
    const box = control.closest(".knob"), said = box.querySelector("output");
    if (said) said.textContent = value(control);
    control.setAttribute("aria-valuetext", value(control));
    box.classList.toggle("moved", value(control) !== control.dataset.base);
  }

  // The address carries the sliders: #set=KEY=VALUE&...
  const changed = () => {
    const query = new URLSearchParams();
    for (const c of controls) if (c.id !== "gpus" && value(c) !== c.dataset.base) query.set(c.id, value(c));
    return query;
  };
  function written() {
    const query = changed().toString();
    history.replaceState(null, "", query ? `#set=${query}` : location.pathname);
  }
  function read() {  // controls as the address says; what it does not name is as the scenario, what no control offers is left
    if (!location.hash.startsWith("#set=")) return false;
    const wanted = new URLSearchParams(location.hash.slice(5));
    for (const c of controls) {
      const all = values(c), at = all.indexOf(wanted.has(c.id) ? wanted.get(c.id) : c.dataset.base);
      if (at >= 0) c.value = c.dataset.values ? at : all[at];
    }
    if (byId("parallel.dp")) together(byId("parallel.dp"));
    return true;
  }

  const seconds = (s) => {
    const a = Math.abs(s), [scale, unit] = a >= 1 ? [1, "s"] : a >= 1e-3 ? [1e-3, "ms"] : a >= 1e-6 ? [1e-6, "us"] : [1e-9, "ns"];
    return a < 5e-10 ? "0 s" : `${+(s / scale).toPrecision(4)} ${unit}`;
  };

  // A curve of step time over the slider under the hand: each position is asked, the nearest first, until it moves again.
  let drawn = 0;
  async function curve(control) {
    const mine = ++drawn, box = control.closest(".knob").querySelector(".curve");
    document.querySelectorAll(".curve").forEach((other) => { if (other !== box) other.hidden = true; });
    if (!box || control.id === "gpus") return;
    const all = values(control), here = Number(control.value), found = new Map();
    const order = all.map((_, i) => i).sort((a, b) => Math.abs(a - here) - Math.abs(b - here));
    for (const i of order) {
      const query = changed();
      if (all[i] === control.dataset.base) query.delete(control.id); else query.set(control.id, all[i]);
      let told;
      try { told = await (await fetch(`/step?${query}`)).json(); } catch (error) { return; }
      if (mine !== drawn || busy) return;
      if (!told.mistakes) found.set(i, told.step_time);
      if (found.size > 1) sketch(box, all, here, found);
    }
    if (found.size < 2) box.hidden = true;
  }
  function sketch(box, all, here, found) {
    const points = [...found].sort((a, b) => a[0] - b[0]), times = points.map((p) => p[1]);
    const low = Math.min(...times), high = Math.max(...times);
    const x = (i) => 5 + 250 * i / Math.max(1, all.length - 1), y = (t) => high === low ? 25 : 45 - 40 * (t - low) / (high - low);
    const dots = points.map(([i, t]) => `<circle cx="${x(i)}" cy="${y(t)}" r="${i === here ? 4.5 : 2.5}" class="${i === here ? "here" : "there"}"><title></title></circle>`);
    const line = points.map(([i, t]) => `${x(i)},${y(t)}`).join(" ");
    box.innerHTML = `<svg viewBox="0 0 260 50" role="img"><polyline class="bound" points="${line}"></polyline>${dots.join("")}</svg>`;
    box.firstChild.setAttribute("aria-label", `Step time over ${box.closest(".knob").querySelector("label").textContent}`);
    box.querySelectorAll("title").forEach((title, k) => { title.textContent = `${all[points[k][0]]}: ${seconds(points[k][1])}`; });
    const said = document.createElement("figcaption");
    const best = points[times.indexOf(low)][0], worst = points[times.indexOf(high)][0];
    said.textContent = high - low < 1e-4 * high ? `${seconds(low)} at every position`
      : `${seconds(low)} at ${all[best]}, ${seconds(high)} at ${all[worst]}`;
    box.append(said);
    box.hidden = false;
  }

  // A step that is kept beside those that follow.
  let pinned = null, last = null;
  function compare() {
    const box = byId("pinned"), pin = byId("pin");
    box.hidden = !pinned;
    pin.setAttribute("aria-pressed", Boolean(pinned));
    pin.textContent = pinned ? "unpin" : "pin";
    if (!pinned || !last) return;
    const row = (tag, cells) => {
      const made = document.createElement("tr");
      cells.forEach((text, i) => { const cell = document.createElement(tag); cell.textContent = text; if (i) cell.className = "n"; made.append(cell); });
      return made;
    };
    const line = (name, was, now) => row("td", [name, seconds(was), seconds(now), (now > was ? "+" : "") + seconds(now - was)]);
    const table = document.createElement("table"), title = document.createElement("h2"), about = document.createElement("p");
    title.textContent = "Beside the pinned step";
    about.className = "soft";
    about.textContent = `Pinned: ${pinned.changes.join(", ") || "as the scenario"}. Now: ${last.changes.join(", ") || "as the scenario"}.`;
    table.append(row("th", ["", "pinned", "now", "difference"]), line("step time", pinned.step_time, last.step_time));
    for (const name of new Set([...Object.keys(pinned.shares), ...Object.keys(last.shares)])) {
      const was = pinned.shares[name] || 0, now = last.shares[name] || 0;
      if (Math.max(was, now) > 5e-4 * last.step_time) table.append(line(name, was, now));
    }
    const frame = document.createElement("div");
    frame.className = "scroll";
    frame.append(table);
    box.replaceChildren(title, about, frame);
  }
  byId("pin").addEventListener("click", () => { pinned = pinned ? null : last; compare(); });

  let asked = 0, busy = false, moved = null;
  async function ask() {  // one question at a time; of those meanwhile only the last is asked
    asked += 1;
    if (busy) return;
    busy = true;
    answer.setAttribute("aria-busy", "true");
    const since = performance.now(), waiting = byId("waiting");
    const clock = setInterval(() => {  // after a second: many microbatches or layers take their time
      const spent = (performance.now() - since) / 1000;
      if (spent > 1) waiting.textContent = `predicting, ${spent.toFixed(0)} s`;
    }, 250);
    let mine;
    do {
      mine = asked;
      const query = changed();
      let told;
      try {  // the step time first: pictures take as long again
        told = await (await fetch(`/step?${query}`)).json();
        if (mine !== asked) continue;
        headline(told);
        if (!told.mistakes) told = await (await fetch(`/answer?${query}`)).json();
      } catch (error) {
        told = { mistakes: "prestep explore does not answer any more: start it again" };
      }
      if (mine === asked) show(told);
    } while (mine !== asked);
    busy = false;
    clearInterval(clock);
    waiting.textContent = "";
    answer.setAttribute("aria-busy", "false");
    if (moved && moved.dataset.values) curve(moved);
  }

  function headline(told) {
    const mistakes = byId("mistakes");
    mistakes.hidden = !told.mistakes;
    mistakes.textContent = told.mistakes;
    answer.classList.toggle("stale", Boolean(told.mistakes));
    byId("verdict").innerHTML = told.mistakes ? "" : told.verdict;
  }
  function show(told) {
    headline(told);
    if (told.mistakes) return;
    byId("title").textContent = document.title = told.title;
    last = told;
    compare();
    byId("command").textContent = told.command;
    for (const [name, html] of Object.entries(told.pieces)) byId(`piece-${name}`).innerHTML = html;
    dispatchEvent(new Event("prestep:new"));
  }

  form.addEventListener("input", (event) => { moved = event.target; together(moved); controls.forEach(label); written(); ask(); });
  form.addEventListener("reset", () => setTimeout(() => { moved = null; controls.forEach(label); written(); ask(); }));
  form.addEventListener("focusin", (event) => { if (event.target.dataset.values && !busy) curve(event.target); });
  addEventListener("hashchange", () => { if (read()) { controls.forEach(label); ask(); } });
  if (read()) controls.forEach(label);
  ask();
  form.addEventListener("submit", (event) => event.preventDefault());
})();
