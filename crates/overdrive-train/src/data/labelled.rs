//! Labelled samples: features of one shape, a class or a quantity each.

use super::{Batch, Split, Target, Targets};
use crate::TrainError;
use overdrive_formats::TableColumns;
use overdrive_ir::{DType, Tensor, TensorType};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// A data set in memory, features in the format in which they came: a byte a pixel stays a byte.
#[derive(Clone, PartialEq, Debug)]
pub struct Samples {
    /// `[N, ...]`.
    features: Tensor,
    /// A class or a quantity for each.
    targets: Targets,
    /// Factor on features, so that the largest magnitude is 1.
    scale: f32,
    /// The meaning of the columns, for a table.
    columns: Option<TableColumns>,
}

/// Classes are numbered from 0, and this many are the most that a data set of this kind can mean.
const MOST_CLASSES: u32 = 1 << 20;

impl Samples {
    /// Checks features `[N, ...]` and classes against each other. `place` is what errors call them.
    ///
    /// # Errors
    /// When there are none, counts differ, a feature is not finite, or labels are no small numbers.
    pub fn new(place: &str, features: Tensor, labels: Vec<u32>) -> Result<Self, TrainError> {
        let largest = labels.iter().copied().max().unwrap_or(0);
        if largest >= MOST_CLASSES {
            let found = format!("the label {largest}");
            let (expected, remedy) = ("classes numbered from 0", "number the classes");
            return Err(TrainError::invalid(place, expected, found, remedy));
        }
        Self::with(place, features, Targets::Classes { of: labels, count: largest as usize + 1 })
    }

    /// The same with targets of any kind. The caller has checked them.
    ///
    /// # Errors
    /// When there are none, counts differ, or a feature is not finite.
    pub(super) fn with(
        place: &str,
        features: Tensor,
        targets: Targets,
    ) -> Result<Self, TrainError> {
        let sizes = features.ty().sizes();
        let rows = sizes.first().copied().unwrap_or(0);
        let again = "write the data set again";
        if rows == 0 || features.ty().elements() == 0 {
            return Err(TrainError::invalid(place, "at least one sample", features.ty(), again));
        }
        if targets.len() != rows {
            let (expected, found) = (format!("{rows} labels, one a sample"), targets.len());
            return Err(TrainError::invalid(place, expected, found, "give each sample its label"));
        }
        let mut peak = 0f32;
        for sample in 0..rows {
            let row = row(&features, sample);
            if let Some(bad) = row.iter().find(|v| !v.is_finite()) {
                let found = format!("{bad} in sample {sample}");
                return Err(TrainError::invalid(
                    place,
                    "finite features",
                    found,
                    "clean the data first",
                ));
            }
            peak = row.iter().fold(peak, |peak, v| peak.max(v.abs()));
        }
        let scale = if peak > 0.0 { 1.0 / peak } else { 1.0 };
        Ok(Self { features, targets, scale, columns: None })
    }

    /// The same as a table with these columns.
    #[must_use]
    pub(super) fn with_columns(mut self, columns: TableColumns) -> Self {
        if let Targets::Classes { count, .. } = &mut self.targets {
            *count = columns.classes.len().max(*count);
        }
        self.columns = Some(columns);
        self
    }

    /// The same as samples that are no table.
    #[must_use]
    pub(super) fn without_columns(self) -> Self {
        Self { columns: None, ..self }
    }

    /// The same with features as they are in the file, for models that standardise them.
    #[must_use]
    pub(super) fn unscaled(&self) -> Self {
        Self { scale: 1.0, ..self.clone() }
    }

    /// The meaning of the columns, for a table.
    pub fn columns(&self) -> Option<&TableColumns> {
        self.columns.as_ref()
    }

    /// Shape of one sample.
    pub fn shape(&self) -> Vec<usize> {
        self.features.ty().sizes()[1..].to_vec()
    }

    /// Class of each sample; none of quantities.
    pub fn labels(&self) -> &[u32] {
        self.targets.classes()
    }

    /// The target of each sample.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Number of classes: one more than the largest label; 1 of quantities.
    pub fn classes(&self) -> usize {
        self.targets.outputs()
    }

    /// The factor that features are multiplied by before a model sees them: the largest magnitude
    /// of the data set becomes 1.
    pub fn scale(&self) -> f32 {
        self.scale
    }
}

/// Features of one sample as numbers.
fn row(features: &Tensor, sample: usize) -> Vec<f32> {
    let ty = features.ty();
    let width = ty.elements() / ty.sizes()[0];
    let bytes = width * ty.dtype.bits() / 8;
    let bytes = &features.bytes()[sample * bytes..][..bytes];
    if ty.dtype == DType::U8 {
        return bytes.iter().map(|&b| f32::from(b)).collect();
    }
    let row = TensorType::new(ty.dtype, [width]);
    Tensor::from_bytes(row, bytes).expect("rows are whole bytes").to_f32()
}

/// Some samples of a data set, as x of the shape that a model takes.
#[derive(Clone, Debug)]
pub struct Labelled {
    samples: Arc<Samples>,
    members: Vec<u32>,
    shape: Vec<usize>,
}

impl Labelled {
    /// These samples, by their numbers in the data set, in a shape of as many features as they
    /// have.
    ///
    /// # Errors
    /// When the shape has another number of features.
    pub fn new(
        samples: Arc<Samples>,
        members: Vec<u32>,
        shape: &[usize],
    ) -> Result<Self, TrainError> {
        let own = samples.shape();
        let [has, wants] = [&own[..], shape].map(|s| s.iter().product::<usize>());
        if has != wants {
            let (expected, found) =
                (format!("{wants} features, as {shape:?}"), format!("{has}, as {own:?}"));
            return Err(TrainError::invalid(
                "samples",
                expected,
                found,
                "choose a model of this input size",
            ));
        }
        Ok(Self { samples, members, shape: shape.to_vec() })
    }
}

impl Split for Labelled {
    fn len(&self) -> u64 {
        self.members.len() as u64
    }

    fn target(&self) -> Target {
        self.samples.targets.kind()
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let members: Vec<usize> =
            samples.iter().map(|&i| self.members[i as usize] as usize).collect();
        let scaled = |&sample: &usize| {
            row(&self.samples.features, sample).into_iter().map(|v| v * self.samples.scale)
        };
        let x: Vec<f32> = members.iter().flat_map(scaled).collect();
        let shape: Vec<usize> =
            [samples.len()].into_iter().chain(self.shape.iter().copied()).collect();
        let labels = self.samples.targets.of(&members);
        Ok(Batch { x: Tensor::from_f32(shape, &x), mask: None, labels, text_bytes: vec![] })
    }

    fn hash(&self) -> Result<String, TrainError> {
        let mut hash = Sha256::new();
        for &member in &self.members {
            let features = row(&self.samples.features, member as usize);
            features.iter().for_each(|v| hash.update(v.to_le_bytes()));
            self.samples.targets.hash(member as usize, &mut hash);
        }
        Ok(hex(hash))
    }
}

/// A finished hash in hexadecimal.
pub(crate) fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
