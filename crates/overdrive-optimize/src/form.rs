//! Forms that a model can have: float, one mode on every layer, or a mix of modes. Beside each
//! there may be a cache of codes, which holds keys and values while tokens are decoded.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A form of the model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Form {
    /// The mode that all layers have, or the name of a mix.
    pub name: String,
    /// For a mix: the mode of each layer that has one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, String>,
    /// Codes of the cache of keys and values; without them it holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
}

/// Stands between the name of a form and that of its cache; modes and engines have no such name.
const BESIDE: &str = " + ";
/// The name of the form that nothing was done to.
const FLOAT: &str = "float";

impl Form {
    /// The model as it was brought.
    pub fn float() -> Self {
        Self::of(FLOAT)
    }

    /// Every layer in one mode.
    pub fn of(mode: &str) -> Self {
        Self { name: mode.to_owned(), layers: BTreeMap::new(), cache: None }
    }

    /// The mix of this number.
    pub fn mix(number: usize, layers: BTreeMap<String, String>) -> Self {
        Self { name: format!("mix-{number}"), layers, cache: None }
    }

    /// This form with a cache of these codes.
    pub fn with_cache(&self, codes: &str) -> Self {
        let name = format!("{}{BESIDE}{codes}-cache", self.name);
        Self { name, layers: self.layers.clone(), cache: Some(codes.to_owned()) }
    }

    /// This form with a cache of numbers: what is written of it.
    pub fn of_weights(&self) -> Self {
        let name = weights_in(&self.name).to_owned();
        Self { name, layers: self.layers.clone(), cache: None }
    }

    /// Whether nothing was done.
    pub fn is_float(&self) -> bool {
        self.name == FLOAT
    }

    /// In words: how many layers have which mode.
    pub fn said(&self) -> String {
        if self.layers.is_empty() {
            return self.name.clone();
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.layers.values().for_each(|mode| *counts.entry(mode).or_default() += 1);
        let counts: Vec<String> =
            counts.iter().map(|(mode, count)| format!("{count} {mode}")).collect();
        format!("{} ({})", self.name, counts.join(", "))
    }
}

/// The name of a form's weights, in its own name.
pub(crate) fn weights_in(name: &str) -> &str {
    name.split(BESIDE).next().unwrap_or(name)
}

/// A mode that may be tried.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rung {
    /// Its name.
    pub mode: String,
    /// Format that its kernels read. Modes of one format differ in how weights find their codes,
    /// and take the same time.
    pub format: String,
    /// Whether a layer can have it alone, so that it can be a part of a mix.
    pub mixes: bool,
}

/// A layer, as far as a mix is concerned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerFacts {
    /// Its name.
    pub name: String,
    /// Layers of one group have one mode: engines run them as one product.
    pub group: String,
    /// Layers of one class have the same shape, and so the same time.
    pub class: String,
    /// Bytes of its weight in f32.
    pub float_bytes: u64,
}
