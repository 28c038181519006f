//! Things that can be measured: anything that can be called, and that can say whether its answer
//! was right.

use std::hint::black_box;
use std::ops::Range;

use crate::clock::Clock;
use crate::deviation::Deviation;
use crate::failure::Failure;
use crate::series::Flag;

/// Something that can be called once and timed: an executable, a library's function, a closure.
pub trait Subject {
    /// Puts the inputs of these calls in place, untimed. Inputs are random normal, never zeros, and
    /// differ from call to call; a subject may rotate through a pool by `index`.
    ///
    /// # Errors
    /// Anything that prevents the calls.
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        let _ = calls;
        Ok(())
    }

    /// One call, to its completion. `index` counts the calls since the beginning.
    ///
    /// # Errors
    /// Anything that prevented the call from completing.
    fn call(&mut self, index: u64) -> Result<(), Failure>;

    /// Runs on inputs drawn from `seed` and compares the output with a reference of higher
    /// precision. The output buffer is filled with NaN before, and the inputs are found unchanged
    /// after. `None` says that there is no reference, and then nothing may be claimed.
    ///
    /// # Errors
    /// Anything that prevented the comparison.
    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure>;

    /// The reference of the outputs, for the results.
    fn reference(&self) -> &str {
        "given by the caller"
    }

    /// Launches of a call on a device with its own clock; `None` if unknown.
    fn launches_per_call(&self) -> Option<u64> {
        None
    }

    /// Compares the output of the call made last, one of those that were timed, with the reference.
    /// `None` where the subject does not keep it.
    ///
    /// # Errors
    /// Anything that prevented the comparison.
    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        Ok(None)
    }

    /// Times these calls as one span. The default reads the host's clock around [`Subject::call`];
    /// a back end with a clock of its own reads that too.
    ///
    /// # Errors
    /// Those of [`Subject::call`].
    fn sample(&mut self, calls: Range<u64>, clock: &dyn Clock) -> Result<Reading, Failure> {
        on_the_host(self, calls, clock)
    }
}

/// Reads the host's clock around these calls.
pub(crate) fn on_the_host<S: Subject + ?Sized>(
    subject: &mut S,
    calls: Range<u64>,
    clock: &dyn Clock,
) -> Result<Reading, Failure> {
    let start = clock.now_ns();
    for index in calls {
        subject.call(index)?;
    }
    Ok(Reading::host(clock.now_ns() - start))
}

/// One timed span, as a [`Subject`] read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Span on the host's clock.
    pub host_ns: u64,
    /// Span on the device's clock, where it has one.
    pub device_ns: Option<u64>,
    /// Device cycles during the span.
    pub cycles: Option<u64>,
    /// Flags that the device reported during the sample.
    pub flags: Vec<Flag>,
}

impl Reading {
    /// A span that only the host timed.
    pub fn host(host_ns: u64) -> Self {
        Self { host_ns, device_ns: None, cycles: None, flags: Vec::new() }
    }
}

/// A closure as a subject, so that any two implementations can be compared.
///
/// `verify` has no default: an implementation whose answer nobody checks can be timed, but its
/// closure must say so by returning `Ok(None)`.
pub struct Function<F, V> {
    call: F,
    verify: V,
}

impl<T, F, V> Function<F, V>
where
    F: FnMut(u64) -> T,
    V: FnMut(u64) -> Result<Option<Deviation>, Failure>,
{
    /// `call` is given the index of the call, and its result is kept from being optimised away;
    /// `verify` a seed.
    pub fn new(call: F, verify: V) -> Self {
        Self { call, verify }
    }
}

impl<T, F, V> Subject for Function<F, V>
where
    F: FnMut(u64) -> T,
    V: FnMut(u64) -> Result<Option<Deviation>, Failure>,
{
    fn call(&mut self, index: u64) -> Result<(), Failure> {
        black_box((self.call)(index));
        Ok(())
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        (self.verify)(seed)
    }
}
