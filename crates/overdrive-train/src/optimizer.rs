//! How a gradient changes a parameter: nodes of the step's graph, with moments as states.

use overdrive_ir::ops::AdamW;
use overdrive_ir::{Builder, DType, Expr, Init, TensorType};
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
}

impl Optimizer {
    /// Declares the moments of the parameter `name`, and updates it and them.
    pub(crate) fn update<'b>(&self, name: &str, [p, g]: [Expr<'b>; 2], shared: Shared<'b>) {
        let b: &'b Builder = p.builder();
        let moment = |kind: &str| {
            b.state_named(
                &format!("optimizer.{kind}.{name}"),
                TensorType::new(DType::F32, p.shape()),
                Init::ZEROS,
            )
        };
        let replace = |state: &str, old: Expr<'b>, new: Expr<'b>| {
            b.update(state, shared.finite.select(new, old))
        };
        // Biases and the scales of norms are few and have no reason to be small (Loshchilov and
        // Hutter, appendix).
        let decays = |decay: f64| if p.rank() >= 2 { decay } else { 0.0 };
        match *self {
            Self::Sgd { momentum, weight_decay } => {
                let mut direction = g;
                if momentum != 0.0 {
                    let m = moment("momentum");
                    direction = m * momentum + g;
                    replace(&format!("optimizer.momentum.{name}"), m, direction);
                }
                let direction = direction + p * decays(weight_decay);
                replace(name, p, p - direction * shared.lr);
            }
            Self::Adamw { betas, eps, weight_decay } => {
                let [m, v] = ["m", "v"].map(moment);
                let rule = AdamW { betas, eps, weight_decay: decays(weight_decay) };
                let [new_p, new_m, new_v] = p.adamw([g, m, v], shared.count, shared.lr, rule);
                replace(name, p, new_p);
                replace(&format!("optimizer.m.{name}"), m, new_m);
                replace(&format!("optimizer.v.{name}"), v, new_v);
            }
        }
    }
}
