// Charts that can be hovered and zoomed, drawn by uPlot. If a proxy blocks that library, the page works without charts
// and says so.
import {amount, element, replace, took} from './dom.js';

const HEIGHT = 200;
const POINTS_SHOWN = 40;  // with more points only the line is drawn
const COLOURS = ['--start', '--gather', '--run', '--stop', '--fifth', '--sixth', '--seventh', '--eighth'];
// More curves cannot be told apart by colour.
export const CURVES_MAX = COLOURS.length;

const canDraw = () => typeof window.uPlot === 'function';

// Joins tables [xs, values] with different xs into one table with all xs.
export const join = (tables) => tables.length ? window.uPlot.join(tables) : [[]];

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Some charts below each other with the same x axis. A chart is {key, title, xs, series: [{label, values}], marks,
// from, end}: null among the values is a gap, and a mark {at, kind, text} stands at an x. `percent`: y goes from 0 to
// 100.
export class Charts {
  // `xIs` is 'time', in seconds, or 'step'.
  constructor(parent, xIs) {
    this.parent = parent;
    this.xText = xIs === 'time' ? (x) => (x > 0 ? took(x * 1e6) : '0') : (x) => amount(x);
    this.xIs = xIs;
    this.drawn = new Map();
  }

  // Shows the charts that `make` returns.
  show(make) {
    if (!canDraw()) {
      return replace(this.parent, element('p', {class: 'quiet'}, 'Charts are not shown: uplot.js did not load.'));
    }
    const charts = make();
    const kept = new Map(charts.map((chart) => [chart.key, labelsOf(chart)]));
    for (const [key, one] of this.drawn) {
      if (kept.get(key) === labelsOf(one.chart)) continue;
      one.observer.disconnect();
      one.plot.destroy();
      one.figure.remove();
      this.drawn.delete(key);
    }
    let after = null;
    for (const chart of charts) {
      if (!this.drawn.has(chart.key)) this.drawn.set(chart.key, this.make(chart, after));
      this.update(this.drawn.get(chart.key), chart);
      after = this.drawn.get(chart.key).figure;
    }
  }

  make(chart, after) {
    const figure = element('figure', {'class': 'chart', 'data-chart': chart.key}, element('figcaption', {}, chart.title));
    if (after) after.after(figure);
    else this.parent.prepend(figure);
    const one = {chart, figure, view: null};
    const axis = {stroke: colour('--quiet'), font: '11px system-ui, sans-serif', grid: {stroke: colour('--line'), width: 1}, ticks: {show: false}};
    one.plot = new window.uPlot({
      width: figure.clientWidth || 300,
      height: HEIGHT,
      scales: {x: {time: false}, y: chart.percent ? {range: [0, 100]} : {}},
      cursor: {sync: {key: `${this.xIs} of ${this.parent.id}`, scales: ['x', null]}, drag: {x: true, y: false}},
      axes: [{...axis, space: 80, values: (_, splits) => splits.map(this.xText)}, {...axis, size: 64, values: (_, splits) => splits.map(amount)}],
      series: [{label: this.xIs, value: (_, x) => (x === null ? '–' : this.xText(x))},
        ...chart.series.map(({label}, index) => ({
          label, stroke: colour(COLOURS[index % COLOURS.length]), width: 1.6, spanGaps: Boolean(chart.joined),
          points: {show: () => one.chart.xs.length <= POINTS_SHOWN},
          value: (_u, _v, at, position) => valueText(one.chart.series[at - 1].values[position]),
        }))],
      hooks: {
        draw: [(plot) => placeMarks(plot, one.chart.marks || [])],
        setSelect: [(plot) => {
          const {left, width} = plot.select;
          if (width > 0) this.zoom(one, {min: plot.posToVal(left, 'x'), max: plot.posToVal(left + width, 'x')});
        }],
      },
    }, [[], ...chart.series.map(() => [])], figure);
    one.plot.over.addEventListener('dblclick', () => {
      for (const each of this.drawn.values()) {
        this.zoom(each, null);
        this.update(each, each.chart);
      }
    });
    one.observer = new ResizeObserver(() => one.plot.setSize({width: figure.clientWidth, height: HEIGHT}));
    one.observer.observe(figure);
    return one;
  }

  // Sets the range of x that is shown; null: all of it, also as it grows.
  zoom(one, view) {
    one.view = view;
    one.figure.classList.toggle('zoomed', view !== null);
  }

  update(one, chart) {
    one.chart = chart;
    one.figure.dataset.points = chart.xs.length;
    const values = chart.series.map((series) => series.values.map((value) => (value === undefined || Number.isFinite(value) ? value : null)));
    const all = {min: chart.from, max: Math.max(chart.end, chart.from + 1e-3)};
    one.plot.batch(() => {
      one.plot.setData([chart.xs, ...values], false);
      one.plot.setScale('x', one.view || all);
    });
  }
}

const labelsOf = (chart) => chart.series.map((series) => series.label).join('\n');

// A loss of NaN is shown, because its reader most wants to see that.
const valueText = (value) => (value === null || value === undefined ? '–' : Number.isFinite(value) ? amount(value) : String(value));

// Marks are elements, so that their text is shown when the pointer is on them.
function placeMarks(plot, marks) {
  for (const old of plot.over.querySelectorAll('.chart-mark')) old.remove();
  for (const {at, kind, text} of marks) {
    const left = plot.valToPos(at, 'x');
    if (left < 0 || left > plot.over.clientWidth) continue;
    const line = element('span', {class: `chart-mark ${kind}`, title: text});
    line.style.left = `${left}px`;
    plot.over.append(line);
  }
}
