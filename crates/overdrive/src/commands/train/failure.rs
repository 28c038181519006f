//! Errors of training, as the binary ends with them.

use crate::devices;
use crate::failure::Failure;
use overdrive::train::TrainError;

/// Whose fault an error is, and what the program exits with.
pub(super) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Backend(error) => devices::failure(error),
        TrainError::NonFinite { .. } => Failure::harness(error),
        _ => Failure::bad_input(error),
    }
}
