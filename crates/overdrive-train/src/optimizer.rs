//! How a gradient changes a parameter: nodes of the step's graph, with moments as states.

use crate::moments::{Moment, Sign, in_shape};
use crate::{Moments, kept, muon};
use overdrive_ir::ops::AdamW;
use overdrive_ir::{DType, Expr};
use serde::{Deserialize, Serialize};

/// An update rule.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Momentum `m' = μ m + g`, then `p' = p - lr (m' + λ p)`; with μ = 0 there is no moment at
    /// all.
    Sgd {
        /// μ.
        momentum: f64,
        /// λ, of matrices only.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay and bias correction.
    Adamw {
        /// Decay of the first and the second moment.
        betas: [f64; 2],
        /// Added to the root of the second moment.
        eps: f64,
        /// λ, of matrices only.
        weight_decay: f64,
    },
    /// Muon for the matrices of hidden layers (`muon.rs`), and AdamW for everything else. They
    /// share rate and decay.
    Muon {
        /// μ of those matrices.
        momentum: f64,
        /// AdamW's decay of the first and the second moment.
        betas: [f64; 2],
        /// AdamW's, added to the root of the second moment.
        eps: f64,
        /// λ, of matrices only.
        weight_decay: f64,
    },
}

/// Values that all parameters of a step share.
#[derive(Copy, Clone)]
pub(crate) struct Shared<'b> {
    /// Learning rate, an f32 scalar.
    pub(crate) lr: Expr<'b>,
    /// Number of this update, from 1, an i64 scalar.
    pub(crate) count: Expr<'b>,
    /// Whether the gradients are finite: otherwise nothing changes. A bool scalar.
    pub(crate) finite: Expr<'b>,
    /// The factor of gradients, an f32 scalar: it clips them, and undoes the scale of the loss and
    /// the number of batches.
    pub(crate) factor: Option<Expr<'b>>,
    /// The format of moments, and the threshold at which this update rounds them, a u32 scalar.
    pub(crate) moments: (Moments, Expr<'b>),
    /// The seed of the random bits that round parameters at this update, a u64 scalar.
    pub(crate) seed: Expr<'b>,
    /// The format of the operands of an update's products.
    pub(crate) products: DType,
}

impl Optimizer {
    /// Decay of Muon's moment by its authors (Jordan et al., 2024).
    pub const MOMENTUM_OF_MUON: f64 = 0.95;

    /// Muon beside AdamW as it is by default.
    pub fn muon() -> Self {
        let AdamW { betas, eps, weight_decay } = AdamW::default();
        Self::Muon { momentum: Self::MOMENTUM_OF_MUON, betas, eps, weight_decay }
    }

    /// AdamW as this rule has it. SGD has its decay alone.
    pub fn adamw(&self) -> AdamW {
        match *self {
            Self::Sgd { weight_decay, .. } => AdamW { weight_decay, ..AdamW::default() },
            Self::Adamw { betas, eps, weight_decay }
            | Self::Muon { betas, eps, weight_decay, .. } => AdamW { betas, eps, weight_decay },
        }
    }

    /// The range that a value is outside of, and that value.
    pub(crate) fn fault(&self) -> Option<(&'static str, f64)> {
        let AdamW { betas, eps, weight_decay } = self.adamw();
        let momentum = match *self {
            Self::Sgd { momentum, .. } | Self::Muon { momentum, .. } => momentum,
            Self::Adamw { .. } => 0.0,
        };
        let is_positive = |x: f64| x >= 0.0 && x.is_finite();
        let decays = [betas[0], betas[1], momentum].into_iter();
        let decay = decays.filter(|decay| !(0.0..1.0).contains(decay));
        let decay = decay.map(|decay| ("betas and momentum of at least 0 and below 1", decay));
        let rest = [("a weight decay of at least 0", weight_decay), ("eps of at least 0", eps)];
        decay.chain(rest.into_iter().filter(|(_, x)| !is_positive(*x))).next()
    }

    /// Declares the moments of the parameter `name`, and updates it and them. `is_hidden`: it is
    /// the matrix of a hidden layer.
    pub(crate) fn update<'b>(
        &self,
        (name, is_hidden): (&str, bool),
        [p, g]: [Expr<'b>; 2],
        shared: Shared<'b>,
    ) {
        let (moments, threshold) = shared.moments;
        let layout = moments.layout(&p.sizes());
        let moment = |kind: &str, sign: Sign| layout.moment((kind, sign), (name, p));
        let replace =
            |old: &Moment<'b>, new: Expr<'b>| layout.replace(old, new, (shared.finite, threshold));
        let (whole, p, g) = (p, layout.view(p), layout.view(g));
        let g = shared.factor.map_or(g, |factor| g * factor);
        let replace_parameter = |new: Expr<'b>| {
            let new = shared.finite.select(new, in_shape(p, &new.sizes()));
            kept::replace(name, new, shared.seed);
        };
        // Biases and the scales of norms are few and have no reason to be small (Loshchilov and
        // Hutter, appendix).
        let decays = |decay: f64| if whole.rank() >= 2 { decay } else { 0.0 };
        match *self {
            Self::Sgd { momentum, weight_decay } => {
                let mut direction = g;
                if momentum != 0.0 {
                    let m = moment("momentum", Sign::Any);
                    direction = m.value * momentum + g;
                    replace(&m, direction);
                }
                let direction = direction + p * decays(weight_decay);
                replace_parameter(p - direction * shared.lr);
            }
            Self::Muon { momentum, weight_decay, .. } if is_hidden => {
                let m = moment("momentum", Sign::Any);
                let new_m = m.value * momentum + g;
                let u = in_shape(new_m * momentum + g, &whole.sizes());
                let p = whole;
                let direction = muon::direction(u, shared.products) + p * decays(weight_decay);
                replace_parameter(p - direction * shared.lr);
                replace(&m, new_m);
            }
            Self::Adamw { .. } | Self::Muon { .. } => {
                let (m, v) = (moment("m", Sign::Any), moment("v", Sign::Positive));
                let rule = self.adamw();
                let rule = AdamW { weight_decay: decays(rule.weight_decay), ..rule };
                let [new_p, new_m, new_v] =
                    p.adamw([g, m.value, v.value], shared.count, shared.lr, rule);
                replace_parameter(new_p);
                replace(&m, new_m);
                replace(&v, new_v);
            }
        }
    }
}
