//! `Sum`: an integer that depends on the free dimensions, as a sum of their products.
//!
//! Such a function of k sizes has 2^k factors. Its values at every choice of two sizes for each
//! dimension determine them, since these are as many. Bit `i` of an index means dimension `i`, for
//! factors and for values.

use std::fmt::Write as _;

/// `Σ factor · product of sizes`, each product of some of the dimensions at most once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Sum {
    /// By the set of dimensions that are multiplied.
    factors: Vec<i64>,
}

impl Sum {
    /// The sum that has these values where each dimension has its first size (bit 0) or its second
    /// (bit 1); `None` where none with whole factors has.
    pub(super) fn fit(values: &[i128], pairs: &[[usize; 2]]) -> Option<Self> {
        let mut factors = values.to_vec();
        for (axis, &[first, second]) in pairs.iter().enumerate() {
            let (bit, step) = (1 << axis, second as i128 - first as i128);
            for set in (0..factors.len()).filter(|set| set & bit == 0) {
                let rise = factors[set | bit].checked_sub(factors[set])?;
                if rise % step != 0 {
                    return None;
                }
                factors[set | bit] = rise / step;
                factors[set] =
                    factors[set].checked_sub((rise / step).checked_mul(first as i128)?)?;
            }
        }
        let factors =
            factors.into_iter().map(|factor| i64::try_from(factor).ok()).collect::<Option<_>>()?;
        Some(Self { factors })
    }

    /// Its value at these sizes.
    pub(super) fn at(&self, sizes: &[usize]) -> i128 {
        let of = |(set, &factor): (usize, &i64)| {
            let chosen = sizes.iter().enumerate().filter(|(axis, _)| set >> axis & 1 == 1);
            chosen.map(|(_, &size)| size as i128).product::<i128>() * i128::from(factor)
        };
        self.factors.iter().enumerate().map(of).sum()
    }

    /// The number that it is at every size, if it is one.
    pub(super) fn constant(&self) -> Option<i64> {
        self.factors[1..].iter().all(|factor| *factor == 0).then_some(self.factors[0])
    }

    /// The dimension that it is, if it is one.
    pub(super) fn dimension(&self) -> Option<usize> {
        let mut used = self.factors.iter().enumerate().filter(|(_, factor)| **factor != 0);
        let (set, &factor) = used.next()?;
        (used.next().is_none() && factor == 1 && set.is_power_of_two())
            .then_some(set.trailing_zeros() as usize)
    }

    /// The factor of the product of a set of dimensions.
    pub(super) fn factor(&self, set: usize) -> i64 {
        self.factors[set]
    }

    /// In words of a formula.
    pub(super) fn formula(&self, names: &[String]) -> String {
        let mut text = String::new();
        for (set, &factor) in
            self.factors.iter().enumerate().rev().filter(|(_, factor)| **factor != 0)
        {
            let sign = if factor < 0 { " - " } else { " + " };
            text.push_str(match (text.is_empty(), factor < 0) {
                (true, true) => "-",
                (true, false) => "",
                (false, _) => sign,
            });
            let chosen: Vec<&str> = (0..names.len())
                .filter(|axis| set >> axis & 1 == 1)
                .map(|axis| names[axis].as_str())
                .collect();
            match (factor.unsigned_abs(), chosen.is_empty()) {
                (1, false) => {}
                (factor, true) => write!(text, "{factor}").expect("writing to a string"),
                (factor, false) => write!(text, "{factor}*").expect("writing to a string"),
            }
            text.push_str(&chosen.join("*"));
        }
        if text.is_empty() { "0".to_owned() } else { text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: [[usize; 2]; 2] = [[3, 5], [4, 7]];

    /// The values of a function at the corners.
    fn corners(f: impl Fn(i128, i128) -> i128) -> Vec<i128> {
        (0..4).map(|set| f(PAIRS[0][set & 1] as i128, PAIRS[1][set >> 1] as i128)).collect()
    }

    #[test]
    fn sums_of_products_are_found_and_hold_elsewhere() {
        let sum = Sum::fit(&corners(|b, t| 2 * b * t - 3 * t + 1), &PAIRS).unwrap();
        assert_eq!(sum.at(&[11, 13]), 2 * 11 * 13 - 3 * 13 + 1);
        assert_eq!(sum.formula(&["b".to_owned(), "t".to_owned()]), "2*b*t - 3*t + 1");
        assert_eq!((sum.constant(), sum.dimension()), (None, None));
        assert_eq!(Sum::fit(&corners(|_, t| t), &PAIRS).unwrap().dimension(), Some(1));
        assert_eq!(Sum::fit(&corners(|_, _| -4), &PAIRS).unwrap().constant(), Some(-4));
    }

    #[test]
    fn what_is_none_has_a_fraction_or_another_value_at_the_witness() {
        assert_eq!(Sum::fit(&corners(|b, _| b / 2), &[[4, 7], [4, 7]]), None);
        let square = Sum::fit(&corners(|b, _| b * b), &PAIRS).unwrap();
        assert_ne!(square.at(&[11, 13]), 121);
    }
}
