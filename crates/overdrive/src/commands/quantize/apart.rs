//! Keeps calibrating, choosing and judging apart by the bytes of samples.
//!
//! A copy of a sample that calibrated shows less of what is lost, and a copy of one that judges
//! shows nothing new. Invariant: of equal samples only the first stays.

use crate::failure::Failure;
use crate::terminal::note;
use overdrive::files::Digest;
use overdrive::ir::Tensor;
use overdrive::train::data::{Split, Subset};
use std::collections::HashSet;
use std::sync::Arc;

/// Samples that are read in one go.
const READ: u64 = 256;

/// The samples so far, by their digests.
pub(super) struct Apart {
    known: HashSet<String>,
    dropped: Vec<String>,
    /// Samples in a batch of inputs alone.
    each: usize,
}

impl Apart {
    /// Begins with the batches that calibrate, of so many samples each.
    pub(super) fn of(seen: &[Vec<Tensor>], each: usize) -> Self {
        let known = seen.iter().flat_map(|tensors| digests(tensors, each)).collect();
        Self { known, dropped: Vec::new(), each }
    }

    /// The samples of a part that equal none before them. `they` says what they do.
    pub(super) fn kept(
        &mut self,
        they: &str,
        split: &Arc<dyn Split>,
    ) -> Result<Arc<dyn Split>, Failure> {
        let mut members = Vec::new();
        for from in (0..split.len()).step_by(READ as usize) {
            let numbers: Vec<u64> = (from..split.len().min(from + READ)).collect();
            let batch = split.batch(&numbers).map_err(Failure::bad_input)?;
            let tensors: Vec<&Tensor> = batch.inputs().map(|(_, tensor)| tensor).collect();
            let found = digests(tensors, numbers.len());
            members.extend(self.unknown(numbers.into_iter().zip(found)));
        }
        let count = split.len() as usize;
        self.note(they, [members.len(), count])?;
        Ok(if members.len() == count {
            Arc::clone(split)
        } else {
            Arc::new(Subset::of(Arc::clone(split), members))
        })
    }

    /// The same of batches of inputs alone, made anew of the samples that stay. Samples that fill
    /// no whole batch are dropped too.
    pub(super) fn batches(
        &mut self,
        they: &str,
        batches: Vec<Vec<Tensor>>,
    ) -> Result<Vec<Vec<Tensor>>, Failure> {
        let count = self.each;
        let found = batches.iter().enumerate().flat_map(|(at, tensors)| {
            digests(tensors, count).into_iter().enumerate().map(move |(row, it)| ((at, row), it))
        });
        let kept: Vec<(usize, usize)> = self.unknown(found);
        let all = batches.len() * count;
        self.note(they, [kept.len() / count * count, all])?;
        if kept.len() == all {
            return Ok(batches);
        }
        let gathered = |places: &[(usize, usize)], input: usize| {
            let row = |&(at, row): &(usize, usize)| -> &[u8] {
                let bytes: &[u8] = batches[at][input].bytes();
                &bytes[row * (bytes.len() / count)..][..bytes.len() / count]
            };
            let bytes: Vec<u8> = places.iter().flat_map(row).copied().collect();
            let ty = batches[0][input].ty().clone();
            Tensor::from_bytes(ty, bytes).expect("as many rows as before are a batch")
        };
        let batch =
            |places| (0..batches[0].len()).map(|input| gathered(places, input)).collect::<Vec<_>>();
        Ok(kept.chunks_exact(count).map(batch).collect())
    }

    /// The samples whose digests are new.
    fn unknown<T>(&mut self, samples: impl Iterator<Item = (T, String)>) -> Vec<T> {
        samples.filter_map(|(sample, digest)| self.known.insert(digest).then_some(sample)).collect()
    }

    /// Notes how many samples of a part stay; errs if none does.
    fn note(&mut self, they: &str, [stay, all]: [usize; 2]) -> Result<(), Failure> {
        if stay == 0 {
            return Err(Failure::bad_input(format!(
                "--data: expected samples that {they} and equal none of the earlier parts, found \
                 copies alone among {all}: give other samples"
            )));
        }
        if stay < all {
            self.dropped.push(format!("{} of {all} that {they}", all - stay));
        }
        Ok(())
    }

    /// Tells what was dropped.
    pub(super) fn told(&self) {
        if !self.dropped.is_empty() {
            note!(
                "note: dropped samples that equal earlier ones (to calibrate, choose or judge): {}",
                self.dropped.join(", ")
            );
        }
    }
}

/// Digests of the samples of a batch, which has so many of them.
fn digests<'t>(tensors: impl IntoIterator<Item = &'t Tensor>, count: usize) -> Vec<String> {
    let mut digests = vec![Digest::default(); count];
    for tensor in tensors {
        let bytes = tensor.bytes();
        for (digest, row) in
            digests.iter_mut().zip(bytes.chunks(bytes.len().div_ceil(count).max(1)))
        {
            digest.add(row);
        }
    }
    digests.iter().map(Digest::finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive::train::data::{Labelled, Samples};

    fn split(values: &[f32]) -> Arc<dyn Split> {
        let x = Tensor::from_f32([values.len(), 1], values);
        let samples = Samples::new("samples", x, vec![0; values.len()]).unwrap();
        let members = (0..values.len() as u32).collect();
        Arc::new(Labelled::new(Arc::new(samples), members, &[1]).unwrap())
    }

    #[test]
    fn of_equal_samples_the_first_stays() {
        let seen = [vec![Tensor::from_f32([2, 1], &[0.25, 0.5])]];
        let mut apart = Apart::of(&seen, 2);
        // The largest value is 1, so that nothing is scaled.
        let chosen = apart.kept("choose", &split(&[0.25, 1.0, 0.75])).unwrap();
        let judged = apart.kept("judge", &split(&[1.0, 0.125, 0.5, 0.125, 0.0])).unwrap();
        let of = |split: &Arc<dyn Split>| {
            let all: Vec<u64> = (0..split.len()).collect();
            split.batch(&all).unwrap().x.to_f32()
        };
        assert_eq!((of(&chosen), of(&judged)), (vec![1.0, 0.75], vec![0.125, 0.0]));
        assert_eq!(apart.dropped, ["1 of 3 that choose", "3 of 5 that judge"]);
        let none = apart.kept("judge", &split(&[1.0, 0.125])).err().unwrap();
        assert!(none.message.contains("copies alone among 2"), "{}", none.message);
    }

    #[test]
    fn batches_are_made_anew_of_what_stays() {
        let batch = |x: [f32; 2]| {
            vec![Tensor::from_f32([2, 1], &x), Tensor::from_f32([2, 1], &x.map(|x| x + 0.5))]
        };
        let mut apart = Apart::of(&[batch([0.0, 1.0])], 2);
        let kept = [batch([2.0, 1.0]), batch([3.0, 2.0]), batch([4.0, 5.0])];
        let kept = apart.batches("judge", kept.to_vec()).unwrap();
        // 2, 3, 4 and 5 are new.
        assert_eq!(kept, [batch([2.0, 3.0]), batch([4.0, 5.0])]);
        let whole = vec![batch([6.0, 7.0])];
        assert_eq!(apart.batches("judge", whole.clone()).unwrap(), whole);
        // One sample that is new fills no batch.
        assert!(apart.batches("judge", vec![batch([6.0, 8.0])]).is_err());
    }
}
