//! Writes a model as one file of GGUF, and reads it back as the model that it now is.
//!
//! The sizes come from the architecture. The model that is read back must have the same one, so
//! that a field without a key in the file is found. Invariant: a model that a file describes
//! otherwise is an error. ε and rotary frequencies are f32 there.

use super::architecture::Architecture;
use super::{Pretrained, PretrainedError};
use overdrive_formats::FormatError;
use overdrive_formats::gguf::{self, GgufKin, GgufSizes, GgufType, WrittenModel};
use overdrive_formats::huggingface::chat_template;
use overdrive_models::llama::Llama;
use overdrive_models::{Activation, Rotary};
use std::num::NonZero;
use std::path::Path;

/// The file that errors about the original point to.
const CONFIG: &str = "config.json";

/// Base of rotary frequencies where config.json names none, of all kin that are written.
const BASE: f64 = 10_000.0;

/// A text with what tokenizers differ about: contractions, digits, spaces, lines, scripts.
const PROBE: &str =
    "The hand's, and a TIN: 12345 don't  two   spaces\n\nlines\tärger 世界 \u{1F600} x=y;\r\n end ";

/// Largest relative difference of frequencies that f32 makes.
const NEAR: f64 = 1e-6;

impl Pretrained {
    /// Errs unless a file of GGUF describes this architecture, as far as is known beforehand.
    ///
    /// # Errors
    /// When it has no name there, or a part that the name does not stand for.
    pub fn check_gguf(&self) -> Result<(), FormatError> {
        self.kin_and_sizes().map(drop)
    }

    fn kin_and_sizes(&self) -> Result<(GgufKin, &Llama, usize), FormatError> {
        let json = self.described.to_json();
        let kin = json["model_type"].as_str().and_then(GgufKin::of);
        let (Some(kin), Architecture::Llama(llama, context)) = (kin, &self.architecture) else {
            let expected = "llama, mistral, qwen2 or qwen3";
            return Err(refused("model_type", expected, &json["model_type"].to_string()));
        };
        if let Some(window) = llama.windows.iter().copied().flatten().next() {
            let found = format!("a window of {window} tokens");
            return Err(refused("sliding_window", "blocks that see all tokens", &found));
        }
        if llama.activation != Activation::Silu {
            return Err(refused("hidden_act", "silu", "another one"));
        }
        let is_stretched = self.factors(llama).is_some();
        if llama.rotary.gain != 1.0 || (is_stretched && kin != GgufKin::Llama) {
            let expected = match kin {
                GgufKin::Llama => "default, linear or llama3, which GGUF holds as factors",
                GgufKin::Qwen2 | GgufKin::Qwen3 => "default, which GGUF holds of this model",
            };
            let fields = ["rope_scaling", "rope_parameters"];
            let field = fields.into_iter().find(|field| json[field].is_object());
            let field = field.unwrap_or(fields[0]);
            return Err(refused(field, expected, &json[field]["rope_type"].to_string()));
        }
        Ok((kin, llama.as_ref(), *context))
    }

    /// The base of rotary frequencies that config.json names.
    fn base(&self) -> f64 {
        let json = self.described.to_json();
        let named = [&json["rope_parameters"], &json["rope_scaling"], &json];
        named.iter().find_map(|place| place["rope_theta"].as_f64()).unwrap_or(BASE)
    }

    /// By what plain frequencies are divided, if they are.
    fn factors(&self, llama: &Llama) -> Option<Vec<f64>> {
        let plain = Rotary::plain_frequencies(self.base(), llama.depth);
        let pairs = plain.iter().zip(&llama.rotary.frequencies);
        let factors: Vec<f64> = pairs.map(|(plain, found)| plain / found).collect();
        factors.iter().any(|factor| (factor - 1.0).abs() > NEAR).then_some(factors)
    }

    /// Writes a file of this type, whose blocks so many threads make. Gives notes for the user.
    ///
    /// # Errors
    /// As [`Self::check_gguf`], and when a weight is larger than f16 holds or the system refuses.
    pub fn write_gguf(
        &self,
        path: &Path,
        ty: GgufType,
        threads: NonZero<usize>,
    ) -> Result<Vec<String>, FormatError> {
        let (kin, llama, context) = self.kin_and_sizes()?;
        let sizes = GgufSizes {
            vocabulary: llama.vocabulary,
            context,
            width: llama.width,
            layers: llama.layers,
            heads: llama.heads,
            key_heads: llama.key_heads,
            depth: llama.depth,
            hidden: llama.hidden,
        };
        let first = self.described.ids("bos_token_id")?.first().copied();
        let chat_template = match &self.folder {
            Some(folder) => chat_template(folder)?,
            None => None,
        };
        let model = WrittenModel {
            kin,
            name: &self.name,
            sizes,
            eps: llama.eps,
            base: self.base(),
            factors: self.factors(llama),
            weights: &self.weights,
            tokenizer: self.tokenizer.as_ref(),
            ends: [first, self.ends.first().copied()],
            chat_template,
        };
        let mut notes = gguf::write(path, &model, ty, threads)?;
        if self.ends.len() > 1 {
            notes.push(format!(
                "{} tokens end a text, and the file names the first of them, {}",
                self.ends.len(),
                self.ends[0]
            ));
        }
        Ok(notes)
    }

    /// Reads the file at `path` back, which was written of this model.
    ///
    /// # Errors
    /// When it is no model, or describes another one.
    pub fn read_gguf(&self, path: &Path) -> Result<Self, PretrainedError> {
        let again = Self::read(path)?;
        let (Architecture::Llama(ours, context), Architecture::Llama(theirs, other)) =
            (&self.architecture, &again.architecture)
        else {
            return Err(differs("general.architecture", "that of the original").into());
        };
        if context != other || !same(ours, theirs) {
            return Err(differs("keys of the architecture", "the sizes of the original").into());
        }
        if let (Some(ours), Some(theirs)) = (&self.tokenizer, &again.tokenizer) {
            let text = [PROBE, ""];
            let tokens = |of: &overdrive_formats::huggingface::Tokenizer| {
                text.map(|text| of.encode(text).unwrap_or_default())
            };
            if tokens(ours) != tokens(theirs) {
                return Err(differs("tokenizer.ggml", "the tokens of tokenizer.json").into());
            }
        }
        Ok(again)
    }
}

/// Whether two models compute the same, but for numbers that files hold as f32.
fn same(ours: &Llama, theirs: &Llama) -> bool {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= NEAR * a.abs();
    let [a, b] = [&ours.rotary.frequencies, &theirs.rotary.frequencies];
    let is_turned_alike = a.len() == b.len() && a.iter().zip(b).all(near);
    let sees_all = theirs.windows.iter().all(Option::is_none);
    let exact = Llama {
        eps: ours.eps,
        rotary: Rotary { frequencies: a.clone(), ..theirs.rotary.clone() },
        windows: ours.windows.clone(),
        ..theirs.clone()
    };
    near((&ours.eps, &theirs.eps)) && is_turned_alike && sees_all && exact == *ours
}

/// The error about a model that a file has no words for.
fn refused(place: &str, expected: &str, found: &str) -> FormatError {
    FormatError::Invalid {
        path: CONFIG.into(),
        place: place.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        remedy: "write a folder, which holds this model: -o DIR".to_owned(),
    }
}

/// The error about a file that describes another model than it was written of.
fn differs(place: &str, expected: &str) -> FormatError {
    FormatError::Invalid {
        path: "the file that was written".into(),
        place: place.to_owned(),
        expected: expected.to_owned(),
        found: "others".to_owned(),
        remedy: "write a folder, which holds this model: -o DIR".to_owned(),
    }
}
