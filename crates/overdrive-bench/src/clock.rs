//! The clock, injected so that the framework can be tested against invented time.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::statistics::Sorted;

/// A monotonic clock.
pub trait Clock {
    /// Its name in the results.
    fn name(&self) -> &'static str;

    /// Nanoseconds since an arbitrary moment; never decreases.
    fn now_ns(&self) -> u64;
}

/// The steadiest clock of the machine. On Linux that is `CLOCK_MONOTONIC_RAW`, which time
/// synchronisation does not slew; elsewhere, the standard library's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    #[cfg(not(target_os = "linux"))]
    origin: std::time::Instant,
}

impl SystemClock {
    /// The system's clock.
    #[cfg(target_os = "linux")]
    #[expect(clippy::new_without_default, reason = "a clock is opened, there is no default one")]
    pub fn new() -> Self {
        Self {}
    }

    /// The system's clock.
    #[cfg(not(target_os = "linux"))]
    #[expect(clippy::new_without_default, reason = "a clock is opened, there is no default one")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

#[cfg(target_os = "linux")]
impl Clock for SystemClock {
    fn name(&self) -> &'static str {
        "CLOCK_MONOTONIC_RAW"
    }

    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

#[cfg(not(target_os = "linux"))]
impl Clock for SystemClock {
    fn name(&self) -> &'static str {
        "std::time::Instant"
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos())
            .expect("a process lives less than 584 years")
    }
}

/// Resolution of a clock, and the cost of reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Timer {
    /// The clock's name.
    pub clock: String,
    /// Median time between two readings in a row.
    pub overhead_ns: u64,
    /// Smallest step seen between two readings, at least 1.
    pub tick_ns: u64,
}

impl Timer {
    /// Measures `clock` against itself.
    pub fn measure(clock: &dyn Clock) -> Self {
        const READINGS: usize = 10_000;
        let readings: Vec<u64> = (0..=READINGS).map(|_| clock.now_ns()).collect();
        let steps: Vec<f64> = readings.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let overhead = Sorted::new(&steps).expect("steps of a clock are finite").median();
        let tick = steps.iter().copied().filter(|&step| step > 0.0).fold(f64::INFINITY, f64::min);
        let tick_ns = if tick.is_finite() { tick as u64 } else { 1 };
        Self { clock: clock.name().to_owned(), overhead_ns: overhead as u64, tick_ns }
    }

    /// How long a sample must last so that the clock's cost stays below 0.1 % of it and its grain
    /// below 1 %. It is never less than `floor_ns`.
    pub fn shortest_sample_ns(&self, floor_ns: u64) -> u64 {
        floor_ns.max(1000 * self.overhead_ns).max(100 * self.tick_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_moves_forward_and_costs_something_small() {
        let timer = Timer::measure(&SystemClock::new());
        assert!(timer.overhead_ns < 100_000 && timer.tick_ns < 20_000_000, "{timer:?}");
        assert!(timer.tick_ns >= 1);
    }

    #[test]
    fn the_sample_outlasts_cost_and_grain() {
        let timer = Timer { clock: "x".into(), overhead_ns: 50, tick_ns: 1 };
        assert_eq!(timer.shortest_sample_ns(100_000), 100_000);
        assert_eq!(
            Timer { overhead_ns: 200, ..timer.clone() }.shortest_sample_ns(100_000),
            200_000
        );
        assert_eq!(Timer { tick_ns: 10_000, ..timer }.shortest_sample_ns(100_000), 1_000_000);
    }
}
