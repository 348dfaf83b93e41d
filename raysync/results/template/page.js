"use strict";
(() => {
  const root = document.documentElement;
  const figures = [...document.querySelectorAll("figure")];
  const hidden = new Set();      // of paradigms, by number
  const ROW_PX = 22;             // as figures/primitives.py has it
  const touch = matchMedia("(pointer: coarse)").matches;
  const settings = {
    responsive: true, displaylogo: false, displayModeBar: touch ? true : "hover",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]],
  };

  // "$text/25" is the theme's text colour, a quarter opaque. Colours are known by their key: a worker may be called "$0".
  function painter() {
    const style = getComputedStyle(root);
    return (key, value) => {
      if (typeof value !== "string" || !key.endsWith("color") || value[0] !== "$") return value;
      const [name, percent] = value.slice(1).split("/");
      const colour = style.getPropertyValue("--c-" + name).trim();
      if (!percent) return colour;
      const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
      return `rgba(${red},${green},${blue},${percent / 100})`;
    };
  }

  const plotOf = figure => figure.querySelector(".plot");
  const rangeOf = view => [view.dataset.low, view.dataset.high].map(Number);
  const seen = trace => trace.legendgroup === undefined || !hidden.has(trace.legendgroup);

  // Lanes of a hidden paradigm are gone: the axis counts those that are left.
  function lanes(traces, layout) {
    if (!layout.yaxis.range || layout.yaxis.type !== "category") return {};
    const rows = new Set(traces.filter(seen).flatMap(trace => trace.y)).size;
    const all = new Set(traces.flatMap(trace => trace.y)).size;
    return {"yaxis.range": [Math.max(rows, 1) - 0.5, -0.5], height: layout.height + (rows - all) * ROW_PX};
  }

  function draw(figure) {
    const plot = plotOf(figure);
    const {traces, layout} = JSON.parse(figure.querySelector("script").textContent, painter());
    for (const trace of traces) trace.visible = seen(trace);
    layout.dragmode = touch ? false : "zoom";
    const view = figure.querySelector(".views [aria-pressed=true]");
    if (view) layout[view.dataset.axis].range = rangeOf(view);
    const fitted = lanes(traces, layout);
    if (fitted.height) {
      plot.lanes = {traces, layout: {height: layout.height, yaxis: {...layout.yaxis}}};
      [layout.yaxis.range, layout.height] = [fitted["yaxis.range"], fitted.height];
      plot.style.height = fitted.height + "px";
    }
    Plotly.react(plot, traces, layout, settings);
    figure.dataset.drawn = "yes";
  }

  const shown = () => figures.filter(figure => !figure.closest(".scenario").hidden);

  let round = 0;
  async function drawShown({again = false} = {}) {       // one by one, so that the page answers meanwhile
    const current = ++round;
    for (const figure of shown()) {
      if (current !== round) return;
      if (again || !figure.dataset.drawn) {
        draw(figure);
        await new Promise(done => setTimeout(done));
      }
    }
    if (current === round) root.dataset.drawn = "yes";
  }

  function redraw() {                                    // figures of other scenarios when these are shown
    for (const figure of figures) delete figure.dataset.drawn;
    delete root.dataset.drawn;
    return drawShown();
  }

  for (const chip of document.querySelectorAll(".chips button")) {
    chip.addEventListener("click", () => {
      const number = chip.dataset.series, off = !hidden.has(number);
      off ? hidden.add(number) : hidden.delete(number);
      chip.setAttribute("aria-pressed", String(!off));
      for (const figure of figures.filter(one => one.dataset.drawn)) {
        const plot = plotOf(figure);
        const fitted = plot.lanes ? lanes(plot.lanes.traces, plot.lanes.layout) : {};
        if (fitted.height) plot.style.height = fitted.height + "px";
        Plotly.update(plot, {visible: plot.data.map(seen)}, fitted);
      }
    });
  }

  for (const view of document.querySelectorAll(".views button")) {
    view.addEventListener("click", () => {
      for (const one of view.parentNode.children) one.setAttribute("aria-pressed", String(one === view));
      Plotly.relayout(plotOf(view.closest("figure")), {[view.dataset.axis + ".range"]: rangeOf(view)});
    });
  }

  const scenario = document.getElementById("scenario");
  function choose() {
    for (const one of document.querySelectorAll(".scenario")) one.hidden = one.dataset.scenario !== (scenario?.value ?? "0");
    const present = new Set(shown().flatMap(figure => JSON.parse(figure.querySelector("script").textContent).traces)
      .map(trace => trace.legendgroup));
    for (const chip of document.querySelectorAll(".chips button")) chip.hidden = !present.has(chip.dataset.series);
    drawShown();
  }
  scenario?.addEventListener("change", choose);

  const theme = document.getElementById("theme");
  theme.addEventListener("change", () => {
    theme.value ? root.dataset.theme = theme.value : delete root.dataset.theme;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // On paper: light, all figures drawn, as wide as the page.
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    for (const figure of shown()) {
      const width = figure.classList.contains("wide") ? 680 : 334;
      figure.style.width = width + "px";
      draw(figure);
      Plotly.relayout(plotOf(figure), {width: width - 24, height: plotOf(figure).clientHeight});
    }
  });
  addEventListener("afterprint", () => {
    theme.value ? root.dataset.theme = theme.value : delete root.dataset.theme;
    for (const figure of figures) figure.style.width = "";
    redraw();
  });

  choose();                                              // a browser may have kept another scenario than the first
})();
