//! Assigns a mode to each group of layers: the exact optimum of a multiple-choice knapsack.
//!
//! Losses are whole numbers of a small unit, rounded up. So the table over all budgets is exact,
//! and what it picks never breaks the limit by rounding.

/// Parts that the limit of loss is cut into.
const UNITS: usize = 20_000;

/// A choice for a group.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Choice {
    /// The cost to minimise: nanoseconds or bytes.
    pub cost: f64,
    /// The loss of the model by it.
    pub lost: f64,
}

/// The choice for each group that costs least together and loses no more than `limit`; of equal
/// costs the one that loses least. `None` where none loses so little. A choice whose cost or loss
/// is not finite is never taken.
pub(crate) fn cheapest(groups: &[Vec<Choice>], limit: f64) -> Option<Vec<usize>> {
    let unit = limit / UNITS as f64;
    let units = |lost: f64| -> Option<usize> {
        if lost <= 0.0 {
            return Some(0);
        }
        let count = (lost / unit).ceil();
        (count <= UNITS as f64).then_some(count as usize)
    };
    // The least cost of the groups so far by the units of loss that they may take.
    let mut best = vec![0.0f64; UNITS + 1];
    let mut picked: Vec<Vec<u8>> = Vec::new();
    for choices in groups {
        let mut next = vec![f64::INFINITY; UNITS + 1];
        let mut taken = vec![0u8; UNITS + 1];
        for (index, choice) in choices.iter().enumerate() {
            let Some(takes) = units(choice.lost).filter(|_| choice.cost.is_finite()) else {
                continue;
            };
            for budget in takes..=UNITS {
                let cost = best[budget - takes] + choice.cost;
                if cost < next[budget] {
                    (next[budget], taken[budget]) = (cost, index as u8);
                }
            }
        }
        best = next;
        picked.push(taken);
    }
    let least = best[UNITS];
    if !least.is_finite() {
        return None;
    }
    let mut budget = best.iter().position(|&cost| cost <= least)?;
    let mut choices = vec![0; groups.len()];
    for (group, taken) in picked.iter().enumerate().rev() {
        let index = usize::from(taken[budget]);
        choices[group] = index;
        budget -= units(groups[group][index].lost)?;
    }
    Some(choices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn choice(cost: f64, lost: f64) -> Choice {
        Choice { cost, lost }
    }

    #[test]
    fn what_saves_much_for_little_goes_first() {
        let groups = [
            vec![choice(10.0, 0.0), choice(5.0, 0.4), choice(2.0, 2.0)],
            vec![choice(10.0, 0.0), choice(6.0, 0.1)],
        ];
        assert_eq!(cheapest(&groups, 0.5), Some(vec![1, 1]));
        assert_eq!(cheapest(&groups, 0.3), Some(vec![0, 1]));
        assert_eq!(cheapest(&groups, 10.0), Some(vec![2, 1]));
        let broken = [vec![choice(1.0, f64::NAN), choice(f64::NAN, 0.0), choice(9.0, 0.0)]];
        assert_eq!(cheapest(&broken, 1.0), Some(vec![2]));
        assert_eq!(cheapest(&[vec![choice(1.0, 2.0)]], 1.0), None);
    }

    proptest! {
        #[test]
        fn it_is_the_best_of_all_combinations(
            groups in prop::collection::vec(
                prop::collection::vec((0u32..50, 0u32..50), 1..4), 1..6),
        ) {
            // Whole hundredths of the limit are whole units, so that nothing is rounded.
            let groups: Vec<Vec<Choice>> = groups
                .iter()
                .map(|g| g.iter().map(|&(c, l)| choice(f64::from(c), f64::from(l))).collect())
                .collect();
            let sum = |picked: &[usize], of: fn(&Choice) -> f64| -> f64 {
                picked.iter().zip(&groups).map(|(&i, g)| of(&g[i])).sum()
            };
            let mut all: Vec<Vec<usize>> = vec![vec![]];
            for group in &groups {
                all = all
                    .iter()
                    .flat_map(|p| (0..group.len()).map(move |i| [p.clone(), vec![i]].concat()))
                    .collect();
            }
            let least = all
                .iter()
                .filter(|p| sum(p, |c| c.lost) <= 100.0)
                .map(|p| sum(p, |c| c.cost))
                .min_by(f64::total_cmp);
            let found = cheapest(&groups, 100.0);
            prop_assert_eq!(found.as_ref().map(|p| sum(p, |c| c.cost)), least);
            if let Some(found) = found {
                prop_assert!(sum(&found, |c| c.lost) <= 100.0);
            }
        }
    }
}
