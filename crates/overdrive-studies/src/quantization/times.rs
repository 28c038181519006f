//! Times of a graph in a session, and of each of its blocks.

use overdrive_bench::outcome::Outcome;

/// Results of a session for a graph.
pub struct Timed {
    /// Its latency, or why there is none.
    pub outcome: Outcome,
    /// Bytes that stay on the device between calls: states, and what was packed of them.
    pub resident_bytes: u64,
    /// The same including the memory of a call: its arena and the scratch of libraries.
    pub peak_bytes: u64,
}

/// Times of a block in each graph.
pub struct BlockTimes {
    /// Its name in the first graph.
    pub name: String,
    /// How often the model has one that does the same.
    pub times: usize,
    /// One for each graph.
    pub timed: Vec<Timed>,
}
