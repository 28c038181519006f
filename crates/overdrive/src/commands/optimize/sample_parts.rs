//! Identifies the samples that calibrate, choose and judge, so that a record goes on with the same
//! ones only.

use crate::commands::quantize::Samples;
use crate::failure::Failure;
use overdrive::files::Digest;
use overdrive::studies::quantization::{HeldOut, Judge};
use serde::{Deserialize, Serialize};

/// The identity of the three parts of the samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SampleParts {
    calibrating: SamplePart,
    choosing: SamplePart,
    /// Those that can judge; of them as many do as the forms need.
    pub(super) judging: SamplePart,
}

/// The identity of a part of the samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct SamplePart {
    /// How many there are.
    pub(super) samples: u64,
    /// Digest of their content, in their order.
    digest: String,
}

impl SampleParts {
    pub(super) fn of(samples: &Samples<'_>) -> Result<Self, Failure> {
        let calibrating = Judge::by_outputs(
            (samples.judge.backend, samples.judge.template),
            samples.seen.clone(),
        );
        Ok(Self {
            calibrating: SamplePart::of(&calibrating)?,
            choosing: SamplePart::of(&samples.chooser)?,
            judging: SamplePart::of(&samples.judge)?,
        })
    }

    /// Errs with the first part in which the other differs.
    pub(super) fn check(&self, other: &Self) -> Result<(), String> {
        let pairs = [
            ("calibrate", &self.calibrating, &other.calibrating),
            ("choose", &self.choosing, &other.choosing),
            ("judge", &self.judging, &other.judging),
        ];
        match pairs.into_iter().find(|(_, then, now)| then != now) {
            None => Ok(()),
            Some((they, then, now)) => Err(format!(
                "the samples that {they} were {} of digest {}, and here are {} of digest {}: give \
                 the same --data and --batches",
                then.samples, then.digest, now.samples, now.digest
            )),
        }
    }
}

impl SamplePart {
    fn of(judge: &Judge<'_>) -> Result<Self, Failure> {
        let digest = match judge.held_out() {
            HeldOut::Labelled(split) => split.hash().map_err(Failure::bad_input)?,
            HeldOut::Inputs(batches) => {
                let mut digest = Digest::default();
                batches.iter().flatten().for_each(|tensor| digest.add(tensor.bytes()));
                digest.finish()
            }
        };
        Ok(Self { samples: judge.samples(), digest })
    }
}
