"use strict";
(() => {
	// Text from data becomes text nodes alone; colours are classes.
	const TRAINED = 1, SPECIAL = 2, CONTEXT = 4, NONE = -128;
	const HIDDEN = /([\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0]|^ +$| (?= )|^\p{M}+)/u;
	const GLYPHS = { "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽", " ": "·" };
	const isJoiner = (c) => c === "\u200c" || c === "\u200d"; // parts of words in some scripts
	const code = (c) => GLYPHS[c] || "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
	const plain = (text) => text.replace(/\p{C}/gu, (c) => (isJoiner(c) ? c : code(c)));
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
	const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
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
		const texts = d.texts.map((_, i) => ({ i }));
		let order = texts, hover = null;
		if (lens) {
			lens.T = d.offsets[lens.texts];
			lens.p = bytes(lens.probability);
			lens.top = new (lens.wide ? Uint32Array : Uint16Array)(bytes(lens.top).buffer);
		}

		const z = (q) => Math.sinh(q * d.step);
		const at = (p, t) => scores[s.placebo][(s.output * P + p) * T + t];
		const ofText = (i, p) => ofTexts[(s.output * P + p) * N + i];
		const score = (q, p) => (q === NONE ? "no score" : fixed(z(q) * d.units[p] + d.centre));
		const colour = (q) => {
			const x = q === NONE ? 0 : Math.round(8 * Math.tanh(z(q) / 2));
			return x ? (x < 0 ? " n" : " p") + Math.abs(x) : "";
		};
		const name = (t) => d.pieces[ids[t]];
		const first = (i = s.text) => d.offsets[i];
		const size = (i = s.text) => first(i + 1) - first(i);
		const textOf = (t) => d.offsets.findLastIndex((o) => o <= t);
		const lensAt = (p, t) => (lens && t < lens.T ? lens.places.indexOf(d.places[p]) * lens.T + t : -1) * lens?.k;
		const mark = (t) => (t === first() + s.token ? " at" : "");
		const layerHead = (p) => {
			const e = make("th", "", d.places[p]);
			e._p = p;
			return e;
		};
		const rowOf = (p) => make("tr", p === s.p ? "on" : "", layerHead(p));

		function token(t, tag = "span", text = name(t)) {
			const m = marks[t], kind = "t" + (m & CONTEXT ? " c" : "") + (m & TRAINED ? " r" : "") + (m & SPECIAL ? " s" : "");
			const e = write(make(tag, kind), text);
			e._t = t;
			e._kind = e.className;
			return e;
		}
		const tokens = (i) => Array.from({ length: size(i) }, (_, k) => token(first(i) + k));
		function build(x) {
			const [id, label, predicted, bad, why] = d.texts[x.i];
			const head = make("div", "tk-head", `${x.i} · `, make("bdi", "", plain(id)));
			head.lang = "en";
			if (label !== null) head.append(" · label ", make("bdi", "", plain(label)));
			if (predicted !== null) head.append(bad ? " · ✗ predicted " : " · predicted ", make("bdi", "", plain(predicted)));
			if (why !== "given") head.append(" · " + why);
			head.append((x.score = make("span")));
			x.spans = tokens(x.i);
			x.body = make("div", "tk-text", ...x.spans);
			x.body.dir = "auto";
			x.box = make("article", "tk-one" + (bad ? " bad" : ""), head, x.body);
		}
		function paint(x) {
			for (const e of x.spans) e.className = e._kind + colour(at(s.p, e._t)) + mark(e._t);
			const q = ofText(x.i, s.p);
			x.score.textContent = q === NONE ? "" : " · " + score(q, s.p);
			x.box.classList.toggle("on", x.i === s.text);
		}
		function arrange() {
			const only = field("only")?.value, find = field("find").value.toLowerCase();
			const sure = (x) => Math.abs(z(ofText(x.i, d.best)));
			const key = {
				up: sure, down: (x) => -sure(x), mistake: (x) => -(d.texts[x.i][3] ?? -1),
				label: (x) => d.classes.indexOf(d.texts[x.i][1]), given: (x) => x.i,
			}[field("sort").value];
			const words = (x) => (x.words ??= Array.from({ length: size(x.i) }, (_, k) => name(first(x.i) + k)).join("").toLowerCase());
			order = texts.filter((x) => (!only || d.texts[x.i][3] === +only) && (!find || words(x).includes(find)));
			order.sort((a, b) => key(a) - key(b) || a.i - b.i);
			draw();
		}
		function draw() {
			for (const x of [texts[s.text], ...(s.mode === "layers" ? [] : order)]) if (!x.box) build(x);
			if (s.mode === "layers") list.replaceChildren(rows());
			else if (order.length) {
				list.replaceChildren(...order.map((x) => x.box));
				order.forEach(paint);
			} else list.replaceChildren(make("p", "", "No text matches."));
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
			const how = marks[t] & CONTEXT ? "context token, not scored" : marks[t] & TRAINED ? "a token that the probe reads" : "extrapolation: not trained on such tokens";
			part("now").textContent = `text ${i}, token ${t - first(i)} “${plain(name(t))}” at ${d.places[p]}: ` +
				(q === NONE ? "" : `${s.placebo ? "random direction, " : ""}${d.kind} ${score(q, p)} ± ${near.toPrecision(1)}; `) + how;
			field("place").textContent = d.places[s.p] + (d.has_best && s.p === d.best ? " (best)" : "");
			field("layer").value = s.p;
			field("layer").setAttribute("aria-valuetext", d.places[s.p]);
			if (!hover) panel(t);
			if (pattern) attend();
		}
		function panel(t) {
			const table = make("table", "", make("tr", "", make("th", "", "layer"), make("th", "", s.placebo ? "random" : d.kind), make("th", "", lensAt(0, t) >= 0 ? "next tokens" : "")));
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
			const a = d.attention, k = a.texts.indexOf(s.text), n = size();
			if (pattern._text !== s.text) {
				pattern._text = s.text;
				pattern.dir = "auto";
				pattern.replaceChildren(...(k < 0 ? [`Patterns were kept of texts ${a.texts.join(", ")}.`] : tokens(s.text)));
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
			const alone = d.layers.filter((x) => x === d.layers[s.p]).length === 1 && d.layers[s.p] !== null;
			try {
				history.replaceState(null, "", `#${prefix}text=${s.text}&layer=${alone ? d.layers[s.p] : d.places[s.p]}`);
			} catch { /* a frame without an address */ }
			if (parent !== window) parent.postMessage({ probekit: { text: s.text, place: d.places[s.p], token: s.token } }, "*");
		}
		function follow() {
			const hash = decodeURIComponent(location.hash.slice(1)), given = new URLSearchParams(hash.slice(prefix.length));
			if (!hash.startsWith(prefix) || !(given.has("text") || given.has("layer"))) return false;
			const layer = given.get("layer"), p = d.places.indexOf(layer), text = +given.get("text");
			s.p = p < 0 ? d.layers.findIndex((x) => String(x) === layer) : p;
			if (s.p < 0) s.p = d.best;
			if (texts[text]) s.text = text;
			s.token = read(s.text);
			return true;
		}
		// the last token of a text that the probe reads
		function read(i) {
			let t = first(i + 1) - 1;
			while (t >= first(i) && !(marks[t] & TRAINED)) t--;
			return (t < first(i) ? first(i + 1) - 1 : t) - first(i);
		}
		function choose(text, k, scroll) {
			const before = texts[s.text];
			s.text = text;
			s.token = Math.max(0, Math.min(size() - 1, k));
			if (s.mode === "layers") list.replaceChildren(rows());
			else for (const x of [before, texts[text]]) if (x.box) paint(x);
			if (scroll) texts[text].box.scrollIntoView({ block: "nearest" });
			moved();
		}
		function layer(p) {
			s.p = Math.max(0, Math.min(P - 1, p));
			if (s.mode === "layers") list.replaceChildren(rows());
			else order.forEach(paint);
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
		root.addEventListener("pointerleave", () => { hover = null; tell(); });
		list.addEventListener("keydown", (e) => {
			const k = order.indexOf(texts[s.text]), rtl = getComputedStyle(texts[s.text].body).direction === "rtl" ? -1 : 1;
			const to = (i) => { const x = order[Math.max(0, Math.min(order.length - 1, i))]; if (x) choose(x.i, read(x.i), true); };
			const step = {
				ArrowLeft: () => choose(s.text, s.token - rtl, true), ArrowRight: () => choose(s.text, s.token + rtl, true),
				ArrowUp: () => to(k - 1), ArrowDown: () => to(k + 1), Home: () => to(0), End: () => to(order.length - 1),
				",": () => layer(s.p - 1), ".": () => layer(s.p + 1),
			}[e.key];
			if (!step || e.ctrlKey || e.metaKey || e.altKey) return;
			e.preventDefault();
			step();
		});
		const show = () => { draw(); texts[s.text].box.scrollIntoView({ block: "center" }); };
		addEventListener("hashchange", () => { if (follow()) show(); });

		root.querySelectorAll("form").forEach((form) => form.reset());
		if (pattern) {
			field("at").append(...d.attention.layers.map((x) => make("option", "", x)));
			field("head").append(...Array.from({ length: d.attention.heads }, (_, h) => make("option", "", h)));
		}
		s.token = read(0);
		const linked = follow();
		arrange();
		if (linked) show();
	}
	document.querySelectorAll("[data-tokens]").forEach(start);
})();
