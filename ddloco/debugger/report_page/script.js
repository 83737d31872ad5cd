"use strict";
// Draws the report from the data in this page. Texts of tapes are only ever set as text.
(() => {
  const source = document.getElementById("data"), live = Number(source.dataset.live) > 0;
  let DATA = JSON.parse(source.textContent), trained = false, painters = [];
  const page = document.getElementById("page"), tip = document.getElementById("tip");
  const LIGHT = ["#4269d0", "#c9851a", "#cc4f3f", "#3d968b", "#8661c1", "#5f8f3e", "#b8578f",
    "#7d6b58", "#2f7fb5", "#a07a1f"];
  const DARK = ["#7d9cf0", "#e0a94a", "#ee8172", "#5fbcae", "#ab8ce4", "#8bbb68", "#dc84b6",
    "#b3a08b", "#64b0e0", "#cfae5c"];
  const GUTTER = 118, RIGHT = 14, AXIS = 24, FONT = "system-ui, sans-serif";
  const night = matchMedia("(prefers-color-scheme: dark)");
  let css = {}, colours = LIGHT, charts = [], pinned = false;

  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "card", "ink", "soft", "line", "faint", "accent", "bad", "floor",
      "quorum", "grace", "flight", "low", "high"])
      css[name] = style.getPropertyValue("--" + name).trim();
    colours = night.matches ? DARK : LIGHT;
  };

  // ---- The data, unpacked -----------------------------------------------------------------
  const sums = (values, scale = 1) => {
    const out = new Float64Array(values.length);
    let sum = 0;
    for (let i = 0; i < values.length; i++) out[i] = (sum += values[i]) * scale;
    return out;
  };
  const actorOf = (name) => name.replace(/\.\d+$/, "");
  const unpack = (run, which) => {
    const unit = run.unit_s;
    run.letter = DATA.runs.length > 1 ? "AB"[which] : "";
    run.which = which;
    run.end_s = run.end * unit;
    for (const lane of run.lanes) for (const part of lane.segments) {
      part.begin *= unit;
      part.end *= unit;
      if (part.steps) {
        const s = part.steps;
        Object.assign(s, { begun: s.begun * unit, end: sums(s.end, unit), n: sums(s.n),
          step: sums(s.step) });
        for (const finer of s.finer) Object.assign(finer, { end: sums(finer.end, unit),
          n: sums(finer.n), step: sums(finer.step), begun: s.begun, count: s.count });
      }
      for (const m of Object.values(part.marks))
        Object.assign(m, { at: sums(m.at, unit), n: sums(m.n), t: sums(m.t) });
      for (const note of part.notes) note.at *= unit;
      for (const gap of part.gaps) Object.assign(gap, { at: gap.at * unit, to: gap.to * unit });
    }
    const b = run.bars;
    Object.assign(b, { t: sums(b.t), n: sums(b.n), since: sums(b.since, unit) });
    for (const name of ["floor", "quorum", "grace", "flight"])
      b[name] = Float64Array.from(b[name], (x) => x * unit);
    b.end = Float64Array.from(b.since, (x, i) => x + b.floor[i] + b.quorum[i] + b.grace[i]
      + b.flight[i]);
    for (const column of run.matrix.columns) column.at *= unit;
    run.columnOf = new Map(run.matrix.columns.map((column, i) => [column.event, i]));
    for (const c of run.curves) Object.assign(c, { at: sums(c.at, unit), step: sums(c.step) });
    for (const each of run.breaks) each.at *= unit;
    for (const each of run.held_out) each[0] *= unit;
    stack(run);
  };
  const stack = (run) => {
    // Syncs overlap: each bar goes to the first row of its syncer that is free.
    const rows = {}, b = run.bars;
    b.row = new Uint8Array(b.since.length);
    for (const i of [...b.since.keys()].sort((x, y) => b.since[x] - b.since[y])) {
      const free = rows[b.syncer[i]] ??= [];
      let row = free.findIndex((end) => end <= b.since[i] + 1e-9);
      if (row < 0) row = free.length < 4 ? free.length : free.indexOf(Math.min(...free));
      free[row] = b.end[i];
      b.row[i] = row;
    }
    b.rows = Math.max(...Object.values(rows).map((free) => free.length), 1);
  };
  const cell = (raw) => ({ state: raw[0], event: raw[1] ?? "", reason: raw[2] ?? -1,
    weight: raw[3] ?? null, norm: raw[4] ?? null, cosine: raw[5] ?? null, base: raw[6] ?? -1,
    steps: raw[7] ?? 0, tokens: raw[8] ?? 0, wait: raw[9] ?? null, who: raw[10] ?? -1 });

  // ---- Words ------------------------------------------------------------------------------
  const number = (x, digits = 4) => x === null || x === undefined ? "not measured"
    : String(Number(x.toPrecision(digits)));
  const counted = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
  const time = (s, span = 10) => {
    const digits = Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(Math.max(span, 1e-6)))));
    return `${s.toFixed(digits)} s`;
  };
  const tickText = (s, step) => {
    if (step < 10 && s < 600) return `${Number(s.toFixed(6))} s`;
    const sign = s < 0 ? "−" : "", a = Math.abs(s), two = (x) => String(x).padStart(2, "0");
    const rest = step < 1 ? (a % 60).toFixed(Math.min(6, Math.ceil(-Math.log10(step)))) : "";
    const seconds = rest ? rest.padStart(rest.indexOf(".") === 1 ? rest.length + 1 : 0, "0")
      : two(Math.round(a % 60));
    return a < 3600 ? `${sign}${Math.floor(a / 60)}:${seconds}`
      : `${sign}${Math.floor(a / 3600)}:${two(Math.floor(a / 60) % 60)}:${seconds}`;
  };
  const nice = (rough, sixty) => {
    if (sixty && rough > 10) for (const each of [15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
      14400, 21600, 43200, 86400]) if (each >= rough) return each;
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  };
  const clockText = (pairs, names, own) => {
    const parts = own ? [own] : [];
    for (const [who, n] of pairs) if (n) parts.push(`${names[who]}:${n}`);
    if (parts.length > 14) parts.splice(14, Infinity, `and ${parts.length - 14} more`);
    return `clock ${parts.join(", ")}`;
  };
  const stepClock = (run, part, i) => {
    if (!part.steps.clock) return null;
    const known = new Map();
    for (let k = 0; k <= i; k++) {
      const entries = part.steps.clock[k];
      for (let j = 0; j < entries.length; j += 2) known.set(entries[j], entries[j + 1]);
    }
    return clockText(known, run.names, `${part.incarnation}:${part.steps.n[i]}`);
  };
  const pairsOf = (flat) => {
    const out = [];
    for (let j = 0; j < flat.length; j += 2) out.push([flat[j], flat[j + 1]]);
    return out;
  };

  // ---- Elements ---------------------------------------------------------------------------
  const make = (tag, parent, text = "", kind = "") => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    if (kind) element.className = kind;
    if (parent) parent.append(element);
    return element;
  };
  const key = (parent, colour, text, thin) => {
    const one = make("span", parent, "", "key");
    const box = make("span", one, "", thin ? "swatch thin" : "swatch");
    const paint = () => { box.style.background = colour(); };
    paint();
    painters.push(paint);
    make("span", one, text);
  };
  const showTip = (lines, x, y) => {
    if (pinned) return;
    if (!lines || !lines.length) { tip.hidden = true; return; }
    tip.replaceChildren();
    lines.forEach((line, i) => {
      if (line) make(i ? "div" : "b", i ? tip : make("div", tip), line);
    });
    tip.hidden = false;
    placeTip(x, y);
  };
  const placeTip = (x, y) => {
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 14 : x + 16;
    const top = y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18;
    tip.style.left = `${Math.max(left, 6)}px`;
    tip.style.top = `${Math.max(Math.min(top, innerHeight - box.height - 6), 6)}px`;
  };
  const pin = (on) => {
    pinned = on && !tip.hidden;
    tip.classList.toggle("pinned", pinned);
    if (!pinned) tip.hidden = true;
  };
  // What a text is about: commands that say more of it and, while a program serves the page, its
  // story.
  const about = (lines, run, ...of) => {
    if (lines) lines.about = { run, of };
    return lines;
  };
  const shell = (text) => /^[\w.:\/@%+=-]+$/.test(text) ? text
    : `'${text.replaceAll("'", "'\\''")}'`;
  const COMMANDS = {
    merge: (run, t) => [`ddloco story ${run} merge:${t}`, `ddloco replay ${run} --until merge:${t} --shell`],
    step: (run, who, n) => [`ddloco why ${run} step ${shell(who)} ${n}`,
      `ddloco replay ${run} --until ${shell(`step:${who}:${n}`)} --shell`],
    message: (run, event) => [`ddloco story ${run} ${shell(`message:${event}`)}`,
      `ddloco replay ${run} --until ${shell(event)} --shell`],
    event: (run, event) => [`ddloco why ${run} event ${shell(event)}`,
      `ddloco replay ${run} --until ${shell(event)} --shell`],
    actor: (run, who) => [`ddloco story ${run} ${shell(who)}`],
  };
  const detail = async (lines, x, y) => {
    if (!lines || !lines.about) return;
    const { run, of: [kind, ...rest] } = lines.about;
    const box = make("div", tip, "", "more");
    for (const text of COMMANDS[kind](run.path, ...rest)) make("code", box, text);
    tip.dataset.about = [kind, ...rest].join(":");
    placeTip(x, y);
    if (!live) return;
    const said = make("ul", box, "", "said"), mine = tip.dataset.about;
    try {
      const answer = await fetch(`story?of=${encodeURIComponent(mine)}`);
      const told = await answer.json();
      if (tip.dataset.about !== mine) return;
      for (const line of told.lines) make("li", said, line);
      placeTip(x, y);
      tip.dataset.told = String(told.lines.length);
    } catch { make("li", said, "the program that served this page has ended"); }
  };
  const pinAt = (lines, x, y) => {
    pin(false);
    tip.dataset.about = tip.dataset.told = "";
    showTip(lines, x, y);
    pin(true);
    if (pinned) detail(lines, x, y);
  };

  // ---- Views and charts -------------------------------------------------------------------
  class View {
    constructor(min, max, least) {
      Object.assign(this, { min, max, least, a: min, b: max, charts: [], cursor: null });
    }
    set(a, b) {
      const full = this.max - this.min, width = Math.min(Math.max(b - a, this.least), full);
      const from = Math.min(Math.max(a, this.min), this.max - width);
      this.a = from;
      this.b = from + width;
      this.redraw();
    }
    zoom(at, factor) { this.set(at - (at - this.a) * factor, at + (this.b - at) * factor); }
    pan(by) { this.set(this.a + by, this.b + by); }
    reset() { this.set(this.min, this.max); }
    redraw() { for (const chart of this.charts) chart.later(); }
    // Show what another view showed; if that was its end, this one's end.
    keep(other) {
      if (other.whole) return;
      const ended = other.b >= other.max - (other.max - other.min) * 0.01;
      const width = other.b - other.a;
      if (ended) this.set(this.max - width, this.max); else this.set(other.a, other.b);
    }
    get whole() { return this.b - this.a >= (this.max - this.min) * 0.9999; }
  }

  class Chart {
    constructor(figure, view, height, label) {
      this.view = view;
      this.height = height;
      this.canvas = make("canvas", figure);
      this.canvas.tabIndex = 0;
      this.canvas.setAttribute("role", "img");
      this.canvas.setAttribute("aria-label",
        `${label}. Arrow keys move, plus and minus zoom, 0 shows all.`);
      this.canvas.style.height = `${height}px`;
      this.context = this.canvas.getContext("2d");
      this.pending = false;
      view.charts.push(this);
      charts.push(this);
      this.listen();
      new ResizeObserver(() => this.later()).observe(this.canvas);
    }
    get plot() { return this.width - GUTTER - RIGHT; }
    x(value) { return GUTTER + (value - this.view.a) / (this.view.b - this.view.a) * this.plot; }
    value(x) { return this.view.a + (x - GUTTER) / this.plot * (this.view.b - this.view.a); }
    later() {
      if (this.pending) return;
      this.pending = true;
      requestAnimationFrame(() => { this.pending = false; this.paint(); });
    }
    paint() {
      const ratio = devicePixelRatio || 1, c = this.context;
      this.width = this.canvas.clientWidth;
      if (!this.width) return;
      const wide = Math.round(this.width * ratio), high = Math.round(this.height * ratio);
      if (this.canvas.width !== wide || this.canvas.height !== high)
        Object.assign(this.canvas, { width: wide, height: high });
      c.setTransform(ratio, 0, 0, ratio, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      this.draw(c);
      if (this.view.cursor !== null && this.view.cursor >= this.view.a
        && this.view.cursor <= this.view.b && this.timed) {
        c.fillStyle = css.soft;
        c.globalAlpha = 0.5;
        c.fillRect(Math.round(this.x(this.view.cursor)), 0, 1, this.height - AXIS);
        c.globalAlpha = 1;
      }
    }
    clip(c, top, bottom) {
      c.save();
      c.beginPath();
      c.rect(GUTTER, top, this.plot, bottom - top);
      c.clip();
    }
    label(c, text, y, colour, letter) {
      c.fillStyle = colour || css.ink;
      c.font = `13px ${FONT}`;
      c.textAlign = "right";
      c.textBaseline = "middle";
      const said = letter ? `${letter} ${text}` : text;
      c.fillText(said.length > 17 ? `${said.slice(0, 16)}…` : said, GUTTER - 12, y);
    }
    timeAxis(c, top) {
      const span = this.view.b - this.view.a, bottom = this.height - AXIS;
      const step = nice(span / Math.max(this.plot / 120, 2), true);
      c.font = `12px ${FONT}`;
      c.textAlign = "center";
      c.textBaseline = "top";
      for (let at = Math.ceil(this.view.a / step) * step; at <= this.view.b; at += step) {
        const x = Math.round(this.x(at));
        c.fillStyle = css.line;
        c.fillRect(x, top, 1, bottom - top);
        c.fillStyle = css.soft;
        if (x > GUTTER + 14 || at === 0) c.fillText(tickText(at, step), x, bottom + 7);
      }
    }
    listen() {
      const canvas = this.canvas;
      let from = null, moved = false;
      canvas.addEventListener("wheel", (event) => {
        const outwards = event.deltaY > 0;
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
          if (this.view.whole) return;
          event.preventDefault();
          const by = event.deltaX || event.deltaY;
          this.view.pan(by / this.plot * (this.view.b - this.view.a));
        } else if (!(outwards && this.view.whole)) {
          event.preventDefault();
          this.view.zoom(this.value(event.offsetX), Math.exp(Math.max(-1, Math.min(1,
            event.deltaY / 300))));
        }
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        from = event.clientX;
        moved = false;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (from !== null && (moved || Math.abs(event.clientX - from) > 3)) {
          moved = true;
          canvas.classList.add("dragged");
          this.view.pan((from - event.clientX) / this.plot * (this.view.b - this.view.a));
          from = event.clientX;
          if (!pinned) tip.hidden = true;
          return;
        }
        this.view.cursor = event.offsetX >= GUTTER ? this.value(event.offsetX) : null;
        showTip(this.hover(event.offsetX, event.offsetY), event.clientX, event.clientY);
        this.view.redraw();
      });
      canvas.addEventListener("pointerup", (event) => {
        if (!moved)
          pinAt(this.hover(event.offsetX, event.offsetY), event.clientX, event.clientY);
        from = null;
        canvas.classList.remove("dragged");
      });
      canvas.addEventListener("pointerleave", () => {
        if (!pinned) tip.hidden = true;
        this.view.cursor = null;
        this.view.redraw();
      });
      canvas.addEventListener("dblclick", () => { pin(false); this.view.reset(); });
      canvas.addEventListener("keydown", (event) => this.keyed(event));
    }
    keyed(event) {
      const span = this.view.b - this.view.a, middle = (this.view.a + this.view.b) / 2;
      const act = { ArrowLeft: () => this.view.pan(-span / 8),
        ArrowRight: () => this.view.pan(span / 8),
        "+": () => this.view.zoom(middle, 0.7), "=": () => this.view.zoom(middle, 0.7),
        "-": () => this.view.zoom(middle, 1.43), 0: () => this.view.reset() }[event.key];
      if (act) { event.preventDefault(); act(); }
    }
    hover() { return null; }
  }
  const at = (sorted, value) => {
    // The first position whose value is not below this one.
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
  };
  const inside = (sorted, view) => at(sorted, view.b) - at(sorted, view.a);
  // Of the levels of thinning, the finest one that has no more blocks in view than fit.
  const level = (steps, view, most) => {
    let found = steps;
    for (const finer of steps.finer) if (inside(finer.end, view) <= most) found = finer;
    return found;
  };
  const nearest = (sorted, value) => {
    const i = at(sorted, value);
    return i > 0 && (i === sorted.length || value - sorted[i - 1] < sorted[i] - value) ? i - 1 : i;
  };
  const colourOf = (run, actor) => {
    const i = run.matrix.rows.indexOf(actor);
    return i < 0 ? css.soft : colours[i % colours.length];
  };

  // ---- Lanes ------------------------------------------------------------------------------
  const BLOCK_PIXELS = 6;
  const KINDS = { pulled: ["pull", 0], sent: ["contribution sent", 1],
    received: ["fragment received", 2],
    arrived: ["message with an array arrived", 0], worked: ["work done", 1] };
  class Lanes extends Chart {
    constructor(figure, view, runs) {
      const rows = [];
      let y = 8;
      for (const run of runs) {
        for (const lane of run.lanes) {
          const syncer = lane.kind === "syncer";
          const dense = run.lanes.length > 24;
          const high = syncer ? 12 + 11 * run.bars.rows : dense ? 20 : 42;
          rows.push({ run, lane, y, high, syncer, dense });
          y += high + (dense ? 2 : 6);
        }
        y += runs.length > 1 ? 14 : 2;
      }
      super(figure, view, y + AXIS, "Lanes, one per actor, over time");
      this.rows = rows;
      this.timed = true;
    }
    draw(c) {
      this.timeAxis(c, 0);
      this.size = 0;
      for (const row of this.rows) {
        const middle = row.y + row.high / 2;
        this.label(c, row.lane.actor, middle,
          row.syncer ? css.ink : colourOf(row.run, row.lane.actor), row.run.letter);
        this.clip(c, row.y - 3, row.y + row.high + 4);
        this.life(c, row);
        if (row.syncer) this.merges(c, row);
        else for (const part of row.lane.segments) this.work(c, row, part);
        for (const part of row.lane.segments) this.notes(c, row, part);
        c.restore();
      }
      this.partings(c);
      this.canvas.dataset.steps = this.size;
    }
    band(row) {
      return row.syncer ? [row.y + 8, row.high - 10] : [row.y + 5, row.dense ? 10 : 18];
    }
    life(c, row) {
      const [top, high] = this.band(row), parts = row.lane.segments;
      parts.forEach((part, i) => {
        const a = this.x(part.begin), b = this.x(part.end);
        c.fillStyle = css.faint;
        c.fillRect(a, top, Math.max(b - a, 1), high);
        if (i + 1 < parts.length) {
          const next = this.x(parts[i + 1].begin);
          c.strokeStyle = css.bad;
          c.setLineDash([2, 4]);
          c.beginPath();
          c.moveTo(b + 8, top + high / 2);
          c.lineTo(next - 4, top + high / 2);
          c.stroke();
          c.setLineDash([]);
        }
      });
    }
    gap(c, row, gap) {
      const [top, high] = this.band(row), a = this.x(gap.at), b = this.x(gap.to);
      if (b - a < 1 || gap.to < this.view.a || gap.at > this.view.b) return;
      c.fillStyle = css.faint;
      c.fillRect(a, top, b - a, high);
      c.strokeStyle = gap.kind === "stopped" ? css.bad : colourOf(row.run, row.lane.actor);
      c.strokeRect(a + 0.5, top + 0.5, b - a - 1, high - 1);
      if (b - a < gap.kind.length * 7 + 8 || row.dense) return;
      c.fillStyle = css.ink;
      c.font = `11px ${FONT}`;
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText(gap.kind, (Math.max(a, GUTTER) + b) / 2, top + high / 2 + 0.5);
    }
    work(c, row, part) {
      const [top, high] = this.band(row);
      const s = part.steps && level(part.steps, this.view, this.plot / BLOCK_PIXELS);
      if (s) {
        this.size = Math.max(this.size, s.size);
        c.fillStyle = colourOf(row.run, row.lane.actor);
        c.font = `11px ${FONT}`;
        c.textAlign = "center";
        c.textBaseline = "middle";
        let open = null, last = null;
        const from = Math.max(at(s.end, this.view.a), 0);
        for (let i = from; i < s.end.length; i++) {
          const begin = i ? s.end[i - 1] : s.begun;
          if (begin > this.view.b) break;
          const a = this.x(begin), b = this.x(s.end[i]);
          if (b - a < 6) {
            if (open === null) open = a;
            last = b;
            continue;
          }
          if (open !== null) c.fillRect(open, top, Math.max(last - open, 0.5), high);
          open = null;
          c.globalAlpha = 0.92;
          c.fillRect(a + 0.5, top, b - a - 1, high);
          c.globalAlpha = 1;
          const text = s.size > 1 ? `${s.size} steps` : String(s.step[i]);
          if (b - a > text.length * 7 + 8 && !row.dense) {
            c.fillStyle = css.card;
            c.fillText(text, (Math.max(a, GUTTER) + b) / 2, top + high / 2 + 0.5);
            c.fillStyle = colourOf(row.run, row.lane.actor);
          }
        }
        if (open !== null) c.fillRect(open, top, Math.max(last - open, 0.5), high);
      }
      for (const gap of part.gaps) this.gap(c, row, gap);
      if (row.dense) return;
      const paint = [css.quorum, css.accent, css.flight];
      for (const [name, m] of Object.entries(part.marks)) {
        const place = KINDS[name][1], y = row.y + 26 + place * 5;
        let drawn = -9;
        c.fillStyle = paint[place];
        for (let i = at(m.at, this.view.a); i < m.at.length && m.at[i] <= this.view.b; i++) {
          const x = Math.round(this.x(m.at[i]));
          if (x - drawn < 3) continue;
          c.fillRect(x, y, 2, 4);
          drawn = x;
        }
      }
    }
    merges(c, row) {
      const b = row.run.bars, paint = [css.floor, css.quorum, css.grace, css.flight];
      const own = row.run.names.map((name) => actorOf(name) === row.lane.actor);
      for (let i = 0; i < b.since.length; i++) {
        if (b.end[i] < this.view.a || b.since[i] > this.view.b || !own[b.syncer[i]]) continue;
        const y = row.y + 8 + 11 * b.row[i];
        let from = b.since[i];
        [b.floor[i], b.quorum[i], b.grace[i], b.flight[i]].forEach((length, k) => {
          if (!length && k < 3) return;
          const x = this.x(from), wide = this.x(from + length) - x;
          c.fillStyle = paint[k];
          c.fillRect(x, y, k === 3 ? Math.max(wide, 1.5) : wide, 8);
          from += length;
        });
      }
    }
    notes(c, row, part) {
      const [top, high] = this.band(row);
      const begin = this.x(part.begin), end = this.x(part.end), middle = top + high / 2;
      c.lineWidth = 2;
      c.strokeStyle = css.ink;
      c.fillStyle = css.ink;
      c.fillRect(begin - 1, top - 3, 2, high + 6);
      if (part.killed) {
        c.strokeStyle = css.bad;
        c.beginPath();
        for (const d of [1, -1]) {
          c.moveTo(end - 5, middle - 5 * d);
          c.lineTo(end + 5, middle + 5 * d);
        }
        c.stroke();
      } else c.fillRect(end - 1, top - 3, 2, high + 6);
      c.lineWidth = 1;
      const paint = { snapshot: css.accent, broken: css.bad, failed: css.bad,
        returned: css.flight, stop: css.ink };
      for (const note of part.notes) {
        const x = this.x(note.at);
        if (x < GUTTER - 6 || x > this.width) continue;
        c.fillStyle = paint[note.kind] || css.soft;
        c.beginPath();
        c.moveTo(x - 4, top - 6);
        c.lineTo(x + 4, top - 6);
        c.lineTo(x, top);
        c.fill();
      }
      for (const each of row.run.breaks) if (actorOf(each.event.split(":")[0]) === row.lane.actor) {
        c.beginPath();
        c.arc(this.x(each.at), middle, 7, 0, 7);
        for (const [colour, wide] of [[css.card, 7], [css.bad, 2.5]]) {
          c.strokeStyle = colour;
          c.lineWidth = wide;
          c.stroke();
        }
        c.lineWidth = 1;
      }
    }
    partings(c) {
      DATA.partings.slice(0, 4).forEach((each, k) => {
        [each.one, each.other].forEach((moment, which) => {
          const row = this.rows.find((r) => r.run.which === which
            && moment.event.startsWith(`${r.lane.actor}.`));
          const x = this.x(moment.at_s);
          if (!row || x < GUTTER || x > this.width - RIGHT) return;
          const rows = this.rows.filter((r) => r.run.which === which);
          const last = rows[rows.length - 1];
          c.strokeStyle = css.bad;
          c.globalAlpha = k ? 0.4 : 1;
          c.setLineDash([4, 3]);
          c.beginPath();
          c.moveTo(x, rows[0].y - 4);
          c.lineTo(x, last.y + last.high + 2);
          c.stroke();
          c.setLineDash([]);
          const [top, high] = this.band(row);
          c.lineWidth = 2;
          c.strokeRect(x - 5, top - 2, 10, high + 4);
          c.lineWidth = 1;
          c.globalAlpha = 1;
        });
      });
    }
    hover(x, y) {
      const row = this.rows.find((r) => y >= r.y - 4 && y <= r.y + r.high + 4);
      if (!row || x < GUTTER) return null;
      const value = this.value(x), reach = 5 / this.plot * (this.view.b - this.view.a);
      const span = this.view.b - this.view.a;
      for (const each of DATA.partings) {
        const moment = row.run.which ? each.other : each.one;
        if (Math.abs(moment.at_s - value) < reach)
          return [`first difference: ${each.what}`, each.detail, `cause: ${each.kind}`,
            `${moment.event} at ${time(moment.at_s, span)}`];
      }
      for (const each of row.run.breaks)
        if (actorOf(each.event.split(":")[0]) === row.lane.actor
          && Math.abs(each.at - value) < reach)
          return about([each.text, each.event], row.run, "event", each.event);
      for (const part of row.lane.segments) {
        const found = this.noted(row.run, part, value, reach, span);
        if (found) return found;
      }
      if (row.syncer) return this.merged(row, value, y, reach, span);
      for (const part of row.lane.segments) {
        if (value < part.begin - reach || value > part.end + reach) continue;
        if (y > row.y + 24 && !row.dense) {
          const found = this.marked(row.run, part, value, y - row.y, reach, span);
          if (found) return found;
        }
        const gap = part.gaps.find((each) => each.at <= value && value <= each.to);
        if (gap) return about([gap.text, `${part.incarnation}: ${time(gap.at, span)} to `
          + time(gap.to, span)], row.run, "actor", part.incarnation);
        return this.stepped(row.run, part, value, span);
      }
      return about([`${row.lane.actor} is not running`, time(value, span)], row.run, "actor",
        row.lane.actor);
    }
    noted(run, part, value, reach, span) {
      const note = part.notes.find((each) => Math.abs(each.at - value) < reach);
      const event = note && `${part.incarnation}:${note.n}`;
      if (note) return about([note.text, `${event} at ${time(note.at, span)}`], run, "event", event);
      // Who only observes a job does not know how many events an actor has had.
      if (Math.abs(part.end - value) < reach)
        return about([`${part.incarnation} ${part.how}`,
          `${part.events ? `${part.incarnation}:${part.events}, its last event, ` : ""}at `
          + time(part.end, span)], run, "actor", part.incarnation);
      if (Math.abs(part.begin - value) < reach)
        return about([`${part.incarnation} starts`, `at ${time(part.begin, span)}`,
          part.events ? counted(part.events, "event") : ""], run, "actor", part.incarnation);
      return null;
    }
    marked(run, part, value, y, reach, span) {
      const place = y < 31 ? 0 : y < 36 ? 1 : 2;
      const wanted = Object.keys(part.marks).find((name) => KINDS[name][1] === place);
      const m = part.marks[wanted];
      if (!m || !m.at.length) return null;
      const i = nearest(m.at, value);
      if (Math.abs(m.at[i] - value) > reach) return null;
      const of = wanted !== "pulled" && wanted !== "received" ? ""
        : `${wanted === "pulled" ? "for merge" : "version"} ${m.t[i]}, fragment ${m.p[i]}`;
      const shown = m.of > m.at.length ? `${m.at.length} of ${m.of} are shown` : "";
      const event = `${part.incarnation}:${m.n[i]}`;
      return about([KINDS[wanted][0], of, `${event} at ${time(m.at[i], span)}`, shown], run,
        wanted === "worked" ? "event" : "message", event);
    }
    stepped(run, part, value, span) {
      const s = part.steps && level(part.steps, this.view, this.plot / BLOCK_PIXELS);
      if (!s || value < s.begun || value > s.end[s.end.length - 1])
        return about([part.incarnation, time(value, span)], run, "actor", part.incarnation);
      const i = at(s.end, value), begin = i ? s.end[i - 1] : s.begun;
      const before = i ? s.step[i - 1] : s.step[0] - Math.min(s.size, s.count);
      const size = Math.round(s.step[i] - before);
      const what = size > 1 ? `inner steps ${before + 1} to ${s.step[i]}`
        : `inner step ${s.step[i]}`;
      return about([`${part.incarnation}: ${what}`,
        `${size > 1 ? "mean loss" : "loss"} ${s.loss[i] === null ? "not finite"
          : number(s.loss[i], 6)}, took ${time(s.end[i] - begin, span)}`,
        `${part.incarnation}:${s.n[i]} at ${time(s.end[i], span)}`,
        s === part.steps ? stepClock(run, part, i) : null], run, "step", part.incarnation,
      s.step[i]);
    }
    merged(row, value, y, reach, span) {
      const own = row.run.names.map((name) => actorOf(name) === row.lane.actor);
      const b = row.run.bars, line = Math.min(Math.max(Math.floor((y - row.y - 8) / 11), 0),
        b.rows - 1);
      let found = -1;
      for (let i = 0; i < b.since.length; i++)
        if (b.row[i] === line && own[b.syncer[i]] && b.since[i] - reach <= value && value <= b.end[i] + reach
          && (found < 0 || Math.abs(b.end[i] - value) < Math.abs(b.end[found] - value)))
          found = i;
      if (found < 0)
        return about([row.lane.actor, time(value, span)], row.run, "actor", row.lane.actor);
      const i = found, event = `${row.run.names[b.syncer[i]]}:${b.n[i]}`;
      const column = row.run.matrix.columns[row.run.columnOf.get(event)];
      return about([`merge ${b.t[i]}, fragment ${b.p[i]}: ${counted(b.took[i], "contribution")}`,
        `waited: floor ${time(b.floor[i])}, quorum ${time(b.quorum[i])}, `
        + `grace ${time(b.grace[i])}; launch to merge ${time(b.flight[i])}`,
        `${event} at ${time(b.end[i], span)}`, ...(column ? column.repeats : []),
        column ? clockText(pairsOf(column.clock), row.run.names) : ""], row.run, "merge", b.t[i]);
    }
  }

  // ---- Lines over time --------------------------------------------------------------------
  class Plot extends Chart {
    constructor(figure, view, height, label, options) {
      super(figure, view, height, label);
      Object.assign(this, options);
      this.timed = true;
    }
    scale(low, high) {
      const top = 12, bottom = this.height - AXIS - 4;
      if (high <= low) { high = low + Math.max(Math.abs(low) * 0.1, 1e-6); low -= high - low; }
      this.log = !this.linear && low > 0 && high / low > 30;
      const f = this.log ? Math.log : (v) => v, a = f(low), b = f(high);
      this.y = (v) => bottom - (f(v) - a) / (b - a) * (bottom - top);
      this.low = low;
      this.high = high;
    }
    valueAxis(c) {
      const ticks = [];
      if (this.log) {
        for (let p = Math.floor(Math.log10(this.low)); p <= Math.log10(this.high); p++)
          for (const m of [1, 2, 5]) ticks.push(m * 10 ** p);
      } else {
        const step = nice((this.high - this.low) / (this.height / 46), false);
        for (let v = Math.ceil(this.low / step) * step; v <= this.high * 1.0001; v += step)
          ticks.push(v);
      }
      c.font = `12px ${FONT}`;
      c.textAlign = "right";
      c.textBaseline = "middle";
      for (const v of ticks) {
        if (v < this.low || v > this.high * 1.0001) continue;
        const y = Math.round(this.y(v));
        c.fillStyle = css.line;
        c.fillRect(GUTTER, y, this.plot, 1);
        c.fillStyle = css.soft;
        c.fillText(this.percent ? `${Math.round(v * 100)} %` : String(Number(v.toPrecision(4))),
          GUTTER - 12, y);
      }
    }
    draw(c) {
      const [low, high] = this.range(this.view);
      this.scale(low, high);
      this.timeAxis(c, 8);
      this.valueAxis(c);
      this.clip(c, 4, this.height - AXIS);
      this.content(c);
      c.restore();
    }
    curve(c, xs, ys, from, to, parts) {
      c.beginPath();
      let pen = false;
      for (let i = from; i < to; i++) {
        if (parts.includes(i)) pen = false;
        if (ys[i] === null || Number.isNaN(ys[i])) { pen = false; continue; }
        const x = this.x(xs[i]), y = this.y(ys[i]);
        if (pen) c.lineTo(x, y); else c.moveTo(x, y);
        pen = true;
      }
      c.stroke();
    }
  }
  const smooth = (values, parts) => {
    // Forwards only, so that a jump is not seen before it happens.
    const out = new Float64Array(values.length), keep = 1 - 1 / Math.min(Math.max(values.length / 60, 1), 12);
    let mean = null;
    values.forEach((v, i) => {
      if (parts.includes(i)) mean = null;
      if (v === null) { out[i] = NaN; mean = null; return; }
      mean = mean === null ? v : keep * mean + (1 - keep) * v;
      out[i] = mean;
    });
    return out;
  };
  // A learner's losses from the finest blocks of its lane, which hold more than its curve.
  const finest = (line) => {
    if (line.fine !== undefined) return line.fine;
    line.fine = null;
    const lane = line.run.lanes.find((each) => each.actor === line.c.learner);
    const levels = (lane ? lane.segments : []).filter((part) => part.steps)
      .map((part) => part.steps.finer[part.steps.finer.length - 1] ?? part.steps);
    if (levels.reduce((sum, s) => sum + s.end.length, 0) <= line.c.at.length) return null;
    const c = { learner: line.c.learner, at: [], step: [], loss: [], parts: [] };
    for (const s of levels) {
      c.parts.push(c.at.length);
      for (let i = 0; i < s.end.length; i++) {
        c.at.push(s.end[i]);
        c.step.push(s.step[i]);
        c.loss.push(s.loss[i]);
      }
    }
    line.fine = { run: line.run, c, smoothed: smooth(c.loss, c.parts) };
    return line.fine;
  };
  class Losses extends Plot {
    get shown() {
      const most = 2 * this.plot;
      return this.lines.map((line) => {
        const fine = inside(line.c.at, this.view) < most ? finest(line) : null;
        return fine && inside(fine.c.at, this.view) <= 2 * most ? fine : line;
      });
    }
    range(view) {
      let low = Infinity, high = -Infinity;
      for (const { c } of this.shown)
        for (let i = at(c.at, view.a); i < c.at.length && c.at[i] <= view.b; i++)
          if (c.loss[i] !== null) {
            low = Math.min(low, c.loss[i]);
            high = Math.max(high, c.loss[i]);
          }
      for (const run of this.runs) for (const [, loss] of run.held_out) {
        low = Math.min(low, loss);
        high = Math.max(high, loss);
      }
      return low <= high ? [low, high] : [0, 1];
    }
    content(c) {
      const bottom = this.height - AXIS;
      c.fillStyle = css.soft;
      c.globalAlpha = 0.35;
      let drawn = -9;
      for (const end of this.runs[0].bars.end) {
        const x = Math.round(this.x(end));
        if (x - drawn >= 2) { c.fillRect(x, bottom - 6, 1, 6); drawn = x; }
      }
      const shown = this.shown;
      this.canvas.dataset.points = shown.reduce((sum, { c: one }) => sum
        + inside(one.at, this.view), 0);
      for (const strong of [false, true])
        for (const { run, c: curve, smoothed } of shown) {
          const from = Math.max(at(curve.at, this.view.a) - 1, 0);
          const to = Math.min(at(curve.at, this.view.b) + 1, curve.at.length);
          const few = to - from < this.plot / 3;
          c.globalAlpha = strong ? 1 : few ? 0.5 : 0.22;
          c.strokeStyle = colourOf(run, curve.learner);
          c.lineWidth = strong ? 2 : 1;
          c.setLineDash(strong && run.which ? [6, 4] : []);
          this.curve(c, curve.at, strong ? smoothed : curve.loss, from, to, curve.parts);
        }
      c.setLineDash([]);
      c.globalAlpha = 1;
      for (const run of this.runs) {
        c.fillStyle = css.ink;
        for (const [when, loss] of run.held_out) {
          c.beginPath();
          c.arc(Math.min(this.x(when), this.width - RIGHT - 5), this.y(loss), 4.5, 0, 7);
          c.fill();
        }
        c.strokeStyle = css.bad;
        c.lineWidth = 2;
        for (const each of run.breaks) c.strokeRect(this.x(each.at) - 4, 14, 8,
          this.height - AXIS - 22);
      }
      c.lineWidth = 1;
    }
    hover(x) {
      if (x < GUTTER) return null;
      const value = this.value(x), lines = [time(value, this.view.b - this.view.a)];
      for (const { run, c } of this.shown) {
        if (!c.at.length) continue;
        const i = nearest(c.at, value), loss = c.loss[i];
        lines.push(`${run.letter} ${c.learner}, inner step ${c.step[i]}: `
          + `${loss === null ? "not finite" : number(loss, 6)}`);
        if (lines.length > 16) break;
      }
      for (const run of this.runs) for (const [, loss] of run.held_out)
        lines.push(`${run.letter} held-out loss ${number(loss, 6)}`);
      return lines;
    }
  }
  class Goodput extends Plot {
    range() { return [0, 1]; }
    content(c) {
      for (const run of this.runs) {
        const width = run.end_s / run.goodput.length, bottom = this.y(0);
        c.beginPath();
        run.goodput.forEach((share, i) => {
          c.lineTo(this.x(i * width), this.y(share));
          c.lineTo(this.x((i + 1) * width), this.y(share));
        });
        c.strokeStyle = run.which ? css.quorum : css.flight;
        c.lineWidth = 1.5;
        c.setLineDash(run.which ? [6, 4] : []);
        c.stroke();
        c.setLineDash([]);
        c.lineWidth = 1;
        if (run.which) continue;
        c.lineTo(this.x(run.end_s), bottom);
        c.lineTo(this.x(0), bottom);
        c.fillStyle = css.flight;
        c.globalAlpha = 0.22;
        c.fill();
        c.globalAlpha = 1;
      }
    }
    hover(x) {
      if (x < GUTTER) return null;
      const value = this.value(x);
      return [time(value, this.view.b - this.view.a), ...this.runs.map((run) => {
        const share = run.goodput[Math.floor(value / run.end_s * run.goodput.length)];
        return share === undefined ? "" : `${run.letter} ${(share * 100).toFixed(1)} % of the `
          + "learners' time is in finished steps";
      })];
    }
  }
  class Dots extends Plot {
    prepare() {
      this.dots = [];
      for (const run of this.runs) run.matrix.cells.forEach((row, r) => row.forEach((raw, i) => {
        const one = cell(raw), column = run.matrix.columns[i];
        const value = one.state === 1 ? this.pick(one, column) : null;
        if (value !== null) this.dots.push({ x: column.at, y: value, r, run, i });
      }));
      this.dots.sort((p, q) => p.x - q.x);
      this.xs = Float64Array.from(this.dots, (dot) => dot.x);
    }
    range(view) {
      let high = 0;
      for (let i = at(this.xs, view.a); i < this.dots.length && this.xs[i] <= view.b; i++)
        high = Math.max(high, this.dots[i].y);
      return [0, high * 1.05 || 1];
    }
    content(c) {
      const from = at(this.xs, this.view.a), to = at(this.xs, this.view.b);
      const size = to - from > 3000 ? 1.6 : to - from > 600 ? 2.2 : 3.2;
      c.globalAlpha = to - from > 2000 ? 0.55 : 0.8;
      for (let k = from; k < Math.min(to + 1, this.dots.length); k++) {
        const dot = this.dots[k], x = this.x(dot.x), y = this.y(dot.y);
        c.fillStyle = colours[dot.r % colours.length];
        if (dot.run.which) {
          c.strokeStyle = c.fillStyle;
          c.strokeRect(x - size, y - size, 2 * size, 2 * size);
        } else c.fillRect(x - size, y - size, 2 * size, 2 * size);
      }
      c.globalAlpha = 1;
    }
    hover(x, y) {
      const value = this.value(x), reach = 8 / this.plot * (this.view.b - this.view.a);
      let best = null, least = 150;
      for (let k = at(this.xs, value - reach); k < this.dots.length
        && this.xs[k] <= value + reach; k++) {
        const dot = this.dots[k], away = (this.x(dot.x) - x) ** 2 + (this.y(dot.y) - y) ** 2;
        if (away < least) { least = away; best = dot; }
      }
      return best && cellText(best.run, best.r, best.i);
    }
  }

  // ---- The matrix -------------------------------------------------------------------------
  const cellText = (run, r, i) => {
    const column = run.matrix.columns[i], one = cell(run.matrix.cells[r][i]);
    const who = run.names[one.who] || run.matrix.rows[r];
    const head = `${who} in merge ${column.t}, fragment ${column.p}`;
    const when = `${one.event || column.event} (merge ${column.event} at ${time(column.at)}, `
      + `${counted(column.live, "learner")} connected)`;
    const measured = one.norm === null ? "" : `norm ${number(one.norm)}`
      + (one.cosine === null ? "" : `, cosine ${number(one.cosine, 3)}`);
    const clock = clockText(pairsOf(column.clock), run.names);
    if (one.state === 1 && one.base < 0)  // An observer hears of no more.
      return about([head, `weight ${number(one.weight)}`, when], run, "merge", column.t);
    if (one.state === 1)
      return about([head, `weight ${number(one.weight)}, ${counted(one.steps, "step")}, `
        + `${counted(one.tokens, "token")} from version ${one.base} `
        + `(${column.t - one.base} behind)`, measured,
      one.wait === null ? "arrived before the tape begins"
        : `arrived ${time(one.wait)} after the launch`, when, clock], run, "merge", column.t);
    const said = run.matrix.reasons[one.reason] || "nothing is known of it";
    return about([`${head}: ${one.state === 2 ? "refused" : "absent"}`, said, measured, when,
      clock], run, "merge", column.t);
  };
  const staleness = (one, column) => one.base < 0 ? null : column.t - one.base;
  const MEASURES = { weight: (one) => one.weight, norm: (one) => one.norm,
    steps: (one) => one.steps || null, staleness };
  const mix = (a, b, share) => {
    const parse = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
    const from = parse(a), to = parse(b);
    return `rgb(${from.map((v, k) => Math.round(v + (to[k] - v) * share)).join(" ")})`;
  };
  class Matrix extends Chart {
    constructor(figure, view, run) {
      const rows = run.matrix.rows.length, high = rows > 40 ? 10 : 22;
      super(figure, view, 8 + rows * high + AXIS,
        `Merges and learners of ${run.name}; with Shift, arrow keys move from cell to cell`);
      Object.assign(this, { run, high, at: [0, 0] });
      this.cells = run.matrix.cells.map((row) => row.map(cell));
      const norms = this.cells.some((row) => row.some((one) => one.state === 1 && one.norm));
      this.measure(norms ? "norm" : "weight");
    }
    measure(name) {
      this.name = name;
      const columns = this.run.matrix.columns;
      this.values = this.cells.map((row) => row.map((one, i) => one.state === 1
        ? MEASURES[name](one, columns[i]) : null));
      const known = this.values.flat().filter((v) => v !== null).sort((a, b) => a - b);
      this.low = known[Math.floor(known.length * 0.01)] ?? 0;
      this.top = known[Math.floor(known.length * 0.99)] ?? 1;
      this.later();
    }
    draw(c) {
      const columns = this.run.matrix.columns, shades = [];
      for (let k = 0; k < 33; k++) shades.push(mix(css.low, css.high, k / 32));
      const wide = this.plot / (this.view.b - this.view.a);
      const from = Math.max(Math.floor(this.view.a), 0);
      const to = Math.min(Math.ceil(this.view.b), columns.length);
      this.run.matrix.rows.forEach((name, r) => {
        const y = 6 + r * this.high, gap = this.high > 12 ? 2 : 1;
        if (this.high > 12 || r % 2 === 0)
          this.label(c, name, y + this.high / 2, colourOf(this.run, name), this.run.letter);
        this.clip(c, y, y + this.high);
        for (const wanted of [1, 2]) for (let i = from; i < to; i++) {
          const one = this.cells[r][i];
          if (one.state !== wanted) continue;
          const x = this.x(i), w = Math.max(wide - (wide > 5 ? 1 : 0), 1);
          if (wanted === 1) {
            const share = this.top > this.low ? (this.values[r][i] - this.low)
              / (this.top - this.low) : 0.5;
            c.fillStyle = this.values[r][i] === null ? css.line
              : shades[Math.round(Math.min(Math.max(share, 0), 1) * 32)];
            c.fillRect(x, y, w, this.high - gap);
          } else if (wide < 7) {
            c.fillStyle = css.bad;
            c.fillRect(x, y, Math.max(w, 1.5), this.high - gap);
          } else {
            c.strokeStyle = css.bad;
            c.lineWidth = 2;
            const m = x + w / 2, h = Math.min(w, this.high) / 2 - 3, n = y + this.high / 2 - 1;
            c.beginPath();
            for (const d of [1, -1]) { c.moveTo(m - h, n - h * d); c.lineTo(m + h, n + h * d); }
            c.stroke();
            c.lineWidth = 1;
          }
        }
        c.restore();
      });
      c.fillStyle = css.soft;
      c.font = `12px ${FONT}`;
      c.textAlign = "center";
      c.textBaseline = "top";
      const every = Math.max(1, nice((this.view.b - this.view.a) / (this.plot / 90), false));
      for (let i = Math.ceil(this.view.a / every) * every; i < to; i += every)
        c.fillText(String(columns[i].t), this.x(i + 0.5), this.height - AXIS + 6);
      this.label(c, "merge", this.height - AXIS + 12, css.soft);
      if (document.activeElement === this.canvas && this.chosen) {
        c.strokeStyle = css.ink;
        c.lineWidth = 2;
        c.strokeRect(this.x(this.at[1]), 5 + this.at[0] * this.high, Math.max(wide, 3), this.high);
        c.lineWidth = 1;
      }
    }
    keyed(event) {
      if (event.key === "Enter" && this.chosen) {
        const box = this.canvas.getBoundingClientRect();
        pinAt(cellText(this.run, ...this.at), box.left + this.x(this.at[1]),
          box.top + (this.at[0] + 1) * this.high);
        return;
      }
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
        ArrowDown: [1, 0] }[event.key];
      if (!step || !event.shiftKey) { super.keyed(event); return; }
      event.preventDefault();
      this.chosen = true;
      const clamp = (v, n) => Math.min(Math.max(v, 0), n - 1);
      this.at = [clamp(this.at[0] + step[0], this.cells.length),
        clamp(this.at[1] + step[1], this.run.matrix.columns.length)];
      const span = this.view.b - this.view.a;
      if (this.at[1] < this.view.a || this.at[1] + 1 > this.view.b)
        this.view.set(this.at[1] - span / 2, this.at[1] + span / 2);
      const box = this.canvas.getBoundingClientRect();
      pin(false);
      showTip(cellText(this.run, ...this.at), box.left + this.x(this.at[1]),
        box.top + (this.at[0] + 1) * this.high);
      this.later();
    }
    hover(x, y) {
      const r = Math.floor((y - 6) / this.high), i = Math.floor(this.value(x));
      if (x < GUTTER || r < 0 || r >= this.cells.length || i < 0
        || i >= this.run.matrix.columns.length) return null;
      return cellText(this.run, r, i);
    }
  }

  // ---- The page ---------------------------------------------------------------------------
  const section = (title, text) => {
    make("h2", page, title);
    if (text) make("p", page, text);
    const figure = make("figure", page), bar = make("div", figure, "", "bar");
    return { figure, bar };
  };
  const resetButton = (bar, view) => {
    make("span", bar, "", "space");
    make("button", bar, "Show all").addEventListener("click", () => view.reset());
  };
  const summary = (run) => {
    make("h1", page, run.letter ? `${run.letter}: ${run.name}` : run.name);
    if (run.gaps.length) {
      const gaps = make("ul", page, "", "said");
      for (const line of run.gaps) make("li", gaps, line);
    }
    if (run.now.length) {
      const now = make("ul", page, "", "said now");
      for (const line of run.now) make("li", now, line);
    }
    const list = make("dl", page, "", "facts");
    for (const fact of run.facts) {
      const box = make("div", list, "", "fact");
      make("dt", box, fact.label);
      make("dd", box, fact.value, "value");
      if (fact.note) make("dd", box, fact.note, "note");
    }
    if (run.findings.length) {
      const said = make("ul", page, "", "said");
      for (const line of run.findings) make("li", said, line);
    }
  };
  const differences = () => {
    if (DATA.runs.length < 2) return;
    make("h2", page, DATA.same ? "The runs are equal" : "Where the runs part");
    make("pre", page, DATA.lines.join("\n"));
  };
  const learnerKeys = (bar, run) => {
    if (run.matrix.rows.length <= 16) run.matrix.rows.forEach((name) =>
      key(bar, () => colourOf(run, name), name));
  };
  const lanes = (runs, view) => {
    const { figure, bar } = section("What each actor did",
      "Wheel zooms, dragging moves, a double click shows all; a click keeps the text that "
      + "hovering shows. All charts over time move together.");
    if (trained) {
      key(bar, () => css.floor, "floor");
      key(bar, () => css.quorum, "quorum, pull");
      key(bar, () => css.grace, "grace");
      key(bar, () => css.flight, "launch to merge, fragment received");
      key(bar, () => css.accent, "contribution sent, snapshot", true);
    } else {
      key(bar, () => css.quorum, KINDS.arrived[0]);
      key(bar, () => css.accent, "work done, snapshot", true);
    }
    key(bar, () => css.bad, "killed, broken, refused", true);
    resetButton(bar, view);
    const chart = new Lanes(figure, view, runs);
    const thinned = [];
    for (const run of runs) {
      if (run.bars.of > run.bars.t.length)
        thinned.push(`${run.bars.t.length} of ${run.bars.of} merges`);
      const parts = run.lanes.flatMap((lane) => lane.segments).filter((part) => part.steps);
      const most = Math.max(...parts.map((part) => part.steps.size), 1);
      const least = Math.max(...parts.map((part) =>
        (part.steps.finer[part.steps.finer.length - 1] ?? part.steps).size), 1);
      if (most > 1) thinned.push(`steps in blocks of up to ${most}`
        + (least < most ? ` (zoomed in, ${least === 1 ? "single steps" : `of ${least}`})` : ""));
      const marks = parts.flatMap((part) => Object.values(part.marks));
      const of = marks.reduce((sum, m) => sum + m.of, 0);
      const shown = marks.reduce((sum, m) => sum + m.at.length, 0);
      if (of > shown) thinned.push(`${counted(shown, "message")} of ${of.toLocaleString("en")}`);
    }
    if (thinned.length) make("p", page, `Thinned: ${thinned.join(", ")}.`);
    return chart;
  };
  // What people have chosen stays when the page is drawn again.
  const keptMatrix = [];
  const matrices = (runs) => {
    for (const run of runs) {
      const m = run.matrix, thin = m.columns.length < m.of
        ? ` ${m.columns.length} of ${m.of} merges are shown: of adjacent merges the one with most `
        + "refusals and absences." : "";
      if (!m.columns.length) {
        make("h2", page, "Merges and learners");
        make("p", page, "There are no merges on these tapes.");
        continue;
      }
      const { figure, bar } = section(`Merges and learners${run.letter ? `, ${run.letter}` : ""}`,
        `A column is a merge, a row a learner. Empty: absent; red: refused.${thin}`);
      const view = new View(0, m.columns.length, Math.min(4, m.columns.length));
      make("span", bar, "Colour:");
      const names = Object.keys(MEASURES), buttons = names.map((name) => make("button", bar, name));
      const shade = make("span", bar, "");
      resetButton(bar, view);
      const chart = new Matrix(figure, view, run), kept = keptMatrix[run.which];
      const press = (name) => {
        chart.measure(name);
        keptMatrix[run.which] = { name, view };
        buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.textContent === name)));
        shade.textContent = `from ${number(chart.low, 3)} (pale) to ${number(chart.top, 3)}`;
      };
      buttons.forEach((b) => b.addEventListener("click", () => press(b.textContent)));
      press(kept ? kept.name : chart.name);
      if (kept) view.keep(kept.view);
    }
  };
  const overTime = (runs, view) => {
    const dashed = runs.length > 1 ? " Run A is drawn solid, run B dashed." : "";
    let { figure, bar } = section("Loss",
      "Faint: each inner step; strong: smoothed. Ticks at the bottom are merges"
      + `${runs[0].held_out.length ? ", the dot is the held-out loss" : ""}.${dashed}`);
    learnerKeys(bar, runs[0]);
    const lines = runs.flatMap((run) => run.curves.map((c) => ({ run, c,
      smoothed: smooth(c.loss, c.parts) })));
    new Losses(figure, view, 300, "Loss of each learner over time", { runs, lines });
    ({ figure, bar } = section("Goodput", "The share of all learners' time in finished steps; "
      + "a killed learner counts until the end."));
    bar.remove();
    new Goodput(figure, view, 130, "Goodput over time", { runs, linear: true, percent: true });
    for (const [title, text, pick] of [
      ["Staleness", "How many global steps behind its merge a contribution's version was.",
        staleness],
      ["Weights", "The share of each learner in a merge.", (one) => one.weight]]) {
      ({ figure, bar } = section(title, text));
      learnerKeys(bar, runs[0]);
      new Dots(figure, view, 170, `${title} over time`, { runs, pick, linear: true }).prepare();
    }
  };
  const bytes = (n) => n < 1024 ? `${n} B` : n < 2 ** 20 ? `${(n / 1024).toFixed(1)} KiB`
    : n < 2 ** 30 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${(n / 2 ** 30).toFixed(2)} GiB`;
  const links = (run) => {
    if (!run.links.length) return;
    const { figure, bar } = section(`Bytes per link${run.letter ? `, ${run.letter}` : ""}`,
      "Payloads that arrived, without headers: contributions up, global fragments down.");
    bar.remove();
    const table = make("table", make("div", figure, "", "scroll"));
    const head = make("tr", make("thead", table));
    for (const text of ["learner", "up", "", "down", "", "pieces of state"]) make("th", head, text);
    const most = Math.max(...run.links.flatMap((each) => [each.up_bytes, each.down_bytes]), 1);
    const body = make("tbody", table);
    for (const each of run.links) {
      const row = make("tr", body);
      make("th", row, each.learner).scope = "row";
      for (const [count, size] of [[each.up, each.up_bytes], [each.down, each.down_bytes]]) {
        make("td", row, `${bytes(size)} in ${counted(count, "message")}`);
        const meter = make("span", make("td", row, "", "wide"), "", "meter");
        meter.style.width = `${size / most * 100}%`;
      }
      make("td", row, String(each.pieces));
    }
  };

  let view = null;
  const draw = () => {
    DATA.runs.forEach(unpack);
    for (const each of DATA.partings) {
      each.one.at_s = each.one.at * DATA.runs[0].unit_s;
      each.other.at_s = each.other.at * DATA.runs[1].unit_s;
    }
    const runs = DATA.runs, end = Math.max(...runs.map((run) => run.end_s), 1e-6);
    const before = view, top = scrollY;
    view = new View(-end * 0.005, end * 1.005, end * 1e-6);
    if (before) view.keep(before);
    // Programs of one's own have no learners, whose merges and losses the other charts show.
    trained = runs.some((run) => run.curves.length);
    page.replaceChildren();
    [charts, painters] = [[], []];
    for (const run of runs) summary(run);
    differences();
    lanes(runs, view);
    if (trained) {
      matrices(runs);
      overTime(runs, view);
      for (const run of runs) links(run);
    }
    if (before) scrollTo({ top, behavior: "instant" });
  };
  const FOLLOW_MS = 2000;
  let known = Number(source.dataset.live);
  const follow = async () => {
    let said = "";
    try {
      const answer = await fetch(`data?known=${known}`);
      if (answer.status === 200) {
        const told = await answer.json();
        [known, said] = [told.number, told.problem];
        if (told.data) { DATA = told.data; draw(); }
      } else if (answer.status >= 400) said = (await answer.json()).lines[0];
    } catch { said = "the program that served this page has ended; this is the last it said"; }
    document.documentElement.dataset.known = String(known);
    document.getElementById("problem").textContent = said;
    setTimeout(follow, FOLLOW_MS);
  };

  readColours();
  draw();
  // "report.html#120-125" opens the page at these seconds.
  const stretch = () => {
    const found = /^#([\d.]+)-([\d.]+)$/.exec(location.hash);
    if (found) view.set(Number(found[1]), Number(found[2]));
  };
  stretch();
  addEventListener("hashchange", stretch);
  night.addEventListener("change", () => {
    readColours();
    charts.forEach((c) => c.later());
    painters.forEach((paint) => paint());
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") pin(false); });
  document.addEventListener("pointerdown", (event) => {
    if (pinned && !tip.contains(event.target) && event.target.tagName !== "CANVAS") pin(false);
  });
  document.documentElement.dataset.drawn = "yes";
  if (live) follow();
})();
