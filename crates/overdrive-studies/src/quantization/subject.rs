//! The subjects that are judged and timed side by side: the float model, and its quantization in
//! each mode.

use super::figures::{self, Quantities};
use super::judge::bound;
use super::metric::{Metric, Scores};
use super::{Footprint, Task, agreement, outputs};
use overdrive_bench::failure::Failure;
use overdrive_formats::states_file_bytes;
use overdrive_ir::{Backend, Graph, Tensor};
use overdrive_passes::{QuantizationMode, Quantized, Skipped};

/// The float model (no mode) or a mode of it.
pub(super) struct Subject {
    pub(super) mode: Option<&'static QuantizationMode>,
    /// A score for each sample of each trained model so far.
    pub(super) scores: Vec<Scores>,
    /// For a mode that learns: the scores of the float models that were trained as long.
    trained_as_long: Vec<Scores>,
    /// Bits that a byte of text takes, where labels are text.
    bits_per_byte: Option<f64>,
    /// For the first trained model: the graph that is timed and weighed.
    pub(super) first: Option<Graph>,
    footprint: Option<Footprint>,
    likeness: Quantities,
}

/// The results for one trained model.
pub(super) struct Judged {
    scores: Scores,
    trained_as_long: Option<Scores>,
    bits_per_byte: Option<f64>,
    graph: Graph,
    footprint: Footprint,
    /// Layers that are not what the mode says, with the reason.
    pub(super) remarks: Vec<Skipped>,
}

impl Subject {
    pub(super) fn new(mode: Option<&'static QuantizationMode>) -> Self {
        let (scores, trained_as_long, likeness) = (Vec::new(), Vec::new(), Quantities::new());
        let (bits_per_byte, first, footprint) = (None, None, None);
        Self { mode, scores, trained_as_long, bits_per_byte, first, footprint, likeness }
    }

    /// Makes the subject of a trained model and has it judge the held-out samples.
    pub(super) fn judge(
        &self,
        backend: &dyn Backend,
        metric: Metric,
        task: &Task,
    ) -> Result<Judged, Failure> {
        let (graph, footprint, remarks) = match self.mode {
            None => (task.template.graph.clone(), Footprint::float(&task.template.graph), vec![]),
            Some(mode) => {
                let made = task.apply(backend, mode)?;
                let footprint = Footprint::of(&made);
                let Quantized { graph, layers, skipped, simplified } = made;
                if layers.is_empty() {
                    return Err(Failure::unsupported("no layer of the model can take it"));
                }
                let stays =
                    |s: Skipped| Skipped { reason: format!("stays as it is: {}", s.reason), ..s };
                (graph, footprint, skipped.into_iter().map(stays).chain(simplified).collect())
            }
        };
        let evaluation = task.evaluate(backend, &graph)?;
        let trained_as_long = match self.mode.filter(|mode| mode.is_trained()) {
            Some(_) => {
                let evaluation = task.evaluate(backend, task.trained_as_long(backend)?)?;
                Some(metric.scores(task.fold, &evaluation))
            }
            None => None,
        };
        Ok(Judged {
            scores: metric.scores(task.fold, &evaluation),
            trained_as_long,
            bits_per_byte: evaluation.bits_per_byte(),
            graph,
            footprint,
            remarks,
        })
    }

    /// Takes in what the next trained model gave.
    pub(super) fn add(&mut self, judged: Judged) {
        self.scores.push(judged.scores);
        self.trained_as_long.extend(judged.trained_as_long);
        if self.first.is_none() {
            self.first = Some(judged.graph);
            self.footprint = Some(judged.footprint);
            self.bits_per_byte = judged.bits_per_byte;
        }
    }

    /// Compares outputs with the float model's on these batches of the task's samples.
    pub(super) fn compare(
        &mut self,
        backend: &dyn Backend,
        task: &Task,
        (batches, float): (&[Vec<Tensor>], &[Vec<Tensor>]),
    ) -> Result<(), Failure> {
        let Some(graph) = &self.first else { return Ok(()) };
        let found = outputs(backend, &bound(&task.template, graph)?, batches)?;
        figures::likeness(&mut self.likeness, &agreement(float, &found));
        Ok(())
    }

    /// Everything exact that is known of it; `float` is the float model, `None` of itself. A mode
    /// that learns is compared with the float model that was trained as long, and with the one that
    /// was given beside it.
    pub(super) fn quantities(
        &self,
        metric: Metric,
        float: Option<&Subject>,
    ) -> Result<Quantities, Failure> {
        let mut quantities = self.likeness.clone();
        let given = float.map(|float| &float.scores[..]);
        if let (Some(given), false) = (given, self.trained_as_long.is_empty()) {
            let (name, long) = (metric.quantity(), &self.trained_as_long[..]);
            figures::quality(&mut quantities, metric, &self.scores, Some(long));
            figures::insert(&mut quantities, &format!("{name}.trained_as_long"), metric.of(long));
            let change = figures::change(metric, &self.scores, given);
            figures::insert(&mut quantities, &format!("{name}.change_from_given"), change);
        } else {
            figures::quality(&mut quantities, metric, &self.scores, given);
        }
        if let (Some(graph), Some(footprint)) = (&self.first, &self.footprint) {
            let file_bytes =
                states_file_bytes(graph).map_err(|e| Failure::failed(e.to_string()))?;
            figures::bytes(&mut quantities, file_bytes, footprint);
        }
        if let Some(bits) = self.bits_per_byte {
            quantities.insert("bits_per_byte".to_owned(), bits);
        }
        quantities.insert("models.n".to_owned(), self.scores.len() as f64);
        Ok(quantities)
    }
}
