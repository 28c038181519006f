//! Number formats of training as data: recipes by name, and those that users write.
//!
//! A named recipe is a line of [`FORMATS`]. A recipe of a user is a file of JSON with the same
//! fields, which are those that a [`Recipe`] keeps beside the weights.

use crate::{Recipe, TrainError};
use overdrive_files::SETTINGS;
use overdrive_ir::DType;
use overdrive_ir::DType::{BF16, F8E4M3, F8E5M2, F16, F32};
use overdrive_ir::ops::float8_linear::Float8Granularity::{self, Block, Mx, Row, Tensor};
use overdrive_passes::Float8;
use overdrive_passes::Scaling::{self, Current, Delayed};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Number formats of training.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Formats {
    /// Format of the operands of contractions; parameters and sums stay in f32.
    pub precision: DType,
    /// How linear layers are on codes of fp8; else they are in `precision` too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float8: Option<Float8>,
}

/// Formats that have a name.
#[derive(Debug)]
pub struct NamedFormats {
    /// The name.
    pub name: &'static str,
    /// A description of them, in a line.
    pub help: &'static str,
    /// They.
    pub formats: Formats,
}

/// The recipes by name, a line each.
pub const FORMATS: &[NamedFormats] = &[
    plain("f32", F32, "All in f32"),
    plain("bf16", BF16, "Contractions in bf16"),
    plain("f16", F16, "Contractions in f16, the loss scaled"),
    fp8("fp8", (F8E5M2, Tensor, Delayed), "Linear layers in e4m3, gradients e5m2, delayed scales"),
    with_head(fp8("fp8-head", (F8E5M2, Tensor, Delayed), "As fp8, the last layer in fp8 too")),
    with_attention(fp8("fp8-attention", (F8E5M2, Tensor, Delayed), "As fp8, attention too")),
    fp8("fp8-e4m3", (F8E4M3, Tensor, Delayed), "As fp8, gradients in e4m3 too"),
    fp8("fp8-current", (F8E5M2, Tensor, Current), "As fp8, the scale of each tensor from itself"),
    fp8("fp8-e4m3-current", (F8E4M3, Tensor, Current), "As fp8-current, gradients in e4m3 too"),
    fp8("fp8-rows", (F8E4M3, Row, Current), "As fp8-e4m3-current, a scale for each row"),
    fp8("fp8-blocks", (F8E4M3, Block, Current), "As fp8-rows, a scale for each block of 128"),
    fp8("fp8-mx", (F8E4M3, Mx, Current), "As fp8-rows, a scale for each block of 32 (MXFP8)"),
    where_faster(fp8("fp8-auto", (F8E5M2, Tensor, Delayed), "As fp8-head, where codes save time")),
];

const fn plain(name: &'static str, precision: DType, help: &'static str) -> NamedFormats {
    NamedFormats { name, help, formats: Formats { precision, float8: None } }
}

/// bf16 with linear layers on codes of fp8, by the format of gradients, what a scale covers, and
/// where scales come from.
const fn fp8(
    name: &'static str,
    (gradient, granularity, scaling): (DType, Float8Granularity, Scaling),
    help: &'static str,
) -> NamedFormats {
    let float8 = Some(Float8::new(gradient, granularity, scaling));
    NamedFormats { name, help, formats: Formats { precision: BF16, float8 } }
}

/// The same with the last layer on codes too.
const fn with_head(mut named: NamedFormats) -> NamedFormats {
    if let Some(float8) = &mut named.formats.float8 {
        float8.last = true;
    }
    named
}

/// The same with attention's forward on codes too.
const fn with_attention(mut named: NamedFormats) -> NamedFormats {
    if let Some(float8) = &mut named.formats.float8 {
        float8.attention = true;
    }
    named
}

/// The same for all layers that gain time by codes, the last one too, and for no others.
const fn where_faster(named: NamedFormats) -> NamedFormats {
    let mut named = with_head(named);
    if let Some(float8) = &mut named.formats.float8 {
        float8.break_even = Some(Float8::BREAK_EVEN_ON_H200);
    }
    named
}

impl Formats {
    /// Those of a name in [`FORMATS`].
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|known| known.name == name).map(|known| &known.formats)
    }

    /// Their name, where they have one.
    pub fn name(&self) -> Option<&'static str> {
        FORMATS.iter().find(|known| known.formats == *self).map(|known| known.name)
    }

    /// Those of a file of JSON.
    ///
    /// # Errors
    /// When the file cannot be read, or is no recipe; [`Recipe::check`] judges what it says.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let text = overdrive_files::read_text(path, SETTINGS)?;
        serde_json::from_str(&text).map_err(|error| {
            let like = Self::named("fp8").map(serde_json::to_string);
            let like = like.and_then(Result::ok).unwrap_or_default();
            let expected = format!("formats of training, as {like}");
            let remedy = "correct the file there, or name formats by --precision";
            TrainError::invalid(path.display(), expected, error, remedy)
        })
    }
}

impl Recipe {
    /// The recipe in other formats.
    pub fn in_formats(self, formats: Formats) -> Self {
        let Formats { precision, float8 } = formats;
        Self { precision, float8, ..self }
    }

    /// Its formats.
    pub fn formats(&self) -> Formats {
        Formats { precision: self.precision, float8: self.float8.clone() }
    }
}
