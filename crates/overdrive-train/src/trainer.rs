//! `Trainer`: a compiled step with its state on a back end.
//!
//! Long because a step, what it changes and what a checkpoint keeps of it are one thing.

mod diverged;

use crate::checkpoint::{Checkpoint, SavedState, StatePart, StateParts};
use crate::compiled::Compiled;
use crate::data::Batch;
use crate::held::{self, Held, Sharing, by_name};
use crate::kept::{as_given, as_kept, begins_as, copied, drawn_as};
use crate::kept_codes::{self, Kept};
use crate::ranks::Ranks;
use crate::step::{COUNT, Role, graph_of, is_kept, parameters};
use crate::{Recipe, TrainError, training_step_on};
use overdrive_formats::Tensors;
use overdrive_ir::backend::MemoryReport;
use overdrive_ir::plan::Space;
use overdrive_ir::{
    Backend, Choice, DType, Graph, Init, Plan, State, StateDecl, Tensor, TensorType, Tuning,
};
use overdrive_passes::draw;
use std::collections::BTreeMap;

/// The report of one update.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct StepReport {
    /// Number of the step, from 0.
    pub step: u64,
    /// Labels of each sample: 1 of a class, T of a window of text.
    pub positions: usize,
    /// Mean loss over the step's samples: nats, or the squared error of quantities.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// False where f16 gradients overflowed and the update was skipped.
    pub applied: bool,
}

/// The states of a model at the start of a run: its declared values, random ones drawn from `seed`.
pub fn initial_parameters(graph: &Graph, seed: u64) -> Tensors {
    let initial = |state: &StateDecl| initial_parameter(state, graph.ty(state.value), seed);
    graph.states().iter().map(|state| (state.name.clone(), initial(state))).collect()
}

/// One of them, of this type.
pub fn initial_parameter(state: &StateDecl, ty: &TensorType, seed: u64) -> Tensor {
    draw(&seeded(state, seed), &state.name, ty)
}

/// The first elements of one of them or, of a constant, its number: they tell other ones apart.
pub(crate) fn initial_elements(state: &StateDecl, ty: &TensorType, seed: u64) -> Tensor {
    match seeded(state, seed) {
        Init::Constant(value) => Tensor::scalar(DType::F64, value),
        Init::Value(tensor) | Init::Widened(tensor) => tensor,
        random => random.part(&state.name, ty, 0),
    }
}

/// A state's declared initial value, drawn from `seed` if it is random.
pub(crate) fn seeded(state: &StateDecl, seed: u64) -> Init {
    match state.init.clone() {
        Init::Normal { std, .. } => Init::Normal { std, seed },
        Init::Uniform { bound, .. } => Init::Uniform { bound, seed },
        other => other,
    }
}

/// Gives the initial value of a state of a model by name. It is a description where it can be, so
/// that devices draw their own, and one tensor at a time is in memory.
pub(crate) type Initial<'i> = dyn Fn(&str) -> Option<Init> + 'i;

/// Whether a state of this type may begin so.
fn begins(init: &Init, ty: &TensorType) -> bool {
    match init {
        Init::Value(tensor) => tensor.ty() == ty,
        Init::Widened(tensor) => tensor.ty().shape == ty.shape,
        Init::Constant(_) | Init::Normal { .. } | Init::Uniform { .. } => true,
    }
}

/// The initial state of a step of `model`, as a rank holds it. The model's states are as `initial`
/// says, the optimizer's as the step declares them. The back end makes those that a rank holds
/// whole in main memory; the host makes others, which lie in parts or elsewhere.
fn initial_state(
    (backend, rank): (&dyn Backend, usize),
    model: &Graph,
    (step, held): (&Compiled, &Held),
    initial: &Initial<'_>,
) -> Result<State, TrainError> {
    let mut state = State::default();
    let (step, offloaded) = (step.graph(), &step.plan().offloaded);
    for declared in step.states() {
        let ty = step.ty(declared.value);
        let space = offloaded.get(&declared.name).copied().unwrap_or_default();
        let is_models = model.states().iter().any(|known| known.name == declared.name);
        let whole = held.whole_type(&declared.name, ty);
        let name = drawn_as(&declared.name);
        let given = initial(name).map(|init| begins_as(init, whole.dtype));
        let (init, whole) = match given {
            Some(init) if begins(&init, whole) => (init, whole),
            None if !is_models => (declared.init.clone(), ty),
            other => {
                let found = match other {
                    Some(Init::Value(tensor) | Init::Widened(tensor)) => tensor.ty().to_string(),
                    _ => "no tensor".to_owned(),
                };
                let expected = format!("`{}` {ty}", declared.name);
                let remedy = "give every state of the model its value";
                return Err(TrainError::invalid(model.name(), expected, found, remedy));
            }
        };
        let buffer = if space == Space::MAIN && whole == ty {
            backend.initial(&init, name, ty)?
        } else {
            let tensor = draw(&init, name, whole);
            let part = if whole == ty { tensor } else { held.part(&declared.name, &tensor, rank) };
            backend.upload_to(&part, space)?
        };
        state.buffers.insert(declared.name.clone(), buffer);
    }
    Ok(state)
}

/// Steps from which timing the candidates of a model pays off. It takes half a minute, and makes a
/// step of some ten milliseconds a twentieth faster.
const STEPS_WORTH_TUNING: u64 = 20_000;

/// A model in training.
pub struct Trainer<'a> {
    backend: &'a dyn Backend,
    ranks: Ranks<'a>,
    recipe: Recipe,
    choices: BTreeMap<String, Choice>,
    step: Compiled,
    accumulate: Option<Compiled>,
    /// Makes codes of weights; none where each batch casts them, or nothing does.
    make_codes: Option<Graph>,
    held: Held,
    state: State,
    /// Parameters that are trained.
    names: Vec<String>,
    /// States that a step changes: those parameters, and the optimizer's.
    changing: Vec<String>,
    /// Copies of parameters, which follow them.
    copies: Vec<String>,
    done: u64,
}

impl<'a> Trainer<'a> {
    /// Compiles the step of `graph` (bound to the recipe's batch, with output `loss`) with this
    /// tuning. Long runs also time candidates first. Parameters start as `initial` says.
    ///
    /// # Errors
    /// When the recipe makes no sense, the graph has no loss, or the back end cannot run the step.
    pub fn new(
        backend: &'a dyn Backend,
        graph: &Graph,
        recipe: &Recipe,
        initial: &Tensors,
        tuning: &Tuning,
    ) -> Result<Self, TrainError> {
        let alone = Ranks(None, Sharing::default());
        let initial = |name: &str| initial.get(name).cloned().map(Init::Value);
        Self::of_rank((backend, alone), graph, recipe, &initial, tuning)
    }

    /// The same as one rank of several. Each gets its part of every batch, while `graph` and the
    /// recipe are of the whole batch. The back end is on the communicator.
    ///
    /// # Errors
    /// As `new`, and when the ranks do not divide the batch or another rank has failed.
    pub(crate) fn of_rank(
        (backend, ranks): (&'a dyn Backend, Ranks<'a>),
        graph: &Graph,
        recipe: &Recipe,
        initial: &Initial<'_>,
        tuning: &Tuning,
    ) -> Result<Self, TrainError> {
        recipe.check()?;
        let names: Vec<String> =
            parameters(graph, recipe).map(|(name, _)| name.to_owned()).collect();
        let keeps_codes = recipe.accumulate > 1 && recipe.float8.is_some() && ranks.hold_weights();
        let coded = |whole: Graph| -> Result<(Graph, Option<Graph>), TrainError> {
            if !keeps_codes {
                return Ok((whole, None));
            }
            let Kept { graph, make } = kept_codes::kept(&whole, &names)?;
            Ok((graph, Some(make)))
        };
        let part = |whole, like| ranks.graph(whole, recipe.compression, like);
        let (step, make_codes) = coded(training_step_on(graph, recipe, &ranks.mesh())?)?;
        let (step, held) = part(step, None)?;
        let accumulates = recipe.accumulate > 1 && held.stages().is_none();
        let earlier = || part(coded(graph_of(graph, recipe, Role::Accumulate)?)?.0, Some(&held));
        let accumulate = accumulates.then(earlier).transpose()?;
        let accumulate = accumulate.map(|(graph, _)| graph);
        // States that are evaluated, or that other batches add to, are read by other plans too.
        let mut tuning = tuning.clone();
        for other in [graph].into_iter().chain(&accumulate).chain(&make_codes) {
            tuning.shared.extend(other.states().iter().map(|state| state.name.clone()));
        }
        let mut compiled = |graph: Graph| {
            if recipe.steps >= STEPS_WORTH_TUNING {
                backend.tune(&graph, backend.description().fastest_mode(), &mut tuning)?;
                // Values that every rank computes for itself have the same bits only by the same
                // kernels. Stages bring those of their own.
                let own = serde_json::to_vec(&tuning.choices).expect("choices are plain data");
                ranks.share("the choices of kernels", &own, |rank, bytes| {
                    let of_rank: BTreeMap<String, Choice> =
                        serde_json::from_slice(bytes).expect("choices, as written");
                    if rank == 0 {
                        tuning.choices.clear();
                    }
                    for (name, choice) in of_rank {
                        tuning.choices.entry(name).or_insert(choice);
                    }
                })?;
            }
            Ok::<_, TrainError>(Compiled::new(backend, graph, &tuning)?)
        };
        let step = compiled(step)?;
        let accumulate = accumulate.map(compiled).transpose()?;
        let state = initial_state((backend, ranks.rank()), graph, (&step, &held), initial)?;
        let changing = step.graph().states().iter().filter(|state| is_kept(state));
        let changing = changing.map(|state| state.name.clone()).collect();
        let all = step.graph().states().iter().map(|state| state.name.clone());
        let copies = all.filter(|name| copied(name).is_some()).collect();
        let (recipe, choices) = (recipe.clone(), tuning.choices);
        let mut trainer = Self {
            backend,
            ranks,
            recipe,
            choices,
            step,
            accumulate,
            make_codes,
            held,
            state,
            names,
            changing,
            copies,
            done: 0,
        };
        trainer.make_codes()?;
        Ok(trainer)
    }

    /// Makes the codes of weights that steps read, of the weights that there are.
    fn make_codes(&mut self) -> Result<(), TrainError> {
        if let Some(graph) = self.make_codes.clone() {
            let mut make = Compiled::new(self.backend, graph, &Tuning::default())?;
            make.run(self.backend, &mut self.state, &[])?;
        }
        Ok(())
    }

    /// The tuning choices of the step. A step with the same choices gives the same bits.
    pub fn choices(&self) -> &BTreeMap<String, Choice> {
        &self.choices
    }

    /// Steps done so far, skipped ones included.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// The graph of the step.
    pub fn graph(&self) -> &Graph {
        self.step.graph()
    }

    /// The back end's state: parameters under the model's names, and the optimizer's.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// One update from the recipe's number of batches.
    ///
    /// # Errors
    /// `NonFinite` for a loss or gradients that are not finite: parameters are then those before
    /// the step. In f16 gradients that overflow are skipped instead, until the scale of the loss is
    /// below 1.
    pub fn step(&mut self, batches: &[Batch]) -> Result<StepReport, TrainError> {
        self.step_beside(batches, || ()).map(|(report, ())| report)
    }

    /// The same; `meanwhile` runs on the host while the device works on the last batch.
    ///
    /// # Errors
    /// As `step`.
    pub fn step_beside<R>(
        &mut self,
        batches: &[Batch],
        meanwhile: impl FnOnce() -> R,
    ) -> Result<(StepReport, R), TrainError> {
        assert_eq!(
            batches.len(),
            self.recipe.accumulate,
            "a step takes the recipe's number of batches"
        );
        let learning_rate = self.recipe.learning_rate(self.done);
        let lr = Tensor::scalar(DType::F32, learning_rate);
        let last = batches.last().expect("a recipe has at least one batch a step");
        let mut losses = 0.0;
        // Without a graph for earlier batches, the step takes all of them.
        let mut together = batches;
        if let Some(accumulate) = &mut self.accumulate {
            let earlier;
            (earlier, together) = batches.split_at(batches.len() - 1);
            for batch in earlier {
                let place = (accumulate.graph(), self.ranks.rank());
                let given = self.held.given((batch, 0, 1), place);
                let outputs = accumulate.run(self.backend, &mut self.state, &by_name(&given))?;
                losses += outputs[0].to_f64()[0];
            }
        }
        let place = (self.step.graph(), self.ranks.rank());
        let of = |(number, batch)| self.held.given((batch, number, together.len()), place);
        let given: Vec<_> = together.iter().enumerate().flat_map(of).collect();
        let given: Vec<_> = by_name(&given).into_iter().chain([("lr", &lr)]).collect();
        let (outputs, result) =
            self.step.run_beside(self.backend, &mut self.state, &given, meanwhile)?;
        let [loss, grad_norm, applied] = [0, 1, 2].map(|i| outputs[i].to_f64()[0]);
        let shares = batches.len() - together.len() + 1;
        let loss = (losses + loss) / shares as f64;
        let (step, applied) = (self.done, applied == 1.0);
        let overflowed =
            self.recipe.loss_scaling().is_some() && loss.is_finite() && self.loss_scale()? >= 1.0;
        if !applied && !overflowed {
            let first = self.first_not_finite(&batches[..shares - 1], &given)?;
            return Err(self.recipe.diverged(step, first));
        }
        self.done += 1;
        let positions = last.labels.ty().elements() / last.x.ty().sizes()[0];
        Ok((StepReport { step, positions, loss, grad_norm, learning_rate, applied }, result))
    }

    fn loss_scale(&self) -> Result<f64, TrainError> {
        let buffer = self.state.buffers.get(crate::step::SCALE).expect("f16 has a scale");
        Ok(self.backend.download(buffer)?.to_f64()[0])
    }

    /// The model's parameters. With several ranks all call this at the same time; if they share
    /// out parameters, rank 0 gets whole ones and any other its parts.
    ///
    /// # Errors
    /// When the device cannot give them, or another rank has failed.
    pub fn parameters(&self) -> Result<Tensors, TrainError> {
        self.gathered(self.own_parameters()?)
    }

    /// The model's parameters, as far as this rank holds them.
    pub(crate) fn own_parameters(&self) -> Result<Tensors, TrainError> {
        self.own(&self.names)
    }

    /// Bytes of the parameters of the model.
    pub fn parameter_bytes(&self) -> u64 {
        self.names.iter().map(|name| self.whole_type(name).bytes() as u64).sum()
    }

    /// The plan of the step, of its last batch where there are several.
    pub fn plan(&self) -> &Plan {
        self.step.plan()
    }

    /// Memory of the plans of a step; batches that are accumulated share its states.
    pub fn memory(&self) -> MemoryReport {
        let mut memory = self.step.memory();
        if let Some(other) = self.accumulate.as_ref().map(Compiled::memory) {
            memory.transient_bytes += other.transient_bytes;
            memory.persistent_bytes += other.persistent_bytes;
            memory.workspace_bytes += other.workspace_bytes;
            memory.offloaded_bytes += other.offloaded_bytes;
        }
        memory
    }

    /// FLOPs of the graphs of an update on this rank, before passes fuse them or compute values
    /// again.
    pub fn flops(&self) -> u64 {
        let earlier = self.accumulate.as_ref().map_or(0, |other| other.graph().cost().flops);
        let batches = self.recipe.accumulate as u64;
        earlier.saturating_mul(batches - 1).saturating_add(self.step.graph().cost().flops)
    }

    /// Bytes of a [`Self::snapshot`].
    pub fn snapshot_bytes(&self) -> u64 {
        let bytes = |(name, own)| self.held.whole_type(name, own).bytes() as u64;
        match self.held.changing() {
            Some(changing) => changing.map(bytes).sum(),
            None => self.changing.iter().map(|name| self.whole_type(name).bytes() as u64).sum(),
        }
    }

    /// The type of a whole state; this rank may hold a part of it, or nothing.
    fn whole_type(&self, name: &str) -> &TensorType {
        let own = self.state.buffers.get(name).map(|buffer| &buffer.ty);
        let own = own.or_else(|| self.held.part_type(name)).expect("some rank holds it");
        self.held.whole_type(name, own)
    }

    /// The states that steps have changed and that the next step needs, by name, as far as this
    /// rank holds them.
    ///
    /// # Errors
    /// When the device cannot give it.
    pub fn snapshot(&self) -> Result<Tensors, TrainError> {
        self.own(&self.changing)
    }

    /// The parts of the snapshot that this rank writes to a checkpoint.
    pub(crate) fn state_parts(&self) -> Result<StateParts, TrainError> {
        let mut parts = StateParts::new();
        for name in &self.changing {
            if self.writes(name) {
                let tensor = self.backend.download(&self.state.buffers[name])?;
                parts.insert(name.clone(), self.as_part(name, tensor));
            }
        }
        Ok(parts)
    }

    /// The parts of these states that this rank writes, of those that it holds.
    pub(crate) fn parts_of(&self, held: &Tensors) -> StateParts {
        let mut parts = StateParts::new();
        for (name, tensor) in held {
            if self.writes(name) {
                parts.insert(name.clone(), self.as_part(name, tensor.clone()));
            }
        }
        parts
    }

    /// Whether this rank writes its part of a state.
    fn writes(&self, name: &str) -> bool {
        let (own, rank) = (&self.state.buffers[name].ty, self.ranks.rank());
        self.held.writer(name, own, rank) == rank
    }

    fn as_part(&self, name: &str, tensor: Tensor) -> StatePart {
        let region = self.held.region(name, tensor.ty(), self.ranks.rank());
        StatePart { whole: self.whole_type(name).sizes(), start: region.start, tensor }
    }

    /// States by name, as far as this rank holds them.
    fn own(&self, names: &[String]) -> Result<Tensors, TrainError> {
        let held = names.iter().filter_map(|name| Some((name, self.state.buffers.get(name)?)));
        let own = |(name, buffer): (&String, _)| Ok((name.clone(), self.backend.download(buffer)?));
        held.map(own).collect()
    }

    /// Parameters that all ranks bring as far as they hold them, in the model's format: whole on
    /// rank 0, as they were on any other.
    pub(crate) fn gathered(&self, mut own: Tensors) -> Result<Tensors, TrainError> {
        let mut whole = Tensors::new();
        for name in &self.names {
            let part = own.remove(name);
            let found = match self.ranks.0 {
                Some(communicator) => self.held.gathered(name, part, communicator)?,
                None => part,
            };
            whole.extend(found.map(|tensor| (name.clone(), as_given(tensor))));
        }
        Ok(whole)
    }

    /// The states that this rank holds.
    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Goes on from a checkpoint, which any number of ranks has written. This rank reads the parts
    /// that it holds.
    ///
    /// # Errors
    /// When its states are not those of this step, in which case nothing has changed; or when they
    /// cannot be read.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        self.changing.iter().try_for_each(|name| self.check(name, checkpoint.state.get(name)))?;
        for name in &self.changing {
            let part = self.part_of_saved(name, &checkpoint.state[name])?;
            let buffer = self.state.buffers.get_mut(name).expect("the step has its states");
            self.backend.write(buffer, &part)?;
        }
        for copy in &self.copies {
            let master = &checkpoint.state[copied(copy).expect("it is a copy")];
            let own = &self.state.buffers[copy].ty;
            let part = master.part(&self.held.region(copy, own, self.ranks.rank()))?;
            let part = as_kept(part, own.dtype);
            let buffer = self.state.buffers.get_mut(copy).expect("the step has its states");
            self.backend.write(buffer, &part)?;
        }
        self.done = checkpoint.progress.done;
        self.make_codes()
    }

    /// The best parameters of a checkpoint, as far as this rank holds them.
    pub(crate) fn best_of(&self, checkpoint: &Checkpoint) -> Result<Tensors, TrainError> {
        if checkpoint.best.is_empty() {
            return Ok(Tensors::new());
        }
        let part = |name: &String| {
            self.check(name, checkpoint.best.get(name))?;
            Ok((name.clone(), self.part_of_saved(name, &checkpoint.best[name])?))
        };
        self.names.iter().filter(|name| self.state.buffers.contains_key(*name)).map(part).collect()
    }

    /// Errs unless a state of this step may continue as a saved one.
    fn check(&self, name: &str, saved: Option<&SavedState>) -> Result<(), TrainError> {
        let (expected, found) = (self.whole_type(name), saved.map(SavedState::ty));
        if found.is_some_and(|found| held::continues(name, found, expected)) {
            return Ok(());
        }
        let found = found.map_or("nothing".to_owned(), TensorType::to_string);
        let remedy = "resume with the model and the recipe that wrote the checkpoint";
        Err(TrainError::invalid("checkpoint", format!("`{name}` {expected}"), found, remedy))
    }

    /// The part of a saved state that this rank holds.
    fn part_of_saved(&self, name: &str, saved: &SavedState) -> Result<Tensor, TrainError> {
        let (own, rank) = (&self.state.buffers[name].ty, self.ranks.rank());
        let whole = self.whole_type(name);
        if saved.ty() == whole {
            return saved.part(&self.held.region(name, own, rank));
        }
        Ok(self.held.part(name, &held::of_ranks(&saved.read()?, whole), rank))
    }

    /// Number of updates that were applied.
    ///
    /// # Errors
    /// When the device cannot tell.
    pub fn updates(&self) -> Result<u64, TrainError> {
        Ok(self.backend.download(&self.state.buffers[COUNT])?.to_ints()[0] as u64)
    }
}
