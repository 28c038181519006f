//! From the arguments that say which graph is meant to that graph and the device that it is for.

use crate::asked_attention;
use crate::cli::SubjectArguments;
use crate::devices::{self, Opened};
use crate::failure::Failure;
use crate::left_in_float::by_reason;
use crate::model::{self, Model};
use crate::terminal::note;
use overdrive::ir::{DType, Graph, Mesh, Tensor};
use overdrive::passes::{Recipe, Stages, left_in_float, precision};
use overdrive::studies::Workload;
use overdrive::train::data::Target;
use overdrive::train::{
    self, TrainError, learner, recipe_of, training_step, training_step_on, with_loss,
};

/// Makes the step of a forward graph with its loss.
type MakeStep<'s> = dyn Fn(&Graph, &train::Recipe) -> Result<Graph, TrainError> + 's;

/// The workload, its graph with contractions in the format asked for, and the device.
pub(crate) fn open(subject: &SubjectArguments) -> Result<(Workload, Graph, Opened), Failure> {
    let model = AskedModel::load(subject)?;
    let (workload, graph) = model.at_batch(subject.batch)?;
    model.note_left_in_float(subject.batch)?;
    Ok((workload, graph, devices::open(&subject.machine)?))
}

/// The model that is meant, whose batch may still have any size.
pub(crate) struct AskedModel<'a> {
    subject: &'a SubjectArguments,
    model: Model,
}

impl<'a> AskedModel<'a> {
    /// Reads the model. A training step needs no weights to begin with.
    pub(crate) fn load(subject: &'a SubjectArguments) -> Result<Self, Failure> {
        let name = &subject.model;
        let model = if subject.training && model::lacks_weights(name) {
            note!("note: `{name}` has no weights: the step is that of `train --from-scratch`");
            model::load_from_scratch(name)?
        } else {
            model::load(name)?
        };
        Ok(Self { subject, model })
    }

    /// The workload, and its graph with contractions in the format asked for. Without a batch, that
    /// of the model.
    pub(crate) fn at_batch(&self, batch: Option<u32>) -> Result<(Workload, Graph), Failure> {
        self.of_ranks(batch, (&Mesh::default(), 1))
    }

    /// The same; a training step is for ranks of this mesh, and takes so many batches. One stage
    /// takes them one after another.
    pub(crate) fn of_ranks(
        &self,
        batch: Option<u32>,
        (mesh, accumulate): (&Mesh, usize),
    ) -> Result<(Workload, Graph), Failure> {
        let step = |forward: &Graph, recipe: &train::Recipe| {
            if accumulate > 1 && mesh.size(&Mesh::PIPELINE.into()) == 1 {
                let one = Stages::divide(forward, 1)?.pipeline(forward, accumulate)?;
                return training_step(&one, recipe);
            }
            let recipe = train::Recipe { accumulate, ..recipe.clone() };
            training_step_on(forward, &recipe, mesh)
        };
        let subject = self.subject;
        let workload = self.bound(batch)?;
        if subject.training {
            if let Some(option) = subject.attention.option() {
                return Err(Failure::bad_input(format!(
                    "{option}: expected a forward pass, found --training; it is for inference, so \
                     leave out one of the two. Training has --dtype fp8-attention"
                )));
            }
            let workload = trained(workload, subject, &step)?;
            let graph = workload.graph.clone();
            return Ok((workload, graph));
        }
        if subject.dtype.float8.is_some() {
            let name = subject.dtype.name().unwrap_or_default();
            return Err(Failure::bad_input(format!(
                "--dtype {name}: expected f32, bf16 or f16 of a forward pass; add --training, or \
                 `quantize` the model"
            )));
        }
        let recipe = Recipe { contractions: subject.dtype.precision };
        let graph = precision(&workload.graph, &recipe).map_err(Failure::harness)?;
        let named = (subject.model.as_str(), &self.model);
        Ok((workload, asked_attention::applied(subject.attention, named, graph)?))
    }

    /// The forward pass at a batch.
    fn bound(&self, batch: Option<u32>) -> Result<Workload, Failure> {
        let batch = batch.map(|n| self.model.batch(n)).transpose()?;
        self.model.bind(&self.subject.shapes.iter().cloned().chain(batch).collect())
    }

    /// Says which linear layers of a training step on codes of fp8 stay in float, and why.
    pub(crate) fn note_left_in_float(&self, batch: Option<u32>) -> Result<(), Failure> {
        if let Some(float8) = &self.subject.dtype.float8 {
            let layers = left_in_float(&self.bound(batch)?.graph, float8);
            by_reason(&layers).iter().for_each(|line| note!("note: {line}"));
        }
        Ok(())
    }
}

/// The step that trains a model by the recipe of its name, on labels drawn from its classes, or as
/// numbers where it gives one.
fn trained(
    mut workload: Workload,
    subject: &SubjectArguments,
    step: &MakeStep<'_>,
) -> Result<Workload, Failure> {
    let (moments, parameters) = (subject.moments.into(), subject.parameters.into());
    let own = recipe_of(&workload.key.name);
    let optimizer = subject.optimizer.rule(own.optimizer.adamw(), None);
    let lora = subject.lora;
    let recipe = train::Recipe { optimizer, moments, parameters, lora, ..own };
    let recipe = recipe.in_formats(subject.dtype.clone());
    recipe.check().map_err(Failure::bad_input)?;
    let graph = &workload.graph;
    let y = graph.outputs().iter().find(|port| port.name == "y");
    let outputs = y.and_then(|y| graph.ty(y.value).sizes().last().copied()).unwrap_or(1);
    // One output is a quantity: of one class there is nothing to learn.
    let target = if outputs == 1 { Target::Quantity } else { Target::Classes };
    let forward = with_loss(graph, target).map_err(Failure::bad_input)?;
    let forward = learner(&forward, &recipe, recipe.batch).map_err(Failure::bad_input)?;
    workload.graph = step(&forward, &recipe).map_err(Failure::bad_input)?;
    if target == Target::Classes {
        workload.bounds.insert("labels".to_owned(), outputs);
    }
    let rate = Tensor::scalar(DType::F32, recipe.schedule.peak);
    workload.given.insert("lr".to_owned(), rate);
    Ok(workload)
}
