//! `ContextExchange`: the ways in which ranks that share a sequence compute attention, and their
//! names.

use std::fmt;
use std::str::FromStr;

/// How ranks exchange queries, keys and values if each has a part of the sequence. Their names are
/// `ring`, `ulysses` and `ulysses:2`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ContextExchange {
    /// Keys and values go round all ranks.
    Ring,
    /// All ranks exchange their positions for heads, and attend to the whole sequence.
    Ulysses,
    /// So many neighbours exchange positions for heads. Keys and values go round these groups.
    Groups(usize),
}

/// Why a text names no exchange.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "an exchange of the context: expected ring, ulysses or ulysses:RANKS, found `{found}`; write \
     it like `ulysses:2`, whose groups of two ranks divide the heads"
)]
pub struct BadContextExchange {
    /// The text found.
    pub found: String,
}

impl ContextExchange {
    /// The way of groups of so many of `ranks`.
    pub(super) fn of_groups(group: usize, ranks: usize) -> Self {
        match group {
            1 => Self::Ring,
            group if group == ranks => Self::Ulysses,
            group => Self::Groups(group),
        }
    }

    /// Ranks that exchange positions for heads, among so many.
    pub(super) fn group(self, ranks: usize) -> usize {
        match self {
            Self::Ring => 1,
            Self::Ulysses => ranks,
            Self::Groups(group) => group,
        }
    }
}

impl fmt::Display for ContextExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring => f.write_str("ring"),
            Self::Ulysses => f.write_str("ulysses"),
            Self::Groups(group) => write!(f, "ulysses:{group}"),
        }
    }
}

impl FromStr for ContextExchange {
    type Err = BadContextExchange;

    fn from_str(text: &str) -> Result<Self, BadContextExchange> {
        let group = |text: &str| text.parse().ok().filter(|&group| group > 1);
        match text.split_once(':') {
            None if text == "ring" => Some(Self::Ring),
            None if text == "ulysses" => Some(Self::Ulysses),
            Some(("ulysses", ranks)) => group(ranks).map(Self::Groups),
            _ => None,
        }
        .ok_or_else(|| BadContextExchange { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::ContextExchange;

    #[test]
    fn exchanges_are_read_as_they_are_written() {
        for text in ["ring", "ulysses", "ulysses:2"] {
            assert_eq!(text.parse::<ContextExchange>().unwrap().to_string(), text);
        }
        for text in ["", "Ring", "ring:2", "ulysses:", "ulysses:1", "ulysses:x", "all"] {
            let error = text.parse::<ContextExchange>().unwrap_err().to_string();
            assert!(error.contains("write it like `ulysses:2`"), "{error}");
        }
    }
}
