//! Mixes of modes: what parts cost, brought to what wholes were measured to cost, and solved.

use crate::asked::{Asked, Target};
use crate::decision::{Predicted, Tried};
use crate::machine::Parts;
use crate::solver::{Choice, cheapest};
use std::collections::BTreeMap;

/// The mode of a layer that has none.
const FLOAT: &str = "float";

/// The groups of a model with what each mode of each costs.
pub(crate) struct Mixing<'a> {
    parts: &'a Parts,
    /// Names of groups, in order.
    groups: Vec<&'a str>,
    /// Modes by the index of a choice; float is the first.
    modes: Vec<&'a str>,
    /// For each mode, what its saved time and its loss are multiplied with.
    factors: Vec<[f64; 2]>,
    choices: Vec<Vec<Choice>>,
}

impl<'a> Mixing<'a> {
    /// From figures of single layers (`parts`) and of whole models: the float model's time, and
    /// name, time and loss of each mode on all layers. Parts are scaled so that they add up to the
    /// whole.
    pub(crate) fn new(
        parts: &'a Parts,
        modes: &'a [String],
        (float_ns, wholes): (Option<f64>, &[(&str, f64, f64)]),
        asked: &Asked,
    ) -> Self {
        let modes: Vec<&str> =
            [FLOAT].into_iter().chain(modes.iter().map(String::as_str)).collect();
        let (groups, factors) = (parts.groups(), Vec::new());
        let mut mixing = Self { parts, groups, modes, factors, choices: Vec::new() };
        mixing.factors = mixing
            .modes
            .iter()
            .map(|&mode| {
                let whole = wholes.iter().find(|(name, ..)| *name == mode);
                let sum = |of: &dyn Fn(&str) -> Option<f64>| -> f64 {
                    mixing.groups.iter().filter_map(|group| of(group)).sum()
                };
                let saved = sum(&|group| mixing.saved_ns(group, mode));
                let lost = sum(&|group| mixing.lost(group, mode).filter(|lost| lost.is_finite()));
                match (whole, float_ns) {
                    (Some(&(_, ns, whole)), Some(float)) => {
                        [factor(float - ns, saved), factor(whole, lost)]
                    }
                    (Some(&(_, _, whole)), None) => [1.0, factor(whole, lost)],
                    _ => [1.0, 1.0],
                }
            })
            .collect();
        mixing.choices = mixing
            .groups
            .iter()
            .map(|group| {
                let of = |(mode, factors): (&&str, &[f64; 2])| {
                    mixing.choice((group, mode), *factors, asked.target)
                };
                mixing.modes.iter().zip(&mixing.factors).map(of).collect()
            })
            .collect();
        mixing
    }

    /// The layers' modes that cost least while their losses add up to no more than `budget`.
    pub(crate) fn within(&self, budget: f64) -> Option<BTreeMap<String, String>> {
        if self.groups.is_empty() || budget <= 0.0 {
            return None;
        }
        let picked = cheapest(&self.choices, budget)?;
        let mode = |group: &str| {
            let at = self.groups.iter().position(|known| *known == group)?;
            (picked[at] > 0).then(|| self.modes[picked[at]].to_owned())
        };
        let layers = self.parts.layers.iter();
        Some(layers.filter_map(|l| Some((l.name.clone(), mode(&l.group)?))).collect())
    }

    /// The sum of the parts of a mix, beside the float model as it was measured.
    pub(crate) fn predicted(&self, layers: &BTreeMap<String, String>, float: &Tried) -> Predicted {
        let (mut saved_ns, mut saved_bytes, mut lost) = (Some(0.0), Some(0i128), 0.0);
        for &group in &self.groups {
            let of_group = || self.parts.layers.iter().filter(|layer| layer.group == group);
            let Some(mode) = of_group().find_map(|layer| layers.get(&layer.name)) else { continue };
            let known = self.modes.iter().position(|known| known == mode);
            let [of_time, of_loss] = known.map_or([1.0; 2], |at| self.factors[at]);
            let ns = self.saved_ns(group, mode);
            saved_ns = saved_ns.zip(ns).map(|(sum, ns)| sum + of_time * ns);
            let bytes = self.parts.bytes.get(group).and_then(|modes| modes.get(mode));
            let before: u64 = of_group().map(|layer| layer.float_bytes).sum();
            saved_bytes = saved_bytes
                .zip(bytes)
                .map(|(sum, &bytes)| sum + i128::from(before) - i128::from(bytes));
            lost += self.lost(group, mode).map_or(0.0, |lost| lost.max(0.0) * of_loss);
        }
        let time = saved_ns.zip(float.time_ns).map(|(saved, float)| 1.0 - saved / float);
        let bytes = saved_bytes.zip(float.bytes).map(|(saved, float)| i128::from(float) - saved);
        Predicted { time, bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()), lost }
    }

    /// Whether all layers have one mode: such a form was tried before.
    pub(crate) fn is_uniform(&self, layers: &BTreeMap<String, String>) -> bool {
        let mut modes = layers.values();
        let first = modes.next();
        layers.len() == self.parts.layers.len() && modes.all(|mode| Some(mode) == first)
    }

    fn choice(&self, (group, mode): (&str, &str), factors: [f64; 2], target: Target) -> Choice {
        let of_group = || self.parts.layers.iter().filter(|layer| layer.group == group);
        let float_bytes: u64 = of_group().map(|layer| layer.float_bytes).sum();
        if mode == FLOAT {
            let cost = if target.is_time() { 0.0 } else { float_bytes as f64 };
            return Choice { cost, lost: 0.0 };
        }
        let bytes = self.parts.bytes.get(group).and_then(|modes| modes.get(mode));
        let cost = match target.is_time() {
            true => self.saved_ns(group, mode).map(|saved| -saved * factors[0]),
            false => bytes.map(|&bytes| bytes as f64),
        };
        let lost = self.lost(group, mode).map(|lost| lost.max(0.0) * factors[1]);
        // An infinite cost excludes forms that a layer cannot take, or of which nothing is known.
        Choice { cost: cost.unwrap_or(f64::INFINITY), lost: lost.unwrap_or(f64::INFINITY) }
    }

    /// Nanoseconds that a group's layers take less than in float.
    fn saved_ns(&self, group: &str, mode: &str) -> Option<f64> {
        let of = |class: &str, mode: &str| Some(*self.parts.times_ns.get(class)?.get(mode)?);
        let layers = self.parts.layers.iter().filter(|layer| layer.group == group);
        layers.map(|l| Some(of(&l.class, FLOAT)? - of(&l.class, mode)?)).sum()
    }

    fn lost(&self, group: &str, mode: &str) -> Option<f64> {
        self.parts.lost.get(group)?.get(mode).copied()
    }
}

/// The factor that makes the parts add up to the whole; 1 if their signs differ.
fn factor(whole: f64, parts: f64) -> f64 {
    let factor = whole / parts;
    if factor.is_finite() && factor > 0.0 { factor } else { 1.0 }
}
