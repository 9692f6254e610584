"use strict";
(() => {
  // Text from data goes through textContent and text nodes alone; colours are classes.
  const TRAINED = 1, SPECIAL = 2, CONTEXT = 4, NONE = -128;
  const HIDDEN = /([\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0]|^ +$| (?= )|^\p{M}+)/u;
  const GLYPHS = { "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", " ": "·" };
  const JOINERS = "\u200c\u200d"; // parts of words in some scripts
  const make = (tag, name, text) => {
    const e = document.createElement(tag);
    if (name) e.className = name;
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const signed = (text) => new Int8Array(bytes(text).buffer);
  const fixed = (x) => (x < 0 ? "−" : x > 0 ? "+" : "") + Math.abs(x).toPrecision(3);

  /** Write a piece of text with a glyph for what would be invisible, or would reorder the line. */
  function write(into, text) {
    const cut = text.startsWith(" ") && text.trim() ? 1 : 0;
    if (cut) into.classList.add("sp");
    const rest = text.slice(cut);
    if (!HIDDEN.test(rest)) return into.append(text || glyph("⋯", ""));
    if (cut) into.append(" ");
    rest.split(HIDDEN).forEach((part, i) => {
      if (!part) return;
      if (i % 2 === 0 || JOINERS.includes(part)) return into.append(part);
      if (/^\p{M}/u.test(part)) return into.append(glyph("◌", ""), part);
      for (const c of part) into.append(glyph(GLYPHS[c] || "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0"), " \n".includes(c) ? c : ""));
    });
  }
  function glyph(shown, text) {
    const e = make("i", "g", text);
    e.dataset.g = shown;
    return e;
  }
  const plain = (text) => text.replace(/[\p{C}]/gu, (c) => (JOINERS.includes(c) ? c : GLYPHS[c] || "\ufffd"));

  function start(root) {
    const d = JSON.parse(document.getElementById(root.dataset.tokens).textContent);
    const T = d.offsets.at(-1), N = d.texts.length, P = d.places.length;
    const ids = new Uint32Array(bytes(d.tokens).buffer), marks = bytes(d.marks), ofTexts = signed(d.of_texts);
    const scores = { false: signed(d.scores), true: signed(d.placebo) };
    const form = root.querySelector("form"), field = (name) => root.querySelector(`[name="${name}"]`);
    const list = root.querySelector(".tk-list"), now = root.querySelector(".tk-now"), side = root.querySelector(".tk-token");
    const lens = d.lens && { ...d.lens, top: new (d.lens.wide ? Uint32Array : Uint16Array)(bytes(d.lens.top).buffer), p: bytes(d.lens.probability), T: d.offsets[d.lens.texts] };
    const state = { p: d.best, text: 0, token: 0, output: 0, placebo: false, mode: "texts", lens: false };
    const texts = d.texts.map((_, i) => ({ i, box: null, spans: [], words: null }));
    let order = texts, hover = null;

    const z = (q) => Math.sinh(q * d.step);
    const value = (q, p) => z(q) * d.units[p] + d.centre;
    const level = (q) => (q === NONE ? "" : ((x) => (x ? " " + (x < 0 ? "n" : "p") + Math.abs(x) : ""))(Math.round(8 * Math.tanh(z(q) / 2))));
    const at = (p, t) => scores[state.placebo][(state.output * P + p) * T + t];
    const ofText = (i, p = state.p) => ofTexts[(state.output * P + p) * N + i];
    const kind = (t) => "t" + (marks[t] & CONTEXT ? " c" : "") + (marks[t] & TRAINED ? " r" : "") + (marks[t] & SPECIAL ? " s" : "");
    const lensAt = (p) => (lens ? lens.places.indexOf(d.places[p]) : -1);
    const score = (q, p) => (q === NONE ? "no score" : fixed(value(q, p)));
    const name = (t) => d.pieces[ids[t]];

    function span(t, tag = "span") {
      const e = make(tag, kind(t));
      write(e, name(t));
      e._t = t;
      e._kind = e.className;
      return e;
    }
    function build(x) {
      const [id, label, predicted, bad, why] = d.texts[x.i];
      x.box = make("article", "tk-one" + (bad ? " bad" : ""));
      const head = make("div", "tk-head");
      head.lang = "en";
      head.append(`${x.i} · `, make("bdi", "", plain(id)));
      if (label !== null) head.append(" · label ", make("bdi", "", plain(label)));
      if (predicted !== null) head.append(bad ? " · ✗ predicted " : " · predicted ", make("bdi", "", plain(predicted)));
      if (why !== "given") head.append(` · ${why}`);
      x.head = make("span");
      head.append(x.head);
      x.body = make("div", "tk-text");
      x.body.dir = "auto";
      for (let t = d.offsets[x.i]; t < d.offsets[x.i + 1]; t++) x.spans.push(span(t));
      x.body.append(...x.spans);
      x.box.append(head, x.body);
    }
    function paint(x) {
      for (const e of x.spans) e.className = e._kind + level(at(state.p, e._t)) + (state.text === x.i && e._t - d.offsets[x.i] === state.token ? " at" : "");
      const q = ofText(x.i);
      x.head.textContent = q === NONE ? "" : ` · ${score(q, state.p)}`;
      x.box.classList.toggle("on", x.i === state.text);
    }
    function arrange() {
      const sort = field("sort").value, only = field("only")?.value ?? "", find = field("find").value.toLowerCase();
      const sure = (x) => { const q = ofText(x.i, d.best); return q === NONE ? -1 : Math.abs(z(q)); };
      const keys = {
        up: sure, down: (x) => -sure(x), label: (x) => d.classes.indexOf(d.texts[x.i][1]),
        mistake: (x) => -(d.texts[x.i][3] ?? -1),
      };
      const match = (x) => (x.words ??= Array.from({ length: d.offsets[x.i + 1] - d.offsets[x.i] }, (_, k) => name(d.offsets[x.i] + k)).join("").toLowerCase()).includes(find);
      order = texts.filter((x) => (only === "" || d.texts[x.i][3] === +only) && (!find || match(x)));
      if (keys[sort]) order = [...order].sort((a, b) => keys[sort](a) - keys[sort](b) || a.i - b.i);
      draw();
    }
    function draw() {
      if (state.mode === "layers") list.replaceChildren(rows());
      else {
        order.forEach((x) => x.box || build(x));
        list.replaceChildren(...order.map((x) => x.box));
        order.forEach(paint);
      }
      if (!order.length) list.replaceChildren(make("p", "", "No text matches."));
      tell();
    }
    /** One text, a row for each layer. */
    function rows() {
      const x = texts[state.text], box = make("div", "tk-scroll"), table = make("table", "tk-rows");
      if (!x.box) build(x);
      d.places.forEach((place, p) => {
        const row = make("tr", p === state.p ? "on" : ""), head = make("th", "", place);
        head._p = p;
        row.append(head);
        for (let t = d.offsets[x.i]; t < d.offsets[x.i + 1]; t++) {
          const e = span(t, "td"), l = state.lens && t < (lens?.T ?? 0) ? lensAt(p) : -1;
          if (l >= 0) { e.replaceChildren(); e.classList.remove("sp"); write(e, lens.pieces[lens.top[(l * lens.T + t) * lens.k]]); }
          e.className += level(at(p, t)) + (t - d.offsets[x.i] === state.token ? " at" : "");
          e._p = p;
          row.append(e);
        }
        table.append(row);
      });
      box.append(x.box.firstChild.cloneNode(true), table);
      return box;
    }
    /** The line about the token under the pointer, or the chosen one, and the tables beside the texts. */
    function tell() {
      const t = hover?._t ?? d.offsets[state.text] + state.token, p = hover?._p ?? state.p, q = at(p, t);
      field("place").textContent = d.places[state.p] + (d.has_best && state.p === d.best ? " (best)" : "");
      field("layer").setAttribute("aria-valuetext", d.places[state.p]);
      const i = d.offsets.findLastIndex((o) => o <= t), half = q === NONE ? 0 : (Math.abs(value(q, p) - value(q - Math.sign(q || 1), p)) / 2).toPrecision(1);
      const how = marks[t] & CONTEXT ? "context token, not scored" : (marks[t] & TRAINED ? "a token that the probe reads" : "extrapolation: the probe was not trained on such tokens");
      now.textContent = `text ${i}, token ${t - d.offsets[i]} “${plain(name(t))}” at ${d.places[p]}: ` + (q === NONE ? how : `${state.placebo ? "random direction, " : ""}${d.kind} ${score(q, p)} ± ${half}; ${how}`);
      if (hover) return attend();
      beside(d.offsets[state.text] + state.token);
      attend();
    }
    function beside(t) {
      const table = make("table"), has = lens && t < lens.T, h = make("h3");
      h.append("Token ", String(state.token), " ");
      const b = make("bdi");
      write(b, name(t));
      h.append(b);
      const top = make("tr");
      ["layer", state.placebo ? "random" : d.kind, ...(has ? ["next tokens"] : [])].forEach((text) => top.append(make("th", "", text)));
      table.append(top);
      d.places.forEach((place, p) => {
        const row = make("tr", p === state.p ? "on" : ""), l = has ? lensAt(p) : -1, head = make("th", "", place);
        head._p = p;
        row.append(head, make("td", level(at(p, t)).trim(), score(at(p, t), p)));
        if (has) {
          const cell = make("td");
          for (let k = 0; l >= 0 && k < lens.k; k++) {
            const j = (l * lens.T + t) * lens.k + k, word = make("bdi", "tk-word");
            write(word, lens.pieces[lens.top[j]]);
            cell.append(k ? ", " : "", word, ` ${Math.round(lens.p[j] / 2.55)}%`);
          }
          row.append(cell);
        }
        table.append(row);
      });
      side.replaceChildren(h, table);
    }
    function attend() {
      const box = root.querySelector(".tk-pattern"), a = d.attention;
      if (!box) return;
      const k = a.texts.indexOf(state.text), first = d.offsets[state.text], n = d.offsets[state.text + 1] - first;
      if (k < 0) return box.replaceChildren(make("p", "tk-help", `Patterns were kept of texts ${a.texts.join(", ")}.`));
      if (box._text !== state.text) {
        box._text = state.text;
        box.dir = "auto";
        box.replaceChildren(...Array.from({ length: n }, (_, j) => span(first + j)));
        box._pattern = bytes(a.patterns[k]);
      }
      const inside = hover && hover._t >= first && hover._t < first + n, from = inside ? hover._t - first : state.token;
      const base = ((field("at-layer").selectedIndex * a.heads + field("head").selectedIndex) * n + from) * n;
      [...box.children].forEach((e, j) => {
        const w = box._pattern[base + j] / 255;
        e.className = e._kind + (w > 0.03 ? " a" + Math.min(8, Math.ceil(8 * w)) : "") + (j === from ? " at" : "");
        e.title = `${Math.round(100 * w)}% of the attention of token ${from}`;
      });
    }

    function link() {
      const layer = d.layers[state.p], same = d.layers.filter((x) => x === layer).length === 1;
      const where = `${prefix}text=${state.text}&layer=${same && layer !== null ? layer : d.places[state.p]}`;
      try { history.replaceState(null, "", "#" + where); } catch { /* a frame without an address */ }
      if (parent !== window) parent.postMessage({ probekit: { text: state.text, place: d.places[state.p], token: state.token } }, "*");
    }
    const prefix = document.querySelector("[data-tokens]") === root ? "" : root.dataset.tokens + "&";
    function follow() {
      const hash = decodeURIComponent(location.hash.slice(1));
      if (!hash.startsWith(prefix + "text=") && !hash.startsWith(prefix + "layer=")) return false;
      const given = new URLSearchParams(hash.slice(prefix.length)), layer = given.get("layer");
      const p = d.places.includes(layer) ? d.places.indexOf(layer) : d.layers.findIndex((x) => x !== null && String(x) === layer);
      if (p >= 0) state.p = p;
      const text = Number(given.get("text") ?? state.text);
      if (texts[text]) { state.text = text; state.token = read(text); }
      field("layer").value = state.p;
      return true;
    }
    /** The last token of a text that the probe reads. */
    function read(i) {
      let t = d.offsets[i + 1] - 1;
      while (t > d.offsets[i] && !(marks[t] & TRAINED)) t--;
      return marks[t] & TRAINED ? t - d.offsets[i] : d.offsets[i + 1] - d.offsets[i] - 1;
    }
    function choose(text, token, scroll) {
      const before = texts[state.text];
      hover = null;
      state.text = text;
      state.token = token;
      if (state.mode === "layers") list.replaceChildren(rows());
      else [before, texts[text]].forEach((x) => x.box && paint(x));
      if (scroll) texts[text].box?.scrollIntoView({ block: "nearest" });
      tell();
      link();
    }
    function layer(p) {
      state.p = Math.max(0, Math.min(P - 1, p));
      field("layer").value = state.p;
      hover = null;
      if (state.mode === "layers") list.replaceChildren(rows());
      else order.forEach(paint);
      tell();
      link();
    }

    const changed = (e) => {
      const { name: what, value: given, checked, tagName } = e.target;
      if ((tagName === "SELECT") === (e.type === "input")) return;
      if (what === "layer") return layer(+given);
      if (what === "find" || what === "sort" || what === "only") return arrange();
      if (what === "at-layer" || what === "head") return attend();
      if (what === "output") state.output = +given;
      else if (what === "mode") state.mode = given;
      else state[what] = checked;
      if (what === "lens" && checked) field("mode").value = state.mode = "layers";
      draw();
    };
    root.addEventListener("input", changed);
    root.addEventListener("change", changed);
    root.addEventListener("submit", (e) => e.preventDefault());
    list.addEventListener("click", (e) => {
      const hit = e.target.closest("th,.t");
      if (hit?._p !== undefined && hit.tagName === "TH") return layer(hit._p);
      if (hit?._t === undefined) return;
      if (hit._p !== undefined) state.p = hit._p, field("layer").value = hit._p;
      const i = d.offsets.findLastIndex((o) => o <= hit._t);
      choose(i, hit._t - d.offsets[i]);
    });
    side.addEventListener("click", (e) => { const p = e.target.closest("th")?._p; if (p !== undefined) layer(p); });
    root.addEventListener("pointerover", (e) => { const hit = e.target.closest(".t"); if (hit?._t !== undefined && hit !== hover) { hover = hit; tell(); } });
    list.addEventListener("pointerleave", () => { hover = null; tell(); });
    list.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const n = d.offsets[state.text + 1] - d.offsets[state.text], k = order.indexOf(texts[state.text]);
      const rtl = texts[state.text].body && getComputedStyle(texts[state.text].body).direction === "rtl" ? -1 : 1;
      const to = (i) => { const x = order[Math.max(0, Math.min(order.length - 1, i))]; if (x) choose(x.i, read(x.i), true); };
      const steps = {
        ArrowLeft: () => choose(state.text, Math.max(0, Math.min(n - 1, state.token - rtl)), true),
        ArrowRight: () => choose(state.text, Math.max(0, Math.min(n - 1, state.token + rtl)), true),
        ArrowUp: () => to(k - 1), ArrowDown: () => to(k + 1), Home: () => to(0), End: () => to(order.length - 1),
        ",": () => layer(state.p - 1), ".": () => layer(state.p + 1),
      };
      if (!steps[e.key]) return;
      e.preventDefault();
      steps[e.key]();
    });
    addEventListener("hashchange", () => { if (follow()) { draw(); texts[state.text].box?.scrollIntoView({ block: "nearest" }); } });

    form.reset();
    field("layer").value = d.best;
    if (d.attention) {
      field("at-layer").append(...d.attention.layers.map((x) => make("option", "", String(x))));
      field("head").append(...Array.from({ length: d.attention.heads }, (_, h) => make("option", "", String(h))));
    }
    state.token = read(0);
    const linked = follow();
    arrange();
    if (linked) texts[state.text].box?.scrollIntoView({ block: "center" });
  }
  document.querySelectorAll("[data-tokens]").forEach(start);
})();
