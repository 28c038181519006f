//! Why a folder or a file is no model.

use overdrive_formats::{FormatError, ParametersError};
use overdrive_ir::GraphError;

/// Why a folder is no model that we can run.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file is absent or damaged, or the weights are not those of the architecture.
    #[error(transparent)]
    Parameters(#[from] Box<ParametersError>),
    /// Sizes in the config do not fit together.
    #[error("config.json describes no model that can be built: {0}")]
    Graph(#[from] GraphError),
}

impl From<ParametersError> for PretrainedError {
    fn from(error: ParametersError) -> Self {
        Box::new(error).into()
    }
}

impl From<FormatError> for PretrainedError {
    fn from(error: FormatError) -> Self {
        ParametersError::from(error).into()
    }
}
