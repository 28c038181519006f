//! Quantized models of other frameworks beside ours. They have the same weights, the same layers
//! and the same inputs. They are timed in the same session and compared with the same float
//! outputs.

use super::times::Timed;
use super::{Agreement, agreement};
use crate::Workload;
use crate::peers::{self, Given, HeldTo, Peer, Way};
use overdrive_bench::failure::Failure;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::subject::Subject;
use overdrive_ir::{DType, Tensor};

/// The task given to rivals.
pub struct Question<'a, 'q> {
    /// The mode of ours.
    pub mode: &'q str,
    /// The float model, bound.
    pub workload: &'q Workload,
    /// The layers that ours quantized.
    pub layers: &'q [String],
    /// Inputs of timed calls by seed.
    pub draw: &'a dyn Fn(u64) -> Vec<Tensor>,
    /// Seed of the first of them.
    pub seed: u64,
    /// Batches on which outputs are compared, and what the float model gave.
    pub compared: (&'q [Vec<Tensor>], &'q [Vec<Tensor>]),
}

/// A model that another framework quantized, or why there is none.
pub struct Rival<'a> {
    /// Framework, its mode, how it runs and the number format of activations.
    pub name: String,
    /// Agreement of its outputs with those of our float model.
    pub agreement: Option<Agreement>,
    ready: Result<peers::Timed<'a>, Failure>,
}

/// The float model and the modes nearest to ours of every framework. A mode that a framework lacks
/// is a rival that says so. `see` is told how many are made, and of how many.
pub fn rivals<'a>(
    peers: &'a [Peer],
    question: &Question<'a, '_>,
    see: &mut dyn FnMut(usize, usize),
) -> Vec<Rival<'a>> {
    let variants = |peer: &Peer| Some(near(peer.knows(question.workload)?.variants, question.mode));
    let known: Vec<_> = peers.iter().map(|peer| (peer, variants(peer))).collect();
    let all = known.iter().map(|(_, variants)| variants.as_ref().map_or(1, Vec::len)).sum();
    let mut made = vec![];
    for (peer, variants) in known {
        let Some(variants) = variants else {
            made.push(unknown(peer));
            continue;
        };
        let given = Given::new(peer, question.workload, question.draw, question.seed);
        for variant in &variants {
            see(made.len(), all);
            made.push(rival(peer, &given, variant, question));
        }
    }
    see(all, all);
    made
}

/// Keeps `float` and the framework's modes whose weights have the format of ours, else those with
/// as many bits, else all: `int8-dynamic` is beside `int8-weights`, and `nf4` beside `int4`.
fn near(variants: Vec<String>, mode: &str) -> Vec<String> {
    let format = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
    let bits = |name: &str| format(name).chars().filter(char::is_ascii_digit).collect::<String>();
    let of_format = |name: &String| format(name) == format(mode);
    let of_bits = |name: &String| !bits(mode).is_empty() && bits(name) == bits(mode);
    let (any_format, any_bits) = (variants.iter().any(of_format), variants.iter().any(of_bits));
    let is_near = |name: &String| match (any_format, any_bits) {
        (true, _) => of_format(name),
        (false, true) => of_bits(name),
        (false, false) => true,
    };
    variants.into_iter().filter(|name| name == "float" || is_near(name)).collect()
}

fn unknown<'a>(peer: &Peer) -> Rival<'a> {
    let reason = "expected a published architecture as it was published, a folder in Hugging \
                  Face's format; it knows no other";
    let (name, ready) = (peer.name().to_owned(), Err(Failure::unsupported(reason)));
    Rival { name, agreement: None, ready }
}

fn rival<'a>(
    peer: &'a Peer,
    given: &Result<Given, Failure>,
    variant: &str,
    question: &Question<'a, '_>,
) -> Rival<'a> {
    let dtype = if peer.device() == "cpu" { DType::F32 } else { DType::BF16 };
    let mode = if peer.has_mode("compile") { "compile" } else { "eager" };
    let way = Way { mode, variant: Some(variant), dtype, layers: question.layers };
    let opened = given
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|given| peers::Timed::open(peer, HeldTo::Itself(question.draw), given, way));
    let compared = opened.and_then(|opened| Ok((compare(&opened, question)?, opened)));
    let (agreement, ready) = match compared {
        Ok((agreement, opened)) => (Some(agreement), Ok(opened)),
        Err(failure) => (None, Err(failure)),
    };
    Rival { name: format!("{} {variant} {mode} {}", peer.name(), dtype.name()), agreement, ready }
}

fn compare(opened: &peers::Timed<'_>, question: &Question<'_, '_>) -> Result<Agreement, Failure> {
    let (batches, float) = question.compared;
    let found = batches.iter().map(|inputs| opened.run(inputs)).collect::<Result<Vec<_>, _>>()?;
    Ok(agreement(float, &found))
}

impl<'a> Rival<'a> {
    /// Bytes of its parameters.
    pub fn weight_bytes(&self) -> Option<u64> {
        self.ready.as_ref().ok().and_then(|ready| ready.weight_bytes)
    }

    /// The timed subject, if it could be prepared.
    pub(super) fn subject(&mut self) -> Option<&mut dyn Subject> {
        self.ready.as_mut().ok().map(|ready| ready as &mut dyn Subject)
    }

    /// Its result in the session. `seen` is called only if it took part.
    pub(super) fn timed(&self, seen: impl FnOnce() -> Outcome) -> Timed {
        match &self.ready {
            Ok(ready) => {
                let bytes = ready.weight_bytes.unwrap_or(0);
                Timed { outcome: seen(), resident_bytes: bytes, peak_bytes: bytes }
            }
            Err(failure) => Timed {
                outcome: Outcome::Failure(failure.clone()),
                resident_bytes: 0,
                peak_bytes: 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::near;

    #[test]
    fn the_nearest_modes_are_those_of_the_format_then_of_the_bits() {
        let near = |variants: &[&str], mode| {
            near(variants.iter().map(|&name| name.to_owned()).collect(), mode)
        };
        let torchao = ["float", "int8-weights", "int8-dynamic", "int4-weights", "fp8-weights"];
        assert_eq!(near(&torchao, "int8-weights"), ["float", "int8-weights", "int8-dynamic"]);
        assert_eq!(near(&torchao, "nvfp4"), ["float", "int4-weights"]);
        assert_eq!(near(&["float", "int8", "nf4", "fp4"], "int4-gptq"), ["float", "nf4", "fp4"]);
        assert_eq!(near(&torchao, "mixed"), torchao);
    }
}
