// What pages do beyond plain HTML: local times, copying, questions before a change, charts drawn from the table beside them.
// Every page works without this file; only charts are missing then.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const long = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short" });
  const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const hour = new Intl.DateTimeFormat(undefined, { weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const recent = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" });
  const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
  const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
  const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", timeZone: "UTC" });

  // Today's instants need no date, others no seconds, and this year's no year, except where a page asks for the whole.
  function written(at, form) {
    if (form === "minute") return short.format(at);
    if (form === "whole") return long.format(at);
    if (form === "day") return date.format(at);
    const now = new Date();
    if (at.toDateString() === now.toDateString()) return clock.format(at);
    return (at.getFullYear() === now.getFullYear() ? recent : short).format(at);
  }

  function localise(within) {
    for (const time of within.querySelectorAll("time[data-local]")) {
      const at = new Date(time.dateTime);
      time.title = time.textContent;
      time.textContent = written(at, time.dataset.local);
      time.removeAttribute("data-local");
    }
    for (const time of within.querySelectorAll("time[data-short]")) {
      const form = time.dataset.short === "hour" ? hour : day;
      time.title = time.dateTime + (time.dataset.short === "hour" ? "" : ` (${time.dataset.zone ?? "UTC"})`);
      time.textContent = form.format(new Date(time.dateTime));
      time.removeAttribute("data-short");
    }
  }

  // An axis has round numbers: no cents where there are none.
  const roundDollars = (value) => Number.isInteger(value) ? "$" + value.toLocaleString("en-US") : dollars(value);

  const dollars = (value) => value < 0 ? "-" + dollars(-value) : value === 0 ? "$0" : value >= 1
    ? "$" + value.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })
    : "$" + Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 9 });

  // Names, numbers and units are read from the table, so that chart and table cannot differ.
  function readTable(table) {
    const heads = [...table.tHead.rows[0].cells].filter((head) => head.dataset.series);
    const rows = [...table.tBodies[0].rows];
    const cell = (row, place) => {
      const found = row.cells[place];
      const raw = found.dataset.v ?? found.textContent.trim();
      return raw === "" ? NaN : Number(raw);
    };
    return {
      unit: table.dataset.unit,
      stacked: !table.dataset.unit || table.dataset.stack === "all",
      labels: rows.map((row) => row.cells[0].textContent.trim()),
      interval: table.dataset.kind === "interval",
      across: table.dataset.kind === "across",
      series: heads.map((head) => ({
        key: head.dataset.series, name: head.textContent.trim(), values: rows.map((row) => cell(row, head.cellIndex)),
      })),
    };
  }

  const hues = { exact: "--exact", semantic: "--semantic", shared: "--shared", fresh: "--fresh", refused: "--refused", cost: "--semantic", saved: "--exact", right: "--exact", wrong: "--refused", undecided: "--fresh", audits: "--semantic",
    group0: "--p0", group1: "--p1", group2: "--p2", group3: "--p3", group4: "--p4", group5: "--p5", group6: "--p6" };

  const percents = (value) => Number(value.toPrecision(3)) + " %";
  const units = { usd: dollars, percent: percents };
  const sum = (values) => values.reduce((all, value) => all + (Number.isNaN(value) ? 0 : value), 0);

  // What is said instead of the picture: its name and what each series comes to. Every number is in the table.
  function spoken(name, data) {
    if (data.interval) return name + ". The table beside it has every number.";
    const said = data.series.map((series) => series.name + " " + (units[data.unit] ?? String)(sum(series.values)));
    return name + ". In all: " + said.join(", ") + ". The table beside it has every number.";
  }

  function bars(data) {
    return data.series.map((series) => ({
      name: series.name, type: "bar", stack: data.stacked ? "all" : undefined, data: series.values, barMaxWidth: 26,
      itemStyle: { color: colour(hues[series.key] || "--accent"), borderRadius: data.stacked ? 0 : data.across ? [0, 3, 3, 0] : [3, 3, 0, 0] },
      emphasis: { focus: "series" },
    }));
  }

  // From `low` to `high` as a bar on an invisible foot, the measured value as a dot, the budget as a stroke.
  function spans(data) {
    const of = Object.fromEntries(data.series.map((series) => [series.key, series]));
    const known = of.rate.values.map((value) => !Number.isNaN(value));
    const plain = { tooltip: { show: false }, silent: true };
    return [
      { type: "bar", stack: "span", data: of.low.values, itemStyle: { color: "transparent" }, barMaxWidth: 22, ...plain },
      {
        name: "95 % interval", type: "bar", stack: "span", barMaxWidth: 22, ...plain,
        data: of.high.values.map((high, place) => high - of.low.values[place]), itemStyle: { color: colour("--line-strong") },
      },
      {
        name: of.rate.name, type: "scatter", symbolSize: 9, itemStyle: { color: colour("--semantic") },
        data: of.rate.values.map((value, place) => known[place] ? value : null),
      },
      {
        name: of.budget.name, type: "scatter", symbol: "rect", symbolSize: [34, 3], itemStyle: { color: colour("--refused") },
        data: of.budget.values,
      },
    ];
  }

  function options(name, data) {
    const form = units[data.unit];
    const text = { color: colour("--soft"), fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 12 };
    const names = { type: "category", data: data.labels, axisTick: { show: false }, axisLine: { lineStyle: { color: colour("--line-strong") } }, axisLabel: { ...text, hideOverlap: !data.across }, inverse: data.across };
    const values = { type: "value", minInterval: form ? undefined : 1, splitLine: { lineStyle: { color: colour("--line") } }, axisLabel: { ...text, formatter: data.unit === "usd" ? roundDollars : form, hideOverlap: true } };
    return {
      animation: !matchMedia("(prefers-reduced-motion: reduce)").matches,
      animationDuration: 350,
      aria: { enabled: true, decal: { show: false }, label: { description: spoken(name, data) } },
      textStyle: text,
      grid: { left: 8, right: 28, top: data.series.length > 1 ? 36 : 12, bottom: 4, containLabel: true },
      legend: { show: data.series.length > 1, type: "scroll", top: 0, left: 0, icon: "roundRect", itemWidth: 11, itemHeight: 11, itemGap: 16, textStyle: text },
      tooltip: {
        trigger: "axis", renderMode: "richText", axisPointer: { type: "shadow" }, confine: true,
        backgroundColor: colour("--surface"), borderColor: colour("--line-strong"), textStyle: { ...text, color: colour("--ink") },
        valueFormatter: (value) => value == null ? "–" : form ? form(value) : String(value),
      },
      xAxis: data.across ? values : names,
      yAxis: data.across ? names : values,
      series: data.interval ? spans(data) : bars(data),
    };
  }

  const drawn = [];
  function draw() {
    if (typeof echarts === "undefined") return;
    while (drawn.length) drawn.pop().dispose();
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const data = readTable(document.getElementById(figure.dataset.chart));
      if (data.across) figure.style.height = 40 + 26 * data.labels.length + "px";
      figure.dataset.name ??= figure.getAttribute("aria-label");
      const chart = echarts.init(figure, null, { renderer: "svg" });
      chart.setOption(options(figure.dataset.name, data));
      drawn.push(chart);
    }
  }

  // What can be scrolled can be reached with the keyboard, and says what it is.
  function reachable() {
    for (const box of document.querySelectorAll(".scroll, .code, .tabs")) {
      const wanted = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
      if (!wanted) { if (box.dataset.reach) { box.removeAttribute("tabindex"); delete box.dataset.reach; } continue; }
      box.dataset.reach = "yes";
      box.tabIndex = 0;
      if (box.matches(".scroll")) {
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", (box.closest("section")?.querySelector("h2, h3")?.textContent.trim() || "Table") + ", can be scrolled");
      }
    }
  }

  document.addEventListener("click", async (event) => {
    if (event.target.closest("[data-print]")) print();
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      await navigator.clipboard.writeText(copy.dataset.copy);
      const before = copy.textContent;
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = before; }, 1500);
    }
    const pause = event.target.closest("[data-pause]");
    if (pause) {
      const still = pause.getAttribute("aria-pressed") !== "true";
      pause.setAttribute("aria-pressed", String(still));
      pause.textContent = still ? "Go on" : "Pause";
    }
    if (event.target.closest("[data-theme-toggle]")) {
      root.dataset.theme = dark() ? "light" : "dark";
      localStorage.setItem("nearhit-theme", root.dataset.theme);
      draw();
    }
  });
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  // A page that is paused, or that nobody looks at, asks for nothing.
  document.addEventListener("htmx:before:request", (event) => {
    const polls = event.target.getAttribute?.("hx-trigger")?.startsWith("every");
    if (polls && (document.hidden || document.querySelector("[data-pause][aria-pressed=true]"))) event.preventDefault();
  });
  // A part that could not be renewed stays as it was, and the page says that it did.
  const stale = (still) => { document.getElementById("stale").hidden = !still; };
  document.addEventListener("htmx:after:request", (event) => stale(event.detail.ctx.response.status >= 400));
  document.addEventListener("htmx:error", () => stale(true));
  document.addEventListener("htmx:after:swap", () => { localise(document); reachable(); });
  addEventListener("resize", () => { reachable(); for (const chart of drawn) chart.resize(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  localise(document);
  reachable();
  draw();
})();
