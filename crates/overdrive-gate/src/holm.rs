//! Holm's correction for having made many tests.

/// Holm's adjusted p-values, in the order given: comparing each with `alpha` keeps the chance of
/// even one false rejection below `alpha` (Holm 1979).
pub(crate) fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_unstable_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut reached: f64 = 0.0;
    for (rank, &at) in order.iter().enumerate() {
        reached = reached.max((p.len() - rank) as f64 * p[at]).min(1.0);
        adjusted[at] = reached;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holm's own example has ordered p of 0.01, 0.02, 0.022, 0.09 at four tests.
    #[test]
    fn holm_multiplies_by_what_is_left_and_never_descends() {
        let adjusted = holm(&[0.022, 0.01, 0.09, 0.02]);
        let expected = [0.06, 0.04, 0.09, 0.06];
        assert!(adjusted.iter().zip(expected).all(|(a, e)| (a - e).abs() < 1e-12), "{adjusted:?}");
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }
}
