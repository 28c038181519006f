//! How much the outputs of a quantized model are those of the float one, sample by sample.

use overdrive_ir::Tensor;

/// Likeness of two models' outputs over samples: the first axis of each output.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Agreement {
    /// Samples compared.
    pub samples: usize,
    /// Mean cosine of the angle between the outputs of a sample.
    pub cosine: f64,
    /// Half width of its 95 % interval over samples.
    pub cosine_half_width: f64,
    /// Mean root of the mean square of the difference, relative to the float output.
    pub relative_error: f64,
    /// Half width of its 95 % interval over samples.
    pub relative_error_half_width: f64,
}

/// Compares outputs, batch by batch. Batches and their outputs are in the same order.
pub fn agreement(float: &[Vec<Tensor>], quantized: &[Vec<Tensor>]) -> Agreement {
    let (mut cosines, mut errors) = (Vec::new(), Vec::new());
    for (float, quantized) in float.iter().flatten().zip(quantized.iter().flatten()) {
        let samples = float.ty().sizes().first().copied().unwrap_or(1).max(1);
        let (float, quantized) = (float.to_f64(), quantized.to_f64());
        let width = (float.len() / samples).max(1);
        for (a, b) in float.chunks(width).zip(quantized.chunks(width)) {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let difference: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
            let size = dot(a, a).max(f64::MIN_POSITIVE);
            cosines.push(dot(a, b) / (size * dot(b, b).max(f64::MIN_POSITIVE)).sqrt());
            errors.push((dot(&difference, &difference) / size).sqrt());
        }
    }
    let [cosine, relative_error] = [mean(&cosines), mean(&errors)];
    Agreement {
        samples: cosines.len(),
        cosine: cosine.0,
        cosine_half_width: cosine.1,
        relative_error: relative_error.0,
        relative_error_half_width: relative_error.1,
    }
}

/// The mean, and half the width of its 95 % interval: samples are many, so that it is normal.
pub(crate) fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, 1.96 * (variance / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_is_of_directions_and_of_sizes() {
        let of = |values: &[f32]| vec![vec![Tensor::from_f32([2, 2], values)]];
        let same = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[1.0, 0.0, 0.0, 2.0]));
        assert_eq!((same.samples, same.cosine, same.relative_error), (2, 1.0, 0.0));
        let doubled = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[2.0, 0.0, 0.0, 4.0]));
        assert_eq!((doubled.cosine, doubled.relative_error), (1.0, 1.0));
        let turned = agreement(&of(&[1.0, 0.0, 0.0, 2.0]), &of(&[0.0, 1.0, 0.0, 2.0]));
        assert_eq!(turned.cosine, 0.5);
        assert!(turned.cosine_half_width > 0.9);
    }
}
