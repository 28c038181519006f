//! Agreement of a quantized model's outputs with those of the float model, sample by sample.

use super::estimate::{Estimate, mean};
use overdrive_ir::Tensor;

/// Likeness of two models' outputs over samples: the first axis of each output.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Agreement {
    /// Samples compared.
    pub samples: usize,
    /// Mean cosine of the angle between the outputs of a sample.
    pub cosine: Estimate,
    /// Mean root of the mean square of the difference, relative to the float output.
    pub relative_error: Estimate,
}

/// Compares outputs, batch by batch. Batches and their outputs are in the same order.
pub fn agreement(float: &[Vec<Tensor>], quantized: &[Vec<Tensor>]) -> Agreement {
    let [cosines, errors] = by_sample(float, quantized);
    let samples = cosines.len();
    let [cosine, relative_error] = [cosines, errors].map(|values| mean(&[(0, values)], 0.0));
    Agreement { samples, cosine, relative_error }
}

/// The cosine of the angle between the outputs of each sample, their mean where there are several.
/// Outputs that count samples differently make a batch one sample.
pub fn cosines(float: &[Vec<Tensor>], quantized: &[Vec<Tensor>]) -> Vec<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let of_batch = |(float, quantized): (&Vec<Tensor>, &Vec<Tensor>)| -> Vec<f64> {
        let outputs = float.iter().zip(quantized);
        let outputs: Vec<Vec<f64>> =
            outputs.map(|(float, quantized)| of_output(float, quantized).0).collect();
        let samples = outputs.first().map_or(0, Vec::len);
        if outputs.iter().any(|output| output.len() != samples) {
            return vec![mean(&outputs.concat())];
        }
        let at = |sample: usize| outputs.iter().map(|output| output[sample]).collect::<Vec<_>>();
        (0..samples).map(|sample| mean(&at(sample))).collect()
    };
    float.iter().zip(quantized).flat_map(of_batch).collect()
}

/// The number of samples whose largest output is the same in both models, and the number of all
/// samples. The last axis has the logits of classes.
pub fn same_class(float: &[Vec<Tensor>], quantized: &[Vec<Tensor>]) -> [usize; 2] {
    let largest = |row: &[f64]| (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let mut counts = [0, 0];
    for (float, quantized) in float.iter().flatten().zip(quantized.iter().flatten()) {
        let classes = float.ty().sizes().last().copied().unwrap_or(1).max(1);
        let (float, quantized) = (float.to_f64(), quantized.to_f64());
        for (a, b) in float.chunks(classes).zip(quantized.chunks(classes)) {
            counts[0] += usize::from(largest(a) == largest(b));
            counts[1] += 1;
        }
    }
    counts
}

/// Cosine and relative error of each sample of each output.
fn by_sample(float: &[Vec<Tensor>], quantized: &[Vec<Tensor>]) -> [Vec<f64>; 2] {
    let (mut cosines, mut errors) = (Vec::new(), Vec::new());
    for (float, quantized) in float.iter().flatten().zip(quantized.iter().flatten()) {
        let (cosine, error) = of_output(float, quantized);
        cosines.extend(cosine);
        errors.extend(error);
    }
    [cosines, errors]
}

/// Cosines and relative errors of the samples of an output.
fn of_output(float: &Tensor, quantized: &Tensor) -> (Vec<f64>, Vec<f64>) {
    let samples = float.ty().sizes().first().copied().unwrap_or(1).max(1);
    let (float, quantized) = (float.to_f64(), quantized.to_f64());
    let width = (float.len() / samples).max(1);
    let of_sample = |(a, b): (&[f64], &[f64])| {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        let size = dot(a, a).max(f64::MIN_POSITIVE);
        let cosine = dot(a, b) / (size * dot(b, b).max(f64::MIN_POSITIVE)).sqrt();
        (cosine, (dot(&difference, &difference) / size).sqrt())
    };
    float.chunks(width).zip(quantized.chunks(width)).map(of_sample).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_first_of_the_largest_outputs() {
        let of = |values: &[f32]| vec![vec![Tensor::from_f32([2, 3], values)]];
        let float = of(&[1.0, 3.0, 3.0, 0.0, 5.0, 2.0]);
        assert_eq!(same_class(&float, &of(&[0.0, 9.0, 8.0, 1.0, 5.0, 2.0])), [2, 2]);
        assert_eq!(same_class(&float, &of(&[0.0, 8.0, 9.0, 1.0, 5.0, 2.0])), [1, 2]);
    }

    #[test]
    fn several_outputs_are_one_score_a_sample() {
        let one = |values: &[f32]| Tensor::from_f32([2, 2], values);
        let (right, turned) = (one(&[1.0, 0.0, 0.0, 1.0]), one(&[0.0, 1.0, 0.0, 1.0]));
        let [float, found] = [&right, &turned].map(|second| vec![right.clone(), second.clone()]);
        assert_eq!(cosines(&[float], &[found]), [0.5, 1.0]);
        let whole = |tensor: &Tensor| vec![tensor.clone(), Tensor::from_f32([1, 2], &[1.0, 1.0])];
        let found = cosines(&[whole(&right)], &[whole(&turned)]);
        assert!(found.len() == 1 && (found[0] - 2.0 / 3.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn likeness_is_of_directions_and_of_sizes() {
        let of = |values: &[f32]| vec![vec![Tensor::from_f32([2, 2], values)]];
        let same = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[1.0, 0.0, 0.0, 2.0]));
        assert_eq!((same.samples, same.cosine.value, same.relative_error.value), (2, 1.0, 0.0));
        let doubled = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[2.0, 0.0, 0.0, 4.0]));
        assert_eq!((doubled.cosine.value, doubled.relative_error.value), (1.0, 1.0));
        let turned = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[0.0, 1.0, 0.0, 2.0]));
        assert_eq!(turned.cosine.value, 0.5);
        assert!(turned.cosine.low < 0.0);
    }
}
