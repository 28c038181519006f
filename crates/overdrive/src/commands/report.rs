//! `overdrive report`: the report of results that were measured before, here or elsewhere.

use super::output;
use crate::cli::Report;
use crate::failure::Failure;
use crate::terminal::say;
use overdrive::bench::exit::Exit;
use overdrive::bench::gate::Verdicts;
use overdrive::bench::import;
use overdrive::bench::report::html;
use overdrive::bench::results::Results;
use overdrive::files;
use overdrive_process::Stop;
use std::path::{Path, PathBuf};

/// The first key of verdicts stands well within so many bytes.
const START_BYTES: u64 = 64;

pub(crate) fn report(arguments: &Report, stop: &Stop) -> Result<Exit, Failure> {
    let folder = arguments.out.clone().unwrap_or_else(|| beside(&arguments.results[0]));
    let place = output::place(&folder, arguments.replacing.into(), output::PAGES);
    let (mut files, mut gates) = (Vec::new(), Vec::new());
    for path in &arguments.results {
        match verdicts(path)? {
            Some(gate) => gates.push((path, gate)),
            None => files.extend(read(path)?),
        }
    }
    for (path, gate) in gates {
        attach(&mut files, gate, path)?;
    }
    let _whole = stop.heed();
    output::write_report(&place?, &files)?;
    match files.as_slice() {
        [one] => say!("{}", output::summary(one))?,
        several => say!("{} machines side by side, shown and never judged", several.len())?,
    }
    say!("report: {}", folder.join(output::PAGE).display())?;
    Ok(Exit::Fine)
}

/// The verdicts in a file that `regress` wrote; nothing of any other file.
fn verdicts(path: &Path) -> Result<Option<Verdicts>, Failure> {
    // Results can be large, and what cannot be read at all is for their readers to refuse in their words.
    let start = files::beginning(path, START_BYTES).unwrap_or_default();
    if !Verdicts::claims(&String::from_utf8_lossy(&start)) {
        return Ok(None);
    }
    let text = files::read_text(path, files::RESULTS).map_err(Failure::bad_input)?;
    let failed = |error| Failure::bad_input(format!("`{}`: {error}", path.display()));
    Verdicts::from_json(&text).map(Some).map_err(failed)
}

/// Puts verdicts beside the results that they are about.
fn attach(files: &mut [Results], gate: Verdicts, path: &Path) -> Result<(), Failure> {
    let about = |results: &&mut Results| gate.cases.iter().any(|case| results.record(&case.case).is_some());
    let Some(results) = files.iter_mut().find(about) else {
        return Err(Failure::bad_input(format!(
            "the verdicts in `{}` are about no case of the given results: give the results of the same cases beside them",
            path.display()
        )));
    };
    results.regression = Some(gate);
    Ok(())
}

/// The results in a file: several where it is a page of several machines.
fn read(path: &Path) -> Result<Vec<Results>, Failure> {
    let is_page = path.extension().is_some_and(|extension| extension == "html");
    if !is_page {
        return import::read(path).map(|results| vec![results]).map_err(Failure::bad_input);
    }
    let place = path.display();
    let text = files::read_text(path, files::RESULTS).map_err(Failure::bad_input)?;
    html::results_of_page(&text).map_err(|error| {
        Failure::bad_input(format!("`{place}` is not a page that `overdrive report` wrote: {error}"))
    })
}

/// The folder in which the results lie.
fn beside(results: &Path) -> PathBuf {
    let folder = if results.is_dir() { Some(results) } else { results.parent() };
    folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}
