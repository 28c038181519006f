//! Angles of rotary positions, as config.json asks for them: plain, or stretched to sequences
//! longer than those learnt from.
//!
//! Sources: `default`, Su et al., arXiv:2104.09864; `linear`, Chen et al., arXiv:2306.15595;
//! `yarn`, Peng et al., arXiv:2309.00071, sections 3.2 to 3.4; `longrope`, Ding et al.,
//! arXiv:2402.13753. `llama3` has no paper. Its fields are those of `transformers`.

use overdrive_formats::FormatError;
use overdrive_formats::huggingface::{Config, Otherwise};
use overdrive_models::Rotary;
use std::f64::consts::TAU;

/// Facts about positions from the rest of a config.
#[derive(Copy, Clone)]
pub(super) struct Positions {
    /// Width of a head.
    pub(super) depth: usize,
    /// Tokens of the longest sequence.
    pub(super) longest: usize,
    /// Base of the angles where no field names it.
    pub(super) base: f64,
    /// Part of the channels that are turned where no field names it; none where it must be all.
    pub(super) part: Option<f64>,
}

/// The rotation, and the tokens of the longest sequence for which it is the same throughout.
pub(super) fn rotary(
    config: &Config,
    positions: Positions,
) -> Result<(Rotary, usize), FormatError> {
    let scaling = match config.section(&["rope_scaling"])? {
        Some(older) => Some(older),
        None => config.section(&["rope_parameters"])?,
    };
    let base = match &scaling {
        Some(scaling) => scaling.find_positive(&["rope_theta"])?,
        None => None,
    };
    let outside = config.find_positive(&["rope_theta"])?.unwrap_or(positions.base);
    let part = part(config, scaling.as_ref(), positions.part)?;
    turned(config, scaling, (base.unwrap_or(outside), part), positions)
}

/// The rotations of blocks with full attention and of those with a window. Each kind has its own
/// fields.
pub(super) fn rotary_by_kind(
    config: &Config,
    positions: Positions,
    window_base: f64,
) -> Result<[Rotary; 2], FormatError> {
    let kinds = config.section(&["rope_parameters"])?;
    let of_kind = |kind| kinds.as_ref().map_or(Ok(None), |kinds| kinds.section(&[kind]));
    let older = config.section(&["rope_scaling"])?;
    let full = of_kind("full_attention")?.or(older);
    let window = of_kind("sliding_attention")?;
    let rotation = |scaling: Option<Config>, field: &'static str, base: f64| {
        let own = match &scaling {
            Some(scaling) => scaling.find_positive(&["rope_theta"])?,
            None => None,
        };
        let outside = config.find_positive(&[field])?.unwrap_or(base);
        let part = part(config, scaling.as_ref(), positions.part)?;
        turned(config, scaling, (own.unwrap_or(outside), part), positions)
    };
    let full = rotation(full, "rope_theta", positions.base)?;
    let window = rotation(window, "rope_local_base_freq", window_base)?;
    if let (_, context) = &full
        && *context < positions.longest
    {
        let expected = format!("one kind of angles for all {} positions", positions.longest);
        return Err(config.wrong("rope_parameters", &expected, "several"));
    }
    Ok([full.0, window.0])
}

/// The part of the channels that are turned.
fn part(
    config: &Config,
    scaling: Option<&Config>,
    built_in: Option<f64>,
) -> Result<f64, FormatError> {
    const NAME: [&str; 1] = ["partial_rotary_factor"];
    for place in scaling.into_iter().chain([config]) {
        let Some(part) = place.find_positive(&NAME)? else { continue };
        if part > 1.0 || (built_in.is_none() && part != 1.0) {
            let expected = if built_in.is_none() { "1" } else { "at most 1" };
            return Err(place.wrong(NAME[0], expected, &part.to_string()));
        }
        return Ok(part);
    }
    Ok(built_in.unwrap_or(1.0))
}

fn turned(
    config: &Config,
    scaling: Option<Config>,
    (base, part): (f64, f64),
    Positions { depth, longest, .. }: Positions,
) -> Result<(Rotary, usize), FormatError> {
    let channels = (depth as f64 * part) as usize;
    if channels == 0 || !channels.is_multiple_of(2) {
        let expected = format!("an even number of the {depth} channels of a head, 2 at least");
        return Err(config.wrong("partial_rotary_factor", &expected, &channels.to_string()));
    }
    let plain = Rotary::plain_frequencies(base, channels);
    let of = |frequencies| Ok((Rotary { frequencies, gain: 1.0 }, longest));
    let Some(scaling) = scaling else { return of(plain) };
    match scaling.find_text(&["rope_type", "type"])?.unwrap_or("default") {
        "default" => of(plain),
        "linear" => {
            let factor = scaling.positive(&["factor"])?;
            of(plain.into_iter().map(|frequency| frequency / factor).collect())
        }
        "llama3" => of(llama3(&scaling, plain)?),
        "yarn" => Ok((yarn(&scaling, (base, longest), plain)?, longest)),
        "longrope" | "su" => longrope(config, &scaling, longest, plain),
        other => {
            let expected = "default, linear, llama3, yarn or longrope";
            Err(scaling.wrong("rope_type", expected, &format!("`{other}`")))
        }
    }
}

/// Every channel has a factor of its own, and other ones for sequences longer than those learnt
/// from. Only the shorter sequences are taken, since a graph has one rotation.
fn longrope(
    config: &Config,
    scaling: &Config,
    longest: usize,
    plain: Vec<f64>,
) -> Result<(Rotary, usize), FormatError> {
    const TRAINED: [&str; 1] = ["original_max_position_embeddings"];
    let inside = scaling.find_count(&TRAINED)?;
    let trained = config.find_count(&TRAINED)?.or(inside).unwrap_or(longest);
    let factors = scaling.find_reals("short_factor")?.unwrap_or_default();
    if factors.len() != plain.len() || factors.iter().any(|factor| *factor <= 0.0) {
        let expected = format!("{} numbers above 0", plain.len());
        return Err(scaling.wrong("short_factor", &expected, &format!("{factors:?}")));
    }
    // Read, so that it is known: it is for the sequences that are refused.
    scaling.find_reals("long_factor")?;
    let factor = scaling.find_positive(&["factor"])?.unwrap_or(longest as f64 / trained as f64);
    let gain = match scaling.find_positive(&["attention_factor"])? {
        Some(gain) => gain,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (trained as f64).ln()).sqrt(),
    };
    if !gain.is_finite() {
        return Err(scaling.wrong(TRAINED[0], "at least 2", &trained.to_string()));
    }
    let frequencies = plain.iter().zip(&factors).map(|(frequency, factor)| frequency / factor);
    Ok((Rotary { frequencies: frequencies.collect(), gain }, longest.min(trained)))
}

/// Long waves are stretched, short ones are not, those between are in proportion.
fn llama3(scaling: &Config, plain: Vec<f64>) -> Result<Vec<f64>, FormatError> {
    let factor = scaling.positive(&["factor"])?;
    let [low, high] =
        [scaling.positive(&["low_freq_factor"])?, scaling.positive(&["high_freq_factor"])?];
    let trained = scaling.count(&["original_max_position_embeddings"])? as f64;
    if low >= high {
        return Err(scaling.wrong(
            "low_freq_factor",
            "less than high_freq_factor",
            &low.to_string(),
        ));
    }
    let stretched = |frequency: f64| {
        let turns = trained * frequency / TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / factor)
    };
    Ok(plain.into_iter().map(stretched).collect())
}

/// The same with a ramp over the channels, and queries and keys that are a little longer.
fn yarn(
    scaling: &Config,
    (base, longest): (f64, usize),
    plain: Vec<f64>,
) -> Result<Rotary, FormatError> {
    let factor = scaling.positive(&["factor"])?;
    let trained =
        scaling.find_count(&["original_max_position_embeddings"])?.unwrap_or(longest) as f64;
    let [fast, slow] = [("beta_fast", 32.0), ("beta_slow", 1.0)].map(|(name, otherwise)| {
        Ok::<_, FormatError>(scaling.find_positive(&[name])?.unwrap_or(otherwise))
    });
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
        None => {
            match (scaling.find_positive(&["mscale"])?, scaling.find_positive(&["mscale_all_dim"])?)
            {
                (Some(weight), Some(all)) => length(weight) / length(all),
                _ => length(1.0),
            }
        }
    };
    Ok(Rotary { frequencies: plain.into_iter().enumerate().map(stretched).collect(), gain })
}
