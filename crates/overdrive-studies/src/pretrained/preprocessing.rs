//! The steps that a folder's preprocessor applies to images or sound before the model sees them.
//! They tell a user what inputs the model needs, and whether the preprocessor belongs to another
//! model.
//!
//! The file is preprocessor_config.json, or in newer folders a section of processor_config.json.
//! Nothing is decoded here. Invariant: every reported step is in the file, or is a default of
//! `transformers`.

use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use std::path::Path;

const FILE: &str = "preprocessor_config.json";
const NEWER: &str = "processor_config.json";

fn settings(folder: &Path, section: &'static str) -> Result<Option<Config>, FormatError> {
    if folder.join(FILE).exists() {
        return Config::read(&folder.join(FILE)).map(Some);
    }
    match folder.join(NEWER).exists() {
        true => Config::read(&folder.join(NEWER))?.section(&[section]),
        false => Ok(None),
    }
}

/// The steps from images to the input of this name, `[height, width]` each.
pub(super) fn images(
    folder: &Path,
    (input, taken): (&str, [usize; 2]),
) -> Result<Vec<String>, FormatError> {
    let [height, width] = taken;
    let Some(settings) = settings(folder, "image_processor")? else {
        let missing = format!(
            "{FILE} is not there: {input} is images of {height}x{width}, scaled as in training"
        );
        return Ok(vec![missing]);
    };
    let mut steps = vec![];
    if settings.flag("do_rescale", Otherwise::True)? {
        let factor = settings.find_positive(&["rescale_factor"])?.unwrap_or(1.0 / 255.0);
        steps.push(format!("times {factor:.6}"));
    }
    if settings.flag("do_normalize", Otherwise::True)? {
        for (name, verb) in [("image_mean", "less"), ("image_std", "over")] {
            if let Some(values) = settings.find_reals(name)? {
                let values: Vec<String> = values.iter().map(f64::to_string).collect();
                steps.push(format!("{verb} {}", values.join(" ")));
            }
        }
    }
    let steps = if steps.is_empty() { "as they are".to_owned() } else { steps.join(", ") };
    let mut notes =
        vec![format!("{input} is images of {height}x{width}, values {steps}, as {FILE} says")];
    let field =
        if settings.flag("do_center_crop", Otherwise::False)? { "crop_size" } else { "size" };
    if let Some([h, w]) = extents(&settings, field)?.filter(|made| *made != taken) {
        notes.push(format!("{FILE} makes images of {h}x{w}, which the model does not take"));
    }
    Ok(notes)
}

/// Height and width where the file fixes both: older files have one number, newer ones an object.
fn extents(settings: &Config, field: &'static str) -> Result<Option<[usize; 2]>, FormatError> {
    if settings.to_json().get(field).is_some_and(|value| !value.is_object()) {
        return settings.find_pair(field);
    }
    let Some(size) = settings.section(&[field])? else { return Ok(None) };
    let [height, width] = [size.find_count(&["height"])?, size.find_count(&["width"])?];
    Ok(height.zip(width).map(|(height, width)| [height, width]))
}

/// The steps from sound to spectra of so many bins and frames.
pub(super) fn sound(folder: &Path, [bins, frames]: [usize; 2]) -> Result<Vec<String>, FormatError> {
    let mut notes =
        vec![format!("input_features is log-mel spectra of {bins} bins and {frames} frames")];
    let Some(settings) = settings(folder, "feature_extractor")? else { return Ok(notes) };
    if let Some(rate) = settings.find_count(&["sampling_rate"])? {
        notes[0].push_str(&format!(" of sound with {rate} samples a second"));
    }
    for (field, taken) in [("feature_size", bins), ("nb_max_frames", frames)] {
        if let Some(made) = settings.find_count(&[field])?.filter(|made| *made != taken) {
            notes.push(format!("{FILE}: {field} is {made}, but the model takes {taken}"));
        }
    }
    Ok(notes)
}
