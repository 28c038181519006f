//! Weights that come with the program, so that what is done to a trained model can start at once;
//! `trained/README.md` has their scores and the command that trains them again.

use overdrive_formats::{Tensors, safetensors};
use std::path::Path;

const TRAINED: [(&str, &[u8]); 3] = [
    ("digits-mlp", include_bytes!("../trained/digits-mlp/model.safetensors")),
    ("digits-conv", include_bytes!("../trained/digits-conv/model.safetensors")),
    ("text-transformer", include_bytes!("../trained/text-transformer/model.safetensors")),
];

/// Parameters of the built-in model of this name, trained on the training samples of fold 0 or of
/// the text; `None` where none come with the program.
pub fn trained(model: &str) -> Option<Tensors> {
    let (name, bytes) = TRAINED.iter().find(|(name, _)| *name == model)?;
    Some(
        safetensors::decode(Path::new(name), *bytes).expect("the weights in the program are whole"),
    )
}
