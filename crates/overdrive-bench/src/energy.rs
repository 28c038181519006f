//! Energy of many calls, in a pass of its own: counters of the processor ([`Rapl`]) or of a GPU
//! ([`Gpu`]), where the machine can tell. Absent means absent; nothing is estimated.
//!
//! Every figure comes with the power of the idle machine, measured in the same run by the same
//! counter. The reader chooses what to subtract.

mod nvml;
mod rapl;

pub use nvml::{Gpu, Selector};
pub use rapl::Rapl;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::failure::Failure;

/// A span shorter than this is not told: RAPL counters are refreshed about every millisecond, those
/// of a GPU about every 0.1 s, and the package does other things too.
pub const SHORTEST_SPAN_NS: u64 = 2_000_000_000;

/// Energy of many calls, and the power of the idle machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnergyUse {
    /// The counter: `rapl`, `nvml`.
    pub source: String,
    /// Calls made during the span.
    pub calls: u64,
    /// Length of the span, at least [`SHORTEST_SPAN_NS`].
    pub span_ns: u64,
    /// Energy of the span, idle power included.
    pub energy_joules: f64,
    /// Power of the idle machine.
    pub idle_watts: f64,
}

impl EnergyUse {
    /// Energy per call, idle power included.
    pub fn joules_per_call(&self) -> f64 {
        self.energy_joules / self.calls as f64
    }
}

/// A counter of energy.
pub trait Meter {
    /// Its name in the results.
    fn source(&self) -> &'static str;

    /// Joules used since an arbitrary moment.
    ///
    /// # Errors
    /// When the counter has become unreadable.
    fn joules(&mut self) -> Result<f64, Failure>;
}

/// A counter that has seen this machine idle.
pub struct EnergyProbe {
    meter: Box<dyn Meter>,
    idle_watts: f64,
}

impl EnergyProbe {
    /// Measures the idle machine for [`SHORTEST_SPAN_NS`], during which `rest` (in a program,
    /// [`std::thread::sleep`]) is all that this process does.
    ///
    /// # Errors
    /// When the counter cannot be read or does not advance, since every call would then seem free.
    pub fn at_rest(
        mut meter: Box<dyn Meter>,
        clock: &dyn Clock,
        rest: impl FnOnce(Duration),
    ) -> Result<Self, Failure> {
        let (start_ns, start) = (clock.now_ns(), meter.joules()?);
        rest(Duration::from_nanos(SHORTEST_SPAN_NS));
        let (joules, span_ns) = (meter.joules()? - start, clock.now_ns() - start_ns);
        if joules <= 0.0 || span_ns == 0 {
            return Err(Failure::unsupported(format!(
                "the {} counter stood still for {} ms",
                meter.source(),
                span_ns / 1_000_000
            )));
        }
        Ok(Self { meter, idle_watts: joules / (span_ns as f64 * 1e-9) })
    }

    /// Makes calls for at least [`SHORTEST_SPAN_NS`]. They must be warm, and none of them is timed.
    ///
    /// # Errors
    /// The first call's that fails, or the counter's.
    pub fn of_calls(
        &mut self,
        clock: &dyn Clock,
        mut call: impl FnMut() -> Result<(), Failure>,
    ) -> Result<EnergyUse, Failure> {
        let (start_ns, start) = (clock.now_ns(), self.meter.joules()?);
        let mut calls = 0;
        let span_ns = loop {
            call()?;
            calls += 1;
            let span_ns = clock.now_ns() - start_ns;
            if span_ns >= SHORTEST_SPAN_NS {
                break span_ns;
            }
        };
        Ok(EnergyUse {
            source: self.meter.source().to_owned(),
            calls,
            span_ns,
            energy_joules: self.meter.joules()? - start,
            idle_watts: self.idle_watts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SyntheticClock;

    /// 10 W at rest and 5 J more for each call that was made.
    struct Synthetic {
        clock: SyntheticClock,
        calls: std::rc::Rc<std::cell::Cell<u64>>,
    }

    impl Meter for Synthetic {
        fn source(&self) -> &'static str {
            "synthetic"
        }

        fn joules(&mut self) -> Result<f64, Failure> {
            Ok(self.clock.now_ns() as f64 * 1e-8 + 5.0 * self.calls.get() as f64)
        }
    }

    #[test]
    fn calls_fill_the_span_and_idle_power_stands_beside_them() {
        let clock = SyntheticClock::default();
        let calls = std::rc::Rc::default();
        let meter = Box::new(Synthetic { clock: clock.clone(), calls: std::rc::Rc::clone(&calls) });
        let rest = |span: Duration| clock.advance(u64::try_from(span.as_nanos()).unwrap());
        let mut probe = EnergyProbe::at_rest(meter, &clock, rest).unwrap();
        let used = probe.of_calls(&clock, || {
            clock.advance(300_000_000);
            calls.set(calls.get() + 1);
            Ok(())
        });
        let used = used.unwrap();
        assert_eq!(
            (used.calls, used.span_ns),
            (7, 2_100_000_000),
            "the first count of calls beyond 2 s"
        );
        assert!((used.idle_watts - 10.0).abs() < 1e-9, "{used:?}");
        assert!((used.energy_joules - (21.0 + 35.0)).abs() < 1e-6, "{used:?}");
        assert!((used.joules_per_call() - 8.0).abs() < 1e-6, "{used:?}");
    }

    struct Still;

    impl Meter for Still {
        fn source(&self) -> &'static str {
            "still"
        }

        fn joules(&mut self) -> Result<f64, Failure> {
            Ok(7.0)
        }
    }

    #[test]
    fn a_counter_that_stands_still_is_no_counter() {
        let clock = SyntheticClock::default();
        let refused =
            EnergyProbe::at_rest(Box::new(Still), &clock, |_| clock.advance(2_000_000_000)).err();
        assert!(refused.unwrap().reason.contains("stood still for 2000 ms"));
    }

    #[test]
    fn a_call_that_fails_ends_the_pass() {
        let clock = SyntheticClock::default();
        let meter = Box::new(Synthetic { clock: clock.clone(), calls: std::rc::Rc::default() });
        let mut probe = EnergyProbe::at_rest(meter, &clock, |_| clock.advance(1)).unwrap();
        assert!(probe.of_calls(&clock, || Err(Failure::failed("no"))).is_err());
    }
}
