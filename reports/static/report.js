// The script of both pages. Text from a trace only ever becomes a text node: nothing here parses HTML.
"use strict";
(() => {
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) made.append(child);
  return made;
}
function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  if (text !== undefined) made.textContent = text;
  return made;
}
function glyph(name) {
  const made = svg("svg", { class: "glyph", "aria-hidden": "true" });
  made.append(svg("use", { href: `#g-${name}` }));
  return made;
}

// -- both pages: theme and help -----------------------------------------------------------------------------

const THEME = "fencepost-theme";
function kept(name) { try { return localStorage.getItem(name); } catch { return null; } }
function keep(name, value) { try { localStorage.setItem(name, value); } catch { /* a page from disk may not keep anything */ } }
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) { document.documentElement.dataset.theme = theme; }
setTheme(kept(THEME) || (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", (event) => { if (!kept(THEME)) setTheme(event.matches ? "dark" : "light"); });
function switchTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(next);
  keep(THEME, next);
}
$("theme").addEventListener("click", switchTheme);
$("help-button").addEventListener("click", () => $("help").showModal());
$("help-close").addEventListener("click", () => $("help").close());

// -- the index ----------------------------------------------------------------------------------------------

function indexPage() {
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      const button = head.querySelector("button");
      if (button) button.addEventListener("click", () => sortBy(table, head, place));
    });
  }
  const search = $("search"), verdict = $("verdict-filter"), queue = $("queue-filter");
  function apply() {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0, all = 0;
    for (const row of document.querySelectorAll("[data-run]")) {
      const text = row.dataset.text || (row.dataset.text = row.textContent.toLowerCase());
      const fits = (!verdict.value || row.dataset.verdict === verdict.value) &&
        (!queue.value || row.dataset.queue === queue.value) && wanted.every((word) => text.includes(word));
      row.hidden = !fits;
      if (row.dataset.run === "table") { all += 1; shown += fits; }
    }
    $("filter-count").textContent = shown === all ? `${all} runs` : `${shown} of ${all} runs`;
  }
  for (const control of [search, verdict, queue]) control.addEventListener("input", apply);
  document.addEventListener("keydown", (event) => {
    if (event.target instanceof HTMLInputElement) {
      if (event.key === "Escape") { search.value = ""; apply(); search.blur(); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") { event.preventDefault(); search.focus(); }
    else if (event.key === "t") switchTheme();
    else if (event.key === "?") $("help").showModal();
  });
  apply();
}

function sortBy(table, head, place) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => { const cell = row.cells[place]; return cell.dataset.key ?? cell.textContent.trim(); };
  const numeric = head.classList.contains("number");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const order = numeric ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}

// -- the page of a run --------------------------------------------------------------------------------------

function runPage(data) {
  const run = data.run, other = data.other, comparison = data.comparison;
  const rowsAt = makeRows(run);
  const state = { chosen: null, axis: "order", visible: run.steps.map((_, place) => place), matching: null };
  const charts = makeCharts();
  const list = makeList();
  const aligned = comparison ? makeAligned() : null;
  const filter = makeFilter();
  drawLegend();

  function choose(number, { scroll = true, link = true } = {}) {
    if (!run.steps.length) { $("inspector").replaceChildren(el("p", { class: "dim" }, "This run has no step.")); return; }
    number = Math.min(Math.max(1, number), run.steps.length);
    state.chosen = number;
    inspect(run, rowsAt, number);
    list.show(number, scroll);
    charts.choose(number, scroll);
    if (aligned) aligned.choose(number);
    if (link) history.replaceState(null, "", `#step-${number}`);
  }
  function move(by) {
    const places = state.visible;
    if (!places.length) return;
    const now = state.chosen - 1;
    let at = places.findIndex((place) => place >= now);
    if (at === -1) at = places.length;
    const exact = places[at] === now;
    const next = by > 0 ? (exact ? at + 1 : at) : at - 1;
    choose(places[Math.min(Math.max(0, next), places.length - 1)] + 1);
  }
  function linked() { const found = /^#step-(\d+)$/.exec(location.hash); return found ? Number(found[1]) : null; }

  window.addEventListener("hashchange", () => { if (linked()) choose(linked()); });
  document.addEventListener("keydown", (event) => {
    if ($("help").open || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
    if (event.key === "Escape") { filter.clear(); document.activeElement.blur(); return; }
    if (typing) return;
    const act = {
      j: () => move(1), ArrowDown: () => move(1), ArrowRight: () => move(1),
      k: () => move(-1), ArrowUp: () => move(-1), ArrowLeft: () => move(-1),
      Home: () => choose(state.visible.length ? state.visible[0] + 1 : 1),
      End: () => choose(state.visible.length ? state.visible[state.visible.length - 1] + 1 : run.steps.length),
      f: () => choose(run.opens_at || 1),
      o: () => charts.nextAxis(), "+": () => charts.zoom(1.5), "=": () => charts.zoom(1.5), "-": () => charts.zoom(1 / 1.5),
      0: () => charts.fit(), t: switchTheme, "/": () => $("search").focus(), "?": () => $("help").showModal(),
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  $("copy").addEventListener("click", () => copy($("replay").textContent, $("copy")));
  choose(linked() || run.opens_at || 1, { link: false });

  // -- diagram, comparison, filter and list of this run -----------------------------------------------------

  function makeCharts() {
    const host = $("charts");
    const own = other ? comparison.pairs.map(([left]) => left) : null;
    const theirs = other ? comparison.pairs.map(([, right]) => right) : null;
    const made = [makeChart(host, run, {
      columns: own, split: other ? comparison.divergence : null, title: other ? comparison.left : null,
      onChoose: (number) => choose(number, { scroll: "list" }), onView: (view) => share(0, view),
    })];
    if (other) made.push(makeChart(host, other, {
      columns: theirs, split: comparison.divergence, title: comparison.right, secondary: true,
      onChoose: (number) => {
        const pair = comparison.pairs.find(([, right]) => right === number - 1);
        if (pair && pair[0] !== null) choose(pair[0] + 1, { scroll: "list" });
      },
      onView: (view) => share(1, view),
    }));
    function share(from, view) { if (state.axis === "order") made.forEach((chart, place) => { if (place !== from) chart.setView(view); }); tellLeftOut(); }
    function tellLeftOut() { $("left-out").textContent = made[0].leftOut().join(" "); }
    const AXES = ["order", "time", "scale"];
    function setAxis(axis) {
      state.axis = axis;
      for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === axis));
      made.forEach((chart) => chart.setAxis(axis));
      tellLeftOut();
    }
    for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => setAxis(button.dataset.axis));
    $("zoom-in").addEventListener("click", () => all.zoom(1.5));
    $("zoom-out").addEventListener("click", () => all.zoom(1 / 1.5));
    $("zoom-fit").addEventListener("click", () => all.fit());
    $("idle-invariants").addEventListener("click", (event) => {
      const pressed = event.currentTarget.getAttribute("aria-pressed") !== "true";
      event.currentTarget.setAttribute("aria-pressed", String(pressed));
      made.forEach((chart) => chart.showIdle(pressed));
      tellLeftOut();
    });
    let width = 0;
    new ResizeObserver(() => {
      if (host.clientWidth !== width) { width = host.clientWidth; made.forEach((chart) => chart.resize(width)); tellLeftOut(); }
    }).observe(host);
    window.addEventListener("beforeprint", () => { made.forEach((chart) => { chart.resize(1000); chart.fit(); }); list.all(); });
    window.addEventListener("afterprint", () => { width = 0; made.forEach((chart) => chart.resize(host.clientWidth)); list.draw(); });
    const all = {
      choose(number, scroll) {
        made[0].choose(number, scroll !== "list");
        if (!other) return tellLeftOut();
        const pair = comparison.pairs.find(([left]) => left === number - 1);
        made[1].choose(pair && pair[1] !== null ? pair[1] + 1 : null, false);
        tellLeftOut();
      },
      zoom(by) { made[0].zoom(by); if (other && state.axis !== "order") made[1].zoom(by); tellLeftOut(); },
      fit() { made.forEach((chart) => chart.fit()); tellLeftOut(); },
      nextAxis() { setAxis(AXES[(AXES.indexOf(state.axis) + 1) % AXES.length]); },
      match(places) { made[0].match(places); },
    };
    return all;
  }

  function makeAligned() {
    const rows = comparison.pairs.map(([left, right, same], place) => {
      const row = el("tr", { class: place === comparison.divergence ? "splits" : same ? null : "differs" }, cell(run, left, same), cell(other, right, same));
      row.addEventListener("click", () => { if (left !== null) choose(left + 1); });
      return row;
    });
    function cell(from, place, same) {
      if (place === null) return el("td", { class: "none" }, "no such step");
      const step = from.steps[place];
      return el("td", {}, el("span", { class: "dim" }, `${step.n} `), el("strong", {}, step.actor || ""), ` ${step.what}`,
        step.answer ? el("span", { class: same ? "dim" : null }, ` → ${step.answer}`) : null,
        step.violated ? el("span", {}, " ", el("span", { class: "badge fail" }, "breaks " + step.violated.map((v) => from.invariants[v].name).join(", "))) : null);
    }
    const LONGEST = 1000;
    $("aligned").replaceChildren(...rows.slice(0, LONGEST));
    if (rows.length > LONGEST) $("aligned").append(el("tr", {}, el("td", { colspan: 2, class: "none" }, `${rows.length - LONGEST} more aligned steps are left out here`)));
    let chosen = null;
    return { choose(number) {
      if (chosen) chosen.removeAttribute("aria-selected");
      chosen = rows[comparison.pairs.findIndex(([left]) => left === number - 1)];
      if (chosen) chosen.setAttribute("aria-selected", "true");
    } };
  }

  function makeFilter() {
    const events = {
      claim: ["claims", (s) => (s.operation || "").startsWith("claim")],
      write: ["writes", (s) => /^(complete|fail|heartbeat)/.test(s.operation || "")],
      late: ["late writes", (s) => s.late !== undefined],
      refused: ["refused", (s) => s.look === "refused" || s.look === "error"],
      wait: ["held, blocked, cut off", (s) => ["held", "blocked", "cut"].includes(s.look)],
      clock: ["clock moves", (s) => s.kind === "clock"],
      fault: ["faults", (s) => s.kind === "fault"],
      change: ["rows changed", (s) => s.changes !== undefined],
      broken: ["an invariant broke", (s) => s.violated !== undefined],
    };
    const picked = new Set();
    for (const [name, [words, fits]] of Object.entries(events)) if (run.steps.some(fits)) $("event-filter").append(el("option", { value: name }, words));
    const jobs = [...new Set(run.steps.flatMap((step) => step.about))];
    for (const job of jobs) $("job-filter").append(el("option", { value: job }, job));
    for (const actor of run.actors) {
      const button = el("button", { type: "button", "aria-pressed": "false" }, actor.name);
      button.addEventListener("click", () => {
        if (picked.has(actor.name)) picked.delete(actor.name); else picked.add(actor.name);
        button.setAttribute("aria-pressed", String(picked.has(actor.name)));
        apply();
      });
      $("actor-filter").append(button);
    }
    const texts = [];
    const textOf = (place) => texts[place] ??= JSON.stringify(run.steps[place]).toLowerCase();
    function apply() {
      const wanted = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const job = $("job-filter").value, event = $("event-filter").value;
      const filtering = wanted.length || job || event || picked.size;
      const places = [];
      run.steps.forEach((step, place) => {
        if (picked.size && !picked.has(step.actor)) return;
        if (job && !step.about.includes(job)) return;
        if (event && !events[event][1](step)) return;
        if (wanted.length && !wanted.every((word) => textOf(place).includes(word))) return;
        places.push(place);
      });
      state.visible = places;
      $("clear-filter").hidden = !filtering;
      $("filter-count").textContent = filtering ? `${places.length} of ${run.steps.length} steps` : `${run.steps.length} steps`;
      list.draw();
      charts.match(filtering ? new Set(places) : null);
    }
    function clear() {
      $("search").value = $("job-filter").value = $("event-filter").value = "";
      picked.clear();
      for (const button of $("actor-filter").children) button.setAttribute("aria-pressed", "false");
      apply();
    }
    for (const id of ["search", "job-filter", "event-filter"]) $(id).addEventListener("input", apply);
    $("clear-filter").addEventListener("click", clear);
    $("filter-count").textContent = `${run.steps.length} steps`;
    return { clear };
  }

  function makeList() {
    const box = $("list"), HEIGHT = 50, WHOLE = 400;
    const above = el("div"), inner = el("div"), below = el("div");
    box.append(above, inner, below);
    let from = 0, to = 0;
    function rowOf(place) {
      const step = run.steps[place];
      const row = el("div", {
        class: "row" + (step.violated ? " broken" : "") + (step.drain ? " drain-step" : ""), role: "option",
        id: `row-${step.n}`, "aria-selected": String(step.n === state.chosen), "data-n": step.n,
      },
      el("span", { class: "n" }, String(step.n)), el("span", { class: "who" }, step.actor || "·"),
      el("span", {},
        el("div", { class: "line what" }, step.what),
        el("div", { class: "line came" }, glyph(step.look),
          step.violated ? el("span", { class: "badge fail" }, "breaks " + step.violated.map((v) => run.invariants[v].name).join(", ")) : null,
          step.late ? el("span", { class: "badge late" }, step.late === "stale" ? "late: stale token" : "late: lease expired") : null,
          el("span", { class: "line" }, step.answer || (step.changes ? step.changes.join("; ") : step.drain ? "the run's own end" : "")))));
      row.addEventListener("click", () => choose(step.n));
      return row;
    }
    function draw(whole = false) {
      const count = state.visible.length;
      if (whole || count <= WHOLE) { from = 0; to = count; }
      else {
        from = Math.max(0, Math.floor(box.scrollTop / HEIGHT) - 20);
        to = Math.min(count, from + Math.ceil(box.clientHeight / HEIGHT) + 40);
      }
      above.style.height = `${from * HEIGHT}px`;
      below.style.height = `${(count - to) * HEIGHT}px`;
      inner.replaceChildren(...state.visible.slice(from, to).map(rowOf));
      if (!count) inner.replaceChildren(el("p", { class: "note dim" }, "No step fits the filter."));
    }
    box.addEventListener("scroll", () => {
      if (state.visible.length <= WHOLE) return;
      const first = Math.floor(box.scrollTop / HEIGHT);
      if (first < from + 5 && from > 0 || first + box.clientHeight / HEIGHT > to - 5 && to < state.visible.length) draw();
    });
    return {
      draw,
      all() { // a printed page has no scrolling; very long runs print what is around the chosen step
        if (state.visible.length <= 2000) draw(true);
      },
      show(number, scroll) {
        const before = inner.querySelector('[aria-selected="true"]');
        if (before) before.setAttribute("aria-selected", "false");
        const place = state.visible.indexOf(number - 1);
        if (!inner.children.length) draw(); // the box gets its height first: there is nothing to scroll before
        if (place !== -1 && scroll) {
          const top = place * HEIGHT;
          if (top < box.scrollTop) box.scrollTop = top - HEIGHT;
          else if (top + HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight + 2 * HEIGHT;
        }
        if (place !== -1 && (place < from || place >= to)) draw();
        const row = $(`row-${number}`);
        if (row) row.setAttribute("aria-selected", "true");
        box.setAttribute("aria-activedescendant", `row-${number}`);
      },
    };
  }

  function drawLegend() {
    const looks = new Set(run.steps.map((step) => step.look));
    const words = { accepted: "accepted", refused: "refused", stale: "stale write took effect", nothing: "found nothing", held: "held at a checkpoint", blocked: "waits for a lock", cut: "waits for its network", clock: "clock moved", fault: "fault", unknown: "answer lost", error: "error", ignored: "answered yes, changed nothing" };
    const items = Object.entries(words).filter(([look]) => looks.has(look)).map(([look, word]) => el("span", {}, glyph(look), word));
    if (run.leases.length) {
      const sample = (kind, word) => {
        const drawn = svg("svg", { class: "tk1", viewBox: "0 0 26 14" });
        drawn.append(svg("rect", { class: `lease ${kind}`, x: 1, y: 2, width: 24, height: 10, rx: 3 }));
        return el("span", {}, drawn, word);
      };
      items.push(sample("live", "lease, live"));
      const phases = new Set(run.leases.flatMap((lease) => lease.pieces.map((piece) => piece[2])));
      if (phases.has("past")) items.push(sample("past", "lease, past and still recorded"));
      if (phases.has("unused")) items.push(sample("unused", "rest of a lease that ended before its time"));
    }
    $("legend").replaceChildren(...items);
  }
}

function copy(text, button) {
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  const byHand = () => {
    const area = el("textarea", { readonly: true });
    area.value = text;
    document.body.append(area);
    area.select();
    if (document.execCommand("copy")) done();
    area.remove();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, byHand); else byHand();
}

// -- rows at a step: changes are replayed from the nearest kept state ----------------------------------------

const sameEntry = (a, b) => a.job === b.job && a.token === b.token && a.worker === b.worker;
function makeRows(run) {
  const EVERY = 200;
  const keptStates = [{ jobs: new Map(run.first.jobs.map((row) => [row.job, row])), ledger: run.first.ledger }];
  function apply(now, step) {
    for (const [job, row] of step.jobs || []) if (row === null) now.jobs.delete(job); else now.jobs.set(job, row);
    for (const gone of step.ledger_removed || []) {
      const at = now.ledger.findIndex((entry) => sameEntry(entry, gone));
      now.ledger = now.ledger.filter((_, place) => place !== at);
    }
    if (step.ledger_added) now.ledger = now.ledger.concat(step.ledger_added);
  }
  const now = { jobs: new Map(keptStates[0].jobs), ledger: keptStates[0].ledger };
  run.steps.forEach((step, place) => {
    apply(now, step);
    if ((place + 1) % EVERY === 0) keptStates.push({ jobs: new Map(now.jobs), ledger: now.ledger });
  });
  return (number) => { // after step `number`; 0 is before the first
    const base = Math.floor(number / EVERY);
    const found = { jobs: new Map(keptStates[base].jobs), ledger: keptStates[base].ledger };
    for (let place = base * EVERY; place < number; place += 1) apply(found, run.steps[place]);
    return found;
  };
}

// -- inspector ----------------------------------------------------------------------------------------------

const moment = (us) => `${us < 0 ? "−" : "+"}${(Math.abs(us) / 1e6).toFixed(us % 1000 || Math.abs(us) < 1e6 ? 6 : 3)} s`;
function duration(us) {
  const size = Math.abs(us);
  if (size >= 120e6) return `${Math.floor(size / 60e6)} min ${Math.round(size % 60e6 / 1e6)} s`;
  return size >= 1e6 ? `${(size / 1e6).toFixed(3)} s` : `${(size / 1e3).toFixed(3)} ms`;
}

function inspect(run, rowsAt, number) {
  const step = run.steps[number - 1];
  const before = rowsAt(number - 1), after = rowsAt(number);
  const beforeAt = number > 1 ? run.steps[number - 2].at : 0;
  const parts = [el("div", {},
    el("p", { class: "dim small", id: "step-place" }, `Step ${step.n} of ${run.steps.length} · database time ${moment(step.at)}${step.drain ? " · drain: the run's own end" : ""}`),
    el("h2", {}, step.actor ? `${step.actor}: ` : "", step.what),
    step.answer || step.look === "nothing" ? el("p", { class: "came" }, glyph(step.look), step.answer) : null)];
  if (step.broken) parts.push(el("div", { class: "alarm" }, step.broken.map((broken) => el("p", {}, el("strong", {}, `${broken.invariant} broken: `), broken.message, broken.job ? ` (job ${broken.job})` : ""))));
  if (step.late && !step.broken) parts.push(el("p", {}, step.late === "stale"
    ? "A late write: another token was current when it came." : "A late write: its lease had expired when it came."));
  parts.push(section("Operation", operation(run, step)));
  parts.push(section("SQL", (step.statements || []).map(statement)));
  parts.push(section("Locks after this step", locks(step)));
  parts.push(section("Rows before and after", rows(run, step, before, after, beforeAt)));
  parts.push(section("Leases now", leases(step, after)));
  parts.push(section("Invariants", invariants(run, step)));
  parts.push(section(step.line ? `Source, ${step.line}` : "Source", source(run, step)));
  $("inspector").replaceChildren(...parts.filter(Boolean));
  const here = $("inspector").querySelector(".source .here");
  if (here) here.parentElement.scrollTop = here.offsetTop - here.parentElement.offsetTop - 80;
}
function section(title, content) {
  const found = (Array.isArray(content) ? content : [content]).filter(Boolean);
  return found.length ? el("section", { "data-part": title.split(",")[0] }, el("h3", {}, title), found) : null;
}
function pairs(entries) {
  const known = entries.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return known.length ? el("dl", { class: "pairs" }, known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])) : null;
}
const claimWords = (claim) => `job ${claim.job}` + (claim.token === null ? "" : `, token ${claim.token}`) + (claim.until === undefined ? "" : `, until ${moment(claim.until)}`);
function operation(run, step) {
  const reply = step.reply || {};
  return pairs([
    ["operation", step.operation],
    ["known to the queue as", step.worker_name],
    ...(step.arguments || []),
    ["acts under", (step.claims || []).map(claimWords).join("\n")],
    ...(step.detail || []),
    ["clock moved", step.clock && step.clock.moved_s ? `${step.clock.moved_s} s (${step.clock.how})` : undefined],
    ["checkpoints passed", (step.passed || []).join(" → ")],
    ["held at", step.checkpoint],
    ["waits for", (step.blocked_by || []).join(", ")],
    ["outcome", reply.outcome],
    ["reason", reply.reason],
    ["current token", reply.current_token],
    ["answered before", reply.repeated ? "yes: the same answer as the first time" : undefined],
    ["got", (reply.claims || []).map(claimWords).join("\n")],
    ["job", reply.job], ["count", reply.count],
    ["items", (reply.items || []).map((item) => `${item.outcome}${item.reason ? `: ${item.reason}` : ""}`).join("\n")],
    ["error", reply.error], ["message", reply.message],
  ]);
}
function statement(found) {
  const given = (found.parameters || []).map((value, place) => `$${place + 1} = ${value === null ? "NULL" : value}`).join(",  ");
  return el("div", { class: "sql" }, el("pre", {}, found.sql),
    given ? el("p", { class: "mono" }, given) : null,
    el("p", { class: "dim" }, `statement ${found.n} → ${found.answer}${found.pid ? `, backend ${found.pid}` : ""}`));
}
function locks(step) {
  if (!step.locks) return null;
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ["actor", "on", "mode", ""].map((name) => el("th", {}, name)))),
    el("tbody", {}, step.locks.map((lock) => el("tr", {}, el("td", {}, lock.actor), el("td", {}, [lock.type, lock.relation].filter(Boolean).join(" ")), el("td", {}, lock.mode),
      el("td", {}, lock.granted ? "holds it" : el("strong", {}, "waits for it")))))));
}
const TIMES = new Set(["lease_until_us", "next_run_at_us"]);
const FIELD_NAMES = { lease_until_us: "lease until", next_run_at_us: "next run at", max_attempts: "max attempts", requeued_from: "requeued from" };
function shown(field, value) {
  if (value === undefined || value === null) return "–";
  return TIMES.has(field) ? moment(value) : String(value);
}
function rows(run, step, before, after, beforeAt) {
  const changed = new Set((step.jobs || []).map(([job]) => job));
  const every = [...new Set([...before.jobs.keys(), ...after.jobs.keys()])];
  const about = every.length <= 4 ? every : every.filter((job) => changed.has(job) || step.about.includes(job));
  const parts = about.map((job) => {
    const old = before.jobs.get(job), now = after.jobs.get(job);
    const fields = run.fields.filter((field) => (old && old[field] !== undefined) || (now && now[field] !== undefined));
    return el("table", { class: "rows-table" }, el("caption", {}, `job ${job}`, changed.has(job) ? "" : el("span", { class: "dim" }, " · unchanged")),
      el("thead", {}, el("tr", {}, el("th", { class: "field" }, ""), el("th", {}, "before"), el("th", {}, "after"))),
      el("tbody", {}, !now ? el("tr", {}, el("td", { class: "field" }, "row"), el("td", {}, "there"), el("td", { class: "changed" }, "gone"))
        : fields.map((field) => {
          const differs = !old || old[field] !== now[field];
          return el("tr", {}, el("td", { class: "field" }, FIELD_NAMES[field] || field),
            el("td", {}, old ? shown(field, old[field]) : "no row"), el("td", { class: differs ? "changed" : null }, shown(field, now[field])));
        })));
  });
  if (every.length > about.length) parts.push(el("p", { class: "dim small" }, `${every.length - about.length} other jobs did not change.`));
  if (!every.length) parts.push(el("p", { class: "dim" }, "There is no job yet."));
  const mine = (entry) => every.length <= 4 || about.includes(entry.job);
  const words = (entry) => `job ${entry.job}` + (entry.token === null || entry.token === undefined ? "" : `, token ${entry.token}`) + (entry.worker ? `, ${entry.worker}` : "");
  const added = (step.ledger_added || []).length, old = after.ledger.slice(0, after.ledger.length - added).filter(mine);
  const entries = [...old.map((entry) => el("li", {}, words(entry))), ...(step.ledger_added || []).map((entry) => el("li", { class: "added" }, "+ ", words(entry)))];
  const removed = (step.ledger_removed || []).map((entry) => el("li", { class: "removed" }, words(entry)));
  const others = after.ledger.length - added - old.length;
  if (others) entries.push(el("li", {}, `${others} entries of other jobs`));
  parts.push(el("div", {}, el("p", { class: "small" }, el("strong", {}, "ledger"), after.ledger.length ? "" : el("span", { class: "dim" }, " · empty")),
    el("ul", { class: "ledger-entries" }, entries, removed)));
  return parts;
}
function leases(step, after) {
  const told = [];
  for (const row of after.jobs.values()) {
    if (after.jobs.size > 4 && !step.about.includes(row.job)) continue;
    if (row.state !== "leased") { told.push(`job ${row.job}: nobody holds it, it is ${row.state}`); continue; }
    const who = `${row.holder ?? "somebody"}${row.token === undefined ? "" : `, token ${row.token}`}`;
    if (row.lease_until_us === undefined) told.push(`job ${row.job}: ${who}; the rows do not say until when`);
    else if (row.lease_until_us > step.at) told.push(`job ${row.job}: ${who}, live for another ${duration(row.lease_until_us - step.at)} (until ${moment(row.lease_until_us)})`);
    else told.push(`job ${row.job}: ${who}, past since ${duration(step.at - row.lease_until_us)} (it ran until ${moment(row.lease_until_us)})`);
  }
  return told.map((line) => el("div", {}, line));
}
function invariants(run, step) {
  if (!run.invariants.length) return null;
  const broken = new Set(step.violated || []), touched = new Set(step.exercised || []);
  const items = run.invariants.flatMap((invariant, place) =>
    broken.has(place) ? [el("li", { class: "bad" }, glyph("fail"), `${invariant.name} broke`)]
      : touched.has(place) ? [el("li", { class: "held" }, glyph("pass"), invariant.name)] : []);
  const idle = run.invariants.length - items.length;
  return [el("ul", { class: "checks" }, items), idle ? el("p", { class: "dim small" }, `${idle} more hold; this step has nothing they speak about.`) : null];
}
function source(run, step) {
  if (!run.source || !step.line) return null;
  const [file, line] = step.line.split(/:(?=\d+$)/);
  if (file !== run.source.file) return null;
  return el("pre", { class: "source", tabindex: "0" }, run.source.text.split("\n").map((text, place) => {
    const number = run.source.first_line + place;
    return el("span", { class: number === Number(line) ? "here" : null }, el("span", { class: "no" }, String(number)), text || " ");
  }));
}

// -- the space-time diagram ---------------------------------------------------------------------------------
//
// Column n lies between the observations before and after step n; on the axis of time the columns are as wide as the
// step's time, in true scale or compressed. Drawn is what is in sight, at the grain that can be seen.

function makeChart(host, run, options) {
  let GUTTER = 150;
  const HEAD = 34, LANE = 46, LEASE = 24, STRIP = 15, TEXT_FROM = 46, BOX_FROM = 9, MOST_JOBS = 12;
  const N = run.steps.length;
  const stepColumn = []; // column (from 1) of each step on the axis of order: aligned where two runs are compared
  let columns = N;
  if (options.columns) { columns = options.columns.length; options.columns.forEach((place, at) => { if (place !== null) stepColumn[place] = at + 1; }); }
  else for (let place = 0; place < N; place += 1) stepColumn[place] = place + 1;

  const root = svg("svg", { class: "chart", role: "img", "aria-label": `Space-time diagram of ${run.name} on ${run.queue}: ${N} steps, ${run.actors.length} actors` });
  const defs = svg("defs", {});
  const clip = svg("clipPath", { id: `plot-${options.secondary ? 2 : 1}` });
  const clipBox = svg("rect", { y: 0, width: 10, height: 10 });
  clip.append(clipBox);
  defs.append(clip);
  const plot = svg("g", { "clip-path": `url(#plot-${options.secondary ? 2 : 1})` });
  const under = svg("g", {}), drawn = svg("g", {}), gutter = svg("g", {});
  plot.append(under, drawn);
  root.append(defs, plot, gutter);
  if (options.title) host.append(el("h2", {}, options.title, el("span", { class: "dim" }, ` · ${run.verdict}`)));
  host.append(root);

  let width = 0, axis = "order", view = { from: 0, k: 100 }, chosen = null, matching = null, idle = false, knots = [], total = 1, lanes = {}, height = 0;

  // -- where things lie -------------------------------------------------------------------------------------

  const times = run.steps.map((step) => step.at);
  const lastTime = N ? times[N - 1] : 0;
  let horizon = lastTime;
  for (const lease of run.leases) for (const piece of lease.pieces) horizon = Math.max(horizon, piece[1]);
  function widthOf(us) { return .45 + .5 * Math.log10(1 + us / 1000); }
  function layAxis() { // knots[n]: where the observation after step n lies; knots[0]: the one before the first
    knots = [0];
    let tail;
    if (axis === "order") {
      for (let n = 1; n <= N; n += 1) knots.push(stepColumn[n - 1]);
      tail = options.columns || horizon > lastTime ? .75 : .1;
      total = Math.max(columns, N ? knots[N] : 1) + tail;
    } else if (axis === "time") {
      for (let n = 1; n <= N; n += 1) knots.push(knots[n - 1] + widthOf(times[n - 1] - (n > 1 ? times[n - 2] : 0)));
      total = knots[N] + (horizon > lastTime ? Math.min(1.5, widthOf(horizon - lastTime)) : .1);
    } else {
      const unit = (horizon || 1) / Math.max(N, 6);
      for (let n = 1; n <= N; n += 1) knots.push(times[n - 1] / unit);
      total = Math.max((horizon || 1) / unit, .1) * 1.01;
    }
  }
  function ofTime(us) {
    if (us <= 0) return 0;
    if (us >= lastTime) return horizon > lastTime ? knots[N] + (us - lastTime) / (horizon - lastTime) * (total - knots[N]) * .97 : knots[N];
    let low = 0, high = N - 1; // the first step whose time is not before `us`
    while (low < high) { const mid = (low + high) >> 1; if (times[mid] < us) low = mid + 1; else high = mid; }
    const from = low ? times[low - 1] : 0, to = times[low];
    const start = spanStart(low + 1);
    return to > from ? start + (us - from) / (to - from) * (knots[low + 1] - start) : knots[low + 1];
  }
  function spanStart(n) { return axis === "order" ? knots[n] - 1 : knots[n - 1]; }
  const middle = (n) => n === 0 ? 0 : (spanStart(n) + knots[n]) / 2;
  const px = (unit) => GUTTER + (unit - view.from) * view.k;
  const unitAt = (x) => view.from + (x - GUTTER) / view.k;

  const touched = run.invariants.map((invariant, place) => invariant.exercised > 0 || run.violations.some((v) => v.invariant === invariant.name) || run.steps.some((step) => (step.violated || []).includes(place)));
  const jobsWithLeases = [...new Set(run.leases.map((lease) => lease.job))];
  // Few jobs have a lane each. Many share lanes: a lease takes the first one that is free.
  const pooled = jobsWithLeases.length > MOST_JOBS;
  const rowOf = new Map(), poolEnds = [];
  if (pooled) for (const lease of run.leases) {
    let row = poolEnds.findIndex((end) => end <= lease.from);
    if (row === -1) row = poolEnds.length;
    poolEnds[row] = lease.ended ?? Infinity;
    rowOf.set(lease, row);
  }
  const poolRows = Math.min(MOST_JOBS, poolEnds.length), unpooled = pooled ? run.leases.filter((lease) => rowOf.get(lease) >= MOST_JOBS).length : 0;
  const shownJobs = pooled ? [] : jobsWithLeases;
  let strip = [];
  function layLanes() {
    lanes = { actor: {}, job: {} };
    let y = HEAD;
    lanes.fault = y; y += LANE - 8;
    for (const actor of run.actors) { lanes.actor[actor.name] = y; y += LANE; }
    lanes.rows = y; y += LANE;
    for (const job of shownJobs) {
      lanes.job[job] = y; y += LEASE + 6;
    }
    if (pooled) { lanes.pool = y; y += poolRows * LEASE + 6; }
    strip = run.invariants.map((_, place) => place).filter((place) => idle || touched[place]);
    lanes.strip = y + 6; y += strip.length ? strip.length * STRIP + 16 : 4;
    height = y;
  }

  // -- drawing ----------------------------------------------------------------------------------------------

  function letters(text, room, each = 6.4) {
    const fits = Math.floor(room / each);
    if (text.length <= fits) return text;
    return fits < 3 ? "" : `${text.slice(0, fits - 1)}…`;
  }
  function tokenClass(token) { return token === null || token === undefined ? "" : `tk${((token % 6) + 6) % 6}`; }
  function icon(group, name, x, y, className) {
    const used = svg("use", { href: `#g-${name}`, x, y, width: 13, height: 13, class: className });
    group.append(used);
  }

  function draw() {
    if (!width) return;
    layAxisOnce();
    root.setAttribute("viewBox", `0 0 ${width} ${height}`);
    root.setAttribute("height", height);
    clipBox.setAttribute("x", GUTTER);
    clipBox.setAttribute("width", Math.max(10, width - GUTTER));
    clipBox.setAttribute("height", height);
    drawn.replaceChildren();
    const from = unitAt(GUTTER) - 1.2, to = unitAt(width) + 1.2;
    const seen = range(from, to);
    drawFrame();
    drawBands(seen);
    if (grain() < BOX_FROM) drawMarks(seen); else { drawBeliefs(from, to); drawBoxes(seen); }
    drawLeases(from, to);
    drawArrows(from, to);
    drawStrip(seen);
    drawHead(seen);
    drawGutter();
    drawChosen();
  }
  let laid = null;
  function layAxisOnce() { if (laid !== axis) { layAxis(); laid = axis; } }
  function grain() { return N ? view.k * (axis === "order" ? 1 : total / Math.max(N, 1)) : view.k; }
  function range(from, to) { // steps whose column is in sight
    let first = 1, last = N;
    while (first <= N && knots[first] < from) first += 1;
    while (last >= 1 && spanStart(last) > to) last -= 1;
    return [first, last];
  }
  function drawFrame() {
    const line = (y, kind) => drawn.append(svg("line", { class: kind, x1: 0, x2: width, y1: y, y2: y }));
    line(HEAD, "group-line");
    for (const actor of run.actors) line(lanes.actor[actor.name], "lane-line");
    line(lanes.rows, "group-line");
    for (const job of shownJobs) line(lanes.job[job], "lane-line");
    if (pooled) line(lanes.pool, "lane-line");
    if (strip.length) line(lanes.strip - 6, "group-line");
  }
  function drawBands([first, last]) {
    const drains = run.steps.findIndex((step) => step.drain);
    if (drains !== -1 && N) {
      const x = px(spanStart(drains + 1));
      drawn.append(svg("rect", { class: "drain", x, y: HEAD, width: Math.max(0, px(knots[N]) - x), height: height - HEAD }));
    }
    for (const step of run.steps) {
      if (!step.violated || step.n < first || step.n > last) continue;
      const x = px(spanStart(step.n)), wide = Math.max(3, px(knots[step.n]) - x);
      drawn.append(svg("rect", { class: "broken-band", x, y: HEAD, width: wide, height: height - HEAD }));
      for (const edge of [x, x + wide]) drawn.append(svg("line", { class: "broken-edge", x1: edge, x2: edge, y1: HEAD - 8, y2: height }));
    }
    if (grain() >= BOX_FROM) for (let n = first; n <= last; n += 1) { // a fault reaches down to whom it hits
      const step = run.steps[n - 1];
      if (step.kind !== "clock" && step.kind !== "fault") continue;
      const hit = step.actor && lanes.actor[step.actor] !== undefined ? lanes.actor[step.actor] + LANE - 4 : lanes.strip - 6;
      const at = px(middle(n));
      drawn.append(svg("line", { class: step.kind === "clock" ? "clock-line" : "strike", x1: at, x2: at, y1: lanes.fault + 10, y2: hit }));
    }
    if (options.split !== null && options.split !== undefined && axis === "order") {
      const x = px(options.split);
      drawn.append(svg("line", { class: "split", x1: x, x2: x, y1: 0, y2: height }));
    }
  }
  const dimmed = (n) => matching && !matching.has(n - 1) ? " dimmed" : "";

  function drawBoxes([first, last]) {
    const tall = LANE - 10;
    for (const call of run.calls) {
      const y = lanes.actor[call.actor] + 5;
      const parts = call.parts;
      if (parts[parts.length - 1][0] < first && !call.open || parts[0][0] > last) continue;
      for (let place = 0; place < parts.length; place += 1) {
        const [n, status, checkpoint] = parts[place];
        const waits = status !== "answered";
        if (waits) { // from here to the step in which it moves again, or to the end of the run
          const until = place + 1 < parts.length ? spanStart(parts[place + 1][0]) : N ? knots[N] : 0;
          const x1 = px(knots[n]) - 4, x2 = px(until) + 4;
          if (x2 - x1 > 10) {
            drawn.append(svg("rect", { class: `wait ${status === "parked" ? "held" : status === "blocked" ? "blocked" : "cut"}${dimmed(n)}`, x: x1, y: y + tall / 2 - 7, width: x2 - x1, height: 14 }));
            const words = letters(status === "parked" ? (/^(before|after) /.test(checkpoint) ? `held ${checkpoint}` : `held at ${checkpoint}`) : status === "blocked" ? "waits for a lock" : "waits for its network", x2 - x1 - 12, 6);
            if (words) drawn.append(svg("text", { class: "minor haloed", x: (Math.max(x1, GUTTER) + Math.min(x2, width)) / 2, y: y + tall / 2 + 4, "text-anchor": "middle" }, words));
          }
        }
        if (n >= first && n <= last) drawBox(run.steps[n - 1], y, tall);
      }
    }
    for (let n = first; n <= last; n += 1) {
      const step = run.steps[n - 1];
      if (step.operation) { drawChange(step); continue; }
      if (step.kind === "exit" && step.actor) drawBox(step, lanes.actor[step.actor] + 5, tall);
      else if (step.kind === "end") drawBox(step, lanes.rows + 5, tall);
      else drawFault(step);
      if (step.kind !== "end") drawChange(step);
    }
  }
  function drawBeliefs(from, to) { // from its claim to its last word under it, an actor takes the job for its own
    for (const [actor, token, first, last, lostUs] of run.beliefs) {
      if (knots[last] < from || spanStart(first) > to) continue;
      const y = lanes.actor[actor] + LANE / 2, x1 = px(knots[first]), x2 = px(spanStart(last));
      if (x2 - x1 < 8) continue;
      const turn = lostUs === null ? x2 : Math.min(Math.max(px(ofTime(lostUs)), x1), x2);
      if (turn > x1) drawn.append(svg("line", { class: `belief ${tokenClass(token)}`, x1, x2: turn, y1: y, y2: y }));
      if (turn >= x2) continue;
      drawn.append(svg("line", { class: `belief lost ${tokenClass(token)}`, x1: turn + 3, x2: x2 - 3, y1: y, y2: y }));
      const left = Math.max(turn, GUTTER), right = Math.min(x2, width);
      if (run.calls.some((call) => call.actor === actor && call.parts[0][0] > first && call.parts[0][0] < last)) continue;
      const words = token === null ? "its lease is lost" : [`still believes in token ${token}`, `believes in ${token}`].find((each) => each.length * 6.2 < right - left - 24);
      if (!words) continue;
      drawn.append(svg("rect", { class: "belief-plate", x: (left + right) / 2 - words.length * 3.1 - 4, y: y - 9, width: words.length * 6.2 + 8, height: 18, rx: 4 }));
      drawn.append(svg("text", { class: "minor", x: (left + right) / 2, y: y + 4, "text-anchor": "middle" }, words));
    }
  }
  function sides(n) {
    const x1 = px(spanStart(n)), x2 = px(knots[n]), gap = Math.min(4, (x2 - x1) / 8);
    const wide = Math.max(3, x2 - x1 - 2 * gap);
    return [x1 + gap, wide];
  }
  function drawBox(step, y, tall) {
    const [x, wide] = sides(step.n);
    const group = svg("g", { class: dimmed(step.n).trim(), "data-step": step.n });
    group.append(svg("title", {}, `step ${step.n}: ${step.actor ? `${step.actor}: ` : ""}${step.what}${step.answer ? ` → ${step.answer}` : ""}`));
    group.append(svg("rect", { class: `op ${step.look}${step.violated ? " broken" : ""}`, x, y, width: wide, height: tall, rx: 6 }));
    const claim = (step.claims || (step.reply && step.reply.claims) || [])[0];
    if (claim && claim.token !== null && wide > 12) group.append(svg("rect", { class: `token-tab ${tokenClass(claim.token)}`, x: x + 1, y: y + 4, width: 4, height: tall - 8, rx: 2 }));
    const on = step.look === "stale" ? " on-stale" : "";
    if (wide >= TEXT_FROM) {
      const left = x + 10;
      const name = step.operation ? `${step.call && run.steps[step.n - 1].what.startsWith("…") ? "… " : ""}${step.operation}` : step.kind === "exit" ? "leaves" : "end";
      group.append(svg("text", { class: `strong${on}`, x: left, y: y + 15 }, letters(name, wide - 14, 6.9)));
      icon(group, step.look, left - 1, y + 20, `glyph-ink${on}`);
      group.append(svg("text", { class: `minor${on}`, x: left + 16, y: y + 30 }, step.look === "stale" ? [`STALE: ${step.answer}`, "STALE WRITE", "STALE"].find((words) => words.length * 7.4 < wide - 24) || "" : letters(shortAnswer(step), wide - 28, 5.8)));
    } else if (wide > 14) icon(group, step.look, x + wide / 2 - 6, y + tall / 2 - 7, `glyph-ink${on}`);
    drawn.append(group);
  }
  function shortAnswer(step) {
    if (step.look === "held") {
      const statement = /^(?:before|after) statement (\d+) \((.*)\)$/.exec(step.checkpoint || "");
      return statement ? `${statement[1]} ${statement[2]}` : step.checkpoint || "held";
    }
    if (step.look === "blocked") return `waits for ${(step.blocked_by || []).join(", ")}`;
    const got = (step.reply && step.reply.claims) || [];
    if (got.length === 1 && got[0].token !== null && jobsWithLeases.length <= 1) return `token ${got[0].token}`;
    if (step.look === "refused") {
      const claim = (step.claims || [])[0], reply = step.reply || {};
      if (claim && reply.current_token !== undefined && claim.token !== null && claim.token !== reply.current_token) return `refused: ${claim.token} ≠ ${reply.current_token}`;
    }
    return step.answer;
  }
  function drawFault(step) {
    const [x, wide] = sides(step.n), y = lanes.fault + 4, tall = LANE - 18;
    const group = svg("g", { class: dimmed(step.n).trim(), "data-step": step.n });
    group.append(svg("title", {}, `step ${step.n}: ${step.what}`));
    group.append(svg("rect", { class: `op ${step.kind}`, x, y, width: wide, height: tall, rx: step.kind === "fault" ? 0 : 14 }));
    const on = step.kind === "fault" ? " on-fault" : "";
    if (wide >= TEXT_FROM) {
      icon(group, step.look, x + 8, y + tall / 2 - 6, `glyph-ink${on}`);
      const words = step.clock ? (step.clock.moved_s ? `${step.clock.moved_s > 0 ? "+" : ""}${step.clock.moved_s.toFixed(1)} s` : step.clock.how) : `${step.fault}${step.actor ? ` ${step.actor}` : ""}`;
      group.append(svg("text", { class: `strong${on}`, x: x + 25, y: y + tall / 2 + 4 }, letters(words, wide - 32, 6.9)));
    } else if (wide > 14) icon(group, step.look, x + wide / 2 - 6, y + tall / 2 - 6, `glyph-ink${on}`);
    drawn.append(group);
  }
  function drawChange(step) {
    if (!step.changes) return;
    const [x, wide] = sides(step.n), y = lanes.rows + 5, tall = LANE - 10;
    const group = svg("g", { class: dimmed(step.n).trim(), "data-step": step.n });
    group.append(svg("title", {}, step.changes.join("\n")));
    group.append(svg("rect", { class: "change", x, y, width: wide, height: tall, rx: 3 }));
    if (wide >= TEXT_FROM) {
      const one = jobsWithLeases.length <= 1;
      const lines = step.changes.map((words) => one ? words.replace(/^job [^:]*: /, "").replace(/^(ledger [+-]) \(job [^,)]*, /, "$1 (") : words);
      const shownLines = lines.length > 2 ? [lines[0], `and ${lines.length - 1} more`] : lines;
      shownLines.forEach((words, at) => group.append(svg("text", { class: "minor", x: x + 6, y: y + (shownLines.length === 1 ? 22 : 15 + 14 * at) }, letters(words, wide - 9, 5.7))));
    }
    drawn.append(group);
  }

  // far away: one path per lane and look; what is rare and bad is drawn last, so it is never hidden
  const RANK = ["other", "accepted", "change", "wait", "clock", "refused", "fault", "stale"];
  const MARK = { accepted: "accepted", refused: "refused", error: "refused", stale: "stale", held: "wait", blocked: "wait", cut: "wait", clock: "clock", fault: "fault" };
  function drawMarks([first, last]) {
    const paths = new Map();
    const filled = new Map(); // lane and look → right edge of the last mark, so that marks on one pixel are drawn once
    const mark = (lane, y, tall, kind, x, wide) => {
      const key = `${lane} ${kind}`, edge = filled.get(key) ?? -1;
      if (x + wide <= edge) return;
      filled.set(key, x + wide);
      const d = `M${x.toFixed(1)} ${y}h${wide.toFixed(1)}v${tall}h${(-wide).toFixed(1)}z`;
      const known = paths.get(key);
      if (known) known.d.push(d); else paths.set(key, { kind, d: [d] });
    };
    for (let n = first; n <= last; n += 1) {
      if (matching && !matching.has(n - 1)) continue;
      const step = run.steps[n - 1], x = Math.floor(px(spanStart(n))), wide = Math.max(1.5, px(knots[n]) - px(spanStart(n)));
      const kind = step.violated ? "stale" : MARK[step.look] || "other";
      if (step.actor && lanes.actor[step.actor] !== undefined && step.kind !== "fault") mark(step.actor, lanes.actor[step.actor] + 8, LANE - 16, kind, x, step.violated ? Math.max(4, wide) : wide);
      else if (step.kind !== "end") mark("fault", lanes.fault + 6, LANE - 20, kind, x, wide);
      if (step.changes) mark("rows", lanes.rows + 12, LANE - 24, "change", x, wide);
    }
    for (const { kind, d } of [...paths.values()].sort((a, b) => RANK.indexOf(a.kind) - RANK.indexOf(b.kind))) drawn.append(svg("path", { class: `mark-${kind}`, d: d.join("") }));
  }

  let leasesHidden = 0;
  function drawLeases(from, to) {
    leasesHidden = 0;
    let lastEdge = {};
    for (const lease of run.leases) {
      const row = pooled ? rowOf.get(lease) : 0;
      if (pooled && row >= MOST_JOBS) continue;
      const top = pooled ? lanes.pool : lanes.job[lease.job];
      const start = lease.step ? middle(lease.step) : 0;
      const stop = lease.ended_step ? middle(lease.ended_step) : null;
      const reach = Math.max(...lease.pieces.map((piece) => ofTime(piece[1])), stop ?? 0);
      if (reach < from || start > to) continue;
      const y = top + 4 + row * LEASE, tall = LEASE - 5;
      const x0 = px(start);
      if (stop !== null && px(stop) - x0 < 1.5 && x0 - (lastEdge[y] ?? -9) < 1.5) { leasesHidden += 1; continue; }
      lastEdge[y] = x0;
      const group = svg("g", { class: tokenClass(lease.token), "data-lease": `${lease.job}/${lease.token}` });
      group.append(svg("title", {}, `job ${lease.job}: ${lease.holder ?? "?"}'s lease${lease.token === null ? "" : `, token ${lease.token}`}, from ${moment(lease.from)}${lease.until === null ? "" : ` until ${moment(lease.until)}`}${lease.renewals.length ? `, ${lease.renewals.length} renewals` : ""}${lease.how ? `; ended: ${lease.how}` : ""}`));
      let widest = null;
      for (const [fromUs, toUs, phase] of lease.pieces) {
        if (pooled && phase === "unused") continue; // the lane is somebody else's by then
        let x1 = fromUs === lease.from ? x0 : fromUs === lease.ended && stop !== null ? px(stop) : px(ofTime(fromUs));
        let x2 = toUs === lease.ended && stop !== null ? px(stop) : px(ofTime(toUs));
        x1 = Math.max(x1, x0);
        if (x2 - x1 < .5) x2 = x1 + .5;
        const inset = phase === "live" || phase === "open" ? 0 : 3;
        group.append(svg("rect", { class: `lease ${phase}`, x: x1, y: y + inset, width: x2 - x1, height: tall - 2 * inset, rx: inset ? 2 : 4 }));
        if ((phase === "live" || phase === "open") && (!widest || x2 - x1 > widest[1] - widest[0])) widest = [x1, x2];
        if (phase === "live" && toUs === lease.until) group.append(svg("line", { class: "expiry", x1: x2, x2, y1: y - 2, y2: y + tall + 2 }));
      }
      for (const [n] of lease.renewals) { const at = px(middle(n)); if (at > GUTTER) group.append(svg("line", { class: "renewal", x1: at, x2: at, y1: y + 2, y2: y + tall - 2 })); }
      if (widest) {
        const x1 = Math.max(widest[0], GUTTER), room = Math.min(widest[1], width) - x1 - 12;
        const whose = pooled ? `job ${lease.job}: ` : "";
        const words = [`${whose}${lease.holder ?? "?"}, token ${lease.token ?? "–"}${lease.renewals.length ? `, renewed ${lease.renewals.length}×` : ""}`, `${whose}${lease.holder ?? "?"}, token ${lease.token ?? "–"}`, `${lease.holder ?? "?"} ${lease.token ?? ""}`].find((each) => each.length * 6.6 <= room);
        if (words) group.append(svg("text", { class: "on-lease", x: x1 + 7, y: y + tall / 2 + 4 }, words));
      }
      drawn.append(group);
    }
  }
  function drawArrows(from, to) {
    if (grain() < BOX_FROM) return;
    for (const [n, holder, blocked] of run.arrows) {
      const x = px(knots[n]) - Math.min(18, view.k / 6);
      if (knots[n] < from || knots[n] > to || lanes.actor[holder] === undefined) continue;
      const down = lanes.actor[holder] < lanes.actor[blocked];
      const y1 = lanes.actor[holder] + LANE / 2 + (down ? 8 : -8), tip = lanes.actor[blocked] + (down ? 4 : LANE - 4), back = down ? -9 : 9;
      const group = svg("g", { "data-arrow": `${holder}-${blocked}` });
      group.append(svg("title", {}, `${holder} holds a lock ${blocked} waits for`));
      group.append(svg("line", { class: "arrow", x1: x, x2: x, y1, y2: tip + back / 2 }));
      group.append(svg("circle", { class: "arrow-head", cx: x, cy: y1, r: 4 }));
      group.append(svg("path", { class: "arrow-head", d: `M${x - 6} ${tip + back}h12L${x} ${tip}z` }));
      if (view.k > 70) group.append(svg("text", { class: "minor", x: x + 8, y: tip + (down ? -8 : 14) }, `${holder}'s lock`));
      drawn.append(group);
    }
  }
  function drawStrip([first, last]) {
    const coarse = grain() < 4;
    strip.forEach((place, at) => {
      const y = lanes.strip + at * STRIP, d = { held: [], idle: [], broken: [] };
      let edge = { held: -1, idle: -1, broken: -1 };
      for (let n = first; n <= last; n += 1) {
        const step = run.steps[n - 1];
        const kind = (step.violated || []).includes(place) ? "broken" : (step.exercised || []).includes(place) ? "held" : "idle";
        const x1 = px(spanStart(n)), x2 = px(knots[n]);
        if (coarse && kind === "idle") continue;
        if (kind === "idle") { const x = (x1 + x2) / 2; d.idle.push(`M${x - 2} ${y + STRIP / 2 - 2}h4v4h-4z`); continue; }
        const wide = Math.max(kind === "broken" ? 4 : 1, Math.min(x2 - x1 - Math.min(6, (x2 - x1) / 4), kind === "broken" ? 1e9 : 44)), gap = (x2 - x1 - wide) / 2;
        if (x1 + wide <= edge[kind]) continue;
        edge[kind] = x1 + wide;
        const inset = kind === "broken" ? 0 : 3;
        d[kind].push(`M${(x1 + gap).toFixed(1)} ${y + inset}h${wide.toFixed(1)}v${STRIP - 1 - 2 * inset}h${(-wide).toFixed(1)}z`);
        if (kind === "broken" && wide > 12) {
          const x = x1 + gap + wide / 2, middleY = y + STRIP / 2 - .5;
          crosses.push(svg("path", { class: "cell-cross", d: `M${x - 3} ${middleY - 3}l6 6m0-6l-6 6` }));
        }
      }
      for (const kind of ["idle", "held", "broken"]) if (d[kind].length) drawn.append(svg("path", { class: `cell-${kind}`, "data-invariant": run.invariants[place].name, d: d[kind].join("") }));
    });
    drawn.append(...crosses.splice(0));
  }
  const crosses = [];
  function drawHead([first, last]) {
    const room = Math.max(1, Math.ceil((axis === "scale" ? 64 : 34) / Math.max(grain(), .01)));
    let edge = -1e9;
    for (let n = first; n <= last; n += 1) {
      const step = run.steps[n - 1];
      const x = (px(spanStart(n)) + px(knots[n])) / 2;
      const every = room === 1 || n % room === 0;
      if (!every && !step.violated) continue;
      if (axis !== "order" && x - edge < 22 && !step.violated) continue;
      edge = x;
      drawn.append(svg("text", { class: step.violated ? "broken-word" : "minor", x, y: axis === "order" ? 22 : 14, "text-anchor": "middle" }, String(n)));
    }
    if (axis !== "order") {
      let right = -1e9;
      for (let n = Math.max(0, first - 1); n <= last; n += 1) {
        const x = px(knots[n]), words = n === 0 ? "0" : `${(times[n - 1] / 1e6).toFixed(times[n - 1] < 1e6 ? 4 : 3)} s`;
        if (x - right < words.length * 6 + 10 || x < GUTTER) continue;
        right = x;
        drawn.append(svg("line", { class: "group-line", x1: x, x2: x, y1: 26, y2: HEAD }));
        drawn.append(svg("text", { class: "minor", x: n === 0 ? x + 2 : x, y: 28, "text-anchor": n === 0 ? "start" : "middle" }, words));
      }
      if (horizon > lastTime) drawn.append(svg("text", { class: "minor", x: Math.min(px(ofTime(horizon)), width - 4), y: 28, "text-anchor": "end" }, `${(horizon / 1e6).toFixed(1)} s`));
    }
    const broken = run.steps.find((step) => step.violated);
    if (broken && broken.n >= first && broken.n <= last) {
      const x = px(knots[broken.n]), words = `${run.violations.length ? mostTelling() : ""} broken here`;
      const fitsRight = x + words.length * 7.6 < width;
      drawn.append(svg("text", { class: "broken-word", x: fitsRight ? x + 4 : px(spanStart(broken.n)) - 4, y: 12, "text-anchor": fitsRight ? "start" : "end" }, words));
    }
    if (options.split !== null && options.split !== undefined && axis === "order") {
      const x = px(options.split);
      if (x > GUTTER && x < width) drawn.append(svg("text", { class: "split-word", x: x + 4, y: broken && broken.n - 1 === options.split ? 31 : 12 }, "first divergence"));
    }
    const drains = run.steps.find((step) => step.drain);
    if (drains && grain() >= BOX_FROM) drawn.append(svg("text", { class: "minor", x: px(spanStart(drains.n)) + 4, y: 12 }, letters("the run's own end", (knots[N] - spanStart(drains.n)) * view.k, 6)));
  }
  function mostTelling() { const found = /^(\w+) broken at step/.exec(run.headline); return found ? found[1] : run.violations[0].invariant; }
  function drawGutter() {
    gutter.replaceChildren(svg("rect", { class: "gutter", x: 0, y: 0, width: GUTTER, height }));
    gutter.append(svg("line", { class: "group-line", x1: GUTTER, x2: GUTTER, y1: 0, y2: height }));
    const word = (x, y, text, kind) => {
      const made = svg("text", { class: kind, x: width < 560 ? 6 : x, y }, letters(text, GUTTER - (width < 560 ? 8 : 18), kind === "broken-word" ? 6.7 : 6));
      made.append(svg("title", {}, text));
      gutter.append(made);
    };
    word(16, 22, axis === "order" ? "step" : "database time", "minor");
    word(16, lanes.fault + 23, "clock and faults", "minor");
    for (const actor of run.actors) {
      word(16, lanes.actor[actor.name] + 22, actor.name, "strong");
      word(16, lanes.actor[actor.name] + 36, actor.role, "minor");
    }
    word(16, lanes.rows + 22, "database", "strong");
    word(16, lanes.rows + 36, "rows that changed", "minor");
    for (const job of shownJobs) word(16, lanes.job[job] + 19, `lease of job ${job}`, "minor");
    if (pooled) word(16, lanes.pool + 19, "leases", "minor");
    strip.forEach((place, at) => word(16, lanes.strip + at * STRIP + 11, run.invariants[place].name, run.steps.some((step) => (step.violated || []).includes(place)) ? "broken-word" : "minor"));
  }
  function drawChosen() {
    under.replaceChildren();
    if (chosen === null || !width) return;
    const x1 = px(spanStart(chosen)), x2 = px(knots[chosen]), wide = Math.max(4, x2 - x1);
    under.append(svg("rect", { class: "chosen", x: x1, y: HEAD, width: wide, height: Math.max(0, height - HEAD) }));
    const pill = Math.max(30, 16 + 8 * String(chosen).length);
    const head = svg("rect", { class: "chosen-head", x: (x1 + x2) / 2 - pill / 2, y: axis === "order" ? 8 : 1, width: pill, height: 19, rx: 9 });
    under.append(head);
    drawn.querySelectorAll(".chosen-number").forEach((old) => old.remove());
    drawn.append(svg("text", { class: "chosen-number", x: (x1 + x2) / 2, y: axis === "order" ? 22 : 14.5, "text-anchor": "middle" }, String(chosen)));
  }

  // -- moving about -----------------------------------------------------------------------------------------

  function bound() {
    const room = (width - GUTTER) / view.k;
    view.from = total <= room ? 0 : Math.min(Math.max(0, view.from), total - room);
  }
  function setView(next, quiet) { view = { ...next }; bound(); draw(); if (!quiet) options.onView(view); }
  const least = () => (width - GUTTER) / total;
  function zoomAt(by, at) {
    const unit = unitAt(at);
    const k = Math.min(Math.max(view.k * by, least()), Math.max(axis === "scale" ? 2e6 : 400, least()));
    setView({ from: unit - (at - GUTTER) / k, k });
  }
  function initial() {
    layLanes();
    layAxisOnce();
    const comfortable = width < 560 ? 74 : axis === "order" ? 108 : 84;
    view.k = Math.max(least(), comfortable);
    if (axis === "scale") view.k = least();
    if (axis === "order") view.k = Math.min(Math.max(view.k, least()), 210);
    if (chosen !== null) view.from = middle(chosen) - (width - GUTTER) / view.k / 2;
    bound();
  }
  let frame = 0;
  const soon = (act) => { cancelAnimationFrame(frame); frame = requestAnimationFrame(act); };
  let drag = null;
  root.addEventListener("pointerdown", (event) => { if (event.button === 0) { drag = { x: event.clientX, from: view.from, far: false }; root.setPointerCapture(event.pointerId); } });
  root.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 4) { drag.far = true; root.classList.add("moving"); }
    if (drag.far) soon(() => drag && setView({ from: drag.from - by / view.k, k: view.k }));
  });
  root.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.far;
    drag = null;
    root.classList.remove("moving");
    if (!clicked) return;
    const unit = unitAt((event.clientX - root.getBoundingClientRect().left) * width / root.getBoundingClientRect().width);
    for (let n = 1; n <= N; n += 1) if (unit >= spanStart(n) && unit < knots[n]) { options.onChoose(n); return; }
  });
  root.addEventListener("pointercancel", () => { drag = null; root.classList.remove("moving"); });
  root.addEventListener("wheel", (event) => {
    const box = root.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); const at = Math.max(GUTTER, event.clientX - box.left); soon(() => zoomAt(Math.exp(-event.deltaY / 300), at)); return; }
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) { event.preventDefault(); soon(() => setView({ from: view.from + sideways / view.k, k: view.k })); }
  }, { passive: false });

  return {
    resize(next) { const first = width === 0; width = Math.max(320, next); GUTTER = width < 560 ? 96 : 150; if (first) initial(); else { view.k = Math.max(view.k, least()); layLanes(); bound(); } draw(); },
    setAxis(next) { axis = next; laid = null; initial(); draw(); },
    setView(next) { setView(next, true); },
    zoom(by) { zoomAt(by, chosen === null ? GUTTER + (width - GUTTER) / 2 : Math.min(Math.max(px(middle(chosen)), GUTTER), width)); },
    fit() { layAxisOnce(); setView({ from: 0, k: least() }); },
    showIdle(next) { idle = next; layLanes(); draw(); },
    match(places) { matching = places; draw(); },
    choose(number, scroll) {
      chosen = number;
      if (!width) return;
      if (number !== null && scroll) {
        const x1 = px(spanStart(number)), x2 = px(knots[number]);
        if (x1 < GUTTER || x2 > width) { setView({ from: middle(number) - (width - GUTTER) / view.k / 2, k: view.k }); return; }
      }
      drawChosen();
    },
    leftOut() {
      const told = [];
      const each = grain();
      if (N && each < BOX_FROM) told.push(`Zoomed out: ${N.toLocaleString("en")} steps in ${Math.round(width - GUTTER)} pixels${each < 1 ? `, a mark stands for up to ${Math.ceil(1.5 / each)} steps` : ""}; texts and arrows are left out, broken and refused steps are drawn on top. Zoom in for the rest.`);
      if (leasesHidden) told.push(`${leasesHidden.toLocaleString("en")} leases too short to see at this zoom are left out.`);
      if (unpooled) told.push(`${unpooled.toLocaleString("en")} leases that lie beside ${MOST_JOBS} others are left out; the step list has them all.`);
      const quiet = touched.filter((is) => !is).length;
      if (quiet && !idle) told.push(`${quiet} invariants that held with nothing to judge are not in the strip (All invariants shows them).`);
      if (axis === "time") told.push("Time between two steps is compressed (logarithmically); the labels are exact.");
      return told;
    },
  };
}

if ($("runs")) indexPage(); else runPage(JSON.parse($("data").textContent));
})();
