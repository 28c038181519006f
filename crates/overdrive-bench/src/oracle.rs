//! The outputs that a workload should have. Inputs are drawn from a seed, and a reference of higher
//! precision computes the outputs on them. It does so once, however many configurations are
//! compared with it.

mod compared;
mod drawn;
mod sensitivity;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use overdrive_ir::{Tensor, TensorType};

use crate::deviation::{Deviation, Tolerance};
use crate::failure::Failure;
use compared::compared_values;

pub use compared::{compared, compared_rows};
pub use drawn::normal_inputs;
pub use sensitivity::{Draws, Sensitivity};

/// Outputs as f64, one vector per output: what is [`compared`] of them.
pub type Expected = Rc<Vec<Vec<f64>>>;

/// Outputs of the reference: the compared numbers, and the types of the outputs.
type ReferenceOutputs = (Expected, Rc<Vec<TensorType>>);

/// How far correct answers differ from each other, for the output with the largest difference.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    /// Largest difference of an element.
    pub largest: f64,
    /// Root of the mean square of the differences.
    pub rms: f64,
}

/// A relative change of whatever a workload computes with, as large as its rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perturbation {
    /// Largest relative change.
    pub relative: f64,
    /// The number of the change, of many such changes.
    pub twin: u64,
}

type Inputs<'a> = Box<dyn Fn(u64) -> Vec<Tensor> + 'a>;
type Reference<'a> = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, Failure> + 'a>;
type Twin<'a> = Box<dyn Fn(&[Tensor], Perturbation) -> Result<Vec<Tensor>, Failure> + 'a>;
/// How each output answers to rounding.
type Sensed = Result<Vec<Sensitivity>, Failure>;
type Sensitivities<'a> = Box<dyn Fn(&[Tensor], &[Vec<f64>], Draws) -> Sensed + 'a>;
/// Those of outputs on the inputs of a seed.
type Responses = BTreeMap<(u64, Draws), Rc<Vec<Sensitivity>>>;
type OutputPart<'a> = Box<dyn Fn(&Tensor) -> Tensor + 'a>;

/// Perturbed evaluations that a [`Spread`] is the largest of.
const TWINS: u64 = 4;

/// Seeds whose inputs are kept: those that timed calls rotate through. Whoever takes part in a
/// session shares them.
const KEPT_SEEDS: usize = 2;

/// The inputs and the reference of one workload.
pub struct Oracle<'a> {
    name: String,
    inputs: Inputs<'a>,
    reference: Reference<'a>,
    twin: Option<Twin<'a>>,
    sensitivities: Option<Sensitivities<'a>>,
    part: OutputPart<'a>,
    rows: Option<Vec<usize>>,
    types: Option<Rc<Vec<TensorType>>>,
    drawn: RefCell<VecDeque<(u64, Vec<Tensor>)>>,
    known: RefCell<BTreeMap<u64, ReferenceOutputs>>,
    responses: RefCell<Responses>,
    spreads: RefCell<Vec<((u64, f64), Spread)>>,
}

impl<'a> Oracle<'a> {
    /// `name` says in the results what outputs were compared with. `inputs` must give the same
    /// tensors for the same seed, random normal where they are real numbers.
    pub fn new(
        name: impl Into<String>,
        inputs: impl Fn(u64) -> Vec<Tensor> + 'a,
        reference: impl Fn(&[Tensor]) -> Result<Vec<Tensor>, Failure> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            inputs: Box::new(inputs),
            reference: Box::new(reference),
            twin: None,
            sensitivities: None,
            part: Box::new(Tensor::clone),
            rows: None,
            types: None,
            drawn: RefCell::default(),
            known: RefCell::default(),
            responses: RefCell::default(),
            spreads: RefCell::default(),
        }
    }

    /// The reference of a workload that rounds to codes. A value between two codes may round to
    /// either, so equally right answers differ by more than rounding. `twin` evaluates a perturbed
    /// workload.
    #[must_use]
    pub fn with_twins(
        self,
        twin: impl Fn(&[Tensor], Perturbation) -> Result<Vec<Tensor>, Failure> + 'a,
    ) -> Self {
        Self { twin: Some(Box::new(twin)), ..self }
    }

    /// The reference also says how each element of its outputs, which it is given, answers to
    /// rounding.
    #[must_use]
    pub fn with_sensitivities(
        self,
        sensitivities: impl Fn(&[Tensor], &[Vec<f64>], Draws) -> Sensed + 'a,
    ) -> Self {
        Self { sensitivities: Some(Box::new(sensitivities)), ..self }
    }

    /// The reference gives only these rows of each output, which `part` picks.
    #[must_use]
    pub fn of_rows(self, rows: Vec<usize>, part: impl Fn(&Tensor) -> Tensor + 'a) -> Self {
        Self { part: Box::new(part), rows: Some(rows), ..self }
    }

    /// Sets the types of the outputs, if the reference gives only the part of them that is
    /// [`compared`].
    #[must_use]
    pub fn of_types(self, types: Vec<TensorType>) -> Self {
        Self { types: Some(Rc::new(types)), ..self }
    }

    /// The rows that the reference gives, where it does not give all: nobody need send the others.
    pub fn rows(&self) -> Option<&[usize]> {
        self.rows.as_deref()
    }

    /// The reference of the outputs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inputs that `seed` draws.
    pub fn inputs(&self, seed: u64) -> Vec<Tensor> {
        let kept = self
            .drawn
            .borrow()
            .iter()
            .find(|(s, _)| *s == seed)
            .map(|(_, tensors)| tensors.clone());
        kept.unwrap_or_else(|| {
            let tensors = (self.inputs)(seed);
            let mut drawn = self.drawn.borrow_mut();
            drawn.push_back((seed, tensors.clone()));
            if drawn.len() > KEPT_SEEDS {
                drawn.pop_front();
            }
            tensors
        })
    }

    /// The outputs on the inputs that `seed` draws.
    ///
    /// # Errors
    /// The reference's own failure.
    pub fn expected(&self, seed: u64) -> Result<Expected, Failure> {
        Ok(self.known(seed)?.0)
    }

    fn known(&self, seed: u64) -> Result<ReferenceOutputs, Failure> {
        if let Some(known) = self.known.borrow().get(&seed) {
            return Ok(known.clone());
        }
        let outputs = (self.reference)(&self.inputs(seed))?;
        let own = || Rc::new(outputs.iter().map(|output| output.ty().clone()).collect());
        let types = self.types.clone().unwrap_or_else(own);
        let expected =
            Rc::new(outputs.into_iter().map(|output| compared(output).to_f64()).collect());
        let known: ReferenceOutputs = (expected, types);
        self.known.borrow_mut().insert(seed, known.clone());
        Ok(known)
    }

    /// Whether the workload rounds to codes.
    pub fn has_twins(&self) -> bool {
        self.twin.is_some()
    }

    /// Whether it is known how each element answers to rounding.
    pub fn has_sensitivities(&self) -> bool {
        self.sensitivities.is_some()
    }

    /// How the outputs on the inputs of `seed` answer to rounding.
    fn responses(&self, seed: u64, draws: Draws) -> Result<Option<Rc<Vec<Sensitivity>>>, Failure> {
        let Some(sensitivities) = &self.sensitivities else { return Ok(None) };
        let key = (seed, draws);
        if let Some(known) = self.responses.borrow().get(&key) {
            return Ok(Some(known.clone()));
        }
        let found = Rc::new(sensitivities(&self.inputs(seed), &self.expected(seed)?, draws)?);
        self.responses.borrow_mut().insert(key, found.clone());
        Ok(Some(found))
    }

    /// How far answers of `seed` with perturbations of this size differ from each other. Zero if
    /// the workload rounds to no codes.
    ///
    /// # Errors
    /// The reference's own failure.
    pub fn spread(&self, seed: u64, relative: f64) -> Result<Spread, Failure> {
        let Some(twin) = &self.twin else { return Ok(Spread::default()) };
        let key = (seed, relative);
        if let Some((_, known)) = self.spreads.borrow().iter().find(|(k, _)| *k == key) {
            return Ok(*known);
        }
        let (expected, inputs) = (self.expected(seed)?, self.inputs(seed));
        let mut spread = Spread::default();
        for twin_index in 0..TWINS {
            let outputs = twin(&inputs, Perturbation { relative, twin: twin_index })?;
            for (output, expected) in outputs.into_iter().zip(expected.iter()) {
                spread = spread.or_wider(Spread::between(&compared(output).to_f64(), expected));
            }
        }
        self.spreads.borrow_mut().push((key, spread));
        Ok(spread)
    }

    /// The largest deviation of `outputs` from the reference on the inputs of `seed`.
    ///
    /// # Errors
    /// The reference's own failure; another number or size of outputs.
    pub fn compare(
        &self,
        seed: u64,
        outputs: &[Tensor],
        tolerance: Tolerance,
    ) -> Result<Deviation, Failure> {
        let parts: Vec<Tensor> = outputs.iter().map(&self.part).collect();
        self.compare_part(seed, &parts, tolerance)
    }

    /// As `compare`, of outputs that are [`rows`](Self::rows) already.
    ///
    /// # Errors
    /// As `compare`.
    pub fn compare_part(
        &self,
        seed: u64,
        outputs: &[Tensor],
        tolerance: Tolerance,
    ) -> Result<Deviation, Failure> {
        let outputs: Vec<Vec<f64>> =
            outputs.iter().map(|output| compared(output.clone()).to_f64()).collect();
        self.compare_values(seed, &outputs, tolerance)
    }

    /// As `compare_part`, of outputs as numbers.
    ///
    /// # Errors
    /// As `compare`. If the reference itself is not finite, nothing can be judged. That is no fault
    /// of an output.
    pub fn compare_values(
        &self,
        seed: u64,
        outputs: &[Vec<f64>],
        tolerance: Tolerance,
    ) -> Result<Deviation, Failure> {
        let (expected, types) = self.known(seed)?;
        if expected.len() != outputs.len() {
            return Err(Failure::incorrect(format!(
                "{} outputs, expected {}",
                outputs.len(),
                expected.len()
            )));
        }
        let judged = |draws| {
            let responses = match tolerance.rounding {
                Some(_) => self.responses(seed, draws)?,
                None => None,
            };
            let mut worst = Deviation::none();
            for (index, (output, expected)) in outputs.iter().zip(expected.iter()).enumerate() {
                let output = &*compared_values(output, &types[index]);
                let mut found = Deviation::between(output, expected, tolerance)?;
                if let (Some(rounding), Some(responses)) = (tolerance.rounding, &responses) {
                    let limits = (rounding, tolerance.atol);
                    found.share_of_tolerance = responses[index].share(output, expected, limits);
                }
                worst = worst.or_worse(found);
            }
            Ok::<_, Failure>(worst)
        };
        let mut worst = judged(Draws::Few)?;
        // A scale of few draws may be too small by chance; nothing else about it can.
        let is_drawn = tolerance.rounding.is_some() && self.has_sensitivities();
        if !worst.agrees() && worst.share_of_tolerance.is_finite() && is_drawn {
            worst = judged(Draws::Many)?;
        }
        match not_finite(&expected) {
            Some(failure) if !worst.agrees() => Err(failure),
            _ => Ok(worst),
        }
    }
}

/// Why outputs cannot be judged by a reference that is NaN somewhere, or beyond what f32 holds.
fn not_finite(expected: &[Vec<f64>]) -> Option<Failure> {
    let values = || expected.iter().flatten();
    let nans = values().filter(|x| x.is_nan()).count();
    let infinite = values().filter(|x| x.abs() > f64::from(f32::MAX)).count();
    (nans + infinite > 0).then(|| {
        Failure::skipped(format!(
            "the reference itself is not finite on these inputs ({nans} of {} outputs are NaN, \
             {infinite} infinite), so that \
             nothing can be compared with it: give inputs that the model is made for (`bench \
             --inputs FILE`)",
            values().count()
        ))
    })
}

impl Spread {
    /// Between two answers.
    fn between(a: &[f64], b: &[f64]) -> Self {
        let differences = || a.iter().zip(b).map(|(a, b)| (a - b).abs());
        let squares: f64 = differences().map(|d| d * d).sum();
        let rms = (squares / a.len().max(1) as f64).sqrt();
        Self { largest: differences().fold(0.0, f64::max), rms }
    }

    fn or_wider(self, other: Self) -> Self {
        Self { largest: self.largest.max(other.largest), rms: self.rms.max(other.rms) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;
    use std::cell::Cell;

    /// Whether outputs off by so much agree, where few draws give these responses and many those;
    /// and how often responses were drawn.
    fn judged(off: f64, [few, many]: [f64; 2]) -> (bool, usize) {
        let drawn = Cell::new(0);
        let zeros = |_: &[Tensor]| Ok(vec![Tensor::from_f64(DType::F32, [1, 64], &[0.0; 64])]);
        let oracle = Oracle::new("zeros", |_| vec![], zeros).with_sensitivities(|_, _, draws| {
            drawn.set(drawn.get() + 1);
            let response = if draws == Draws::Few { few } else { many };
            Ok(vec![Sensitivity::of_responses(vec![response * response; 64], &[1, 64], 1)])
        });
        let tolerance = Tolerance::of_rounding(1e-3, 0.0);
        let found = oracle.compare_values(1, &[vec![off; 64]], tolerance).expect("they fit");
        (found.agrees(), drawn.get())
    }

    #[test]
    fn what_seems_wrong_by_few_draws_is_judged_by_many() {
        assert_eq!(judged(2e-3, [1.0, 1.0]), (true, 1));
        assert_eq!(judged(2e-3, [0.1, 1.0]), (true, 2));
        assert_eq!(judged(2e-3, [0.1, 0.1]), (false, 2));
    }
}
