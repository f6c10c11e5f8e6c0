"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const letters = (hex) => {  // black or white, whichever can be read on a colour
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#0b0e13" : "#fff";
  };
  const seconds = (ns) => {
    const a = Math.abs(ns);
    const [scale, unit] = a >= 1e9 ? [1e9, "s"] : a >= 1e6 ? [1e6, "ms"] : a >= 1e3 ? [1e3, "us"] : [1, "ns"];
    return ns === 0 ? "0" : `${+(ns / scale).toPrecision(4)} ${unit}`;
  };
  const amount = (n, unit) => {
    const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const [scale, letter] = steps.find(([s]) => n >= s) || [1, ""];
    return `${+(n / scale).toPrecision(4)} ${letter}${unit}`;
  };
  const painters = {};  // by canvas: one that is replaced is painted no more

  const repaint = () => Object.values(painters).forEach((paint) => paint());

  function theme() {
    const button = byId("theme"), root = document.documentElement;
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      repaint();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint());
    let kept;
    addEventListener("beforeprint", () => { kept = root.dataset.theme; root.dataset.theme = "light"; repaint(); });
    addEventListener("afterprint", () => { if (kept) root.dataset.theme = kept; else delete root.dataset.theme; repaint(); });
  }

  function gantt(data) {
    const canvas = byId("gantt"), context = canvas.getContext("2d"), detail = byId("detail"), select = byId("ranks");
    const LANE = data.rows.length > 12 ? 22 : Math.min(48, Math.max(30, Math.round(240 / data.rows.length))), GAP = 8, TOP = 24, FONT = "12px system-ui, 'DejaVu Sans', sans-serif";
    let WHO = 86, SIDE = 150;  // room for the names of ranks and streams
    let [from, to] = data.opens || [0, data.length], lanes = [], picked = null, drag = null, wanted = "", range = null;
    data.rows.forEach((row) => {
      row.at = new Float64Array(row.s.length);
      row.s.reduce((sum, s, i) => (row.at[i] = sum + s), 0);
      [row.at0, row.m0] = [row.at, row.m];
      row.closed = [...row.s.keys()].map((i) => [row.at[i], row.d[i], row.n[i], row.m[i], row.w.length ? row.w[i] : 0, -1]);
    });
    const ranks = [...new Set(data.rows.map((row) => row.rank))];
    if (ranks.length > 1) {
      for (const r of ranks) {
        const row = data.rows.find((x) => x.rank === r);
        select.add(new Option(row.stands > 1 ? `rank ${r} (stands for ${row.stands})` : `rank ${r}`, r));
      }
      select.parentElement.hidden = false;
    }
    const shade = (fact) => {
      const [kind, phase, axis] = fact;
      if (kind === "host") return "host";
      if (kind === "copy") return "io";
      if (kind !== "kernel") return ["dp", "tp", "pp", "cp", "ep"].includes(axis) ? axis : "other";
      return { forward: "forward", backward: "backward", optimizer: "optimizer" }[phase] || "other";
    };
    const shades = data.facts.map(shade);
    const told = data.facts.map((fact) => fact.slice(0, 3).concat(fact[7]).join(" ").toLowerCase());
    const names = data.names.map((name) => name.toLowerCase());
    const found = (row, i) => names[row.n[i]].includes(wanted) || told[row.m[i]].includes(wanted);

    const widths = [];  // of names, as they are written into spans
    const written = (n) => (widths[n] ??= context.measureText(data.names[n]).width);
    const narrow = () => canvas.clientWidth < 480;
    const who = (row) => {
      const name = narrow() ? `${row.rank}` : `rank ${row.rank}`;
      return row.stands > 1 ? `${name} (${row.stands}×)` : name;
    };

    // Rows of layers are opened where their kernels are wide enough to be seen, or one is looked for.
    const DENSE = 3, MANY = 200000;
    const inside = ({ times, ops }) => ops.length * Math.max(1, times);
    const blocks = data.rows.flatMap((row) => row.blocks.map((block) => ({ row, block, many: inside(data.patterns[block[1]]) })));
    const all = blocks.reduce((sum, one) => sum + one.many, 0);
    function kernels({ row, block }) {
      const [i, pattern, , long, ...speeds] = block, { times, ops, total, cut } = data.patterns[pattern];
      const start = row.at0[i], micro = data.facts[row.m0[i]][4], made = [], second = ops.find((op) => op[4] === 1)[0];
      for (let r = 0; r < Math.max(1, times); r++) {
        for (const [begin, end, name, fact, part, stream] of ops) {
          if (times ? r === times - 1 && part === 1 : part !== 1) continue;
          const moment = (clocks) => Math.min(long, Math.max(0, speeds.reduce((sum, speed, k) => sum + speed * (clocks[k]
            + (times ? r * total[k] - (r === times - 1 && part === 2 ? cut[k] : 0) : -second[k])), 0)));
          const at = moment(begin);
          made.push([data.streams[stream], [start + at, moment(end) - at, name, fact, 0, micro]]);
        }
      }
      return made;
    }
    let opened = "";
    function open() {
      const perNs = (canvas.clientWidth - SIDE) / (to - from);
      const seen = blocks.filter(({ row, block, many }) => wanted ? all <= MANY
        : block[3] * perNs > DENSE * many && row.at0[block[0]] < to && row.at0[block[0]] + block[3] > from);
      const key = seen.map(({ row, block }) => `${row.rank} ${row.stream} ${block[0]}`).join();
      if (key === opened) return;
      opened = key;
      const was = picked && [picked.row.at[picked.i], picked.row.n[picked.i]];
      const gone = new Map(), more = new Map();
      for (const one of seen) {
        const [i, , waits] = one.block;
        for (let k = i; k <= i + waits; k++) gone.set(one.row, (gone.get(one.row) || new Set()).add(k));
        for (const [stream, span] of kernels(one)) {
          const key = `${one.row.rank} ${stream}`;
          if (!more.has(key)) more.set(key, []);
          more.get(key).push(span);
        }
      }
      for (const row of data.rows) {
        const spans = row.closed.filter((_, i) => !gone.get(row)?.has(i)).concat(more.get(`${row.rank} ${row.stream}`) || []);
        spans.sort((a, b) => a[0] - b[0]);
        [row.at, row.d, row.n, row.m, row.w, row.micro] = [0, 1, 2, 3, 4, 5].map((k) => spans.map((span) => span[k]));
      }
      if (was) picked.i = picked.row.at.findIndex((at, i) => at === was[0] && picked.row.n[i] === was[1]);
      if (picked && picked.i < 0) picked = null;
    }

    function place() {
      const wanted = select.value === "" ? null : Number(select.value);
      let y = TOP, last = null;
      context.font = FONT;
      const longest = Math.max(...data.rows.map((row) => context.measureText(row.stream).width));
      WHO = Math.max(narrow() ? 24 : 86, ...data.rows.map((row) => context.measureText(who(row)).width + 20));
      SIDE = Math.min(WHO + longest + 10, Math.max(150, canvas.clientWidth * 0.4));
      lanes = [];
      for (const row of data.rows) {
        if (wanted !== null && row.rank !== wanted) continue;
        if (last !== null && row.rank !== last) y += GAP;
        lanes.push({ row, y });
        y += LANE;
        last = row.rank;
      }
      canvas.style.height = `${y + 6}px`;
    }

    function paint() {
      open();
      const scale = devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
      canvas.width = wide * scale; canvas.height = high * scale;
      context.setTransform(scale, 0, 0, scale, 0, 0);
      context.clearRect(0, 0, wide, high);
      const ink = colour("ink"), soft = colour("soft"), line = colour("line"), wait = colour("wait");
      const tint = Object.fromEntries([...new Set(shades)].map((s) => [s, colour(s)]));
      const onto = Object.fromEntries(Object.entries(tint).map(([s, c]) => [s, letters(c)]));
      const room = wide - SIDE, perNs = room / (to - from);
      context.font = FONT;
      context.textBaseline = "middle";
      const raw = (to - from) / Math.max(3, room / 110), power = 10 ** Math.floor(Math.log10(raw));
      const tick = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= raw);
      let free = 0;  // where the next moment can be written
      for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
        const x = SIDE + (t - from) * perNs, size = context.measureText(seconds(t)).width, at = Math.min(x + 3, wide - size - 4);
        context.fillStyle = line; context.fillRect(x, TOP - 4, 1, high);
        if (at < free) continue;
        context.fillStyle = soft; context.fillText(seconds(t), at, 10);
        free = at + size + 6;
      }
      for (const { row, y } of lanes) {
        context.fillStyle = soft;
        const first = lanes.find((l) => l.row.rank === row.rank).row === row;
        context.fillText(row.stream, WHO, y + LANE / 2, SIDE - WHO - 6);
        if (first) { context.fillStyle = ink; context.fillText(who(row), 6, y + LANE / 2, WHO - 10); }
        let edge = -1;
        for (let i = 0; i < row.at.length; i++) {
          const start = row.at[i], end = start + row.d[i];
          if (end < from) continue;
          if (start > to) break;
          let x = SIDE + (Math.max(start, from) - from) * perNs;
          const right = SIDE + (Math.min(end, to) - from) * perNs;
          if (right - x < 0.6) { if (right < edge) continue; edge = right + 0.4; }
          context.globalAlpha = wanted && !found(row, i) ? 0.18 : 1;
          context.fillStyle = tint[shades[row.m[i]]];
          context.fillRect(x, y + 2, Math.max(right - x - (right - x > 3 ? 0.6 : 0), 0.7), LANE - 4);
          const held = row.w.length ? row.w[i] : 0;
          if (held > 0) {
            const until = SIDE + (Math.min(start + held, to) - from) * perNs;
            if (until > x) { context.fillStyle = wait; context.fillRect(x, y + 2, until - x, LANE - 4); }
          }
          if (right - x > 24 && written(row.n[i]) < right - x - 8) {  // a name that is cut off says less than none
            context.fillStyle = held > 0 && held > row.d[i] / 2 ? ink : onto[shades[row.m[i]]];
            context.fillText(data.names[row.n[i]], x + 5, y + LANE / 2 + 0.5);
          }
          context.globalAlpha = 1;
          if (picked && picked.row === row && picked.i === i) {
            context.strokeStyle = ink; context.lineWidth = 2;
            context.strokeRect(x, y + 2, Math.max(right - x, 2), LANE - 4);
          }
        }
      }
      if (range) {
        const [a, b] = range.map((t) => SIDE + (t - from) * perNs);
        context.globalAlpha = 0.14; context.fillStyle = ink;
        context.fillRect(Math.max(SIDE, a), TOP - 4, Math.max(1, b - Math.max(SIDE, a)), high);
        context.globalAlpha = 1;
      }
      byId("span").textContent = `${seconds(from)} to ${seconds(to)} of ${seconds(data.length)}`;
    }

    function view(a, b) {
      const width = Math.min(data.length, Math.max(200, b - a));
      from = Math.min(Math.max(0, a), data.length - width); to = from + width;
      paint();
    }
    const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, at + (to - at) * factor);
    const shift = (part) => view(from + (to - from) * part, to + (to - from) * part);

    function facts(row, i) {
      const [kind, phase, axis, layer, micro, bytes, flops, group] = data.facts[row.m[i]];
      const said = [`rank ${row.rank}${row.stands > 1 ? ` (stands for ${row.stands} ranks)` : ""}, ${row.stream}`,
        `starts ${seconds(row.at[i])}`, `lasts ${seconds(row.d[i])}`];
      if (row.w.length && row.w[i] > 0) said.push(`waits ${seconds(row.w[i])} for others`);
      said.push(kind + (phase ? `, ${phase}` : "") + (axis ? `, axis ${axis}` : ""));
      if (layer >= 0) said.push(`layer ${layer}`);
      const batch = micro >= 0 || !row.micro ? micro : row.micro[i];
      if (batch >= 0) said.push(`microbatch ${batch}`);
      if (bytes > 0) said.push(amount(bytes, "B"));
      if (flops > 0) said.push(amount(flops, "FLOP"));
      if (group) said.push(`ranks ${group}`);
      return said;
    }
    function show(row, i) {
      picked = { row, i };
      const said = facts(row, i);
      detail.replaceChildren();
      const name = document.createElement("b");
      name.textContent = data.names[row.n[i]];
      detail.append(name, document.createElement("br"), said.join(" · "));
      if (row.at[i] + row.d[i] < from || row.at[i] > to) {
        const half = (to - from) / 2; view(row.at[i] - half, row.at[i] + half);
      } else paint();
    }
    function hit(event) {
      const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
      const lane = lanes.find((l) => y >= l.y && y < l.y + LANE);
      if (!lane || x < SIDE) return null;
      const perNs = (box.width - SIDE) / (to - from), t = from + (x - SIDE) / perNs, near = 3 / perNs;
      let best = null;
      lane.row.at.forEach((start, i) => {
        const away = Math.max(start - t, t - start - lane.row.d[i], 0);
        if (away <= near && (!best || away < best.away)) best = { i, away };
      });
      return best && { row: lane.row, i: best.i };
    }
    const timeAt = (e) => {
      const box = canvas.getBoundingClientRect();
      return from + Math.min(1, Math.max(0, (e.clientX - box.left - SIDE) / (box.width - SIDE))) * (to - from);
    };
    // What a pointer over a span shows; a finger has no hover, it taps.
    const tip = byId("tip");
    function hover(e) {
      const under = e.pointerType === "touch" ? null : hit(e);
      tip.hidden = !under;
      if (!under) return;
      const name = document.createElement("b");
      name.textContent = data.names[under.row.n[under.i]];
      tip.replaceChildren(name, ...facts(under.row, under.i).map((text) => { const line = document.createElement("div"); line.textContent = text; return line; }));
      const box = tip.parentElement.getBoundingClientRect();
      tip.style.left = `${Math.max(0, Math.min(e.clientX - box.left + 14, box.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${e.clientY - box.top + 16}px`;
    }
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    // Sums over a range: of every colour, over the rows that are shown, and what is left of the range.
    const KEYS = { tp: "TP communication", dp: "DP communication", pp: "PP communication", cp: "CP communication", ep: "EP communication", io: "copies" };
    function sums() {
      const [a, b] = range, total = {}, streams = new Map();
      for (const { row } of lanes) {
        for (let i = 0; i < row.at.length; i++) {
          const both = Math.min(b, row.at[i] + row.d[i]) - Math.max(a, row.at[i]);
          if (both <= 0) continue;
          const held = row.w.length ? Math.max(0, Math.min(b, row.at[i] + row.w[i]) - Math.max(a, row.at[i])) : 0;
          const key = shades[row.m[i]];
          total[key] = (total[key] || 0) + both - held;
          if (held) total.waiting = (total.waiting || 0) + held;
          if (row.stream === "compute") streams.set(row.rank, (streams.get(row.rank) || 0) + both);
        }
      }
      const shown = new Set(lanes.map((l) => l.row.rank)).size, per = (t) => seconds(t / shown);
      const said = Object.entries(total).filter(([, t]) => t > 0).sort((x, y) => y[1] - x[1]).map(([key, t]) => `${KEYS[key] || key} ${per(t)}`);
      const busy = [...streams.values()].reduce((x, y) => x + y, 0);
      if (streams.size) said.push(`compute stream idle ${per(Math.max(0, (b - a) * shown - busy))}`);
      const head = document.createElement("b");
      head.textContent = `${seconds(a)} to ${seconds(b)}: ${seconds(b - a)}${shown > 1 ? `, mean of ${shown} rows of ranks` : ""}`;
      detail.replaceChildren(head, document.createElement("br"), said.join(" · ") || "nothing runs");
    }
    canvas.addEventListener("pointerdown", (e) => {
      tip.hidden = true;
      drag = { x: e.clientX, from, to, moved: false, range: e.shiftKey || byId("sum").getAttribute("aria-pressed") === "true" ? timeAt(e) : null };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      if (!drag) return hover(e);
      if (drag.range !== null) {
        const now = timeAt(e);
        drag.moved = drag.moved || Math.abs(e.clientX - drag.x) > 4;
        if (drag.moved) { range = [Math.min(now, drag.range), Math.max(now, drag.range)]; sums(); paint(); }
        return;
      }
      const by = (e.clientX - drag.x) / (canvas.clientWidth - SIDE) * (drag.to - drag.from);
      if (Math.abs(e.clientX - drag.x) > 4) drag.moved = true;
      if (drag.moved) view(drag.from - by, drag.to - by);
    });
    canvas.addEventListener("pointerup", (e) => {
      if (drag && !drag.moved && range) { range = null; paint(); }
      if (drag && !drag.moved) { const under = hit(e); if (under) show(under.row, under.i); }
      drag = null;
    });
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.shiftKey) return;  // the page scrolls as usual
      e.preventDefault();
      const box = canvas.getBoundingClientRect();
      const at = from + Math.max(0, e.clientX - box.left - SIDE) / (box.width - SIDE) * (to - from);
      zoom((e.deltaY || e.deltaX) > 0 ? 1.25 : 0.8, at);
    }, { passive: false });
    const step = (by) => {
      if (!picked) { if (lanes.length) show(lanes[0].row, Math.max(0, lanes[0].row.at.findIndex((s) => s >= from))); return; }
      show(picked.row, Math.min(picked.row.at.length - 1, Math.max(0, picked.i + by)));
    };
    const lane = (by) => {
      if (!picked) return step(0);
      const at = lanes.findIndex((l) => l.row === picked.row), next = lanes[Math.min(lanes.length - 1, Math.max(0, at + by))].row;
      const t = picked.row.at[picked.i], i = next.at.findIndex((s, k) => s + next.d[k] >= t);
      if (next.at.length) show(next, i < 0 ? next.at.length - 1 : i);
    };
    const find = byId("find"), hits = byId("hits");
    function search() {
      wanted = find.value.trim().toLowerCase();
      hits.textContent = "";
      open();
      if (wanted) {
        let many = 0, time = 0;
        for (const { row } of lanes) for (let i = 0; i < row.at.length; i++) if (found(row, i)) { many += 1; time += row.d[i]; }
        hits.textContent = many ? `${many.toLocaleString("en").replaceAll(",", " ")} spans, ${seconds(time)}` : "nothing of that name";
      }
      paint();
    }
    find.addEventListener("input", search);
    find.addEventListener("keydown", (e) => {  // Enter: the next one
      if (e.key !== "Enter" || !wanted) return;
      e.preventDefault();
      const all = lanes.flatMap(({ row }) => [...row.at.keys()].filter((i) => found(row, i)).map((i) => ({ row, i })));
      all.sort((x, y) => x.row.at[x.i] - y.row.at[y.i]);
      if (!all.length) return;
      const at = picked ? all.findIndex((x) => x.row === picked.row && x.i === picked.i) : -1;
      const next = all[(at + (e.shiftKey ? all.length - 1 : 1)) % all.length];
      show(next.row, next.i);
    });
    byId("sum").addEventListener("click", () => {
      const on = byId("sum").getAttribute("aria-pressed") !== "true";
      byId("sum").setAttribute("aria-pressed", on);
      if (!on && range) { range = null; paint(); }
    });
    const keys = { w: () => zoom(0.7), s: () => zoom(1.43), a: () => shift(-0.2), d: () => shift(0.2),
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.43), ArrowLeft: () => shift(-0.2),
      ArrowRight: () => shift(0.2), Home: () => view(0, data.length), n: () => step(1), p: () => step(-1),
      ArrowDown: () => lane(1), ArrowUp: () => lane(-1) };
    canvas.addEventListener("keydown", (e) => {
      if (keys[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); keys[e.key](); }
    });
    document.querySelectorAll("[data-key]").forEach((b) => b.addEventListener("click", () => keys[b.dataset.key]()));
    select.addEventListener("change", () => { picked = null; place(); search(); if (range) sums(); });
    painters.gantt = paint;
    place(); paint();
  }

  function network(data) {
    const slider = byId("moment"), said = byId("when");
    const wires = [...document.querySelectorAll("[data-edge]")], cursors = document.querySelectorAll("line.now");
    const still = wires.map((wire) => wire.getAttribute("stroke-opacity")), full = wires.map((wire) => wire.classList.contains("full"));
    function set() {
      const at = Number(slider.value) - 1;
      wires.forEach((wire, k) => {
        let most = 0;
        data.edges.forEach((edge, row) => { if (edge === Number(wire.dataset.edge)) most = Math.max(most, at < 0 ? 0 : data.use[row][at]); });
        wire.setAttribute("stroke-opacity", at < 0 ? still[k] : Math.sqrt(most / 1000));
        wire.classList.toggle("full", at < 0 ? full[k] : most >= 970);
      });
      said.textContent = at < 0 ? "whole step" : `${seconds(at * data.part)} to ${seconds((at + 1) * data.part)}`;
      cursors.forEach((cursor) => {
        cursor.setAttribute("visibility", at < 0 ? "hidden" : "visible");
        const x = Number(cursor.dataset.left) + (at + 0.5) * Number(cursor.dataset.part);
        cursor.setAttribute("x1", x); cursor.setAttribute("x2", x);
      });
    }
    slider.addEventListener("input", set);
    slider.parentElement.hidden = false;
    set();
  }

  // What does not scroll is no stop of the Tab key.
  const scrollers = () => document.querySelectorAll(".scroll").forEach((box) => {
    if (box.id === "command" || box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0; else box.removeAttribute("tabindex");
  });

  // A cluster that is wider than the window is entered at its middle, where its hosts hang together.
  const middle = () => document.querySelectorAll("section > .scroll > svg[aria-label^='The cluster']").forEach((picture) => {
    const box = picture.closest(".scroll");
    if (box) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
  });

  function start() {
    scrollers();
    middle();
    for (const [id, draw] of [["gantt-data", gantt], ["network-data", network]]) {
      const data = byId(id);
      if (data) draw(JSON.parse(data.textContent));
    }
  }
  theme();
  addEventListener("resize", () => { repaint(); scrollers(); });
  addEventListener("prestep:new", start);  // the explorer has put other figures into the page
  start();
})();
