// What a page looks like to somebody who reads it: text that lies on other text, that is hard to tell from its ground or cut off, what sticks out.
(() => {
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement, words = node.textContent.trim();
    if (!words || ["SCRIPT", "STYLE", "TITLE", "DESC", "OPTION", "NOSCRIPT"].includes(parent.tagName.toUpperCase())) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 1 && box.height > 1) texts.push({ words, parent, whole: box, box: clipped(parent, box) });
  }
  // What a box that scrolls does not show cannot be covered.
  function clipped(element, box) {
    let [left, right, top, bottom] = [box.left, box.right, box.top, box.bottom];
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const frame = at.getBoundingClientRect();
      left = Math.max(left, frame.left); right = Math.min(right, frame.right);
      top = Math.max(top, frame.top); bottom = Math.min(bottom, frame.bottom);
    }
    return { left, right, top, bottom };
  }
  const seen = texts.filter(({ box }) => box.right - box.left > 2 && box.bottom - box.top > 2);
  const floats = (element) => { for (let at = element; at; at = at.parentElement) if (getComputedStyle(at).position === "fixed") return true; return false; };
  const flat = seen.filter(({ parent }) => !floats(parent));
  const overlaps = [];
  flat.sort((a, b) => a.box.top - b.box.top);
  flat.forEach((a, i) => {
    for (let k = i + 1; k < flat.length && flat[k].box.top < a.box.bottom - 3; k++) {
      const b = flat[k];
      if (a.parent !== b.parent && a.box.left < b.box.right - 2 && b.box.left < a.box.right - 2 && b.box.bottom > a.box.top + 3) overlaps.push(`${a.words} | ${b.words}`);
    }
  });

  // Cut off for good: what scrolls can be reached, and what is not seen at all is left out.
  const cut = seen.filter(({ parent, whole, box }) => {
    if (whole.right <= box.right + 1.5) return false;
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      if (at.getBoundingClientRect().right < whole.right - 1.5 && getComputedStyle(at).overflowX !== "visible") return getComputedStyle(at).overflowX === "hidden";
    }
    return false;
  }).map(({ words }) => words);

  const parsed = (text) => {
    const found = /rgba?\(([^)]*)\)/.exec(text);
    if (!found) return null;
    const [r, g, b, a] = found[1].split(/[ ,/]+/).map(Number);
    return [r, g, b, a === undefined ? 1 : a];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  function ground(text, x, y) {  // what lies under a point of some text, put together from the bottom
    const stack = document.elementsFromPoint(x, y);
    const from = stack.findIndex((one) => one === text || one.contains(text) || text.contains(one));
    const layers = [];
    for (const one of from < 0 ? stack : stack.slice(from)) {
      const style = getComputedStyle(one), shape = one instanceof SVGElement && !["svg", "text", "tspan", "g", "a"].includes(one.tagName);
      if (one === text && !(one instanceof HTMLElement)) continue;
      if (one instanceof HTMLCanvasElement) continue;
      const colour = parsed(shape ? style.fill : style.backgroundColor);
      if (!colour) continue;
      colour[3] *= Number(style.opacity) * (shape ? Number(style.fillOpacity) : 1);
      if (colour[3] > 0) layers.push(colour);
    }
    return layers.reverse().reduce((below, top) => over(top, below), parsed(getComputedStyle(document.documentElement).backgroundColor)?.[3] ? parsed(getComputedStyle(document.documentElement).backgroundColor) : [255, 255, 255]);
  }
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((c) => { const s = c / 255; return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [], looked = seen.filter(({ box }) => box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= document.documentElement.clientWidth);
  for (const { words, parent, box } of looked) {
    const style = getComputedStyle(parent), ink = parsed(parent instanceof SVGElement ? style.fill : style.color);
    if (!ink) continue;
    const below = ground(parent, (box.left + box.right) / 2, (box.top + box.bottom) / 2);
    const [a, b] = [light(over(ink, below)), light(below)];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${words}: ${ink} on ${below.map(Math.round)}`);
  }
  const wide = [...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1 && clipped(e, e.getBoundingClientRect()).right > document.documentElement.clientWidth + 1);
  return {
    texts: seen.length, looked: looked.length, overlaps: [...new Set(overlaps)], cut, faint: [...new Set(faint)],
    over: document.documentElement.scrollWidth - document.documentElement.clientWidth, wide: wide.map((e) => e.outerHTML.slice(0, 90)),
  };
})()
