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
use overdrive_process::Stop;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The first key of verdicts stands well within so many bytes.
const START_BYTES: u64 = 64;

pub(crate) fn report(arguments: &Report, stop: &Stop) -> Result<Exit, Failure> {
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
    let folder = arguments.out.clone().unwrap_or_else(|| beside(&arguments.results[0]));
    let _whole = stop.heed();
    let _prepared = output::prepare(&folder)?;
    output::write_report(&folder, &files)?;
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
    let mut start = String::new();
    let opened = std::fs::File::open(path).and_then(|file| file.take(START_BYTES).read_to_string(&mut start));
    if opened.is_err() || !Verdicts::claims(&start) {
        return Ok(None);
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::bad_input(format!("cannot read `{}`: {error}", path.display())))?;
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
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::bad_input(format!("cannot read `{place}`: {error}")))?;
    html::results_of_page(&text).map_err(|error| {
        Failure::bad_input(format!("`{place}` is not a page that `overdrive report` wrote: {error}"))
    })
}

/// The folder in which the results lie.
fn beside(results: &Path) -> PathBuf {
    let folder = if results.is_dir() { Some(results) } else { results.parent() };
    folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}
