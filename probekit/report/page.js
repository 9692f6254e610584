"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];

  function remembered() {
    try { return localStorage.getItem("probekit-theme"); } catch { return null; } // refused in some private windows
  }

  function setTheme(name) {
    root.classList.remove("light", "dark");
    if (name !== "system") root.classList.add(name);
    button.textContent = "Theme: " + name;
    try { localStorage.setItem("probekit-theme", name); } catch { /* it holds for this page alone */ }
  }

  button.hidden = false;
  setTheme(themes.includes(remembered()) ? remembered() : "system");
  button.addEventListener("click", () => {
    const now = themes.findIndex((name) => root.classList.contains(name));
    setTheme(themes[(Math.max(now, 0) + 1) % themes.length]);
  });

  // a mark's values go to the line under its figure
  function show(event) {
    const mark = event.target.closest(".hot");
    const readout = mark && mark.closest("figure").querySelector(".readout");
    if (readout) {
      readout.textContent = mark.getAttribute("aria-label");
      readout.classList.add("shown");
    }
  }

  function hide(event) {
    const figure = event.target.closest("figure");
    const readout = figure && figure.querySelector(".readout");
    if (readout && !figure.contains(event.relatedTarget) && !figure.contains(document.activeElement)) {
      readout.textContent = readout.dataset.hint;
      readout.classList.remove("shown");
    }
  }

  document.addEventListener("pointerover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("pointerout", hide);
  document.addEventListener("focusout", hide);

  // arrow keys: along the marks of a figure, and in a grid to the mark above or below
  function target(marks, from, key) {
    const box = (mark) => mark.firstElementChild.getBoundingClientRect();
    if (key === "ArrowLeft" || key === "ArrowRight") {
      return marks[marks.indexOf(from) + (key === "ArrowRight" ? 1 : -1)];
    }
    if (key === "Home") return marks[0];
    if (key === "End") return marks[marks.length - 1];
    const here = box(from);
    const beyond = marks.filter((mark) => {
      const there = box(mark);
      const same = Math.abs(there.left - here.left) < 2;
      return same && (key === "ArrowDown" ? there.top > here.top + 2 : there.top < here.top - 2);
    });
    beyond.sort((a, b) => Math.abs(box(a).top - here.top) - Math.abs(box(b).top - here.top));
    return beyond[0];
  }

  document.addEventListener("keydown", (event) => {
    const mark = event.target.closest && event.target.closest(".hot");
    const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
    if (!mark || !keys.includes(event.key) || event.altKey || event.ctrlKey || event.metaKey) return;
    const next = target([...mark.closest("svg").querySelectorAll(".hot")], mark, event.key);
    event.preventDefault();
    if (next) {
      mark.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    }
  });

  // the section that is read is marked in the navigation
  const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const first = [...links.keys()].find((name) => seen.has(name));
    for (const [name, link] of links) {
      if (name === first) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-10% 0px -60% 0px" });
  for (const section of document.querySelectorAll("main > section")) watch.observe(section);

  // paper has no way to open a part
  const closed = [];
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details:not([open])")) { part.open = true; closed.push(part); }
  });
  addEventListener("afterprint", () => { while (closed.length) closed.pop().open = false; });
})();
