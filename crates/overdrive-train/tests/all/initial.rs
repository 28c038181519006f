//! The parameters that a run begins with: the back end makes them where they lie, and the host
//! draws none of them.

use overdrive_cpu::CpuBackend;
use overdrive_ir::{
    Backend, BackendError, Buffer, Executable, Graph, Init, Mode, Target, Tensor, TensorType,
    Tuning,
};
use overdrive_models::find;
use overdrive_train::data::{Dataset, Parts, Subset, books};
use overdrive_train::{Fit, Formats, Parameters, Recipe, fit};
use std::sync::{Arc, Mutex};

/// A back end that keeps the states that it makes, and the largest tensor that it is given.
struct Making {
    backend: CpuBackend,
    made: Mutex<Vec<(String, Init, Tensor)>>,
    given: Mutex<usize>,
}

impl Backend for Making {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn target(&self) -> &dyn Target {
        self.backend.target()
    }

    fn compile(
        &self,
        graph: &Graph,
        mode: Mode,
        tuning: &Tuning,
    ) -> Result<Arc<dyn Executable>, BackendError> {
        self.backend.compile(graph, mode, tuning)
    }

    fn upload(&self, tensor: &Tensor) -> Result<Buffer, BackendError> {
        let mut given = self.given.lock().unwrap();
        *given = (*given).max(tensor.ty().elements());
        self.backend.upload(tensor)
    }

    fn initial(&self, init: &Init, name: &str, ty: &TensorType) -> Result<Buffer, BackendError> {
        let buffer = self.backend.initial(init, name, ty)?;
        let tensor = self.backend.download(&buffer)?;
        self.made.lock().unwrap().push((name.to_owned(), init.clone(), tensor));
        Ok(buffer)
    }

    fn download(&self, buffer: &Buffer) -> Result<Tensor, BackendError> {
        self.backend.download(buffer)
    }

    fn output(&self, ty: &TensorType) -> Result<Buffer, BackendError> {
        self.backend.output(ty)
    }

    fn write(&self, buffer: &mut Buffer, tensor: &Tensor) -> Result<(), BackendError> {
        self.backend.write(buffer, tensor)
    }
}

#[test]
fn a_back_end_draws_parameters_from_the_seed_of_the_recipe() {
    let model = (find("text-transformer").unwrap().build)().unwrap();
    let parts = Dataset::Text(books()).parts(&model, 0).unwrap();
    // A look at all of the validation text would take longer than the step.
    let validation = Arc::new(Subset::evenly(parts.validation, 2));
    let parts = Parts { validation, ..parts };
    let formats = Formats::named("bf16").unwrap();
    for parameters in [Parameters::F32, Parameters::Stochastic] {
        let recipe = Recipe { batch: 2, steps: 1, seed: 11, parameters, ..Recipe::default() };
        let recipe = recipe.in_formats(formats.clone());
        let backend = CpuBackend::new(Some(1)).unwrap();
        let backend = Making { backend, made: Mutex::default(), given: Mutex::default() };
        fit(&Fit::anew((&backend, &model), &recipe, &parts), &mut ()).unwrap();
        let made = backend.made.into_inner().unwrap();
        let mut random = 0;
        for state in model.states() {
            let is_own = |(name, ..): &&(String, Init, Tensor)| *name == state.name;
            let [(_, init, tensor)] = made.iter().filter(is_own).collect::<Vec<_>>()[..] else {
                panic!("{} is made once", state.name)
            };
            let Init::Normal { std, .. } = state.init else { continue };
            assert_eq!(*init, Init::Normal { std, seed: 11 }, "{}", state.name);
            let whole = init.tensor(&state.name, model.ty(state.value));
            assert!(*tensor == whole.convert(tensor.ty().dtype), "{}", state.name);
            random += 1;
        }
        assert!(random > 10, "{random} matrices are random");
        // Windows of tokens and numbers.
        let given = backend.given.into_inner().unwrap();
        assert!(given < 1024, "{parameters}: the host gave {given} elements at once");
    }
}
