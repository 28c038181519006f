//! `overdrive report`: the report of results that were measured before, here or elsewhere.

use super::output;
use crate::cli;
use crate::failure::Failure;
use crate::terminal::tell;
use overdrive::bench::exit::Exit;
use overdrive::bench::results::Results;
use overdrive::bench::verdicts::Verdicts;
use overdrive::formats::ModelFolder;
use overdrive::report::{Report, counted};
use overdrive::studies::pretrained::Pretrained;
use overdrive::{files, gate};
use overdrive_process::Stop;
use std::path::{Path, PathBuf};

/// The first key of verdicts is well within this many bytes.
const START_BYTES: u64 = 64;

pub(crate) fn report(arguments: &cli::Report, stop: &Stop) -> Result<Exit, Failure> {
    let folder = arguments.out.clone().or_else(|| beside(&arguments.results[0]));
    let replacing = arguments.replacing.into();
    let place = folder.map(|folder| output::place(&folder, replacing, output::PAGES));
    let (mut files, mut gates) = (Vec::new(), Vec::new());
    for path in &arguments.results {
        match verdicts(path)? {
            Some(gate) => gates.push((path, gate)),
            None => files.extend(output::read(path)?),
        }
    }
    for (path, gate) in gates {
        attach(&mut files, gate, path)?;
    }
    let _whole = stop.heed();
    let report = Report::new(&files);
    let begun = || output::place_or_new(None, replacing, (&files[0], output::PAGES));
    let place = place.unwrap_or_else(begun)?;
    output::write_report(&place, &report)?;
    match files.as_slice() {
        [one] => drop(output::tell(one)?),
        several => tell!("{} side by side; times are shown and never judged", counted(several))?,
    }
    for lost in report.lost() {
        tell!("  {}", lost.replace('`', ""))?;
    }
    output::lies_in(place.path())?;
    Ok(Exit::Fine)
}

/// The verdicts in a file that `regress` wrote; nothing of any other file.
fn verdicts(path: &Path) -> Result<Option<Verdicts>, Failure> {
    // Results can be large, and what cannot be read at all is for their readers to refuse in their
    // words.
    let start = files::beginning(path, START_BYTES).unwrap_or_default();
    if !Verdicts::claims(&String::from_utf8_lossy(&start)) {
        return Ok(None);
    }
    let text = files::read_text(path, files::RESULTS).map_err(Failure::bad_input)?;
    let failed = |error| Failure::bad_input(format!("`{}`: {error}", path.display()));
    gate::from_json(&text).map(Some).map_err(failed)
}

/// Puts verdicts beside the results that they are about.
fn attach(files: &mut [Results], gate: Verdicts, path: &Path) -> Result<(), Failure> {
    let about =
        |results: &&mut Results| gate.cases.iter().any(|case| results.record(&case.case).is_some());
    let Some(results) = files.iter_mut().find(about) else {
        return Err(Failure::bad_input(format!(
            "the verdicts in `{}` are about no case of the given results: give the results of the \
             same cases beside them",
            path.display()
        )));
    };
    results.regression = Some(gate);
    Ok(())
}

/// The folder in which the results lie. None of a model, whose folder takes no report.
fn beside(results: &Path) -> Option<PathBuf> {
    let folder = if results.is_dir() { Some(results) } else { results.parent() };
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_model = ModelFolder::is_at(folder) || Pretrained::is_at(folder);
    (!is_model).then(|| folder.to_owned())
}
