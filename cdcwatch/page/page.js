"use strict";
// Asks /status once a second while somebody looks, and writes what it says into the page. Nothing is kept anywhere.
(() => {
  const EVERY_MS = 1000, ANSWER_MS = 8000, SPARKS = 90;
  const by = (id) => document.getElementById(id);
  const at = (root, name) => root.querySelector(`[data-at="${name}"]`);
  const history = {};
  let paused = false, timer = 0, said = null, since = null;

  // -- words -------------------------------------------------------------------------------------------------------

  const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
  const tenth = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
  const count = (n) => n == null ? "–" : whole.format(n);
  const rate = (n) => n == null ? "–" : n !== 0 && n < 10 ? tenth.format(n) : whole.format(n);
  const bytes = (n) => {
    if (n == null) return "unknown";
    let unit = 0;
    for (; Math.abs(n) >= 1024 && unit < 5; unit++) n /= 1024;
    return `${unit && n < 100 ? tenth.format(n) : whole.format(n)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
  };
  const duration = (s) => {
    if (s == null) return "–";
    const a = Math.abs(s);
    if (a < 1e-9) return "0 ms";
    if (a < 0.01) return `${tenth.format(s * 1e3)} ms`;
    if (a < 1) return `${whole.format(s * 1e3)} ms`;
    if (a < 60) return `${tenth.format(s)} s`;
    const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const place = parts.findIndex(([size]) => a >= size), [size, name] = parts[place], left = Math.round(a);
    const more = parts[place + 1], rest = more ? Math.floor(left % size / more[0]) : 0;
    return `${s < 0 ? "−" : ""}${whole.format(Math.floor(left / size))} ${name}${rest ? ` ${rest} ${more[1]}` : ""}`;
  };
  const bound = (s) => s == null ? "more" : s < 1 ? `${+(s * 1e3).toFixed(1)} ms` : `${s} s`;
  const clock = (instant) => /^\d{4}-/.test(instant) ? `${instant.slice(5, 10)} ${instant.slice(11, 21)}` : instant;
  const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

  // -- writing -----------------------------------------------------------------------------------------------------

  const write = (node, text) => { if (node.textContent !== text) node.textContent = text; };
  const state = (node, is, text) => {
    node.classList.toggle("good", is === "good");
    node.classList.toggle("bad", is === "bad");
    if (!node.querySelector(".sign")) node.replaceChildren(element("span", "sign"), " ", element("span", "words"));
    node.querySelector(".sign").setAttribute("aria-hidden", "true");
    write(node.querySelector(".sign"), is === "good" ? "✓" : is === "bad" ? "!" : "…");
    write(node.querySelector(".words"), text);
  };
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text != null) made.textContent = text;
    return made;
  };
  // What a term needs more words for, to be read by pointing at it.
  const TITLES = {
    "in flight": "read from the slot, not yet acknowledged by the broker",
    "replayed": "row changes that came again after a reconnect or a start; they give no event again",
    "dead letters": "rows that could not be understood, and orders that could not be closed",
    "tried again": "orders whose close was put off: their row was locked, or the database refused it",
    "loaded up to": "deadlines up to then (UTC) are in memory; later ones wait in the table (window.horizon_s)",
    "by the sweep": "overdue orders that a look into the table found, not the stream",
    "late, p99": "closed less deadline, by the database's clock, of the last closes: 99 of 100 were no later",
    "lost in": "until the server drops WAL that the slot needs, if nothing more is confirmed",
  };
  // Pairs of a term and what it is: [term, text, class].
  const facts = (list, pairs, wrapped) => {
    const shape = pairs.map((pair) => pair[0]).join("|");
    if (list.dataset.shape !== shape) {
      list.dataset.shape = shape;
      list.replaceChildren(...pairs.flatMap(([term]) => {
        const both = [element("dt", "", term), element("dd")];
        if (TITLES[term]) both[0].title = TITLES[term];
        if (!wrapped) return both;
        const box = element("div");
        box.append(...both);
        return [box];
      }));
    }
    list.querySelectorAll("dd").forEach((node, place) => {
      write(node, pairs[place][1]);
      for (const name of ["bad", "warn"]) node.classList.toggle(name, pairs[place][2] === name);
    });
  };
  // Rows of cells: [text, class, small text].
  const rows = (body, wanted) => {
    while (body.rows.length > wanted.length) body.deleteRow(-1);
    wanted.forEach((cells, place) => {
      const row = body.rows[place] || body.insertRow();
      while (row.cells.length < cells.length) row.insertCell();
      cells.forEach(([text, className, small], column) => {
        const cell = row.cells[column];
        cell.className = className || "";
        if (small) {
          if (cell.textContent !== small + text) cell.replaceChildren(element("small", "", small), text);
        } else write(cell, text);
      });
    });
  };
  const spark = (stage, value) => {
    const past = history[stage.id] = [...(history[stage.id] || []), ...(value == null ? [] : [value])].slice(-SPARKS);
    const most = Math.max(...past, 1e-9);
    const points = past.map((one, place) => `${place},${(19 - 18 * one / most).toFixed(2)}`).join(" ");
    stage.querySelector("polyline").setAttribute("points", points);
  };
  const stage = (id, big, graph, pairs, part) => {
    const node = by(id);
    write(at(node, "big"), big);
    spark(node, graph);
    facts(at(node, "facts"), pairs);
    const shown = at(node, "part");
    shown.hidden = !part;
    if (part) state(shown, part.ready ? "good" : "bad", part.reason);
  };

  // -- the page ----------------------------------------------------------------------------------------------------

  const show = (told) => {
    const {rates, totals, slot, sink, lateness, tables, parts, alarms} = told;
    write(by("about"), `${told.version} · role ${told.role} · up ${duration(told.uptime_s)}`);
    const pending = tables.reduce((sum, one) => sum + one.pending, 0);
    const retrying = tables.reduce((sum, one) => sum + one.retrying, 0);
    const reads = told.role === "all" || told.role === "read", hears = told.role === "close";
    by("slot").hidden = !reads;
    by("topic").hidden = !reads && !hears;
    write(by("topic").querySelector("h3"), told.topic_noun === "stream" ? "Stream" : "Topic");
    by("heap").hidden = by("close").hidden = told.role === "read" || !parts.closer;
    if (reads) {
      stage("slot", rate(rates && rates.changes), rates && rates.changes, [
        ["lag", slot && !slot.problem ? bytes(slot.lag_bytes) : "unknown"],
        ["changes", count(totals.changes)],
        ["replayed", count(totals.replayed)],
      ], parts.reader);
      stage("topic", rate(rates && rates.events), rates && rates.events, [
        ["in flight", plural(sink.queue_events, "event")],
        ["events", count(totals.events)],
        ["dead letters", count(totals.dead_letters)],
      ], parts.sink);
    } else if (hears) {
      write(at(by("topic"), "unit"), "records a second");
      stage("topic", rate(rates && rates.heard), rates && rates.heard, [["heard", count(totals.heard)]], parts.subscriber);
    }
    const next = told.next[0];
    stage("heap", count(pending), pending, [
      ["next", next ? next.in_s == null ? "–" : next.in_s > 0 ? `in ${duration(next.in_s)}` : "now" : "none"],
      ["tried again", count(retrying)],
      ["loaded up to", tables.length && tables[0].window_to ? clock(tables[0].window_to).slice(0, 14) : "–"],
    ], null);
    stage("close", rate(rates && rates.closed), rates && rates.closed, [
      ["late, p99", duration(lateness.recent.p99_s)],
      ["closed", count(totals.closed)],
      ["by the sweep", count(totals.recovered)],
    ], parts.closer);
    by("flow").classList.toggle("moving", !!rates && (rates.changes > 0 || rates.closed > 0 || rates.heard > 0));
    showAlarms(alarms);
    showLateness(lateness);
    showRetention(slot);
    showOrders(told);
    state(by("state"), alarms.length ? "bad" : told.ready ? "good" : "", alarms.length ? plural(alarms.length, "alarm") : told.ready ? "All is well" : "starting");
    document.title = alarms.length ? `(${alarms.length}) cdcwatch` : "cdcwatch";
    tell(alarms.length ? `${plural(alarms.length, "alarm")}: ${alarms.map((one) => one.message.replace(/\d+/g, "some")).join("; ")}` : told.ready ? "All is well" : "Starting");
  };

  const showAlarms = (alarms) => {
    by("alarms").hidden = !alarms.length;
    const list = by("alarms").querySelector("ul");
    while (list.children.length > alarms.length) list.lastChild.remove();
    alarms.forEach((one, place) => {
      if (!list.children[place]) {
        const item = element("li");
        item.append(element("strong"), element("p", "remedy"));
        list.append(item);
      }
      write(list.children[place].firstChild, `! ${one.message}`);
      write(list.children[place].lastChild, `Remedy: ${one.remedy}`);
    });
  };

  const showLateness = ({buckets, count: closes, recent}) => {
    const section = by("lateness");
    section.hidden = by("close").hidden;
    facts(at(section, "figures"), [
      ["p50", duration(recent.p50_s)], ["p99", duration(recent.p99_s)], ["max", duration(recent.max_s)],
    ], true);
    const box = section.querySelector(".histogram"), most = Math.max(1, ...buckets.map((one) => one.count));
    if (box.children.length !== buckets.length) {
      box.replaceChildren(...buckets.map((one) => {
        const bar = element("div", "bar");
        bar.append(element("div"), element("span", "", bound(one.le_s)));
        return bar;
      }));
    }
    buckets.forEach((one, place) => {
      const share = one.count / most;
      box.children[place].firstChild.style.height = one.count ? `max(3px, ${(share * 100).toFixed(1)}%)` : "0";
    });
    write(at(section, "note"), closes
      ? `Figures: the last ${plural(recent.count, "close")}. Bars: all ${count(closes)} since the start, by lateness up to the time below.`
      : "Nothing was closed yet.");
    rows(section.querySelector("tbody"), buckets.map((one) => [[bound(one.le_s)], [count(one.count)]]));
  };

  const showRetention = (slot) => {
    const section = by("retention");
    section.hidden = !slot;
    if (!slot) return;
    const known = !slot.problem;
    spark(section, known ? slot.lag_bytes : null);
    const soon = known && slot.seconds_to_loss != null && slot.seconds_to_loss < 4 * 3600;
    const left = !known ? "" : slot.seconds_to_loss != null ? duration(slot.seconds_to_loss)
      : slot.is_unlimited ? "no limit: the disk fills" : slot.wal_bytes_per_s == null ? "unknown" : "never";
    facts(at(section, "figures"), known ? [
      ["behind", bytes(slot.lag_bytes)],
      ["kept on disk", bytes(slot.retained_bytes)],
      ["lost in", left, soon ? "bad" : slot.is_unlimited ? "warn" : ""],
    ] : [["state", "unknown"]], true);
    const gauge = at(section, "gauge");
    gauge.hidden = !known || slot.keep_bytes == null;
    if (!gauge.hidden) {
      const share = Math.min(1, slot.retained_bytes / slot.keep_bytes);
      gauge.firstElementChild.style.width = `${(share * 100).toFixed(1)}%`;
      gauge.classList.toggle("bad", share > 0.8);
      gauge.setAttribute("aria-label", `${bytes(slot.retained_bytes)} of ${bytes(slot.keep_bytes)} that the server may keep`);
    }
    const writes = known && slot.wal_bytes_per_s != null ? `The server writes ${bytes(slot.wal_bytes_per_s)} of WAL a second. ` : "";
    write(at(section, "note"), !known ? `Slot ${slot.name}: ${slot.problem}.`
      : `The line: how far behind, of late. ${writes}${slot.is_unlimited ? "It has no limit for what a slot keeps (max_slot_wal_keep_size): unread, it fills the disk." : `It may keep ${bytes(slot.keep_bytes)}.`} Slot ${slot.name} is confirmed up to ${slot.confirmed_flush_lsn || "nothing"}.`);
  };

  const showOrders = (told) => {
    const several = told.tables.length > 1, of = (one) => several ? one.table : "";
    const key = (one) => [told.shows_keys ? one.key || "–" : "withheld", "key", of(one)];
    by("next").hidden = by("close").hidden;
    rows(by("next").querySelector("tbody"), told.next.map((one) => [
      key(one), [clock(one.deadline), ""], [one.in_s == null ? "–" : one.in_s > 0 ? duration(one.in_s) : "now", "number"],
    ]));
    write(at(by("next"), "note"), told.next.length ? "" : "No order in memory has a deadline.");
    by("events").hidden = !told.sink;
    rows(by("events").querySelector("tbody"), told.events.slice(0, 8).map((one) => {
      const kind = one.type.replace("deadline.", "");
      return [[kind, `type ${kind.split(" ")[0]}`], key(one), [one.lsn, "number"]];
    }));
    write(at(by("events"), "note"), told.events.length ? "" : "None yet.");
    by("tables").hidden = !several;
    if (several) {
      rows(by("tables").querySelector("tbody"), told.tables.map((one) => [
        [one.name, "key"], [count(one.pending), "number"],
        [rate(told.rates && told.rates[`closed ${one.name}`]), "number"], [count(one.closed), "number"], [one.topic, ""],
      ]));
    }
  };

  // For who hears the page: only what changes, never the figures.
  const tell = (text) => {
    if (said !== text) write(by("said"), said = text);
  };

  // -- asking ------------------------------------------------------------------------------------------------------

  const ask = async () => {
    clearTimeout(timer);
    if (paused || document.hidden) return;
    try {
      const answer = await fetch("/status", {cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS)});
      if (!answer.ok) throw new Error(answer.statusText);
      const told = await answer.json();
      since = null;
      by("main").classList.remove("stale");
      show(told);
    } catch (error) {
      if (!(error instanceof TypeError || error instanceof DOMException)) console.error(error);
      since = since || new Date();
      by("main").classList.add("stale");
      state(by("state"), "bad", `no answer since ${since.toLocaleTimeString()}`);
      document.title = "(!) cdcwatch";
      tell("No answer from cdcwatch");
    }
    timer = setTimeout(ask, EVERY_MS);
  };
  by("pause").addEventListener("click", () => {
    paused = !paused;
    by("pause").setAttribute("aria-pressed", String(paused));
    write(by("pause"), paused ? "Go on" : "Pause");
    ask();
  });
  document.addEventListener("visibilitychange", ask);
  ask();
})();
