//! Figures that need no statistics: bytes and accuracies that every process of a side says alike,
//! which plain thresholds judge.

use overdrive_bench::verdicts::{Exact, ExactChange};

use super::metric::{Better, Metric, Scale};

/// Judges `current` beside `baseline`.
pub(super) fn judged(name: &str, metric: &Metric, [baseline, current]: [f64; 2]) -> Exact {
    let allowed = match metric.scale {
        Scale::Ratio => metric.exact_share * baseline.abs(),
        Scale::Difference(allowed) => allowed,
    };
    // A NaN is within nothing.
    let is_number = current.is_finite() && baseline.is_finite();
    let grew = !is_number || current > baseline + allowed;
    let fell = !is_number || current < baseline - allowed;
    let change = match metric.better {
        Better::Lower if grew => ExactChange::Worse,
        Better::Higher if fell => ExactChange::Worse,
        Better::Unknown if grew || fell => ExactChange::Unclear,
        _ => ExactChange::Fine,
    };
    Exact { name: name.to_owned(), baseline, current, allowed, change }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::metric;

    fn change(name: &str, baseline: f64, current: f64) -> ExactChange {
        judged(name, &metric(name).unwrap(), [baseline, current]).change
    }

    #[test]
    fn each_unit_has_its_threshold() {
        assert_eq!(change("file_bytes", 1000.0, 1010.0), ExactChange::Fine);
        assert_eq!(change("file_bytes", 1000.0, 1011.0), ExactChange::Worse);
        assert_eq!(change("file_bytes", 1000.0, 500.0), ExactChange::Fine);
        assert_eq!(change("top1_percent", 92.0, 91.5), ExactChange::Fine);
        assert_eq!(change("top1_percent", 92.0, 91.4), ExactChange::Worse);
        assert_eq!(change("mean_cosine", 0.999, 0.993), ExactChange::Worse);
        assert_eq!(change("validation_loss", 2.0, 2.1), ExactChange::Worse);
        assert_eq!(change("validation_perplexity", 20.0, 20.1), ExactChange::Fine);
        assert_eq!(change("tokens_per_s", 100.0, 10.0), ExactChange::Worse);
        assert_eq!(change("rate", 100.0, 10.0), ExactChange::Worse);
        assert_eq!(change("tokens_per_s", 10.0, 100.0), ExactChange::Fine);
        assert_eq!(change("tokens", 1.0, 1.0), ExactChange::Fine);
        assert_eq!(change("tokens", 100.0, 10.0), ExactChange::Unclear);
        assert_eq!(change("mean_cosine", 0.999, f64::NAN), ExactChange::Worse);
    }

    #[test]
    fn what_changed_is_told() {
        let said =
            |name: &str, from, to| judged(name, &metric(name).unwrap(), [from, to]).sentence();
        assert_eq!(
            said("file_bytes", 1000.0, 1100.0).unwrap(),
            "`file_bytes` grew from 1000 to 1100, by more than 10"
        );
        assert!(said("widgets", 3.0, 9.0).unwrap().contains("which way is better"));
        assert_eq!(said("file_bytes", 1000.0, 1000.0), None);
    }
}
