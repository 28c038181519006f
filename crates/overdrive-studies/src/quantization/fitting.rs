//! The failure of a study whose training failed.

use overdrive_bench::failure::Failure;
use overdrive_train::TrainError;

pub(super) fn failure(error: TrainError) -> Failure {
    match error {
        TrainError::Backend(error) => error.into(),
        other => Failure::failed(other.to_string()),
    }
}
