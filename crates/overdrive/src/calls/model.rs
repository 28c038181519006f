//! A model, and the commands that take one.

use crate::bench::clock::SystemClock;
use crate::bench::failure::Failure;
use crate::bench::profile::{OperatorTable, Profile};
use crate::bench::session_calls::CallTarget;
use crate::cpu::CpuBackend;
use crate::cuda::CudaBackend;
use crate::formats::onnx::{self, Dialect};
use crate::formats::{ModelConfig, ModelFolder, Tensors};
use crate::ir::{Backend, Graph, Init, Mode, State, Tensor, Tuning};
use crate::passes::{Indices, MODES, QuantizationMode};
use crate::studies::pretrained::Pretrained;
use crate::studies::quantization::{apply, evaluate};
use crate::studies::{Template, Workload};
use crate::train::{Evaluation, Fit, data, fit, recipe_of, trained};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

/// Batches that calibrate where none are given.
const CALIBRATION: u64 = 4;

/// A model with the sizes of its named dimensions, and the device that its calls run on. That is
/// the processor with all cores, unless [`on_gpu`](Self::on_gpu) chooses a GPU.
pub struct Model {
    template: Template,
    backend: Box<dyn Backend>,
    pub(super) threads: u32,
}

impl Model {
    /// The built-in model of this name, with the weights that come with it. Else the folder, of
    /// ours or in Hugging Face's format, or the .onnx or .gguf file.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(name: &str) -> Result<Self, Failure> {
        let path = Path::new(name);
        let template = match crate::models::find(name) {
            Ok(model) => {
                let mut template = Template::built_in(model).map_err(failed)?;
                if let Some(weights) = trained(model.name) {
                    let value = |name: &str| Init::Value(weights[name].clone());
                    template.graph = template.graph.with_initial_values(|name, _| value(name));
                }
                template
            }
            Err(unknown) if !path.exists() => return Err(failed(unknown)),
            Err(_) if path.extension().is_some_and(|extension| extension == "onnx") => {
                of_onnx(path)?
            }
            Err(_) if ModelFolder::is_at(path) => ModelFolder::read(path).map_err(failed)?.into(),
            Err(_) => Pretrained::read(path).map_err(failed)?.template().map_err(failed)?,
        };
        Self::of(template)
    }

    fn of(template: Template) -> Result<Self, Failure> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let backend = Box::new(CpuBackend::new(Some(threads)).map_err(failed)?);
        Ok(Self { template, backend, threads: threads as u32 })
    }

    /// With this size of a named dimension, `batch` say.
    #[must_use]
    pub fn with_size(mut self, dimension: &str, size: usize) -> Self {
        self.template.dimensions.insert(dimension.to_owned(), size);
        self
    }

    /// With so many threads of the processor.
    ///
    /// # Errors
    /// When they cannot be started.
    pub fn with_threads(mut self, threads: u32) -> Result<Self, Failure> {
        self.backend = Box::new(CpuBackend::new(Some(threads as usize)).map_err(failed)?);
        Ok(Self { threads, ..self })
    }

    /// On a GPU, the first of which is 0.
    ///
    /// # Errors
    /// When there is none, or its libraries are missing; says what to install.
    pub fn on_gpu(mut self, ordinal: usize) -> Result<Self, Failure> {
        self.backend = Box::new(CudaBackend::new(ordinal).map_err(failed)?);
        Ok(Self { threads: 1, ..self })
    }

    /// The graph in its sizes, with inputs by seed.
    ///
    /// # Errors
    /// When a size does not fit.
    pub fn workload(&self) -> Result<Workload, Failure> {
        self.template.bind(&BTreeMap::new()).map_err(failed)
    }

    /// The device.
    pub fn backend(&self) -> &dyn Backend {
        self.backend.as_ref()
    }

    /// `overdrive eval`: outputs by name.
    ///
    /// # Errors
    /// When an input is missing or of another type, or the device cannot run the model.
    pub fn eval(&self, inputs: &Tensors) -> Result<Tensors, Failure> {
        let graph = self.workload()?.graph;
        let given = given(&graph, inputs)?;
        let backend = self.backend();
        let mut session = backend.compile(&graph, Mode::Compile, &Tuning::default())?.session()?;
        let mut state = State::initial(&graph, backend)?;
        let buffers =
            given.iter().map(|tensor| backend.upload(tensor)).collect::<Result<Vec<_>, _>>()?;
        let types = graph.outputs().iter().map(|port| graph.ty(port.value));
        let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
        session.run(state.with(&buffers, &mut outputs))?.wait()?;
        let named = graph.outputs().iter().zip(&outputs);
        named.map(|(port, buffer)| Ok((port.name.clone(), backend.download(buffer)?))).collect()
    }

    /// `overdrive profile`: operators by their own time, over so many calls.
    ///
    /// # Errors
    /// When the device cannot run the model.
    pub fn profile(&self, calls: u32) -> Result<OperatorTable, Failure> {
        let workload = self.workload()?;
        let (graph, backend) = (&workload.graph, self.backend());
        let mut session = backend.compile(graph, Mode::Compile, &Tuning::default())?.session()?;
        let mut state = State::initial(graph, backend)?;
        let target = CallTarget { backend, session: session.as_mut(), state: &mut state };
        let profile = Profile::take(target, &workload.inputs(1), calls, &SystemClock::new())?;
        Ok(OperatorTable::of(&profile))
    }

    /// `overdrive quantize` in a mode such as `int8-dynamic`, calibrated on these batches of
    /// inputs, or on random ones where there are none. Compare the two models to judge the loss.
    ///
    /// # Errors
    /// When no mode has this name, the mode learns from labels, or no layer can take it.
    pub fn quantize(&self, mode: &str, batches: &[Vec<Tensor>]) -> Result<Self, Failure> {
        let known = || MODES.iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ");
        let found = QuantizationMode::find(mode).filter(|found| !found.is_trained());
        let found =
            found.ok_or_else(|| failed(format!("mode `{mode}`: expected one of {}", known())))?;
        let workload = self.workload()?;
        let drawn: Vec<_> = (0..CALIBRATION).map(|seed| workload.inputs(seed)).collect();
        let batches = if batches.is_empty() { &drawn } else { batches };
        let how = (found.preparation, &found.quantization());
        let made = apply(self.backend(), &self.template, how, batches)?;
        if made.layers.is_empty() {
            return Err(failed(format!(
                "no layer of `{}` can take mode `{mode}`",
                self.template.name
            )));
        }
        self.with_graph(made.graph)
    }

    /// `overdrive train` on `digits`, `text` or a file, from the weights that it has, by the recipe
    /// of its name.
    ///
    /// # Errors
    /// When the samples do not fit, or the device cannot train the model.
    pub fn train(&self, samples: &str) -> Result<Self, Failure> {
        let parts = self.parts(samples)?;
        let (model, recipe) = (&self.template.graph, recipe_of(&self.template.name));
        let run = Fit::anew((self.backend(), model), &recipe, &parts);
        let weights = fit(&run, &mut ()).map_err(failed)?.parameters;
        self.with_graph(
            model.clone().with_initial_values(|name, _| Init::Value(weights[name].clone())),
        )
    }

    /// Loss and accuracy on samples of `digits`, `text` or a file that training does not see.
    ///
    /// # Errors
    /// When the samples do not fit, or the device cannot run the model.
    pub fn score(&self, samples: &str) -> Result<Evaluation, Failure> {
        let parts = self.parts(samples)?;
        evaluate(self.backend(), &self.template, &self.template.graph, parts.test.as_ref())
    }

    /// The parts of a data set, a table's columns as the model has learnt them.
    fn parts(&self, samples: &str) -> Result<data::Parts, Failure> {
        let reading =
            data::Reading { like: self.template.columns.clone(), ..data::Reading::default() };
        let set = data::open_as(samples, &reading).map_err(failed)?;
        set.parts(&self.template.graph, 0).map_err(failed)
    }

    /// `overdrive export --onnx`: the model in its sizes, for other engines. Weights of int4 in
    /// blocks are a MatMulNBits of ONNX Runtime.
    ///
    /// # Errors
    /// When an op has no like in ONNX, or the file cannot be written.
    pub fn export_onnx(&self, file: &Path) -> Result<(), Failure> {
        onnx::write(file, &self.workload()?.graph, Dialect::Microsoft).map_err(failed)
    }

    /// Writes a folder that every command takes.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Failure> {
        let Template { name, dimensions, vocabulary, columns, graph, .. } = self.template.clone();
        let config =
            ModelConfig { name, dimensions, vocabulary, columns, ..ModelConfig::default() };
        ModelFolder { config, graph }.write(folder).map_err(failed)
    }

    /// The same on the processor, with another graph.
    fn with_graph(&self, graph: Graph) -> Result<Self, Failure> {
        Self::of(Template { graph, ..self.template.clone() })
    }
}

/// A file of ONNX whose sizes are all given in it.
fn of_onnx(path: &Path) -> Result<Template, Failure> {
    let model = onnx::Model::open(path).map_err(failed)?;
    let graph = model.graph(&onnx::Binding::default()).map_err(failed)?;
    Ok(Template {
        name: model.name(),
        graph,
        dimensions: BTreeMap::new(),
        limits: BTreeMap::new(),
        vocabulary: None,
        columns: None,
        config: None,
    })
}

/// The inputs in their order, of exactly the graph's types.
fn given(graph: &Graph, inputs: &Tensors) -> Result<Vec<Tensor>, Failure> {
    let mut given = Vec::new();
    for port in graph.inputs() {
        let ty = graph.ty(port.value);
        let found = inputs.get(&port.name).filter(|tensor| tensor.ty() == ty);
        given.push(found.cloned().ok_or_else(|| {
            let found =
                inputs.get(&port.name).map_or("none".to_owned(), |tensor| tensor.ty().to_string());
            failed(format!("input `{}`: expected {ty}, found {found}", port.name))
        })?);
    }
    Indices::of(graph).map_or(Ok(()), |indices| indices.check(&given)).map_err(failed)?;
    Ok(given)
}

fn failed(reason: impl Display) -> Failure {
    Failure::failed(reason.to_string())
}
