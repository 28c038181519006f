//! From logits to a token: the likeliest, or one at random by temperature, top-k and top-p.
//!
//! In the order of `transformers`: divide by the temperature, keep the k likeliest, keep the fewest
//! of those that make up p, draw. Each token has a random time, with its weight as the rate; the
//! first one is drawn. So models with similar logits mostly draw the same token from the same seed
//! and index, which a draft needs (`speculation`). Sources: top-p, Holtzman et al.,
//! arXiv:1904.09751; such draws, Daliri et al., arXiv:2408.07978. Invariant: the same seed, logits
//! and index give the same token.

use overdrive_ir::eval::philox;

/// How a token is chosen.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only so many of the likeliest, at least 1.
    pub top_k: Option<usize>,
    /// Only the fewest likeliest whose probabilities add up to this, in (0, 1].
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token; of several the first.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 };

    /// The token number `index` of a text, by its logits. `None` where one is NaN or none is
    /// finite.
    pub fn pick(&self, logits: &[f32], index: u64) -> Option<u32> {
        let first = first_of_largest(logits).filter(|&first| logits[first].is_finite())?;
        if self.temperature == 0.0 {
            return Some(first as u32);
        }
        let highest = f64::from(logits[first]);
        let weight = |i: u32| ((f64::from(logits[i as usize]) - highest) / self.temperature).exp();
        // Clocks ring at rates of these weights: a token's is the first with its share.
        let time = |i: u32| {
            let uniform =
                (f64::from(philox::bits(self.seed, index, i.into())) + 0.5) / 2f64.powi(32);
            (-uniform.ln() / weight(i), i)
        };
        let times = self.left(logits, weight).into_iter().map(time);
        times.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, token)| token)
    }

    /// Tokens that top-k and top-p leave.
    fn left(&self, logits: &[f32], weight: impl Fn(u32) -> f64) -> Vec<u32> {
        let mut likeliest: Vec<u32> = (0..logits.len() as u32).collect();
        if self.top_k.is_none() && self.top_p >= 1.0 {
            return likeliest;
        }
        let logit = |i: u32| logits[i as usize];
        likeliest.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)));
        likeliest.truncate(self.top_k.unwrap_or(likeliest.len()).max(1));
        let total: f64 = likeliest.iter().map(|&i| weight(i)).sum();
        let mut kept = 0.0;
        let enough = likeliest.iter().position(|&i| {
            kept += weight(i);
            kept >= self.top_p * total
        });
        likeliest.truncate(enough.map_or(likeliest.len(), |last| last + 1));
        likeliest
    }
}

/// The first of the largest numbers; `None` where one is NaN or there is none. A token waits for
/// it: vectors of lanes take 3 us for 32000 logits, one comparison after the other 50.
fn first_of_largest(logits: &[f32]) -> Option<usize> {
    const LANES: usize = 16;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut strange = [false; LANES];
    for part in logits.chunks(LANES) {
        for ((largest, strange), &x) in largest.iter_mut().zip(&mut strange).zip(part) {
            *largest = if x > *largest { x } else { *largest };
            *strange |= x.is_nan();
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let found = |part: &[f32]| part.iter().fold(false, |found, &x| found | (x == largest));
    let part = logits.chunks(LANES).position(found).filter(|_| !strange.contains(&true))?;
    logits[part * LANES..].iter().position(|&x| x == largest).map(|at| part * LANES + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of three tokens with probabilities 0.6, 0.3 and 0.1 is drawn in 3000.
    fn counts(sampling: Sampling) -> [usize; 3] {
        let logits = [0.3f32.ln(), 0.6f32.ln(), 0.1f32.ln()];
        let mut counts = [0; 3];
        (0..3000).for_each(|i| counts[sampling.pick(&logits, i).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn draws_have_the_probabilities_that_are_left() {
        let plain = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 7 };
        let near = |count: usize, p: f64| (count as f64 - 3000.0 * p).abs() < 120.0;
        let [a, b, c] = counts(plain);
        assert!(near(a, 0.3) && near(b, 0.6) && near(c, 0.1), "{a} {b} {c}");
        let [a, b, c] = counts(Sampling { top_k: Some(2), ..plain });
        assert!(near(a, 1.0 / 3.0) && near(b, 2.0 / 3.0) && c == 0, "{a} {b} {c}");
        assert_eq!(counts(Sampling { top_p: 0.5, ..plain }), [0, 3000, 0]);
        let [a, b, c] = counts(Sampling { top_p: 0.7, ..plain });
        assert!(near(a, 1.0 / 3.0) && near(b, 2.0 / 3.0) && c == 0, "{a} {b} {c}");
        let [a, b, _] = counts(Sampling { temperature: 0.5, ..plain });
        assert!(near(a, 0.09 / 0.46) && near(b, 0.36 / 0.46), "{a} {b}");
        assert_eq!(counts(plain), counts(plain));
        assert_ne!(counts(plain), counts(Sampling { seed: 8, ..plain }));
    }

    /// The total variation of the probabilities is 0.2: at least 0.8 / 1.2 of the draws agree.
    #[test]
    fn models_with_similar_logits_mostly_draw_the_same_token() {
        let [one, other] = [[0.5f32, 0.3, 0.1, 0.1], [0.3, 0.3, 0.3, 0.1]].map(|p| p.map(f32::ln));
        let sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 3 };
        let agrees = |i: &u64| sampling.pick(&one, *i) == sampling.pick(&other, *i);
        let share = (0..3000).filter(agrees).count() as f64 / 3000.0;
        assert!(share > 0.8 / 1.2 - 0.03 && share < 0.8 + 0.03, "{share}");
    }

    #[test]
    fn the_likeliest_is_the_first_of_equals_and_no_number_is_no_token() {
        assert_eq!(Sampling::GREEDY.pick(&[1.0, 3.0, 3.0], 0), Some(1));
        for sampling in [Sampling::GREEDY, Sampling { temperature: 1.0, ..Sampling::GREEDY }] {
            assert_eq!(sampling.pick(&[1.0, f32::NAN], 0), None);
            assert_eq!(sampling.pick(&[f32::NEG_INFINITY; 2], 0), None);
            assert_eq!(sampling.pick(&[], 0), None);
        }
    }

    #[test]
    fn the_likeliest_is_found_at_every_place() {
        for len in [1, 15, 16, 17, 100] {
            for place in 0..len {
                let mut logits: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
                logits[place] = 0.5;
                assert_eq!(Sampling::GREEDY.pick(&logits, 0), Some(place as u32));
                logits[(place + 3) % len] = f32::NAN;
                assert_eq!(Sampling::GREEDY.pick(&logits, 0), None);
            }
        }
    }
}
