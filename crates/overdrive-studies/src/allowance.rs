//! Time that others may take to make themselves ready, apart from the time that a study has for its
//! cases.
//!
//! Some engines compile a model for twenty seconds, and some frameworks trace it in five ways. They
//! would otherwise use up the time that `--quick` has for the models after it, ours included. So
//! each has an allowance of its own a study; who has used it up takes no further part, which its
//! records say. Invariant: what is charged here delays no deadline of ours.

use overdrive_bench::failure::Failure;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The time that every engine and framework may spend on compiling and first calls in a study; no
/// limit unless one is given.
#[derive(Debug, Default)]
pub struct Allowance {
    limit_ns: Option<u64>,
    spent_ns: RefCell<BTreeMap<String, u64>>,
}

impl Allowance {
    /// So many nanoseconds for each.
    pub fn of(limit_ns: Option<u64>) -> Self {
        Self { limit_ns, ..Self::default() }
    }

    /// Another study begins, and nobody has spent anything in it.
    pub fn renew(&self) {
        self.spent_ns.borrow_mut().clear();
    }

    /// Errs, as skipped, where `who` has nothing left. Work that has begun is finished, so it may
    /// take longer than the rest of the allowance.
    pub(crate) fn check(&self, who: &str) -> Result<(), Failure> {
        let spent = self.spent_ns.borrow().get(who).copied().unwrap_or(0);
        match self.limit_ns {
            Some(limit) if spent >= limit => Err(Failure::skipped(format!(
                "{who} has spent {} s on making itself ready, of the {} s that --quick gives it \
                 in a study; run without it",
                spent / 1_000_000_000,
                limit / 1_000_000_000
            ))),
            _ => Ok(()),
        }
    }

    /// Notes what `who` took.
    pub(crate) fn charge(&self, who: &str, ns: u64) {
        *self.spent_ns.borrow_mut().entry(who.to_owned()).or_default() += ns;
    }

    /// The time of all of them in this study.
    pub(crate) fn spent_ns(&self) -> u64 {
        self.spent_ns.borrow().values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_bench::failure::FailureKind;

    #[test]
    fn who_has_used_up_his_share_is_skipped_and_nobody_else() {
        let allowance = Allowance::of(Some(5_000_000_000));
        allowance.charge("xla", 4_000_000_000);
        assert!(allowance.check("xla").is_ok(), "something is left");
        allowance.charge("xla", 20_000_000_000);
        allowance.charge("pytorch", 1_000_000_000);
        let failure = allowance.check("xla").expect_err("nothing is left");
        assert_eq!(failure.kind, FailureKind::Skipped);
        assert!(failure.reason.contains("24 s") && failure.reason.contains("5 s"), "{failure}");
        assert!(allowance.check("pytorch").is_ok());
        assert_eq!(allowance.spent_ns(), 25_000_000_000);
        allowance.renew();
        assert!(allowance.check("xla").is_ok());
    }

    #[test]
    fn without_a_limit_nobody_is_skipped() {
        let allowance = Allowance::default();
        allowance.charge("xla", u64::MAX / 2);
        assert!(allowance.check("xla").is_ok());
    }
}
