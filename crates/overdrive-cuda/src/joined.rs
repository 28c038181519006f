//! Several steps as one launch: the answers, compilation and timing of a device, by the bond that
//! holds the steps together.

use crate::compiler::Architecture;
use crate::launch::{Launch, Refusal, Site};
use crate::{gemm, kernels, loops};
use overdrive_ir::plan::{Bond, GemmCall, Program, Step, StepKind};
use overdrive_ir::{Choice, Decline, Kernel, Tuning};

/// Whether one launch does these steps, where it does them without the last.
pub(crate) fn answer(
    bond: Bond,
    steps: &[&Step],
    architecture: Architecture,
) -> Result<Kernel, Decline> {
    let hopper = architecture == Architecture::Sm90a;
    let [before @ .., last] = steps else { return Err(Decline::NoKernel) };
    let can = match bond {
        Bond::Small => hopper && gemm::bunches(steps) || loops::bunches(steps),
        Bond::Sum => hopper && gemm::adds(before, last),
        Bond::Alike => {
            gemm::joins(before, last, architecture)
                || loops::joins(before, last)
                || kernels::joins(before, last)
        }
        Bond::Rows => match before {
            [step] if hopper => gemm::follows(step, last)?,
            _ => false,
        },
    };
    if can { Ok(Kernel::default()) } else { Err(Decline::NoKernel) }
}

/// Whether one launch should do these steps, which it can.
pub(crate) fn is_faster(bond: Bond, steps: &[&Step], tuning: &Tuning) -> Result<Kernel, Decline> {
    let chosen = key(bond, steps).and_then(|key| tuning.choices.get(&key));
    match chosen.is_some_and(|choice| choice.candidate == gemm::APART) {
        true => Err(Decline::Because("they were timed, and are faster apart".to_owned())),
        false => Ok(Kernel::default()),
    }
}

/// The most scratch of the launch, in bytes.
pub(crate) fn scratch_bytes(bond: Bond, steps: &[Step]) -> usize {
    match bond {
        Bond::Alike => gemm::scratch_of_all(&gemm::calls(&steps.iter().collect::<Vec<_>>())),
        Bond::Small | Bond::Sum | Bond::Rows => 0,
    }
}

/// The key by which a `Tuning` remembers steps; `None` where there is nothing to choose.
pub(crate) fn key(bond: Bond, steps: &[&Step]) -> Option<String> {
    let calls = gemm::calls(steps);
    match bond {
        Bond::Sum => Some(gemm::key_summed(&calls)),
        Bond::Alike if !calls.is_empty() => Some(gemm::key_together(&calls)),
        Bond::Rows => {
            let (call, program) = gemm::followed(steps)?;
            Some(gemm::key_following(call, program))
        }
        Bond::Small | Bond::Alike => None,
    }
}

/// Compiles the launch.
///
/// # Errors
/// As `compile` of one step.
pub(crate) fn compile(
    site: &Site<'_>,
    bond: Bond,
    steps: &[Step],
) -> Result<Box<dyn Launch>, Refusal> {
    let all: Vec<&Step> = steps.iter().collect();
    match bond {
        Bond::Small if loops::bunches(&all) => loops::compile_bunch(site, steps),
        Bond::Small => gemm::compile_bunch(site, steps),
        Bond::Sum => gemm::compile_summed(site, &gemm::calls(&all)),
        Bond::Alike => match steps[0].kind {
            StepKind::Gemm(_) => gemm::compile_together(site, &gemm::calls(&all)),
            StepKind::Kernel(_) => kernels::compile_together(site, steps),
            _ => loops::compile_together(site, steps),
        },
        Bond::Rows => gemm::compile_following(site, followed(&all)),
    }
}

/// Times the launch against its steps one by one; `None` where there is nothing to choose.
///
/// # Errors
/// Those of `compile`, and of CUDA while candidates run.
pub(crate) fn tune(
    site: &Site<'_>,
    bond: Bond,
    steps: &[Step],
) -> Result<Option<(String, Choice)>, Refusal> {
    let all: Vec<&Step> = steps.iter().collect();
    match bond {
        Bond::Sum => gemm::tune_summed(site, &gemm::calls(&all)),
        Bond::Alike => gemm::tune_together(site, &gemm::calls(&all)),
        Bond::Rows => gemm::tune_following(site, followed(&all)),
        Bond::Small => Ok(None),
    }
}

/// The product and the loop of steps that were joined by the rows between them.
fn followed<'a>(steps: &[&'a Step]) -> (&'a GemmCall, &'a Program) {
    gemm::followed(steps).expect("only a product and a loop after it are joined by rows")
}
