//! Whether long work goes on: asked between its steps, by whoever began it.

use overdrive_bench::failure::Failure;
use overdrive_train::{Observer, StepReport};
use std::ops::ControlFlow;

/// Asked between blocks and steps; an error ends the work, which returns it.
pub type Going<'a> = dyn Fn() -> Result<(), Failure> + 'a;

/// For work that nobody ends.
///
/// # Errors
/// Never.
pub fn to_the_end() -> Result<(), Failure> {
    Ok(())
}

/// Asks after each step of a training.
pub(super) struct Asks<'a> {
    going: &'a Going<'a>,
    answer: Result<(), Failure>,
}

impl<'a> Asks<'a> {
    pub(super) fn of(going: &'a Going<'a>) -> Self {
        Self { going, answer: Ok(()) }
    }

    /// Errs if the training was ended.
    pub(super) fn answer(self) -> Result<(), Failure> {
        self.answer
    }
}

impl Observer for Asks<'_> {
    fn stepped(&mut self, _: &StepReport) -> ControlFlow<()> {
        self.answer = (self.going)();
        match self.answer {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}
