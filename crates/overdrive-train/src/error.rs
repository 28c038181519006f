//! Errors between a data set and a trained model.

use overdrive_files::FileError;
use overdrive_formats::{FormatError, ParametersError};
use overdrive_ir::{BackendError, GraphError, RankError};
use overdrive_passes::ShardError;
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Why data could not be read, or a model not be trained.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// Its reason.
        source: std::io::Error,
    },
    /// A file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// Data, a recipe or a checkpoint is not what it has to be.
    #[error("{place}: expected {expected}, found {found}; {remedy}")]
    Invalid {
        /// A file and the place in it, or the request.
        place: String,
        /// A description of what was expected.
        expected: String,
        /// A description of what was found.
        found: String,
        /// The remedy.
        remedy: String,
    },
    /// A NaN or an infinity ended the training. The parameters are those before the step.
    #[error("step {step}: {first}; {advice}")]
    NonFinite {
        /// The step, from 0.
        step: u64,
        /// Its origin: the input, state or op with the first value that is not finite.
        first: String,
        /// The remedy, by the recipe.
        advice: String,
    },
    /// A file of tensors.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Tensors that are not the parameters of the model.
    #[error(transparent)]
    Parameters(Box<ParametersError>),
    /// A graph that does not hold together.
    #[error(transparent)]
    Graph(Box<GraphError>),
    /// A step that cannot be cut into parts for ranks.
    #[error(transparent)]
    Shard(Box<ShardError>),
    /// The device, or the other ranks.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<ShardError> for TrainError {
    fn from(error: ShardError) -> Self {
        Self::Shard(Box::new(error))
    }
}

impl From<RankError> for TrainError {
    fn from(error: RankError) -> Self {
        Self::Backend(error.into())
    }
}

impl From<ParametersError> for TrainError {
    fn from(error: ParametersError) -> Self {
        Self::Parameters(Box::new(error))
    }
}

impl From<GraphError> for TrainError {
    fn from(error: GraphError) -> Self {
        Self::Graph(Box::new(error))
    }
}

impl TrainError {
    /// Whether it only says that another rank has failed, which has an error of its own.
    pub fn is_of_another_rank(&self) -> bool {
        matches!(self, Self::Backend(BackendError::Ranks(_)))
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    /// Something at `place` is `found`, not `expected`.
    pub fn invalid(
        place: impl Display,
        expected: impl Display,
        found: impl Display,
        remedy: &str,
    ) -> Self {
        let [place, expected, found] = [place.to_string(), expected.to_string(), found.to_string()];
        Self::Invalid { place, expected, found, remedy: remedy.to_owned() }
    }
}
