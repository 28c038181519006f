// This script adds to the page: live charts, sorting, filtering, a case's samples, colours. It
// reads only what the page holds, and without it nothing is missing but these.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const parsed = {};
  const embedded = (id) => (parsed[id] ??= JSON.parse(document.getElementById(id).textContent));
  const element = (tag, attributes = {}, ...children) => {
    const made = ['svg', 'circle', 'line', 'text', 'title'].includes(tag)
      ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  // Colours: as the system, or as the reader chose in this window.
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const isDark = () =>
    (document.documentElement.dataset.theme ?? (dark.matches ? 'dark' : 'light')) === 'dark';
  const theme = document.getElementById('theme');
  const choices = [['Auto', ', as the system'], ['Light', ''], ['Dark', '']];
  let choice = 0;
  theme.addEventListener('click', () => {
    choice = (choice + 1) % choices.length;
    const [word, meaning] = choices[choice];
    theme.textContent = word;
    theme.setAttribute('aria-label', `${word} colours${meaning}`);
    if (choice === 0) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = word.toLowerCase();
    redraw();
  });
  dark.addEventListener('change', () => redraw());

  // Live charts, each when it first comes near the window, all of them before the page is printed.
  // Their still pictures are for readers without scripts; inside noscript they cost the others no
  // time.
  const live = new Map();
  const option = (figure) => {
    const given = embedded('options')[figure.dataset.chart];
    const axis = figure.dataset.switched && `${figure.dataset.switched}Axis`;
    if (!axis) return given;
    const flip = (one) => {
      const { min, max, ...rest } = one;
      const log = one.type !== 'log';
      const plain = (part) => { const { customValues, ...kept } = part ?? {}; return kept; };
      return {
        ...rest, type: log ? 'log' : 'value', scale: log, axisLabel: plain(one.axisLabel),
        axisTick: plain(one.axisTick), splitLine: plain(one.splitLine),
      };
    };
    const axes = given[axis];
    return { ...given, [axis]: Array.isArray(axes) ? axes.map(flip) : flip(axes) };
  };
  const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const paint = (figure, chart) => {
    const palette = isDark() ? OverdriveCharts.DARK : OverdriveCharts.LIGHT;
    const complete = OverdriveCharts.complete(option(figure), palette, chart.getWidth());
    complete.tooltip = {
      trigger: 'item', confine: true, borderWidth: 1, padding: [8, 12],
      backgroundColor: palette.surface, borderColor: palette.line,
      textStyle: { color: palette.ink, fontSize: 12.5 },
      extraCssText: 'box-shadow:0 4px 16px rgb(0 0 0/12%);border-radius:8px',
      formatter: ({ data }) => (data?.tip ? `<div class="tip">${escaped(data.tip)}</div>` : ''),
    };
    chart.setOption(complete, { notMerge: true });
  };
  // Whatever makes a place wider or narrower: it is drawn again before anybody sees the old width.
  const resized = new ResizeObserver((seen) => {
    for (const { target } of seen) {
      const figure = target.closest('.chart');
      const chart = live.get(figure);
      if (target.clientWidth === chart.getWidth()) continue;
      chart.resize();
      paint(figure, chart);
    }
  });
  const mount = (figure) => {
    if (live.has(figure)) return;
    const place = figure.querySelector('.plot');
    place.textContent = '';
    const chart = echarts.init(place, null, { renderer: 'svg' });
    live.set(figure, chart);
    paint(figure, chart);
    resized.observe(place);
  };
  const redraw = () => live.forEach((chart, figure) => paint(figure, chart));
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) {
      if (isIntersecting) { near.unobserve(target); mount(target); }
    }
  }, { rootMargin: '300px' });
  // Charts in sight are drawn with the page; an observer tells of them only later.
  for (const figure of all('.chart')) {
    if (figure.getBoundingClientRect().top < innerHeight) mount(figure); else near.observe(figure);
  }
  addEventListener('beforeprint', () => all('.chart').forEach(mount));
  all('.switch').forEach((button) => button.addEventListener('click', () => {
    const figure = button.closest('.chart');
    const on = !figure.dataset.switched;
    if (on) figure.dataset.switched = button.dataset.axis; else delete figure.dataset.switched;
    button.setAttribute('aria-pressed', on);
    mount(figure);
    paint(figure, live.get(figure));
  }));

  // The tables of cases.
  for (const section of all('.cases')) {
    const body = section.querySelector('tbody');
    const rows = all('tr', body);
    const [search, output, more, filters] = ['input', 'output', '.all', '.filters']
      .map((selector) => section.querySelector(selector));
    const texts = new Map();
    const text = (row) => texts.get(row) ?? texts.set(row, row.textContent.toLowerCase()).get(row);
    const pressed = (name) => all(`[data-${name}][aria-pressed=true]`, filters)
      .map((button) => button.dataset[name]);
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const [studies, kinds] = [pressed('study'), pressed('kind')];
      const filtered = words.length + studies.length + kinds.length > 0;
      if (filtered) body.classList.add('open-all');
      let shown = 0;
      for (const row of rows) {
        const fits = (!studies.length || studies.includes(row.dataset.study))
          && (!kinds.length || kinds.includes(row.dataset.kind))
          && words.every((word) => text(row).includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      for (const detail of all('.detail', body)) {
        detail.hidden = detail.previousElementSibling.hidden;
      }
      output.textContent = filtered ? `${shown} of ${rows.length} cases` : '';
      if (more) more.hidden = filtered || body.classList.contains('open-all');
    };
    search.addEventListener('input', apply);
    all('.chips button', section).forEach((button) => button.addEventListener('click', () => {
      button.setAttribute('aria-pressed', button.getAttribute('aria-pressed') !== 'true');
      apply();
    }));
    for (const head of all('th[data-key]', section)) {
      const button = element('button', { type: 'button' }, ...head.childNodes);
      head.append(button);
      button.addEventListener('click', () => {
        const down = head.getAttribute('aria-sort') === 'ascending';
        all('[aria-sort]', section).forEach((other) => other.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        const key = head.dataset.key;
        const column = head.cellIndex;
        const value = (row) => {
          if (['time', 'ratio', 'rate'].includes(key)) return Number(row.dataset[key] ?? NaN);
          const shown = row.cells[column].textContent;
          return key === 'n' ? parseFloat(shown) : shown;
        };
        const sign = down ? -1 : 1;
        // Rows without a figure stand last in both directions.
        const order = (a, b) => (typeof a === 'string'
          ? a.localeCompare(b, 'en', { numeric: true }) * sign
          : Number.isNaN(a) - Number.isNaN(b) || (a - b) * sign);
        for (const detail of all('.detail', body)) {
          detail.previousElementSibling.classList.remove('opened');
          detail.remove();
        }
        const keyed = rows.map((row) => [value(row), row]).sort((a, b) => order(a[0], b[0]));
        body.classList.add('open-all');
        if (more) more.hidden = true;
        body.append(...keyed.map(([, row]) => row));
      });
    }
    body.addEventListener('click', (event) => {
      const row = event.target.closest('tr[data-i]');
      if (!row || String(getSelection())) return;
      if (event.target.closest('a')) event.preventDefault();
      history.replaceState(null, '', `#${row.id}`);
      toggle(section, row);
    });
  }
  all('.file > .all').forEach((button) => button.addEventListener('click', () => {
    button.previousElementSibling.classList.add('open-all');
    button.remove();
  }));
  all('.cases > .all').forEach((button) => button.addEventListener('click', () => {
    button.parentElement.querySelector('tbody').classList.add('open-all');
    button.hidden = true;
  }));

  // One case, opened below its row: its samples in the order taken, its statistics, how to repeat
  // it.
  const toggle = (section, row) => {
    if (row.classList.toggle('opened')) {
      const record = embedded('results')[section.dataset.file].records[row.dataset.i];
      const cell = element('td', { colspan: row.cells.length }, ...detail(record));
      row.after(element('tr', { class: 'detail' }, cell));
    } else row.nextElementSibling.remove();
  };
  const detail = (record) => {
    const { ok, failure } = record.outcome;
    const parts = [];
    const say = (...words) => parts.push(element('p', {}, ...words));
    if (failure) say(`${failure.kind.replaceAll('_', ' ')}: ${failure.reason}`);
    if (ok?.latency) parts.push(statistics(ok.latency), samples(ok.latency));
    for (const status of ok?.statuses ?? []) say(`${status.kind}: ${status.detail}`);
    if (ok?.agreement) {
      const { reference, seeds, worst } = ok.agreement;
      const share = (100 * worst.share_of_tolerance).toPrecision(2);
      say(`Outputs agree with ${reference} (seeds compared: ${seeds}), `
        + `at ${share} % of the tolerance.`);
    }
    for (const [name, value] of Object.entries(ok?.quantities ?? {})) say(`${name}: ${value}`);
    say('Repeat with ', element('code', {}, record.command));
    return parts;
  };
  const statistics = ({ conditions, summary: s }) => {
    const time = OverdriveCharts.FORMATS.time;
    const facts = [
      ['Median', time(s.median_ns)],
      ['Mean', time(s.mean_ns)],
      ['Fastest', time(s.min_ns)],
      ['Slowest', time(s.max_ns)],
      ['Standard deviation', s.standard_deviation_ns && time(s.standard_deviation_ns)],
      ['Median abs. deviation', time(s.median_absolute_deviation_ns)],
      ['Spread (IQR / median)', `${(100 * s.relative_interquartile_range).toFixed(1)} %`],
      ['p90', s.p90_ns && time(s.p90_ns)],
      ['p95', s.p95_ns && time(s.p95_ns)],
      ['p99', s.p99_ns && time(s.p99_ns)],
      ['Calls per sample', conditions.calls_per_sample],
      ['Clock', `${conditions.basis}, ${conditions.timer.clock}`],
    ];
    const known = facts.filter(([, value]) => value !== undefined && value !== null);
    return element('dl', {}, ...known.map(([name, value]) =>
      element('div', {}, element('dt', {}, name), element('dd', {}, String(value)))));
  };
  const samples = ({ conditions, samples, summary }) => {
    const time = OverdriveCharts.FORMATS.time;
    const height = 96;
    const of = (sample) => (conditions.basis === 'device' ? sample.device_ns : sample.host_ns)
      / conditions.calls_per_sample;
    const { min_ns: low, max_ns: high } = summary;
    const y = (ns) => height - 12 - ((ns - low) / (high - low || 1)) * (height - 24);
    const [count, median] = [samples.length, y(summary.median_ns)];
    const said = `${count} samples in the order taken, from ${time(low)} to ${time(high)}`;
    const drawn = element('svg', { role: 'img', 'aria-label': said },
      element('line', { x1: '0', x2: '100%', y1: median, y2: median }));
    const worded = (flag) =>
      (typeof flag === 'string' ? flag : Object.entries(flag).flat().join(' '));
    samples.forEach((sample, i) => {
      const flags = (sample.flags ?? []).map(worded).join(', ').replaceAll('_', ' ');
      const label = `sample ${i + 1}: ${time(of(sample))}${flags && `, ${flags}`}`;
      const cx = `${1 + (98 * i) / Math.max(count - 1, 1)}%`;
      const place = { cx, cy: y(of(sample)), r: 3, ...(flags && { class: 'labelled' }) };
      drawn.append(element('circle', place, element('title', {}, label)));
    });
    return drawn;
  };

  const reveal = () => {
    // The target of a link may lie in a drawer, or be one.
    const target = document.getElementById(location.hash.slice(1));
    for (let one = target?.closest('details'); one; one = one.parentElement.closest('details')) {
      one.open = true;
    }
    if (!target?.matches('tr')) return;
    target.parentElement.classList.add('open-all');
    target.hidden = false;
    target.scrollIntoView({ block: 'center' });
  };
  addEventListener('hashchange', reveal);
  reveal();
  addEventListener('beforeprint', () => { all('details').forEach((one) => { one.open = true; }); });
  document.getElementById('save').addEventListener('click', () => {
    const files = embedded('results');
    files.forEach((file, i) => {
      const blob = new Blob([JSON.stringify(file)], { type: 'application/json' });
      const link = element('a', {
        download: files.length > 1 ? `results-${i + 1}.json` : 'results.json',
        href: URL.createObjectURL(blob),
      });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  });
})();
