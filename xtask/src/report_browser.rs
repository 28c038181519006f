//! `cargo xtask report-browser FILE`: does a report.html work in a browser?
//!
//! A copy of the page gets a probe that acts as a reader does. Chromium hands back what the probe
//! saw as an attribute of the finished document. If there is no Chromium, the check is skipped,
//! aloud.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Runs in the page before anything else, and reports once the page has settled.
const PROBE: &str = r"<script>
const faults = [];
addEventListener('error', (event) => faults.push(event.message));
addEventListener('unhandledrejection', (event) => faults.push(String(event.reason)));
console.error = (...words) => faults.push(words.join(' '));
addEventListener('load', () => setTimeout(() => {
  const expect = (holds, what) => { if (!holds) faults.push(what); };
  const rows = () => [...document.querySelectorAll('.cases tbody tr[data-i]')];
  const shown = () => rows().filter((row) => row.getClientRects().length).length;
  expect(document.querySelector('h1').textContent.trim(), 'there is no verdict');
  expect(document.querySelector('.card, .choice'), 'the page does not open with the decision');
  expect(document.querySelectorAll('.findings > ol > li').length <= 5,
    'more than five findings are in sight');
  expect(document.documentElement.scrollWidth <= innerWidth, 'the page is wider than the window');
  expect(document.querySelectorAll('.strip dt').length > 3, 'the environment is missing');
  const all = shown();
  expect(all > 0, 'the table of cases is empty');
  const search = document.querySelector('.filters input');
  search.value = 'no case has these words';
  search.dispatchEvent(new Event('input'));
  expect(shown() === 0, 'the filter hides nothing');
  search.value = '';
  search.dispatchEvent(new Event('input'));
  const chip = document.querySelector('.chips [data-kind]');
  chip.click();
  expect(shown() === Number(chip.querySelector('span').textContent),
    'a chip shows another number than its own');
  chip.click();
  document.querySelector('th[data-key=time] button').click();
  const timed = [...document.querySelectorAll('.cases tbody tr[data-time]')];
  const times = timed.map((row) => Number(row.dataset.time));
  expect(times.every((time, i) => !i || times[i - 1] <= time), 'sorting by time does not sort');
  document.querySelector('.cases tbody tr[data-time] a').click();
  expect(document.querySelector('.detail svg circle'), 'a case does not open to its samples');
  const chart = document.querySelector('.chart');
  chart?.scrollIntoView();
  setTimeout(() => {
    expect(!chart || chart.querySelector('.plot svg path, .plot svg text'), 'a chart is not live');
    document.documentElement.dataset.probe = faults.length ? faults.join('; ') : 'fine';
  }, 800);
}, 300));
</script>";

/// Opens `page` and fails with everything that the probe found wrong.
pub(crate) fn run(page: &Path) -> Result<()> {
    let Some(browser) =
        BROWSERS.iter().find(|name| Command::new(name).arg("--version").output().is_ok())
    else {
        println!("SKIPPED: none of {} is installed", BROWSERS.join(", "));
        return Ok(());
    };
    let text =
        std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let (before, after) = text.split_once("<head>").context("not a page: it has no head")?;
    let copy = probed_copy(&format!("{before}<head>{PROBE}{after}"))?;
    let output = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,900"])
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", copy.display()))
        .output()
        .context("the browser did not start")?;
    std::fs::remove_file(&copy)?;
    let document = String::from_utf8_lossy(&output.stdout);
    let said =
        document.split_once("data-probe=\"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    let Some(said) = said else {
        bail!("the page did not settle:\n{}", String::from_utf8_lossy(&output.stderr))
    };
    ensure!(said == "fine", "the page is at fault: {said}");
    println!(
        "{}: no error; verdict, environment, filters, sorting, samples and charts work",
        page.display()
    );
    Ok(())
}

fn probed_copy(text: &str) -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("overdrive-report-{}.html", std::process::id()));
    std::fs::write(&path, text)?;
    Ok(path)
}
