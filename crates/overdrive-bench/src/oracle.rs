//! What a workload's outputs should be: inputs drawn from a seed, and the outputs of a reference of higher
//! precision on them, computed once however many configurations are compared with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use overdrive_ir::{DType, Graph, Tensor, eval::philox};

use crate::outcome::Failure;
use crate::subject::Deviation;

/// How far an output may be from its reference: `|output - reference| <= atol + rtol |reference|`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Relative part.
    pub rtol: f64,
    /// Absolute part, in the unit of the output.
    pub atol: f64,
}

/// Outputs as f64, one vector per output.
pub type Expected = Rc<Vec<Vec<f64>>>;

type Inputs<'a> = Box<dyn Fn(u64) -> Vec<Tensor> + 'a>;
type Reference<'a> = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, Failure> + 'a>;

/// The inputs and the reference of one workload.
pub struct Oracle<'a> {
    name: String,
    inputs: Inputs<'a>,
    reference: Reference<'a>,
    known: RefCell<BTreeMap<u64, Expected>>,
}

impl<'a> Oracle<'a> {
    /// `name` says in the results what outputs were compared with. `inputs` must give the same tensors for the
    /// same seed, random normal where they are real numbers.
    pub fn new(
        name: impl Into<String>,
        inputs: impl Fn(u64) -> Vec<Tensor> + 'a,
        reference: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, Failure> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            inputs: Box::new(inputs),
            reference: Box::new(reference),
            known: RefCell::default(),
        }
    }

    /// What outputs are compared with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inputs that `seed` draws.
    pub fn inputs(&self, seed: u64) -> Vec<Tensor> {
        (self.inputs)(seed)
    }

    /// The outputs on the inputs that `seed` draws.
    ///
    /// # Errors
    /// The reference's own failure.
    pub fn expected(&self, seed: u64) -> Result<Expected, Failure> {
        if let Some(known) = self.known.borrow().get(&seed) {
            return Ok(known.clone());
        }
        let outputs = (self.reference)(&self.inputs(seed))?;
        let expected: Expected = Rc::new(outputs.iter().map(Tensor::to_f64).collect());
        self.known.borrow_mut().insert(seed, expected.clone());
        Ok(expected)
    }

    /// How far `outputs` are from what the inputs of `seed` should give, at worst.
    ///
    /// # Errors
    /// The reference's own failure; another number or size of outputs.
    pub fn compare(&self, seed: u64, outputs: &[Tensor], tolerance: Tolerance) -> Result<Deviation, Failure> {
        let expected = self.expected(seed)?;
        if expected.len() != outputs.len() {
            return Err(Failure::incorrect(format!(
                "{} outputs, expected {}",
                outputs.len(),
                expected.len()
            )));
        }
        outputs.iter().zip(expected.iter()).try_fold(Deviation::none(), |worst, (output, expected)| {
            let found = Deviation::between(&output.to_f64(), expected, tolerance.rtol, tolerance.atol)?;
            Ok(worst.or_worse(found))
        })
    }
}

/// Inputs for `graph` from `seed`: standard normal for real numbers, 0 or 1 for everything else, since a graph
/// does not say how far its indices may reach.
pub fn normal_inputs(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let tensor = |port: &overdrive_ir::Port| {
        let ty = graph.ty(port.value);
        let count = ty.elements();
        let draws = philox::normals(seed, philox::site_of(&port.name)).take(count);
        if ty.dtype.is_float() {
            Tensor::from_f64(ty.dtype, ty.shape.clone(), &draws.collect::<Vec<_>>())
        } else {
            let bits: Vec<i128> = draws.map(|draw| i128::from(draw > 0.0)).collect();
            Tensor::from_ints(ty.dtype, ty.shape.clone(), &bits)
        }
    };
    graph.inputs().iter().map(tensor).collect()
}

impl Tolerance {
    /// Units in the last place of `dtype`, relative to an output's own size and to a typical output of size 1.
    pub fn ulps(dtype: DType, ulps: f64) -> Self {
        Self { rtol: ulps * dtype.epsilon(), atol: ulps * dtype.epsilon() }
    }
}
