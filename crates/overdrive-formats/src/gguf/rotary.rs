//! How a header stretches the angles of positions, as the `rope_scaling` of a config.json that
//! `transformers` takes too.

use super::keys::Keys;
use super::layout::HeaderValue;
use crate::FormatError;
use serde_json::{Value as Json, json};
use std::f64::consts::TAU;

/// The base of frequencies where a header has none.
pub(super) const BASE: f64 = 10_000.0;

/// How the angles of positions are stretched, if they are.
pub(super) fn scaling(keys: &Keys<'_>, context: u64) -> Result<Option<Json>, FormatError> {
    let file = keys.file;
    let original = keys.count("rope.scaling.original_context_length")?.unwrap_or(context);
    let factor = keys.find_positive("rope.scaling.factor")?;
    let gain = keys.find_positive("rope.scaling.attn_factor")?;
    // One factor for each pair of channels; of Llama 3, and of the short and long sequences of
    // Phi-3.
    let stored =
        |name: &str| file.tensors.get(name).map(|stored| stored.kind.decoded(&stored.bytes));
    if let Some(factors) = stored("rope_freqs.weight") {
        let base = keys.find_positive("rope.freq_base")?.unwrap_or(BASE);
        return Ok(Some(llama3(&factors, base).unwrap_or_else(|| {
            json!({
                "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
                "attention_factor": 1.0, "original_max_position_embeddings": context,
            })
        })));
    }
    if let Some(short) = stored("rope_factors_short.weight") {
        let long = stored("rope_factors_long.weight").unwrap_or_else(|| short.clone());
        return Ok(Some(json!({
            "rope_type": "longrope", "short_factor": short, "long_factor": long,
            "attention_factor": gain, "original_max_position_embeddings": original,
        })));
    }
    let kind = match keys.find("rope.scaling.type") {
        None => "none",
        Some(HeaderValue::Text(kind)) => kind.as_str(),
        Some(_) => "a number",
    };
    match (kind, factor) {
        ("none", _) => Ok(None),
        ("linear", Some(factor)) => Ok(Some(json!({ "rope_type": "linear", "factor": factor }))),
        ("yarn", Some(factor)) => Ok(Some(json!({
            "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
        }))),
        _ => {
            let place = format!("{}.rope.scaling.type", keys.prefix);
            let expected = "none, or linear or yarn with a factor, or factors as a tensor";
            Err(file.wrong(&place, expected, kind))
        }
    }
}

/// The rule of Llama 3 that these factors follow, if one does. The file holds the resulting
/// factors, as llama.cpp's converter computes them. The ends of the range between short and long
/// waves are those of all of Meta's models.
fn llama3(factors: &[f32], base: f64) -> Option<Json> {
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    let factor = factors.iter().copied().map(f64::from).fold(1.0, f64::max);
    let follows = |trained: &u64| {
        factors.iter().enumerate().all(|(pair, &found)| {
            let frequency = base.powf(-(pair as f64) / factors.len() as f64);
            let turns = *trained as f64 * frequency / TAU;
            let kept = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
            (f64::from(found) * (kept + (1.0 - kept) / factor) - 1.0).abs() < 1e-5
        })
    };
    let trained = (4..=24).map(|power| 1u64 << power).find(follows)?;
    Some(json!({
        "rope_type": "llama3", "factor": factor, "low_freq_factor": LOW, "high_freq_factor": HIGH,
        "original_max_position_embeddings": trained,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors as llama.cpp's converter writes them.
    fn factors(base: f64, [factor, low, high, trained]: [f64; 4]) -> Vec<f32> {
        let of = |pair: i32| {
            let wave = TAU * base.powf(f64::from(pair) / 32.0);
            let smooth = (trained / wave - low) / (high - low);
            match wave {
                wave if wave < trained / high => 1.0,
                wave if wave > trained / low => factor,
                _ => 1.0 / ((1.0 - smooth) / factor + smooth),
            }
        };
        (0..32).map(|pair| of(pair) as f32).collect()
    }

    #[test]
    fn factors_of_llama_3_are_its_rule_again() {
        for (factor, trained) in [(8.0, 8192.0), (32.0, 8192.0), (16.0, 4096.0)] {
            let found = llama3(&factors(500_000.0, [factor, 1.0, 4.0, trained]), 500_000.0);
            let found = found.expect("they follow the rule");
            assert_eq!(found["rope_type"], "llama3");
            assert_eq!(
                (&found["factor"], &found["original_max_position_embeddings"]),
                (&json!(factor), &json!(trained as u64))
            );
        }
        let mut other = factors(500_000.0, [8.0, 1.0, 4.0, 8192.0]);
        other[20] *= 1.01;
        assert_eq!(llama3(&other, 500_000.0), None);
    }
}
