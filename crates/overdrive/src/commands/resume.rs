//! `--resume`: what an interrupted run left, if it is of this program on this machine.

use super::output::RESULTS;
use crate::failure::Failure;
use overdrive::bench::json::from_json;
use overdrive::bench::results::Results;
use overdrive::files;
use std::path::Path;

/// The results in `folder`, which `current` is to go on with.
pub(crate) fn earlier(folder: &Path, current: &Results) -> Result<Results, Failure> {
    let path = folder.join(RESULTS);
    let refused = |reason: String| {
        Failure::bad_input(format!(
            "cannot resume from `{}`: {reason}; start a new run without --resume",
            path.display()
        ))
    };
    let text = files::read_text(&path, files::RESULTS).map_err(|e| refused(e.to_string()))?;
    let earlier = from_json(&text).map_err(|e| refused(e.to_string()))?;
    let (then, now) = (&earlier.revision, &current.revision);
    if then.commit != now.commit || then.version != now.version {
        let name = |r: &overdrive::bench::environment::Revision| {
            r.commit.clone().unwrap_or_else(|| format!("version {}", r.version))
        };
        return Err(refused(format!(
            "it is of revision {}, this program is {}",
            name(then),
            name(now)
        )));
    }
    let (then, now) = (&earlier.environment, &current.environment);
    if (&then.cpu, &then.devices) != (&now.cpu, &now.devices) {
        return Err(refused(format!(
            "it is from another machine ({}, here {})",
            then.cpu.model, now.cpu.model
        )));
    }
    Ok(earlier)
}
