//! Finds what would make a run fit that needs too much memory.
//!
//! Plans know their peak before anything runs, so that other runs are tried by planning alone.
//! Invariant: every option that is advised was planned, and takes the bytes that are said.

use crate::learner::learner;
use crate::step::{Role, graph_of};
use crate::{Fit, Moments, Observer, Recipe, TrainError, with_loss};
use overdrive_ir::plan::Space;
use overdrive_ir::{BackendError, Init, StateDecl, Tuning};
use overdrive_passes::{Lora, OR_SMALLER_BATCH, plan};
use std::cell::{Cell, RefCell};

/// Adapters that are tried: a rank that many start from.
const LORA: Lora = Lora { rank: 8, alpha: 16.0 };

/// Adds to an error that memory is exceeded the options of `train` with which the run fits. If none
/// does, several together are tried.
pub(crate) fn advised(
    error: TrainError,
    (run, tuning): (&Fit<'_>, &Tuning),
    observer: &mut dyn Observer,
) -> TrainError {
    match error {
        TrainError::Backend(BackendError::OutOfMemory { needed, available, remedy })
            if run.ranks.is_none() =>
        {
            let most = run.memory_limit.unwrap_or(run.backend.description().memory_bytes);
            let (observer, is_ended) = (RefCell::new(observer), Cell::new(false));
            let advice = Advice { run, tuning, most, observer, is_ended };
            let remedy = match advice.said() {
                None => remedy,
                Some(said) => {
                    let remedy = remedy.strip_suffix(OR_SMALLER_BATCH).unwrap_or(&remedy);
                    format!("{remedy}; {said}")
                }
            };
            TrainError::Backend(BackendError::OutOfMemory { needed, available, remedy })
        }
        other => other,
    }
}

/// A run with other options.
#[derive(Clone)]
struct Other {
    /// The options that differ, as a user writes them.
    options: Vec<String>,
    recipe: Recipe,
    limit: Option<u64>,
}

impl Other {
    /// The same with one more option.
    fn with(&self, option: String, recipe: Recipe) -> Self {
        let options = self.options.iter().cloned().chain([option]).collect();
        Self { options, recipe, limit: self.limit }
    }
}

struct Advice<'a> {
    run: &'a Fit<'a>,
    tuning: &'a Tuning,
    /// Bytes that there are.
    most: u64,
    observer: RefCell<&'a mut dyn Observer>,
    /// Whether the observer has ended the search.
    is_ended: Cell<bool>,
}

impl Advice<'_> {
    /// The advice in words; `None` if there is no other run to try, or if the search was ended
    /// before one was found.
    fn said(&self) -> Option<String> {
        let recipe = self.run.recipe.clone();
        let plain = Other { options: vec![], recipe, limit: self.run.memory_limit };
        let mut fitting = Vec::new();
        if plain.limit.is_none() {
            let limited = self.limited(&plain);
            fitting.extend(self.bytes(&limited).map(|bytes| (limited, bytes)));
        }
        for other in self.batches(&plain).into_iter().chain(self.lighter(&plain)) {
            fitting.extend(other);
        }
        if !fitting.is_empty() {
            let one = |(other, bytes): &(Other, u64)| {
                format!("{} ({bytes} bytes)", other.options.join(" "))
            };
            let all: Vec<String> = fitting.iter().map(one).collect();
            return Some(format!("it fits with {}", all.join(", or with ")));
        }
        let together = self.together(plain);
        let last = together.last()?.options.join(" ");
        let found = together.iter().find_map(|other| Some((other, self.bytes(other)?)));
        if found.is_none() && self.is_ended.get() {
            return None;
        }
        Some(match found {
            Some((other, bytes)) => {
                format!("it fits with {} together ({bytes} bytes)", other.options.join(" "))
            }
            None => format!("it does not even fit with {last}"),
        })
    }

    /// The run within a limit of what there is.
    fn limited(&self, other: &Other) -> Other {
        let option = format!("--memory-limit {}", self.most);
        Other { limit: Some(self.most), ..other.with(option, other.recipe.clone()) }
    }

    /// The largest batch that fits: for the same samples of an update, and for fewer. Only halves
    /// are tried.
    fn batches(&self, plain: &Other) -> Vec<Option<(Other, u64)>> {
        let whole = plain.recipe.batch;
        if self.run.model.is_bound() || whole == 1 {
            return vec![];
        }
        // A batch that does not fit takes longest to plan. If 1 does not, none does.
        if self.bytes(&smaller(plain, 1)).is_none() {
            return vec![];
        }
        let fits = |other: Other| self.bytes(&other).map(|bytes| (other, bytes));
        let halves = || std::iter::successors(Some(whole / 2), |n| Some(n / 2).filter(|n| *n > 0));
        let fewer = halves().find_map(|batch| fits(smaller(plain, batch)));
        let largest = fewer.as_ref().map_or(0, |(other, _)| other.recipe.batch);
        let parts = halves().filter(|batch| *batch <= largest && whole.is_multiple_of(*batch));
        let same = parts.map(|batch| in_parts(plain, batch)).find_map(fits);
        vec![same, fewer]
    }

    /// With moments in fewer bytes, and with adapters.
    fn lighter(&self, plain: &Other) -> [Option<(Other, u64)>; 2] {
        let fits = |other: Other| self.bytes(&other).map(|bytes| (other, bytes));
        let moments = narrower(plain.recipe.moments).iter();
        let moments = moments.map(|&format| with_moments(plain, format)).find_map(fits);
        [moments, self.adapted(plain).and_then(fits)]
    }

    /// With adapters, if the model has learnt and has layers for them.
    fn adapted(&self, other: &Other) -> Option<Other> {
        let Fit { model, recipe, .. } = self.run;
        let has_learnt = model.states().iter().any(|state| !is_random(state));
        let may = has_learnt && recipe.lora.is_none() && Lora::layers(model).is_ok();
        let adapted = || Recipe { lora: Some(LORA), ..other.recipe.clone() };
        may.then(|| other.with(format!("--lora {}", LORA.rank), adapted()))
    }

    /// More and more options together.
    fn together(&self, plain: Other) -> Vec<Other> {
        let mut last = if plain.limit.is_none() { self.limited(&plain) } else { plain };
        let mut all = Vec::new();
        if let Some(&format) = narrower(last.recipe.moments).last() {
            last = with_moments(&last, format);
            all.push(last.clone());
        }
        if !self.run.model.is_bound() && last.recipe.batch > 1 {
            all.push(in_parts(&last, 1));
            last = smaller(&last, 1);
            all.push(last.clone());
        }
        all.extend(self.adapted(&last));
        all
    }

    /// Bytes of main memory that a run takes, if there are so many.
    fn bytes(&self, other: &Other) -> Option<u64> {
        let is_ended = self.is_ended.get()
            || self.observer.borrow_mut().seeks(&other.options.join(" ")).is_break();
        self.is_ended.set(is_ended);
        if is_ended {
            return None;
        }
        self.planned(other).ok().flatten().filter(|bytes| *bytes <= self.most)
    }

    /// Bytes of its plans, unless its states alone are too many.
    fn planned(&self, other: &Other) -> Result<Option<u64>, TrainError> {
        let (run, recipe) = (self.run, &other.recipe);
        let forward = learner(run.model, recipe, recipe.batch)?;
        let graph = with_loss(&forward, run.train.target())?;
        let step = graph_of(&graph, recipe, Role::Update)?;
        let device = run.backend.description();
        // Nothing but states of the optimizer may wait in other memory. No plan takes fewer bytes.
        let stays = |state: &&StateDecl| {
            device.spaces.is_empty() || forward.states().iter().any(|own| own.name == state.name)
        };
        let states = step.states().iter().filter(stays).map(|state| step.ty(state.value).bytes());
        if states.sum::<usize>() as u64 > self.most {
            return Ok(None);
        }
        let earlier = (recipe.accumulate > 1).then(|| graph_of(&graph, recipe, Role::Accumulate));
        let earlier = earlier.transpose()?;
        let mut tuning = Tuning { memory_limit: other.limit, ..self.tuning.clone() };
        // As the trainer has it: other plans read these states too.
        for read in [&graph].into_iter().chain(&earlier) {
            tuning.shared.extend(read.states().iter().map(|state| state.name.clone()));
        }
        let (mode, target) = (device.fastest_mode(), run.backend.target());
        let bytes = plan(&step, mode, target, &tuning).map(|plan| plan.peak_bytes(Space::MAIN));
        let earlier = earlier.map(|graph| plan(&graph, mode, target, &tuning)).transpose();
        // States of the first batches are among those of the last.
        let earlier = earlier.map(|plan| plan.map_or(0, |plan| plan.needed_bytes()));
        Ok(bytes.and_then(|bytes| Ok(bytes.saturating_add(earlier?))).ok())
    }
}

/// Whether a state begins as numbers that mean nothing.
fn is_random(state: &StateDecl) -> bool {
    !matches!(state.init, Init::Value(_) | Init::Widened(_))
}

/// Formats of moments in fewer bytes, the mildest first.
fn narrower(moments: Moments) -> &'static [Moments] {
    match moments {
        Moments::F32 => &[Moments::Bf16, Moments::Fp8],
        Moments::Bf16 => &[Moments::Fp8],
        Moments::Fp8 => &[],
    }
}

fn with_moments(other: &Other, moments: Moments) -> Other {
    other.with(format!("--moments {moments}"), Recipe { moments, ..other.recipe.clone() })
}

/// Fewer samples a batch, and an update.
fn smaller(other: &Other, batch: usize) -> Other {
    other.with(format!("--batch {batch}"), Recipe { batch, ..other.recipe.clone() })
}

/// The same samples an update, in smaller batches.
fn in_parts(other: &Other, batch: usize) -> Other {
    let accumulate = other.recipe.accumulate * other.recipe.batch / batch;
    let option = format!("--batch {batch} --accumulate {accumulate}");
    other.with(option, Recipe { batch, accumulate, ..other.recipe.clone() })
}
