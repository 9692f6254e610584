"use strict";
(() => {
	// text from data becomes text nodes alone; colours are classes
	const TRAINED = 1, SPECIAL = 2, CONTEXT = 4, NONE = -128;
	const HIDDEN = /([\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0]|^ +$| (?= )|^\p{M}+)/u;
	const GLYPHS = { "\n": "⏎", "\t": "⇥", "\u00a0": "⍽", " ": "·" };
	const isJoiner = (c) => c === "\u200c" || c === "\u200d"; // parts of words in some scripts
	const code = (c) => GLYPHS[c] || "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
	const plain = (text) => text.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => (isJoiner(c) ? c : code(c)));
	const make = (tag, name, ...inside) => {
		const e = document.createElement(tag);
		if (name) e.className = name;
		e.append(...inside);
		return e;
	};
	const glyph = (shown, text = "") => {
		const e = make("i", "g", text);
		e.dataset.g = shown;
		return e;
	};
	function bytes(text) {
		const raw = atob(text), found = new Uint8Array(raw.length);
		for (let i = 0; i < raw.length; i++) found[i] = raw.charCodeAt(i); // Uint8Array.from: 32 ms, this: 2 ms (850 kB)
		return found;
	}
	const signed = (text) => new Int8Array(bytes(text).buffer);
	const fixed = (x) => (x < 0 ? "−" : x > 0 ? "+" : "") + Math.abs(x).toPrecision(3);

	// a glyph for what would be invisible, or would reorder the line
	function write(into, text) {
		const rest = text.trim() ? text.replace(/^ /, "") : text;
		if (rest !== text) into.classList.add("sp"), into.append(" ");
		if (!text) into.append(glyph("⋯"));
		rest.split(HIDDEN).forEach((part, i) => {
			if (i % 2 === 0 || isJoiner(part)) return into.append(part);
			if (/^\p{M}/u.test(part)) return into.append(glyph("◌"), part);
			for (const c of part) into.append(glyph(code(c), " \n".includes(c) ? c : ""));
		});
		return into;
	}

	function start(root) {
		const own = root.closest("section").id, d = JSON.parse(document.getElementById(own + "-view").textContent);
		const T = d.offsets.at(-1), N = d.texts.length, P = d.places.length, lens = d.lens;
		const ids = new Uint32Array(bytes(d.tokens).buffer), marks = bytes(d.marks), ofTexts = signed(d.of_texts);
		const scores = { false: signed(d.scores), true: signed(d.placebo) };
		const field = (name) => root.querySelector(`[name="${name}"]`), part = (name) => root.querySelector(".tk-" + name);
		const list = part("list"), side = part("token"), pattern = part("pattern");
		const prefix = document.querySelector("[data-tokens]") === root ? "" : own + "&";
		const s = { p: d.best, text: 0, token: 0, output: 0, placebo: false, mode: "texts", lens: false };
		const texts = d.texts.map((_, i) => ({ i, box: make("article", "tk-one") }));
		let order = texts, hover = null;
		if (lens) {
			lens.T = d.offsets[lens.texts];
			lens.p = bytes(lens.probability);
			lens.top = new (lens.wide ? Uint32Array : Uint16Array)(bytes(lens.top).buffer);
		}

		const z = (q) => Math.sinh(q * d.step);
		const at = (p, t) => scores[s.placebo][(s.output * P + p) * T + t];
		const ofText = (i, p) => ofTexts[(s.output * P + p) * N + i];
		const score = (q, p) => (q === NONE ? "no score" : fixed(z(q) * d.units[p] + d.centres[p]));
		const colour = (q) => {
			const x = q === NONE ? 0 : Math.round(8 * Math.tanh(z(q) / 2));
			return x ? (x < 0 ? " n" : " p") + Math.abs(x) : "";
		};
		const name = (t) => d.pieces[ids[t]];
		const first = (i = s.text) => d.offsets[i];
		const size = (i) => first(i + 1) - first(i);
		const textOf = (t) => d.offsets.findLastIndex((o) => o <= t);
		const lensAt = (p, t) => (lens && t < lens.T ? lens.places.indexOf(d.places[p]) * lens.T + t : -1) * lens?.k;
		const mark = (t) => (t === first() + s.token ? " at" : "");
		const rowOf = (p) => {
			const e = make("th", "", d.places[p]);
			e._p = p;
			return make("tr", p === s.p ? "on" : "", e);
		};

		function token(t, tag = "span", text = name(t)) {
			const m = marks[t], kind = "t" + (m & CONTEXT ? " c" : "") + (m & TRAINED ? " r" : "") + (m & SPECIAL ? " s" : "");
			const e = write(make(tag, kind), text);
			e._t = t;
			e._kind = e.className;
			return e;
		}
		const tokensOf = (i, of) => Array.from({ length: size(i) }, (_, k) => of(first(i) + k));
		function build(x) {
			const [id, label, predicted, bad, why] = d.texts[x.i];
			const head = make("div", "tk-head", x.i), add = (said, text) => text !== null && head.append(said, make("bdi", "", plain(text)));
			head.lang = "en";
			add(" · ", id);
			add(" · label ", label);
			add(bad ? " · ✗ predicted " : " · predicted ", predicted);
			head.append(why === "given" ? "" : " · " + why, (x.score = make("span")));
			x.spans = tokensOf(x.i, (t) => token(t));
			x.body = make("div", "tk-text", ...x.spans);
			x.body.dir = "auto";
			x.box.classList.toggle("bad", bad);
			x.box.append(head, x.body);
		}
		// texts are filled in when they come near the window
		const watch = new IntersectionObserver((found) => found.forEach(({ target, isIntersecting }) => {
			if ((target._x.near = isIntersecting)) paint(target._x);
		}), { root: list, rootMargin: "500px" });
		function paint(x) {
			if (!x.spans) build(x);
			for (const e of x.spans) e.className = e._kind + colour(at(s.p, e._t)) + mark(e._t);
			const q = ofText(x.i, s.p);
			x.score.textContent = q === NONE ? "" : " · " + score(q, s.p);
			x.box.classList.toggle("on", x.i === s.text);
		}
		const paintNear = () => order.forEach((x) => x.near && paint(x));
		function arrange() {
			const only = field("only")?.value, find = field("find").value.toLowerCase();
			const sure = (x) => Math.abs(z(ofText(x.i, d.best)));
			const key = {
				up: sure, down: (x) => -sure(x), mistake: (x) => -(d.texts[x.i][3] ?? -1),
				label: (x) => d.classes.indexOf(d.texts[x.i][1]), given: (x) => x.i,
			}[field("sort").value];
			const words = (x) => (x.words ??= tokensOf(x.i, name).join("").toLowerCase());
			order = texts.filter((x) => (!only || d.texts[x.i][3] === +only) && (!find || words(x).includes(find)));
			order.sort((a, b) => key(a) - key(b) || a.i - b.i);
			draw();
		}
		function draw() {
			paint(texts[s.text]);
			if (s.mode === "layers") list.replaceChildren(rows());
			else list.replaceChildren(...(order.length ? order.map((x) => x.box) : ["No text matches."]));
			paintNear();
			tell();
		}
		// one text, a row for each layer
		function rows() {
			const x = texts[s.text], table = make("table", "tk-rows");
			paint(x);
			d.places.forEach((_, p) => {
				const row = rowOf(p);
				for (let t = first(); t < first(s.text + 1); t++) {
					const j = s.lens ? lensAt(p, t) : -1, e = token(t, "td", j >= 0 ? lens.pieces[lens.top[j]] : name(t));
					e.className += colour(at(p, t)) + mark(t);
					e._p = p;
					row.append(e);
				}
				table.append(row);
			});
			return make("div", "tk-scroll", x.box.firstChild.cloneNode(true), table);
		}
		// the line about the token under the pointer or the chosen one, and the panel of the chosen one
		function tell() {
			const t = hover?._t ?? first() + s.token, p = hover?._p ?? s.p, q = at(p, t), i = textOf(t);
			const near = q === NONE ? 0 : (Math.cosh(q * d.step) * d.step * d.units[p]) / 2;
			const how = marks[t] & CONTEXT ? "not scored" : marks[t] & TRAINED ? "trained token" : "extrapolation";
			part("now").textContent = `text ${i}, token ${t - first(i)} “${plain(name(t))}”, ${d.places[p]}: ` +
				(q === NONE ? "" : `${s.placebo ? "random direction, " : ""}${d.kind} ${score(q, p)} ± ${near.toPrecision(1)}; `) + how;
			field("place").textContent = d.places[s.p] + (d.has_best && s.p === d.best ? " (best)" : "");
			field("layer").value = s.p;
			field("layer").setAttribute("aria-valuetext", d.places[s.p]);
			if (!hover) panel(t);
			if (pattern) attend();
		}
		function panel(t) {
			const heads = ["layer", s.placebo ? "random" : d.kind, lensAt(0, t) >= 0 ? "next tokens" : ""];
			const table = make("table", "", make("tr", "", ...heads.map((text) => make("th", "", text))));
			d.places.forEach((_, p) => {
				const row = rowOf(p), j = lensAt(p, t), cell = make("td");
				for (let k = 0; j >= 0 && k < lens.k; k++)
					cell.append(k ? ", " : "", write(make("bdi"), lens.pieces[lens.top[j + k]]), ` ${Math.round(lens.p[j + k] / 2.55)}%`);
				row.append(make("td", colour(at(p, t)).trim(), score(at(p, t), p)), cell);
				table.append(row);
			});
			side.replaceChildren(make("h3", "", `Token ${s.token} `, write(make("bdi"), name(t))), table);
		}
		function attend() {
			const a = d.attention, k = a.texts.indexOf(s.text), n = size(s.text);
			if (pattern._text !== s.text) {
				pattern._text = s.text;
				pattern.dir = "auto";
				pattern.replaceChildren(...(k < 0 ? [`Only texts ${a.texts.join(", ")} have patterns.`] : tokensOf(s.text, (t) => token(t))));
				pattern._w = k < 0 ? null : bytes(a.patterns[k]);
			}
			if (k < 0) return;
			const from = hover && textOf(hover._t) === s.text ? hover._t - first() : s.token;
			const base = ((field("at").selectedIndex * a.heads + field("head").selectedIndex) * n + from) * n;
			[...pattern.children].forEach((e, j) => {
				const w = pattern._w[base + j] / 255;
				e.className = e._kind + (w > 0.03 ? " a" + Math.ceil(8 * w) : "") + (j === from ? " at" : "");
				e.title = `${Math.round(100 * w)}% of token ${from}'s attention`;
			});
		}

		function moved() {
			hover = null;
			tell();
			const place = d.places[s.p], n = d.layers[s.p];
			try {
				history.replaceState(null, "", `#${prefix}text=${s.text}&layer=${d.layers.indexOf(n) === s.p && n !== null ? n : place}`);
			} catch { /* a frame without an address */ }
			parent.postMessage({ probekit: { text: s.text, place, token: s.token } }, "*");
		}
		function follow() {
			const hash = location.hash.slice(1), own = hash.startsWith(prefix) ? hash.slice(prefix.length) : "";
			if (!/^(text|layer)=/.test(own)) return false;
			const given = new URLSearchParams(own), layer = given.get("layer"), text = given.get("text");
			s.p = [d.places.indexOf(layer), d.layers.map(String).indexOf(layer), d.best].find((i) => i >= 0);
			if (text !== null && texts[text]) s.text = +text;
			s.token = read(s.text);
			return true;
		}
		// the last trained token
		function read(i) {
			let t = first(i + 1) - 1;
			while (t >= first(i) && !(marks[t] & TRAINED)) t--;
			return (t < first(i) ? first(i + 1) - 1 : t) - first(i);
		}
		function choose(text, k, scroll) {
			const before = texts[s.text];
			s.text = text;
			s.token = Math.max(0, Math.min(size(text) - 1, k));
			if (s.mode === "layers") list.replaceChildren(rows());
			else paint(before), paint(texts[text]);
			if (scroll) texts[text].box.scrollIntoView({ block: "nearest" });
			moved();
		}
		function layer(p) {
			s.p = Math.max(0, Math.min(P - 1, p));
			if (s.mode === "layers") list.replaceChildren(rows());
			else paintNear();
			moved();
		}

		const changed = ({ type, target: { name: what, value, checked, tagName } }) => {
			if ((tagName === "SELECT") === (type === "input")) return;
			if (what === "layer") return layer(+value);
			if (["find", "sort", "only"].includes(what)) return arrange();
			if (what === "output") s.output = +value;
			else if (what in s) s[what] = what === "mode" ? value : checked;
			if (what === "lens" && checked) field("mode").value = s.mode = "layers";
			draw();
		};
		root.addEventListener("input", changed);
		root.addEventListener("change", changed);
		root.addEventListener("submit", (e) => e.preventDefault());
		root.addEventListener("click", (e) => {
			const hit = e.target.closest("th, .tk-list .t");
			if (hit?._t === undefined) return hit?._p === undefined || layer(hit._p);
			s.p = hit._p ?? s.p;
			choose(textOf(hit._t), hit._t - first(textOf(hit._t)));
		});
		root.addEventListener("pointerover", (e) => {
			const hit = e.target.closest(".t");
			if (hit?._t !== undefined && hit !== hover) hover = hit, tell();
		});
		root.addEventListener("pointerleave", () => tell((hover = null)));
		list.addEventListener("keydown", (e) => {
			const k = order.indexOf(texts[s.text]), rtl = getComputedStyle(texts[s.text].body).direction === "rtl" ? -1 : 1;
			const along = { ArrowLeft: -rtl, ArrowRight: rtl }[e.key], deep = { ",": -1, ".": 1 }[e.key];
			const to = order[{ ArrowUp: k - 1, ArrowDown: k + 1, Home: 0, End: order.length - 1 }[e.key]];
			if (!(along || deep || to) || e.ctrlKey || e.metaKey || e.altKey) return;
			e.preventDefault();
			if (deep) layer(s.p + deep);
			else to ? choose(to.i, read(to.i), true) : choose(s.text, s.token + along, true);
		});
		const show = () => texts[s.text].box.scrollIntoView({ block: "center" }, draw());
		addEventListener("hashchange", () => { if (follow()) show(); });
		addEventListener("beforeprint", () => order.forEach(paint));

		root.querySelectorAll("form").forEach((form) => form.reset());
		if (pattern) {
			field("at").append(...d.attention.layers.map((x) => make("option", "", x)));
			field("head").append(...Array.from({ length: d.attention.heads }, (_, h) => make("option", "", h)));
		}
		texts.forEach((x) => { x.box._x = x; watch.observe(x.box); });
		s.token = read(0);
		const linked = follow();
		arrange();
		if (linked) show();
	}
	document.querySelectorAll("[data-tokens]").forEach(start);
})();
