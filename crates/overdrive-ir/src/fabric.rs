//! `Fabric`: what joins the ranks of a run, as plain data: latencies and bandwidths of its links.
//!
//! A plan is timed over a fabric that somebody hands over; none is assumed. Invariant: a `Cluster`
//! has a link for each pair of its ranks.

mod exchange;

pub(crate) use exchange::sent_bytes;

use crate::Mesh;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The links between ranks. `docs/simulator.md` shows the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Its name, for people.
    pub name: String,
    /// How its figures were found: measured, on which machine, or nominal.
    pub source: String,
    /// Ranks that share a host. Rank 0 is the first of its host.
    pub ranks_a_host: usize,
    /// Seconds that each collective takes beside its bytes and steps.
    pub call_seconds: f64,
    /// Links inside a host, by the number of ranks among which they were measured. A group takes
    /// those of the next number that is not below its own, or else the last.
    #[serde(default)]
    pub within: BTreeMap<usize, Link>,
    /// The link of each rank to other hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between: Option<Link>,
    /// Speed of work while a collective runs beside it, as a share of its speed alone: above 0, at
    /// most 1. Collectives take multiprocessors and bandwidth of memory.
    pub work_beside: f64,
}

/// One rank's way to others.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Seconds from one rank to the next: a step of a ring or a tree.
    pub latency_seconds: f64,
    /// Bytes per second that each rank sends while it receives as many, in rings. NCCL's tests call
    /// it bus bandwidth.
    pub ring_bytes_per_second: f64,
    /// The same between pairs of ranks, by send and receive.
    pub send_bytes_per_second: f64,
}

impl Link {
    /// The link of ranks that need none.
    const UNUSED: Link = Link {
        latency_seconds: 0.0,
        ring_bytes_per_second: f64::INFINITY,
        send_bytes_per_second: f64::INFINITY,
    };

    fn figures(&self) -> [(&'static str, f64, Range); 3] {
        [
            ("latency_seconds", self.latency_seconds, Range::NotBelowZero),
            ("ring_bytes_per_second", self.ring_bytes_per_second, Range::AboveZero),
            ("send_bytes_per_second", self.send_bytes_per_second, Range::AboveZero),
        ]
    }
}

/// Why something is no fabric, or none for a mesh.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a fabric: expected {expected}, found {found}; {remedy}")]
pub struct BadFabric {
    /// The expected text, number or link.
    pub expected: String,
    /// The text, number or link that was found.
    pub found: String,
    /// How to mend it.
    pub remedy: String,
}

const REMEDY: &str = "docs/simulator.md shows such a file";

/// The numbers that a figure may have.
#[derive(Copy, Clone)]
enum Range {
    NotBelowZero,
    AboveZero,
    Share,
}

impl Range {
    fn holds(self, figure: f64) -> bool {
        figure.is_finite()
            && match self {
                Range::NotBelowZero => figure >= 0.0,
                Range::AboveZero => figure > 0.0,
                Range::Share => figure > 0.0 && figure <= 1.0,
            }
    }

    fn expected(self) -> &'static str {
        match self {
            Range::NotBelowZero => "a number of at least 0",
            Range::AboveZero => "a number above 0",
            Range::Share => "a number above 0 and at most 1",
        }
    }
}

impl Fabric {
    /// The fabric that a JSON text holds.
    ///
    /// # Errors
    /// When the text is no JSON, lacks a field, has an unknown one, or a figure that no link has.
    pub fn of_json(text: &str) -> Result<Self, BadFabric> {
        let fabric: Self = serde_json::from_str(text).map_err(|error| BadFabric {
            expected: "JSON with the fields of a fabric".to_owned(),
            found: error.to_string(),
            remedy: REMEDY.to_owned(),
        })?;
        fabric.check()?;
        Ok(fabric)
    }

    /// Errs with the first figure that no fabric has.
    fn check(&self) -> Result<(), BadFabric> {
        let bad = |expected: String, found: String| {
            Err(BadFabric { expected, found, remedy: REMEDY.to_owned() })
        };
        if self.ranks_a_host == 0 {
            return bad("`ranks_a_host` of at least 1".to_owned(), "0".to_owned());
        }
        if self.ranks_a_host > 1 && self.within.is_empty() {
            let expected = format!("`within`: the links of {} ranks of a host", self.ranks_a_host);
            return bad(expected, "none".to_owned());
        }
        if let Some(ranks) = self.within.keys().find(|ranks| **ranks < 2) {
            return bad("in `within`, links among 2 ranks or more".to_owned(), ranks.to_string());
        }
        let own = [
            ("call_seconds".to_owned(), self.call_seconds, Range::NotBelowZero),
            ("work_beside".to_owned(), self.work_beside, Range::Share),
        ];
        let within = self.within.iter().map(|(ranks, link)| (format!("within.{ranks}"), link));
        let links = within.chain(self.between.iter().map(|link| ("between".to_owned(), link)));
        let of_links = links.flat_map(|(place, link)| {
            link.figures().map(|(name, figure, range)| (format!("{place}.{name}"), figure, range))
        });
        match own.into_iter().chain(of_links).find(|(_, figure, range)| !range.holds(*figure)) {
            Some((place, figure, range)) => {
                bad(format!("`{place}` to be {}", range.expected()), figure.to_string())
            }
            None => Ok(()),
        }
    }
}

/// The ranks of a mesh, as a fabric joins them.
#[derive(Copy, Clone, Debug)]
pub struct Cluster<'a> {
    fabric: &'a Fabric,
    mesh: &'a Mesh,
}

impl<'a> Cluster<'a> {
    /// The ranks of `mesh`, in their order on hosts that are full but for the last.
    ///
    /// # Errors
    /// When the fabric has figures that no link has, or its one host has fewer ranks than the mesh.
    pub fn new(fabric: &'a Fabric, mesh: &'a Mesh) -> Result<Self, BadFabric> {
        fabric.check()?;
        let (ranks, a_host) = (mesh.ranks(), fabric.ranks_a_host);
        if ranks > a_host && fabric.between.is_none() {
            return Err(BadFabric {
                expected: format!("links between hosts, for {ranks} ranks with {a_host} a host"),
                found: format!("no `between` in `{}`", fabric.name),
                remedy: "add it, or use fewer ranks".to_owned(),
            });
        }
        Ok(Self { fabric, mesh })
    }

    /// Speed of work while a collective runs beside it, as a share.
    pub fn work_beside(&self) -> f64 {
        self.fabric.work_beside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
        "name": "two hosts", "source": "made up", "ranks_a_host": 2, "call_seconds": 1e-5,
        "within": { "2": { "latency_seconds": 3e-6, "ring_bytes_per_second": 3e11,
                           "send_bytes_per_second": 2e11 } },
        "between": { "latency_seconds": 1e-5, "ring_bytes_per_second": 5e10,
                     "send_bytes_per_second": 5e10 },
        "work_beside": 0.75
    }"#;

    #[test]
    fn a_fabric_is_written_and_read_without_loss() {
        let fabric = Fabric::of_json(TEXT).unwrap();
        assert_eq!((fabric.ranks_a_host, fabric.within[&2].latency_seconds), (2, 3e-6));
        let text = serde_json::to_string(&fabric).unwrap();
        assert_eq!(Fabric::of_json(&text), Ok(fabric.clone()));
        let alone = Fabric { between: None, ..fabric };
        let text = serde_json::to_string(&alone).unwrap();
        assert!(!text.contains("between"), "{text}");
        assert_eq!(Fabric::of_json(&text), Ok(alone));
    }

    #[test]
    fn bad_fabrics_say_what_and_where() {
        for (from, to, words) in [
            ("\"ranks_a_host\": 2,", "", ["`ranks_a_host`", "docs/simulator.md"]),
            ("\"ranks_a_host\": 2,", "\"ranks_a_host\": 0,", ["`ranks_a_host`", "at least 1"]),
            ("work_beside", "work_besides", ["`work_besides`", "line"]),
            ("0.75", "0", ["`work_beside`", "above 0 and at most 1"]),
            ("3e-6", "-3e-6", ["`within.2.latency_seconds`", "at least 0"]),
            ("5e10,", "0,", ["`between.ring_bytes_per_second`", "above 0"]),
            ("\"2\":", "\"1\":", ["`within`", "2 ranks or more"]),
            ("\"2\":", "\"two\":", ["JSON", "line"]),
            ("{", "", ["JSON", "docs/simulator.md"]),
        ] {
            let text = TEXT.replacen(from, to, 1);
            let said = Fabric::of_json(&text).unwrap_err().to_string();
            assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        }
        let alone = Fabric { within: BTreeMap::new(), ..Fabric::of_json(TEXT).unwrap() };
        let said = Cluster::new(&alone, &Mesh::default()).unwrap_err().to_string();
        assert!(said.contains("`within`: the links of 2 ranks"), "{said}");
    }

    #[test]
    fn a_mesh_needs_links_between_its_hosts() {
        let alone = Fabric { between: None, ..Fabric::of_json(TEXT).unwrap() };
        assert!(Cluster::new(&alone, &Mesh::new([("data", 2)])).is_ok());
        let said = Cluster::new(&alone, &Mesh::new([("data", 3)])).unwrap_err().to_string();
        assert!(said.contains("3 ranks with 2 a host") && said.contains("`two hosts`"), "{said}");
    }
}
