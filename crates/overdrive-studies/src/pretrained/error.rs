//! Why a folder or a file is no model.

use overdrive_formats::{FormatError, ParametersError};
use overdrive_ir::GraphError;
use overdrive_passes::ShardError;

/// Why a folder is no model that we can run.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file is absent or damaged, or the weights are not those of the architecture.
    #[error(transparent)]
    Parameters(#[from] Box<ParametersError>),
    /// Sizes in the config do not fit together.
    #[error("config.json describes no model that can be built: {0}")]
    Graph(#[from] GraphError),
    /// The ranks do not divide the layers of a decoder.
    #[error(
        "expected ranks along `tensor` that divide the {wrong}, found {ranks}; of this model \
         {fitting} divide all layers that are split"
    )]
    Undivided {
        /// The number and name of parts that they do not divide.
        wrong: String,
        /// Ranks along the axis.
        ranks: usize,
        /// Numbers that would do.
        fitting: String,
    },
    /// Layers cannot be split otherwise.
    #[error(transparent)]
    Split(#[from] Box<ShardError>),
    /// Ranks would share codes.
    #[error(
        "expected float weights, which ranks can share, found codes ({mode}); decode the folder on \
         one rank, or the one that it was made from on several"
    )]
    Coded {
        /// The mode of the codes.
        mode: String,
    },
}

impl From<ParametersError> for PretrainedError {
    fn from(error: ParametersError) -> Self {
        Box::new(error).into()
    }
}

impl From<ShardError> for PretrainedError {
    fn from(error: ShardError) -> Self {
        Box::new(error).into()
    }
}

impl From<FormatError> for PretrainedError {
    fn from(error: FormatError) -> Self {
        ParametersError::from(error).into()
    }
}
