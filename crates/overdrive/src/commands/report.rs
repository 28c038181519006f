//! `overdrive report`: the report of results that were measured before, here or elsewhere.

use super::output;
use crate::cli::Report;
use crate::failure::Failure;
use overdrive::bench::exit::Exit;
use overdrive::bench::import;
use overdrive::bench::report::html;
use overdrive::bench::results::Results;
use std::path::{Path, PathBuf};

pub(crate) fn report(arguments: &Report) -> Result<Exit, Failure> {
    let mut files = Vec::new();
    for path in &arguments.results {
        files.extend(read(path)?);
    }
    let folder = arguments.out.clone().unwrap_or_else(|| beside(&arguments.results[0]));
    output::prepare(&folder)?;
    output::write_report(&folder, &files)?;
    match files.as_slice() {
        [one] => println!("{}", output::summary(one)),
        several => println!("{} machines side by side, shown and never judged", several.len()),
    }
    println!("report: {}", folder.join(output::PAGE).display());
    Ok(Exit::Fine)
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
