//! The loss of a smaller model against `--max-loss`.

use crate::cli::Quantize;
use crate::failure::Failure;
use crate::terminal::{say, tell};
use overdrive::bench::exit::Exit;
use overdrive::studies::quantization::{Estimate, Metric};

/// The exit where more was lost than `--max-loss` allows; tells a loss that may be more.
pub(super) fn beyond(
    arguments: &Quantize,
    metric: Metric,
    lost: &Estimate,
) -> Result<Option<Exit>, Failure> {
    let Some(limit) = arguments.max_loss else { return Ok(None) };
    let (metric, unit) = (metric.name(), metric.unit_of_loss());
    if !lost.value.is_finite() {
        let lost = lost.value;
        say!("{metric}: {lost} {unit} lost is within no --max-loss: nothing was written")?;
        return Ok(Some(Exit::WrongOutputs));
    }
    if lost.value > limit {
        say!(
            "{metric}: {:.5} {unit} lost, --max-loss allows {limit}: nothing was written",
            lost.value
        )?;
        return Ok(Some(Exit::WrongOutputs));
    }
    if lost.high > limit || lost.high.is_nan() {
        tell!("note: within --max-loss {limit}, but the interval reaches {:.5} {unit}", lost.high)?;
    }
    Ok(None)
}
