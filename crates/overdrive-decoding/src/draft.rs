//! `Draft`: guesses the next tokens of texts, for the model to check. A guess costs time when it is
//! wrong and changes no token.

use crate::{CachedDecoder, Chooser, DecodeError, Decoder};

/// A text that is continued.
#[derive(Copy, Clone, Debug)]
pub struct Continued<'a> {
    /// Index of its prompt.
    pub prompt: usize,
    /// The prompt, and what was made of it; at least one token.
    pub text: &'a [u32],
    /// Tokens made, which is the index of the next one.
    pub made: usize,
    /// Most tokens that are of use.
    pub most: usize,
}

/// Guesses the next tokens of texts.
pub trait Draft {
    /// Compiles what a text of so many tokens needs.
    ///
    /// # Errors
    /// When a device refuses.
    fn prepare(&mut self, _tokens: usize, _likeliest: bool) -> Result<(), DecodeError> {
        Ok(())
    }
    /// The next tokens of each text, at most as many as it says, or none. A text keeps its place
    /// while it goes on.
    ///
    /// # Errors
    /// When a device refuses, or logits are no numbers.
    fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        chooser: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError>;
}

/// Finds the end of a text earlier in the same text, and proposes what followed it there. Source:
/// Saxena, "Prompt Lookup Decoding", 2023.
#[derive(Copy, Clone, Debug)]
pub struct LookupDraft;

/// Tokens at the end of a text that are looked for: the most first.
const LOOKED_FOR: [usize; 3] = [4, 3, 2];

/// Up to `most` tokens that followed the latest place with the longest end of the text. Behind the
/// end of the text they follow one another, so that a text that repeats itself goes on.
fn looked_up(text: &[u32], most: usize) -> Vec<u32> {
    let next_of = |count: usize| {
        let start = text.len().checked_sub(count)?;
        let same = |&at: &usize| text[at..at + count] == text[start..];
        (0..start).rev().find(same).map(|at| at + count)
    };
    let Some(next) = LOOKED_FOR.into_iter().find_map(next_of) else { return vec![] };
    let period = text.len() - next;
    (0..most).map(|i| text[next + i % period]).collect()
}

impl Draft for LookupDraft {
    fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        _: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        let of =
            |text: &Option<Continued<'_>>| text.map_or(vec![], |of| looked_up(of.text, of.most));
        Ok(texts.iter().map(of).collect())
    }
}

/// Tokens that a draft model reads one by one; a text of which it lacks more is read anew.
const BEHIND: usize = 8;

/// A smaller model of the same tokens, which draws by the same random numbers. It proposes nothing
/// for texts that are longer than its caches.
pub struct ModelDraft<'a> {
    decoder: CachedDecoder<'a>,
    /// The tokens of each sequence in its caches.
    read: Vec<Vec<u32>>,
}

impl<'a> ModelDraft<'a> {
    /// A draft by this decoder, which has as many sequences as the one that checks it.
    pub fn new(decoder: CachedDecoder<'a>) -> Self {
        let read = vec![vec![]; decoder.sequences()];
        Self { decoder, read }
    }

    /// Lets the caches of a sequence hold a beginning of this text, all but its last token at most.
    /// If they hold all of it, gives the logits behind it.
    fn meet(&mut self, sequence: usize, text: &[u32]) -> Result<Option<Vec<f32>>, DecodeError> {
        let read = &mut self.read[sequence];
        let own = read.iter().zip(&text[..text.len() - 1]);
        let common = own.take_while(|(a, b)| a == b).count();
        if common == 0 || text.len() - common > BEHIND {
            let logits = self.decoder.join(sequence, text)?;
            *read = text.to_vec();
            return Ok(Some(logits));
        }
        self.decoder.take_back(sequence, read.len() - common);
        read.truncate(common);
        Ok(None)
    }

    /// The next token of each sequence that reads one.
    fn choose(
        &mut self,
        reads: &[Option<u32>],
        texts: &[Option<Continued<'_>>],
        (chooser, proposed): (&Chooser<'_>, &[Vec<u32>]),
    ) -> Result<Vec<Option<u32>>, DecodeError> {
        if chooser.is_greedy() {
            return self.decoder.likeliest_of(reads, 1);
        }
        let logits = self.decoder.step(reads)?;
        let rows = logits.chunks((logits.len() / reads.len()).max(1));
        let mut chosen = vec![None; reads.len()];
        for (sequence, row) in rows.enumerate() {
            if let (Some(text), Some(_)) = (texts[sequence], reads[sequence]) {
                let index = text.made + proposed[sequence].len();
                chosen[sequence] = chooser.pick(row, (text.prompt, index))?;
            }
        }
        Ok(chosen)
    }
}

impl Draft for ModelDraft<'_> {
    /// A text that its caches have no room for is never read.
    fn prepare(&mut self, tokens: usize, likeliest: bool) -> Result<(), DecodeError> {
        if tokens > self.decoder.capacity() {
            return Ok(());
        }
        self.decoder.prepare(tokens, likeliest)
    }

    fn propose(
        &mut self,
        texts: &[Option<Continued<'_>>],
        chooser: &Chooser<'_>,
    ) -> Result<Vec<Vec<u32>>, DecodeError> {
        let capacity = self.decoder.capacity();
        let mut proposed = vec![vec![]; texts.len()];
        let mut wanted = vec![0; texts.len()];
        for (sequence, text) in texts.iter().enumerate() {
            let Some(text) = text.filter(|of| of.text.len() <= capacity && of.most > 0) else {
                continue;
            };
            // The last one is proposed without being read.
            wanted[sequence] = text.most.min(capacity + 1 - text.text.len());
            if let Some(logits) = self.meet(sequence, text.text)? {
                proposed[sequence].extend(chooser.pick(&logits, (text.prompt, text.made))?);
            }
        }
        loop {
            let next = |sequence: usize| {
                let own: &Vec<u32> = &proposed[sequence];
                let text = texts[sequence].filter(|_| own.len() < wanted[sequence])?.text;
                let at = self.read[sequence].len();
                text.get(at).or_else(|| own.get(at - text.len())).copied()
            };
            let reads: Vec<Option<u32>> = (0..texts.len()).map(next).collect();
            if reads.iter().all(Option::is_none) {
                return Ok(proposed);
            }
            let chosen = self.choose(&reads, texts, (chooser, &proposed))?;
            for (sequence, (read, chosen)) in reads.into_iter().zip(chosen).enumerate() {
                let (Some(read), Some(text)) = (read, texts[sequence]) else { continue };
                self.read[sequence].push(read);
                if self.read[sequence].len() >= text.text.len() {
                    let token = chosen.ok_or(DecodeError::NoNumber(text.made))?;
                    proposed[sequence].push(token);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_text_is_found_earlier_in_it() {
        let text = [1, 2, 3, 9, 2, 3, 7, 8, 1, 2, 3];
        assert_eq!(looked_up(&text, 2), [9, 2], "three tokens are better than the latest two");
        assert_eq!(looked_up(&text[..6], 9), [9, 2, 3, 9, 2, 3, 9, 2, 3], "it repeats itself");
        assert_eq!(looked_up(&[5, 5, 5], 4), [5; 4]);
        assert_eq!(looked_up(&text[..8], 4), [0; 0]);
        assert_eq!(looked_up(&[3], 4), [0; 0]);
        assert_eq!(looked_up(&text, 0), [0; 0]);
    }
}
