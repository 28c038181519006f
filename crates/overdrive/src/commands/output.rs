//! The folder of a report: claimed before anything is measured, its files by atomic rename.

use crate::failure::Failure;
use crate::terminal::{Volume, besides, say, volume, width};
use overdrive::bench::date::utc;
use overdrive::bench::import;
use overdrive::bench::json::to_json;
use overdrive::bench::results::Results;
use overdrive::files::{self, Contents, Existing, FileError, Place, PlaceRequest};
use overdrive::report::html::{Stills, alone, html};
use overdrive::report::{Report, summary, terminal};
use overdrive::studies::fabric;
use std::path::{Path, PathBuf};

/// The file that everything else in the folder is drawn from.
pub(crate) const RESULTS: &str = import::RESULTS;
/// The report to open.
pub(crate) const PAGE: &str = "report.html";
/// Links between the ranks that were measured, for `explain`; only of results that tell.
pub(crate) const FABRIC: &str = "fabric.json";
/// The report for pull requests and terminals.
const MARKDOWN: &str = "report.md";

/// Everything that `run` and `bench` write.
pub(crate) const REPORT: Contents = Contents {
    name: "results",
    writes: |name| [RESULTS, FABRIC].contains(&name) || is_drawn(name),
    is_ours: has_results,
};
/// The files that `report` draws.
pub(crate) const PAGES: Contents =
    Contents { name: "results", writes: is_drawn, is_ours: has_results };

fn is_drawn(name: &str) -> bool {
    let is_picture =
        [".svg", ".png", ".html"].iter().any(|end| name.ends_with(end)) || name == "plots/";
    [PAGE, MARKDOWN].contains(&name) || (name.starts_with("plots/") && is_picture)
}

fn has_results(folder: &Path) -> bool {
    [RESULTS, PAGE, "gate.json"].iter().any(|name| folder.join(name).is_file())
}

/// Bytes that every report takes, if not more.
const ROOM: u64 = 1 << 19;

/// Claims the folder now, so that what is wrong with it is known before the work and not after it.
pub(crate) fn place(
    folder: &Path,
    existing: Existing,
    contents: Contents,
) -> Result<Place, Failure> {
    let request = PlaceRequest { path: folder, option: "--out", existing, inputs: &[] };
    files::check_room(folder, &[ROOM])?;
    Place::files(request, contents).map_err(Failure::bad_input)
}

/// The folder that the user named, or else a new one: `reports/<date-time>`.
pub(crate) fn place_or_new(
    named: Option<&Path>,
    existing: Existing,
    (begun, contents): (&Results, Contents),
) -> Result<Place, Failure> {
    if let Some(folder) = named {
        return place(folder, existing, contents);
    }
    let folder = default_folder(begun);
    files::check_room(&folder, &[ROOM])?;
    let place = |folder: &Path| {
        Place::files(
            PlaceRequest { path: folder, option: "--out", existing: Existing::Keep, inputs: &[] },
            contents,
        )
    };
    // Another process may have begun in the same second.
    let others = (2..100).map(|n| PathBuf::from(format!("{}-{n}", folder.display())));
    let mut found = place(&folder);
    for other in others {
        if !matches!(found, Err(FileError::Busy { .. } | FileError::Exists { .. })) {
            break;
        }
        found = place(&other);
    }
    found.map_err(Failure::bad_input)
}

/// The results in a file or a folder, ours or imported: what every command that takes results
/// takes.
pub(crate) fn read(path: &Path) -> Result<Vec<Results>, Failure> {
    import::read(path).map_err(Failure::bad_input)
}

/// `reports/<date-time>`.
fn default_folder(results: &Results) -> PathBuf {
    let stamp: String = utc(results.started_unix_s)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Path::new("reports").join(stamp.trim_matches('-'))
}

/// Whether anything was measured: results of nothing are not worth a folder.
pub(crate) fn has_measurements(results: &Results) -> bool {
    results.records.iter().any(|record| record.outcome.measurement().is_some())
}

/// Writes results.json and what is drawn from it. If the folder takes no results any more, they are
/// kept elsewhere.
pub(crate) fn write(place: &Place, results: &Results) -> Result<(), Failure> {
    write_results(place, results).map_err(|error| kept(&error, results))?;
    write_report(place, &Report::new(std::slice::from_ref(results))).map_err(|failure| {
        let folder = place.path().display();
        failure.and(format_args!(
            "The results are kept in `{folder}/{RESULTS}`: `overdrive report {folder}/{RESULTS} \
             --force` draws the rest"
        ))
    })
}

/// Writes report.html, report.md and plots/ of one results file or several.
pub(crate) fn write_report(place: &Place, report: &Report<'_>) -> Result<(), Failure> {
    place.put(MARKDOWN, report.markdown().as_bytes()).map_err(Failure::harness)?;
    let stills = write_plots(place, report)?;
    place.put(PAGE, html(report, &stills).as_bytes()).map_err(Failure::harness)?;
    place.finish().map_err(Failure::harness)
}

/// Puts results that their folder does not take where there is room, and says where.
fn kept(error: &FileError, results: &Results) -> Failure {
    let (json, name) = (to_json(results), format!("overdrive-results-{}.json", std::process::id()));
    for folder in [PathBuf::from("."), std::env::temp_dir()] {
        let path = folder.join(&name);
        let request =
            PlaceRequest { path: &path, option: "", existing: Existing::Keep, inputs: &[] };
        let filled = Place::file(request).and_then(|place| place.fill_with(json.as_bytes()));
        if filled.is_ok() {
            let path = path.display();
            return Failure::harness(format!(
                "{error}. The results are kept in `{path}`: `overdrive report {path} --out DIR` \
                 draws them"
            ));
        }
    }
    // No disk takes them, but whoever reads the standard output may.
    match say!("{json}") {
        Ok(()) => Failure::harness(format!("{error}. The results are on standard output, as JSON")),
        Err(_) => {
            Failure::harness(format!("{error}. Nothing else takes the results: they are lost"))
        }
    }
}

/// Writes every chart as SVG, PNG and a page of its own, and hands back the SVG for the page.
#[cfg(feature = "plots")]
fn write_plots(place: &Place, report: &Report<'_>) -> Result<Stills, Failure> {
    let charts: Vec<_> = report.charts().cloned().collect();
    let pictures = overdrive::report::drawing::draw(&charts).map_err(Failure::harness)?;
    let mut stills = Stills::new();
    for (chart, picture) in charts.iter().zip(pictures) {
        let page = alone(chart, &picture.svg);
        let files =
            [("svg", picture.svg.as_bytes()), ("png", &picture.png), ("html", page.as_bytes())];
        for (extension, content) in files {
            let name = format!("plots/{}.{extension}", picture.id);
            place.put(&name, content).map_err(Failure::harness)?;
        }
        stills.insert(picture.id, picture.svg);
    }
    Ok(stills)
}

/// A build without an engine for charts: the page draws them itself.
#[cfg(not(feature = "plots"))]
fn write_plots(_place: &Place, _report: &Report<'_>) -> Result<Stills, Failure> {
    Ok(Stills::new())
}

/// Writes results.json.
pub(crate) fn write_results(place: &Place, results: &Results) -> Result<(), FileError> {
    if let Some(fabric) = fabric(results) {
        place.put(FABRIC, fabric.as_bytes())?;
    }
    place.put(RESULTS, to_json(results).as_bytes())
}

/// Prints the results: in ten lines, including the last line of the command, or with `-v` in full.
pub(crate) fn tell(results: &Results) -> Result<(), Failure> {
    if volume() == Volume::Verbose {
        say!("{}", terminal(results, width()))?;
    }
    besides(format_args!("{}", summary(results, width())))
}

/// Says where the report lies.
pub(crate) fn lies_in(folder: &Path) -> Result<(), Failure> {
    say!("report: {}", folder.join(PAGE).display())
}
