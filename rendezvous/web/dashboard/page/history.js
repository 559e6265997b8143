// Makes the charts of a job: its progress by time or by step, and how busy its nodes are.
import {CURVES_MAX, join} from './charts.js';

const SECOND = 1e6;

// Returns the points {time, step, generation, loss, ...} of a timeline, by time.
function pointsOf(timeline) {
  const names = timeline.figure_names || [];
  return timeline.progress.map((sample, index) => {
    const before = timeline.progress[index - 1];
    const same = before && before.generation === sample.generation;
    const steps = same ? Number(sample.step) - Number(before.step) : 0;
    const seconds = same ? (Number(sample.at_us) - Number(before.at_us)) / SECOND : 0;
    // The last sample of a generation may be a moment after the one before, which tells no rate.
    const tells = steps > 0 && seconds >= 0.5;
    const point = {
      time: Number(sample.at_us) / SECOND,
      step: Number(sample.step),
      generation: sample.generation,
      // A loss of 0 was not reported.
      loss: sample.loss === 0 ? null : Number(sample.loss),
      speed: Number(sample.samples_per_second) || null,
      rate: tells ? steps / seconds : null,
      took: tells ? seconds / steps : null,
    };
    (sample.figures || []).forEach((value, place) => {
      point[`figure ${names[place]}`] = Number.isNaN(Number(value)) ? null : Number(value);
    });
    return point;
  });
}

const CURVES = [['loss', 'Loss'], ['speed', 'Samples per second'], ['rate', 'Steps per second'], ['took', 'Seconds for a step']];

const curvesOf = (timelines) => [
  ...CURVES, ...[...new Set(timelines.flatMap((timeline) => timeline.figure_names || []))].map((name) => [`figure ${name}`, name])];

const isReported = (value) => value !== null && value !== undefined;

// Charts by time, with marks where generations ended. `end` is in microseconds.
export function chartsOverTime(timeline, usage, verdict, end) {
  const points = [];
  for (const point of pointsOf(timeline)) {
    const last = points.at(-1);
    // A gap keeps curves from going on from one generation into the next.
    if (last && last.generation !== point.generation) points.push({time: (last.time + point.time) / 2});
    points.push(point);
  }
  const common = {marks: marksOf(timeline, verdict, end), from: 0, end: end / SECOND};
  const charts = [];
  for (const [key, title] of curvesOf([timeline])) {
    if (!points.some((point) => isReported(point[key]))) continue;
    charts.push({
      ...common, key, title, xs: points.map((point) => point.time),
      series: [{label: title.toLowerCase() === title ? title : title.toLowerCase(), values: points.map((point) => point[key] ?? null)}],
    });
  }
  return [...charts, ...chartsOfNodes(usage, common)];
}

function marksOf(timeline, verdict, end) {
  const marks = [];
  timeline.generations.forEach((one, index) => {
    const at = (name) => Number(one[name]) / SECOND;
    if (index > 0 && at('formed_us')) marks.push({at: at('formed_us'), kind: 'formed', text: `generation ${one.generation} begins`});
    const ended = at('failed_us') || at('stopping_us');
    if (ended && one.end_reason) marks.push({at: ended, kind: at('failed_us') ? 'failed' : 'stopped', text: `generation ${one.generation}: ${one.end_reason}`});
  });
  if (verdict) marks.push({at: end / SECOND, kind: 'verdict', text: verdict});
  return marks;
}

const gibibytes = (bytes) => `${(Number(bytes) / 2 ** 30).toFixed(0)} GiB`;

const OF_NODES = [
  ['cpu', 'Processors in use (%)', () => ''],
  ['memory', 'Memory in use (%)', (node) => gibibytes(node.memory_total)],
  ['gpu', 'GPUs busy (%)', (node) => String(node.gpus)],
  ['gpu_memory', 'Memory of GPUs in use (%)', (node) => gibibytes(node.gpu_memory_total)],
];

function chartsOfNodes(usage, common) {
  const charts = [];
  for (const [key, title, of] of OF_NODES) {
    const nodes = (usage?.nodes || []).filter((node) => node[key].length > 0);
    if (!nodes.length) continue;
    const shown = nodes.slice(0, CURVES_MAX);
    const [xs, ...values] = join(shown.map((node) => [
      node.at_us.map((us) => Number(us) / SECOND), node[key].map((share) => (Number.isFinite(Number(share)) ? 100 * share : null))]));
    const more = shown.length < nodes.length ? `, of ${shown.length} of ${nodes.length} nodes` : '';
    charts.push({
      ...common, key, title: title + more, xs, joined: true, percent: true,
      series: shown.map((node, index) => ({label: node.node + (of(node) && ` (of ${of(node)})`), values: values[index]})),
    });
  }
  return charts;
}

// Charts by step, of several runs {name, timeline}. If a step was done again after a restart, the last time counts.
export function chartsByStep(runs) {
  const points = runs.map(({timeline}) => [...new Map(pointsOf(timeline).map((point) => [point.step, point])).values()]
      .sort((a, b) => a.step - b.step));
  const charts = [];
  for (const [key, title] of curvesOf(runs.map((run) => run.timeline))) {
    const with_it = runs.map((run, index) => ({name: run.name, points: points[index].filter((point) => isReported(point[key]))}))
        .filter((run) => run.points.length);
    if (!with_it.length) continue;
    const [xs, ...values] = join(with_it.map((run) => [run.points.map((point) => point.step), run.points.map((point) => point[key])]));
    charts.push({
      key, title, xs, joined: true, from: Math.min(...xs), end: Math.max(...xs),
      series: with_it.map((run, index) => ({label: run.name, values: values[index]})),
    });
  }
  return charts;
}
