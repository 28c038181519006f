//! Rounding to the steps with the least error. Learning of steps begins from these.

use super::gptq::best_grid;
use overdrive_ir::{BlockFormat, BlockIndex, Encoded};

/// Codes of a weight whose steps err least.
pub(super) fn least_error(values: &[f64], shape: [usize; 2], format: &BlockFormat) -> Encoded {
    let counts = format.block.counts(shape).expect("the caller has encoded with this format");
    let index = BlockIndex::new(shape, counts);
    let mut members = vec![Vec::new(); counts[0] * counts[1]];
    values.iter().enumerate().for_each(|(i, &w)| members[index.at(i)].push(w));
    let tensor_scale = format.tensor_scale(values);
    let grids: Vec<_> = members
        .iter()
        .map(|block| best_grid(block, &[1.0], format, tensor_scale.unwrap_or(1.0)))
        .collect();
    let codes: Vec<f64> =
        values.iter().enumerate().map(|(i, &w)| format.code(w, grids[index.at(i)])).collect();
    format.assemble(&codes, &grids, shape, tensor_scale)
}
