//! Decides which form of a model to deploy.
//!
//! [`search`] times every format on the user's machine before it looks at quality. It mixes modes
//! by what layers cost, and judges the best once, on samples that nothing else saw. It asks a
//! [`Machine`] through [`Asking`], which keeps every answer in a [`Record`]. Invariant: a decision
//! is a function of the record, so that it can be repeated without the machine.

mod asked;
mod best_first;
mod decision;
mod ending;
mod form;
mod gate;
mod machine;
mod mix;
mod paired;
mod place;
mod ranking;
mod record;
mod search;
mod sizing;
mod solver;
mod times;

pub use asked::{Asked, Effort, Target};
pub use best_first::best_first;
pub use decision::{Decision, Fate, Outcome, Predicted, Tried};
pub use form::{Form, LayerFacts, Rung};
pub use gate::{FEWEST, Gate, Judgement, Verdict};
pub use machine::{Block, Care, Halt, LossSource, Machine, Part, Parts, Stage, TimedForms};
pub use paired::Flips;
pub use record::{Asking, Kept, Record};
pub use search::search;
pub use sizing::sized;
