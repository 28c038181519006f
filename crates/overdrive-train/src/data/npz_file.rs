//! NPZ: features `x` `[N, ...]` of any number format and labels `y` `[N]` of integers.

use super::Samples;
use crate::TrainError;
use overdrive_ir::Tensor;
use std::path::Path;

/// Reads `x` and `y` (or `labels`).
///
/// # Errors
/// When the file is damaged, an array is missing, or labels are not small integers.
pub(super) fn read(path: &Path) -> Result<Samples, TrainError> {
    let place = path.display().to_string();
    let mut tensors = overdrive_formats::read(path)?;
    let names: Vec<String> = tensors.keys().cloned().collect();
    let mut take = |wanted: &[&str]| -> Result<Tensor, TrainError> {
        let found = wanted.iter().find_map(|name| tensors.remove(*name));
        found.ok_or_else(|| {
            let expected = format!("an array `{}`", wanted.join("` or `"));
            TrainError::invalid(
                &place,
                expected,
                names.join(", "),
                "save with `numpy.savez(FILE, x=..., y=...)`",
            )
        })
    };
    let (features, labels) = (take(&["x"])?, take(&["y", "labels"])?);
    let fault = |expected: &str, found: String| {
        TrainError::invalid(&place, expected, found, "save labels as integers, one a sample")
    };
    if !labels.ty().dtype.is_int() || labels.ty().rank() != 1 {
        return Err(fault("integer labels [N]", labels.ty().to_string()));
    }
    let class = |label: i128| {
        u32::try_from(label).map_err(|_| fault("classes of 0, 1, 2, ...", label.to_string()))
    };
    let labels = labels.to_ints().into_iter().map(class).collect::<Result<_, _>>()?;
    Samples::new(&place, features, labels)
}
