//! Splits samples into training, validation and test.

use super::{Labelled, Samples, Split, Targets, Tokens, Windows};
use crate::TrainError;
use overdrive_ir::eval::philox;
use std::sync::Arc;

/// Number of folds: each sample is a test sample of exactly one.
pub const FOLDS: usize = 5;

/// One in this many of the samples that are not for testing validates.
const VALIDATES: usize = 8;

/// Fixed for good: another seed would be another split, and figures of the two do not compare.
const SEED: u64 = 20_261_121;

/// The three parts of a data set, apart from each other.
#[derive(Clone)]
pub struct Parts {
    /// The training samples.
    pub train: Arc<dyn Split>,
    /// The samples that decide when to stop and which recipe is better.
    pub validation: Arc<dyn Split>,
    /// The samples that are used once, for the final figure.
    pub test: Arc<dyn Split>,
}

impl Parts {
    /// Fold `fold` of [`FOLDS`], samples in `shape`: a fifth of each class tests, an eighth of the
    /// rest validates.
    ///
    /// # Errors
    /// When there is no such fold, the data set is too small for three parts, or the shape has
    /// another size.
    pub fn of_samples(
        samples: &Arc<Samples>,
        shape: &[usize],
        fold: usize,
    ) -> Result<Self, TrainError> {
        Self::dealt(samples.targets(), fold, &|members| {
            Ok(Arc::new(Labelled::new(Arc::clone(samples), members, shape)?))
        })
    }

    /// The same of samples with these targets: `split_of` makes a part of its members.
    ///
    /// # Errors
    /// When there is no such fold, the data set is too small for three parts, or a part cannot be
    /// made.
    pub(super) fn dealt(
        targets: &Targets,
        fold: usize,
        split_of: &dyn Fn(Vec<u32>) -> Result<Arc<dyn Split>, TrainError>,
    ) -> Result<Self, TrainError> {
        if fold >= FOLDS {
            let expected = format!("a fold below {FOLDS}");
            return Err(TrainError::invalid("fold", expected, fold, "folds are numbered from 0"));
        }
        let hands = match targets {
            Targets::Classes { of, count } => hands(of, *count),
            Targets::Quantities(of) => hands(&vec![0; of.len()], 1),
        };
        let part = |wanted: &dyn Fn(usize) -> bool| -> Result<Arc<dyn Split>, TrainError> {
            let members: Vec<u32> =
                (0..hands.len()).filter(|&i| wanted(hands[i])).map(|i| i as u32).collect();
            if members.is_empty() {
                let expected = format!("samples for three parts, {} are enough", FOLDS * VALIDATES);
                let found = format!("{} in all", hands.len());
                return Err(TrainError::invalid("data set", expected, found, "give more samples"));
            }
            split_of(members)
        };
        Ok(Self {
            train: part(&|hand| hand % FOLDS != fold && hand / FOLDS != 0)?,
            validation: part(&|hand| hand % FOLDS != fold && hand / FOLDS == 0)?,
            test: part(&|hand| hand % FOLDS == fold)?,
        })
    }

    /// The first 90 % of a text, the next 5 % and the last 5 %, in windows of `context` tokens. The
    /// first part has every window. The others have windows side by side, so that each token is
    /// predicted once.
    ///
    /// # Errors
    /// When a part is shorter than a window.
    pub fn of_text(tokens: &Arc<Tokens>, context: usize) -> Result<Self, TrainError> {
        let len = tokens.len();
        let [held_out, tested] = [len / 10, len / 20];
        let part = |from: u64, to: u64, stride: usize| -> Result<Arc<dyn Split>, TrainError> {
            if to - from <= context as u64 {
                let expected = format!("parts longer than a window of {context} tokens");
                let found = format!("a part of {} of the {len} tokens", to - from);
                return Err(TrainError::invalid("text", expected, found, "give more text"));
            }
            Ok(Arc::new(Windows::new(Arc::clone(tokens), from..to, [context, stride])))
        };
        Ok(Self {
            train: part(0, len - held_out, 1)?,
            validation: part(len - held_out, len - tested, context)?,
            test: part(len - tested, len, context)?,
        })
    }
}

/// A hand of `FOLDS * VALIDATES` for each sample: each class, in a random order, dealt on where the
/// last one ended.
fn hands(labels: &[u32], classes: usize) -> Vec<usize> {
    let mut by_class: Vec<Vec<usize>> = vec![Vec::new(); classes];
    labels.iter().enumerate().for_each(|(sample, &class)| by_class[class as usize].push(sample));
    let site = philox::site_of("split");
    let mut hands = vec![0; labels.len()];
    let mut dealt = 0;
    for class in &mut by_class {
        class.sort_by_key(|&sample| (philox::bits(SEED, site, sample as u64), sample));
        for &sample in class.iter() {
            hands[sample] = dealt % (FOLDS * VALIDATES);
            dealt += 1;
        }
    }
    hands
}
