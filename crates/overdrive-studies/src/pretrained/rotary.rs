//! Angles of rotary positions, as config.json asks for them: plain, or stretched to sequences longer than those learnt from.
//!
//! Sources: `default`, Su et al., arXiv:2104.09864; `linear`, Chen et al., arXiv:2306.15595; `yarn`, Peng et al.,
//! arXiv:2309.00071, sections 3.2 to 3.4; `llama3` has no paper, its fields are those of `transformers`.

use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::llama::{Llama, Rotary};
use std::f64::consts::TAU;

/// The rotation of heads `depth` wide in a model for sequences of `longest`.
pub(super) fn rotary(config: &Config, [depth, longest]: [usize; 2]) -> Result<Rotary, FormatError> {
    let newer = config.section(&["rope_parameters"])?;
    let scaling = match &newer {
        Some(parameters) => Some(parameters.clone()),
        None => config.section(&["rope_scaling"])?,
    };
    let base = newer.as_ref().unwrap_or(config).find_positive(&["rope_theta"])?.unwrap_or(10_000.0);
    let plain = Llama::plain_frequencies(base, depth);
    let of = |frequencies| Rotary { frequencies, gain: 1.0 };
    let Some(scaling) = scaling else { return Ok(of(plain)) };
    if let Some(part) = scaling.find_positive(&["partial_rotary_factor"])?.filter(|&part| part != 1.0) {
        return Err(scaling.wrong("partial_rotary_factor", "1", &part.to_string()));
    }
    match scaling.find_text(&["rope_type", "type"])?.unwrap_or("default") {
        "default" => Ok(of(plain)),
        "linear" => {
            let factor = scaling.positive(&["factor"])?;
            Ok(of(plain.into_iter().map(|frequency| frequency / factor).collect()))
        }
        "llama3" => Ok(of(llama3(&scaling, plain)?)),
        "yarn" => yarn(&scaling, (base, longest), plain),
        other => Err(scaling.wrong("rope_type", "default, linear, llama3 or yarn", &format!("`{other}`"))),
    }
}

/// Long waves are stretched, short ones are not, those between are in proportion.
fn llama3(scaling: &Config, plain: Vec<f64>) -> Result<Vec<f64>, FormatError> {
    let factor = scaling.positive(&["factor"])?;
    let [low, high] = [scaling.positive(&["low_freq_factor"])?, scaling.positive(&["high_freq_factor"])?];
    let trained = scaling.count(&["original_max_position_embeddings"])? as f64;
    if low >= high {
        return Err(scaling.wrong("low_freq_factor", "less than high_freq_factor", &low.to_string()));
    }
    let stretched = |frequency: f64| {
        let turns = trained * frequency / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / factor)
    };
    Ok(plain.into_iter().map(stretched).collect())
}

/// The same with a ramp over the channels, and queries and keys that are a little longer.
fn yarn(scaling: &Config, (base, longest): (f64, usize), plain: Vec<f64>) -> Result<Rotary, FormatError> {
    let factor = scaling.positive(&["factor"])?;
    let trained = scaling.find_count(&["original_max_position_embeddings"])?.unwrap_or(longest) as f64;
    let [fast, slow] = [("beta_fast", 32.0), ("beta_slow", 1.0)]
        .map(|(name, otherwise)| Ok::<_, FormatError>(scaling.find_positive(&[name])?.unwrap_or(otherwise)));
    let (fast, slow) = (fast?, slow?);
    if base <= 1.0 || fast < slow {
        let found = format!("base {base}, beta_fast {fast}, beta_slow {slow}");
        return Err(scaling.wrong("beta_fast", "at least beta_slow, and a base above 1", &found));
    }
    // The channel whose wave turns so often within the sequences that were learnt from.
    let depth = 2.0 * plain.len() as f64;
    let channel = |turns: f64| depth * (trained / (turns * TAU)).ln() / (2.0 * base.ln());
    let (mut first, mut last) = (channel(fast), channel(slow));
    if scaling.flag("truncate", Otherwise::True)? {
        (first, last) = (first.floor(), last.ceil());
    }
    let (first, last) = (first.max(0.0), last.min(depth - 1.0));
    let width = if first == last { 0.001 } else { last - first };
    let stretched = |(i, frequency): (usize, f64)| {
        let ramp = ((i as f64 - first) / width).clamp(0.0, 1.0);
        frequency * (1.0 - ramp + ramp / factor)
    };
    let length = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let gain = match scaling.find_positive(&["attention_factor"])? {
        Some(gain) => gain,
        None => match (scaling.find_positive(&["mscale"])?, scaling.find_positive(&["mscale_all_dim"])?) {
            (Some(weight), Some(all)) => length(weight) / length(all),
            _ => length(1.0),
        },
    };
    Ok(Rotary { frequencies: plain.into_iter().enumerate().map(stretched).collect(), gain })
}
