// The parts of a chart's option beyond plain JSON: the palette, formats of numbers, and marks that
// ECharts does not have (interval, hatched slot, violin). The same file draws the SVG in an
// embedded engine and the live chart in the page, so that both are the same picture.
//
// In an option, "$ink" is a colour of the palette, "fn:time" a function of FORMATS, and a series'
// renderItem one of MARKS. `compact` in an option's `overdrive` says what a narrow screen does
// differently.
const OverdriveCharts = (() => {
  const FONT = 'Roboto, Helvetica Neue, Arial, sans-serif';

  // Okabe and Ito's colours for all kinds of colour vision, in two strengths so that either keeps
  // 3:1 against its background. Every value occurs once: the page replaces each by its variable.
  const LIGHT = {
    ink: '#16181d', muted: '#5c6370', faint: '#8a919e',
    line: '#d9dce2', grid: '#eceef1', surface: '#ffffff',
    c0: '#6b7385', c1: '#0a6ebd', c2: '#c2570c', c3: '#0b8065',
    c4: '#a8478a', c5: '#2f93c4', c6: '#8a6d00',
    bad: '#c0262d', hatch: '#c3c8d1',
  };
  const DARK = {
    ink: '#eceef2', muted: '#a3abb9', faint: '#7d8594',
    line: '#363c47', grid: '#262b34', surface: '#14171c',
    c0: '#959eb0', c1: '#57adf0', c2: '#f0924a', c3: '#35c29d',
    c4: '#e08cc4', c5: '#8fd0f2', c6: '#dfc04a',
    bad: '#ff7b7b', hatch: '#4a515e',
  };

  const scaled = (value, units) => {
    if (value === 0) return '0';
    const reached = ([scale]) => Math.abs(value) >= scale * 0.9999;
    const [scale, unit] = units.findLast(reached) ?? units[0];
    const shown = value / scale;
    return `${Number(shown.toPrecision(3))}${unit && '\u202f'}${unit}`;
  };
  const DECIMAL = [[1, ''], [1e3, 'k'], [1e6, 'M'], [1e9, 'G'], [1e12, 'T'], [1e15, 'P']];
  const BINARY = [[1, 'B'], [2 ** 10, 'KiB'], [2 ** 20, 'MiB'], [2 ** 30, 'GiB'], [2 ** 40, 'TiB']];
  const FORMATS = {
    time: (ns) => scaled(ns, [[1e-3, 'ps'], [1, 'ns'], [1e3, 'µs'], [1e6, 'ms'], [1e9, 's']]),
    bytes: (count) => scaled(count, BINARY),
    number: (value) => scaled(value, DECIMAL),
    plain: (value) => String(Number(Number(value).toPrecision(6))),
    flops: (value) => scaled(value, DECIMAL) + 'FLOP/s',
    ratio: (value) => `${Number(Number(value).toPrecision(3))}×`,
    percent: (value) => `${Number(Number(value).toPrecision(4))}\u202f%`,
    share: (value) => `${Number((100 * value).toPrecision(3))}\u202f%`,
  };

  const line = (x1, y1, x2, y2, style) =>
    ({ type: 'line', shape: { x1, y1, x2, y2 }, style: { fill: null, ...style }, silent: true });

  // Marks: each takes its series as it stands in the option and gives a renderItem.
  const MARKS = {
    // value [across, low, high] (across is the row, or x): a bar with caps.
    interval: (series) => (params, api) => {
      const upright = series.upright === true;
      const at = (value) => api.coord(upright ? [api.value(0), value] : [value, api.value(0)]);
      const [a, b] = [at(api.value(1)), at(api.value(2))];
      const cap = series.cap ?? 4;
      const style = { stroke: series.ink, lineWidth: 1.5 };
      const [dx, dy] = upright ? [cap, 0] : [0, cap];
      const caps = [a, b].map(([x, y]) => line(x - dx, y - dy, x + dx, y + dy, style));
      return { type: 'group', children: [line(...a, ...b, style), ...caps] };
    },
    // value [x, low, high] at each place: the band between.
    band: (series) => (params, api) => {
      if (params.dataIndex > 0) return null;
      const upper = series.data.map(([x, , high]) => api.coord([x, high]));
      const lower = series.data.map(([x, low]) => api.coord([x, low])).reverse();
      const style = { fill: series.ink, opacity: 0.2 };
      return { type: 'polygon', shape: { points: [...upper, ...lower] }, style };
    },
    // value [row]: where a bar would be had it run. Why there is none stands beside it.
    slot: (series) => (params, api) => {
      const area = params.coordSys;
      const middle = api.coord([0, api.value(0)])[1];
      const height = Math.min(13, Math.abs(api.size([0, 1])[1]) * 0.55);
      const [top, bottom] = [middle - height / 2, middle + height / 2];
      const [left, right] = [area.x, area.x + area.width];
      let hatch = `M${left} ${top}H${right}V${bottom}H${left}Z`;
      for (let x = left - height; x < right; x += 6) {
        const [from, to] = [Math.max(x, left), Math.min(x + height, right)];
        const at = (across) => `${across.toFixed(1)} ${(bottom - (across - x)).toFixed(1)}`;
        hatch += `M${at(from)}L${at(to)}`;
      }
      const style = { fill: 'transparent', stroke: series.ink, lineWidth: 1 };
      return { type: 'path', shape: { pathData: hatch }, style };
    },
    // shapes[index] = [[time, density 0 to 1], ...] around row value(0): mirrored.
    violin: (series) => (params, api) => {
      const half = Math.min(17, Math.abs(api.size([0, 1])[1]) * 0.4);
      const [shape, ink] = [series.shapes[params.dataIndex], series.inks[params.dataIndex]];
      const points = shape.map(([time, density]) => [...api.coord([time, api.value(0)]), density]);
      const upper = points.map(([x, y, density]) => [x, y - half * density]);
      const lower = points.map(([x, y, density]) => [x, y + half * density]).reverse();
      const style = { fill: ink, opacity: 0.45, stroke: ink, lineWidth: 1 };
      return { type: 'polygon', shape: { points: [...upper, ...lower] }, style };
    },
    // value [row, time, side]: one sample, moved aside within its row so that equal ones can be
    // told apart.
    strip: () => (params, api) => {
      const [x, y] = api.coord([api.value(1), api.value(0)]);
      const aside = api.value(2) * Math.min(9, Math.abs(api.size([0, 1])[1]) * 0.25);
      const style = { fill: api.visual('color'), opacity: 0.7 };
      return { type: 'circle', shape: { cx: x, cy: y + aside, r: 2.5 }, style };
    },
  };

  // Every "$name" becomes a colour, every "fn:name" a function, every renderItem a mark.
  const resolve = (node, palette) => {
    if (typeof node === 'string') {
      if (node.startsWith('$')) return palette[node.slice(1)] ?? node;
      if (node.startsWith('fn:')) return FORMATS[node.slice(3)];
      return node;
    }
    if (Array.isArray(node)) return node.map((item) => resolve(item, palette));
    if (node === null || typeof node !== 'object') return node;
    const resolved = {};
    for (const [key, value] of Object.entries(node)) resolved[key] = resolve(value, palette);
    if (typeof node.renderItem === 'string') resolved.renderItem = MARKS[node.renderItem](resolved);
    return resolved;
  };

  const merge = (base, over) => {
    if (Array.isArray(base) && Array.isArray(over)) {
      return base.map((item, i) => (i < over.length ? merge(item, over[i]) : item));
    }
    const isObject = (node) => node !== null && typeof node === 'object';
    if (!isObject(base) || !isObject(over)) return over ?? base;
    const merged = { ...base };
    for (const [key, value] of Object.entries(over)) {
      merged[key] = key in base ? merge(base[key], value) : value;
    }
    return merged;
  };

  // Lines that a legend takes in this width; estimated, since a file is drawn without a font's
  // widths.
  const legendLines = (names, width) => {
    let [lines, used] = [1, 0];
    for (const name of names) {
      const entry = 44 + 6.3 * name.length;
      if (used > 0 && used + entry > width) { lines += 1; used = 0; }
      used += entry;
    }
    return lines;
  };

  // The option with the theme's colours and fonts, for a chart of this width.
  const complete = (option, palette, width) => {
    const { overdrive = {}, ...rest } = option;
    const narrowed = width < 560 && overdrive.compact ? merge(rest, overdrive.compact) : rest;
    const text = { fontFamily: FONT, color: palette.muted };
    const axis = (one) => merge({
      axisLine: { lineStyle: { color: palette.line } },
      axisTick: { lineStyle: { color: palette.line } },
      axisLabel: { color: palette.muted, fontSize: 12, hideOverlap: true },
      splitLine: { lineStyle: { color: palette.grid } },
      nameTextStyle: { color: palette.muted, fontSize: 12 },
      minorTick: { show: false },
    }, one);
    const resolved = resolve(narrowed, palette);
    for (const one of resolved.series ?? []) {
      const margin = one.labelLayout?.margin;
      if (margin) one.labelLayout = { ...one.labelLayout, x: width - margin + 20 };
    }
    const { legend } = resolved;
    if (legend?.show) resolved.grid.top = 40 + 21 * legendLines(legend.data, width);
    for (const name of ['xAxis', 'yAxis']) {
      const given = resolved[name];
      if (given) resolved[name] = Array.isArray(given) ? given.map(axis) : axis(given);
    }
    if (legend) {
      const textStyle = { color: palette.muted, fontSize: 12 };
      resolved.legend = merge({ textStyle, itemGap: 18, inactiveColor: palette.line }, legend);
    }
    return { animation: false, textStyle: text, backgroundColor: 'transparent', ...resolved };
  };

  // The chart as an SVG document, without a browser.
  const draw = (option, width, height) => {
    const chart = echarts.init(null, null, { renderer: 'svg', ssr: true, width, height });
    chart.setOption(complete(option, LIGHT, width));
    const svg = chart.renderToSVGString({ useViewBox: true });
    chart.dispose();
    return svg;
  };

  return { LIGHT, DARK, FONT, FORMATS, complete, draw };
})();
