//! Batches of a split that calibrate.

use super::fitting::failure;
use crate::Template;
use overdrive_bench::failure::Failure;
use overdrive_ir::Tensor;
use overdrive_train::data::{Split, Subset};
use std::sync::Arc;

/// `batches` whole batches of inputs, spread evenly over a split.
///
/// # Errors
/// When it has fewer samples, or they cannot be read.
pub fn calibration(
    split: &Arc<dyn Split>,
    batch: usize,
    batches: usize,
) -> Result<Vec<Vec<Tensor>>, Failure> {
    let count = (batch * batches) as u64;
    if split.len() < count {
        let found = split.len();
        return Err(Failure::failed(format!(
            "calibration: expected at least {count} samples ({batches} batches of {batch}), found \
             {found}; \
             give more data, or ask for fewer batches"
        )));
    }
    let picked = Subset::evenly(Arc::clone(split), count);
    let batch_at = |from: u64| {
        let numbers: Vec<u64> = (from..from + batch as u64).collect();
        let batch = picked.batch(&numbers).map_err(failure)?;
        Ok(batch.inputs().map(|(_, tensor)| tensor.clone()).collect())
    };
    (0..batches as u64).map(|i| batch_at(i * batch as u64)).collect()
}

/// Samples in a batch of the template.
pub fn batch_of(template: &Template) -> usize {
    template.dimensions.get("batch").copied().unwrap_or(1)
}
