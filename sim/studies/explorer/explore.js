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

  let asked = 0, busy = false;
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
      const query = new URLSearchParams();
      for (const c of controls) if (c.id !== "gpus" && value(c) !== c.dataset.base) query.set(c.id, value(c));
      let told;
      try {
        const reply = await fetch(`/answer?${query}`);
        told = await reply.json();
      } catch (error) {
        told = { mistakes: "prestep explore does not answer any more: start it again" };
      }
      if (mine === asked) show(told);
    } while (mine !== asked);
    busy = false;
    clearInterval(clock);
    waiting.textContent = "";
    answer.setAttribute("aria-busy", "false");
  }

  function show(told) {
    const mistakes = byId("mistakes");
    mistakes.hidden = !told.mistakes;
    mistakes.textContent = told.mistakes;
    answer.classList.toggle("stale", Boolean(told.mistakes));
    if (told.mistakes) { byId("verdict").textContent = ""; return; }
    byId("verdict").innerHTML = told.verdict;
    byId("command").textContent = told.command;
    for (const [name, html] of Object.entries(told.pieces)) byId(`piece-${name}`).innerHTML = html;
    dispatchEvent(new Event("prestep:new"));
  }

  form.addEventListener("input", (event) => { together(event.target); controls.forEach(label); ask(); });
  form.addEventListener("reset", () => setTimeout(() => { controls.forEach(label); ask(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
})();
