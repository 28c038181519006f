// What the page does beyond showing what is in it: live charts, sorting, filtering, a case's samples, colours. It reads
// only what the page holds, and without it nothing is missing but these.
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
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? 'dark' : 'light')) === 'dark';
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

  // Live charts, each when it first comes near the window, all of them before the page is printed. Their still pictures
  // are for readers without scripts; inside noscript they cost the others no time.
  const live = new Map();
  const option = (figure) => {
    const given = embedded('options')[figure.dataset.chart];
    const axis = figure.dataset.switched && `${figure.dataset.switched}Axis`;
    if (!axis) return given;
    const flip = (one) => {
      const { min, max, ...rest } = one;
      const log = one.type !== 'log';
      const plain = (part) => { const { customValues, ...kept } = part ?? {}; return kept; };
      return { ...rest, type: log ? 'log' : 'value', scale: log, axisLabel: plain(one.axisLabel), axisTick: plain(one.axisTick), splitLine: plain(one.splitLine) };
    };
    return { ...given, [axis]: Array.isArray(given[axis]) ? given[axis].map(flip) : flip(given[axis]) };
  };
  const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const paint = (figure, chart) => {
    const palette = isDark() ? OverdriveCharts.DARK : OverdriveCharts.LIGHT;
    const complete = OverdriveCharts.complete(option(figure), palette, chart.getWidth());
    complete.tooltip = {
      trigger: 'item', confine: true, borderWidth: 1, padding: [8, 12], backgroundColor: palette.surface, borderColor: palette.line,
      textStyle: { color: palette.ink, fontSize: 12.5 }, extraCssText: 'box-shadow:0 4px 16px rgb(0 0 0/12%);border-radius:8px',
      formatter: ({ data }) => (data?.tip ? `<div class="tip">${escaped(data.tip)}</div>` : ''),
    };
    chart.setOption(complete, { notMerge: true });
  };
  const mount = (figure) => {
    if (live.has(figure)) return;
    const place = figure.querySelector('.plot');
    place.textContent = '';
    const chart = echarts.init(place, null, { renderer: 'svg' });
    live.set(figure, chart);
    paint(figure, chart);
  };
  const redraw = () => live.forEach((chart, figure) => paint(figure, chart));
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) { near.unobserve(target); mount(target); }
  }, { rootMargin: '300px' });
  // What is in sight is drawn with the page; an observer tells of it only later.
  all('.chart').forEach((figure) => (figure.getBoundingClientRect().top < innerHeight ? mount(figure) : near.observe(figure)));
  addEventListener('beforeprint', () => all('.chart').forEach(mount));
  let resizing;
  addEventListener('resize', () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => live.forEach((chart, figure) => { chart.resize(); paint(figure, chart); }), 120);
  });
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
    const [search, output, more] = ['input', 'output', '.all'].map((selector) => section.querySelector(selector));
    const texts = new Map();
    const text = (row) => texts.get(row) ?? texts.set(row, row.textContent.toLowerCase()).get(row);
    const pressed = (name) => all(`[data-${name}][aria-pressed=true]`, section.querySelector('.filters')).map((button) => button.dataset[name]);
    const apply = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const [studies, kinds] = [pressed('study'), pressed('kind')];
      const filtered = words.length + studies.length + kinds.length > 0;
      if (filtered) body.classList.add('open-all');
      let shown = 0;
      for (const row of rows) {
        const fits = (!studies.length || studies.includes(row.dataset.study)) && (!kinds.length || kinds.includes(row.dataset.kind))
          && words.every((word) => text(row).includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      all('.detail', body).forEach((detail) => { detail.hidden = detail.previousElementSibling.hidden; });
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
        const value = (row) => (key === 'time' || key === 'ratio' || key === 'rate' ? Number(row.dataset[key] ?? NaN)
          : key === 'n' ? parseFloat(row.cells[column].textContent) : row.cells[column].textContent);
        // What has no figure stands last in both directions.
        const order = (a, b) => (typeof a === 'string' ? a.localeCompare(b, 'en', { numeric: true }) * (down ? -1 : 1)
          : Number.isNaN(a) - Number.isNaN(b) || (a - b) * (down ? -1 : 1));
        all('.detail', body).forEach((detail) => detail.previousElementSibling.classList.remove('opened') || detail.remove());
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

  // One case, opened below its row: its samples in the order taken, its statistics, how to repeat it.
  const toggle = (section, row) => {
    if (row.classList.toggle('opened')) {
      const record = embedded('results')[section.dataset.file].records[row.dataset.i];
      row.after(element('tr', { class: 'detail' }, element('td', { colspan: row.cells.length }, ...detail(record))));
    } else row.nextElementSibling.remove();
  };
  const detail = (record) => {
    const { ok, failure } = record.outcome;
    const parts = [];
    const time = OverdriveCharts.FORMATS.time;
    if (failure) parts.push(element('p', {}, `${failure.kind.replaceAll('_', ' ')}: ${failure.reason}`));
    const series = ok?.latency;
    if (series) {
      const s = series.summary;
      const facts = [['Median', time(s.median_ns)], ['Mean', time(s.mean_ns)], ['Fastest', time(s.min_ns)], ['Slowest', time(s.max_ns)],
        ['Standard deviation', s.standard_deviation_ns && time(s.standard_deviation_ns)], ['Median abs. deviation', time(s.median_absolute_deviation_ns)],
        ['Spread (IQR / median)', `${(100 * s.relative_interquartile_range).toFixed(1)} %`], ['p90', s.p90_ns && time(s.p90_ns)],
        ['p95', s.p95_ns && time(s.p95_ns)], ['p99', s.p99_ns && time(s.p99_ns)], ['Calls per sample', series.conditions.calls_per_sample],
        ['Clock', `${series.conditions.basis}, ${series.conditions.timer.clock}`]];
      parts.push(element('dl', {}, ...facts.filter(([, value]) => value !== undefined && value !== null)
        .map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {}, String(value))))));
      parts.push(samples(series));
    }
    for (const status of ok?.statuses ?? []) parts.push(element('p', {}, `${status.kind}: ${status.detail}`));
    if (ok?.agreement) parts.push(element('p', {}, `Outputs agree with ${ok.agreement.reference} (seeds compared: ${ok.agreement.seeds}), at ${(100 * ok.agreement.worst.share_of_tolerance).toPrecision(2)} % of the tolerance.`));
    for (const [name, value] of Object.entries(ok?.quantities ?? {})) parts.push(element('p', {}, `${name}: ${value}`));
    parts.push(element('p', {}, 'Repeat with ', element('code', {}, record.command)));
    return parts;
  };
  const samples = ({ conditions, samples, summary }) => {
    const [width, height] = [1000, 96];
    const of = (sample) => (conditions.basis === 'device' ? sample.device_ns : sample.host_ns) / conditions.calls_per_sample;
    const span = summary.max_ns - summary.min_ns || 1;
    const y = (ns) => height - 12 - ((ns - summary.min_ns) / span) * (height - 24);
    const drawn = element('svg', { role: 'img', 'aria-label': `${samples.length} samples in the order taken, from ${OverdriveCharts.FORMATS.time(summary.min_ns)} to ${OverdriveCharts.FORMATS.time(summary.max_ns)}` },
      element('line', { x1: '0', x2: '100%', y1: y(summary.median_ns), y2: y(summary.median_ns) }));
    samples.forEach((sample, i) => {
      const flags = (sample.flags ?? []).map((flag) => (typeof flag === 'string' ? flag : Object.entries(flag).flat().join(' '))).join(', ');
      const label = `sample ${i + 1}: ${OverdriveCharts.FORMATS.time(of(sample))}${flags && `, ${flags.replaceAll('_', ' ')}`}`;
      drawn.append(element('circle', { cx: `${1 + (98 * i) / Math.max(samples.length - 1, 1)}%`, cy: y(of(sample)), r: 3, ...(flags && { class: 'labelled' }) }, element('title', {}, label)));
    });
    return drawn;
  };

  const reveal = () => {
    // What a link leads to may lie in a drawer, or be one.
    const target = document.getElementById(location.hash.slice(1));
    for (let drawer = target?.closest('details'); drawer; drawer = drawer.parentElement.closest('details')) drawer.open = true;
    const row = document.getElementById(location.hash.slice(1));
    if (!row?.matches('tr')) return;
    row.parentElement.classList.add('open-all');
    row.hidden = false;
    row.scrollIntoView({ block: 'center' });
  };
  addEventListener('hashchange', reveal);
  reveal();
  addEventListener('beforeprint', () => { all('details').forEach((one) => { one.open = true; }); });
  document.getElementById('save').addEventListener('click', () => {
    const files = embedded('results');
    files.forEach((file, i) => {
      const link = element('a', { download: files.length > 1 ? `results-${i + 1}.json` : 'results.json',
        href: URL.createObjectURL(new Blob([JSON.stringify(file)], { type: 'application/json' })) });
      link.click();
      URL.revokeObjectURL(link.href);
    });
  });
})();
