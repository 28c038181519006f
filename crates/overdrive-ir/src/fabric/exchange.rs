//! How long a collective takes over a fabric: latency for each step, bandwidth for the bytes.
//!
//! Bytes are those of rings, which no algorithm of peers undercuts (Patarasuk and Yuan, "Bandwidth
//! optimal all-reduce algorithms for clusters of workstations", 2009). Groups that span hosts
//! exchange on two levels: inside each host, and between ranks of the same place on all hosts. Both
//! levels are busy at once, with different chunks, so that the slower one decides. Latencies are
//! those of the model by which NCCL chooses algorithms (`src/graph/tuning.cc` there). An all-reduce
//! goes along chains inside hosts and trees between them. Gathers and scatters go along one ring.

use super::{Cluster, Fabric, Link};
use crate::{Mesh, Prim};
use std::collections::BTreeSet;

/// Groups as they lie on hosts: for each rank in the group's order its host, the lowest being 0.
/// Groups that lie alike are listed once.
pub(crate) type Placements = BTreeSet<Vec<usize>>;

/// A group of ranks on hosts.
struct Spread {
    ranks: usize,
    hosts: usize,
    /// Most ranks of the group on one host.
    most: usize,
    /// Fewest, on hosts that have any.
    least: usize,
}

impl Spread {
    fn of(hosts: &[usize]) -> Self {
        let mut counts = vec![0; hosts.iter().max().map_or(0, |last| last + 1)];
        hosts.iter().for_each(|&host| counts[host] += 1);
        let counts: Vec<usize> = counts.into_iter().filter(|count| *count > 0).collect();
        Self {
            ranks: hosts.len(),
            hosts: counts.len(),
            most: counts.iter().copied().max().unwrap_or(1),
            least: counts.iter().copied().min().unwrap_or(1),
        }
    }
}

/// The share of a value that each of `ranks` has yet to get, or has to give.
fn others(ranks: usize) -> f64 {
    (ranks - 1) as f64 / ranks as f64
}

impl Fabric {
    /// Seconds of a collective on `bytes` of a whole value, in a group that lies on these hosts.
    fn seconds(&self, prim: &Prim, bytes: f64, hosts: &[usize]) -> f64 {
        let spread = Spread::of(hosts);
        let inside = self.within.range(spread.most..).next().or(self.within.last_key_value());
        let inside = inside.map_or(Link::UNUSED, |(_, link)| *link);
        let between = self.between.unwrap_or(Link::UNUSED);
        // All ranks of a host share the bytes that leave it.
        let ring_seconds = f64::max(
            others(spread.most) * bytes / inside.ring_bytes_per_second,
            others(spread.hosts) * bytes / (spread.least as f64 * between.ring_bytes_per_second),
        );
        let steps = |inside_steps: usize, between_steps: usize| {
            inside_steps as f64 * inside.latency_seconds
                + between_steps as f64 * between.latency_seconds
        };
        self.call_seconds
            + match prim {
                Prim::AllReduce { .. } => {
                    let levels = spread.hosts.next_power_of_two().trailing_zeros() as usize;
                    2.0 * ring_seconds + 2.0 * steps(spread.most - 1, levels)
                }
                Prim::AllGather { .. } | Prim::ReduceScatter { .. } => {
                    ring_seconds + steps(spread.ranks - spread.hosts, spread.hosts - 1)
                }
                Prim::AllToAll { .. } => {
                    let part = bytes / spread.ranks as f64;
                    let [near, far] =
                        [spread.most - 1, spread.ranks - spread.least].map(|n| n as f64 * part);
                    let sending = f64::max(
                        near / inside.send_bytes_per_second,
                        far / between.send_bytes_per_second,
                    );
                    sending + if spread.hosts > 1 { steps(0, 1) } else { steps(1, 0) }
                }
                Prim::Permute { pairs, .. } => {
                    let leaves = |&(from, to): &(usize, usize)| hosts[from] != hosts[to];
                    match (pairs.is_empty(), pairs.iter().any(leaves)) {
                        (true, _) => 0.0,
                        (_, false) => bytes / inside.send_bytes_per_second + steps(1, 0),
                        (_, true) => bytes / between.send_bytes_per_second + steps(0, 1),
                    }
                }
                other => unreachable!("`{}` is no collective", other.name()),
            }
    }
}

/// Bytes that each rank sends for a collective on `bytes` of a whole value.
pub(crate) fn sent_bytes(prim: &Prim, bytes: f64) -> f64 {
    let others = others(prim.channel().map_or(1, |channel| channel.ranks()));
    match prim {
        Prim::AllReduce { .. } => 2.0 * others * bytes,
        Prim::Permute { .. } => prim.senders() * bytes,
        _ => others * bytes,
    }
}

impl Cluster<'_> {
    /// How the groups over some axes of the mesh lie on hosts.
    pub(crate) fn placements(&self, group: &Mesh) -> Placements {
        let a_host = self.fabric.ranks_a_host;
        let groups = self.mesh.groups(group).into_iter();
        groups
            .map(|ranks| {
                let first = ranks.iter().min().map_or(0, |rank| rank / a_host);
                ranks.iter().map(|rank| rank / a_host - first).collect()
            })
            .collect()
    }

    /// Seconds of a collective on `bytes` of a whole value, until the slowest group is done.
    pub(crate) fn seconds(&self, prim: &Prim, bytes: f64, placements: &Placements) -> f64 {
        placements.iter().map(|hosts| self.fabric.seconds(prim, bytes, hosts)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Reducer};

    /// Hosts of four ranks. Two of them are joined faster than four.
    fn fabric() -> Fabric {
        let link = |latency_seconds, ring_bytes_per_second, send_bytes_per_second| Link {
            latency_seconds,
            ring_bytes_per_second,
            send_bytes_per_second,
        };
        Fabric {
            name: "made up".to_owned(),
            source: "made up".to_owned(),
            ranks_a_host: 4,
            call_seconds: 1.0,
            within: [(2, link(2.0, 100.0, 50.0)), (4, link(2.0, 80.0, 40.0))].into(),
            between: Some(link(8.0, 10.0, 5.0)),
            work_beside: 1.0,
        }
    }

    fn all(group: &Mesh) -> [Prim; 5] {
        let channel = || Channel { id: 0, group: group.clone() };
        let (reducer, ranks) = (Reducer::Sum, group.ranks());
        [
            Prim::AllReduce { reducer, channel: channel() },
            Prim::AllGather { axis: 0, channel: channel() },
            Prim::ReduceScatter { reducer, axis: 0, channel: channel() },
            Prim::AllToAll { split: 0, concat: 0, channel: channel() },
            Prim::Permute {
                pairs: (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect(),
                channel: channel(),
            },
        ]
    }

    /// Seconds of each collective on 800 bytes, over one axis of a mesh.
    fn seconds(fabric: &Fabric, mesh: &Mesh, axis: &str) -> [f64; 5] {
        let group = mesh.along(&axis.into());
        let cluster = Cluster::new(fabric, mesh).unwrap();
        let placements = cluster.placements(&group);
        all(&group).map(|prim| cluster.seconds(&prim, 800.0, &placements))
    }

    #[test]
    fn one_host_exchanges_along_a_ring() {
        // Two ranks: half of the bytes at 100, twice for an all-reduce; one step of 2 each.
        let two = seconds(&fabric(), &Mesh::new([("data", 2)]), "data");
        let half = 400.0 / 100.0 + 2.0;
        assert_eq!(two[..3], [1.0 + 2.0 * half, 1.0 + half, 1.0 + half]);
        assert_eq!(two[3..], [1.0 + 400.0 / 50.0 + 2.0, 1.0 + 800.0 / 50.0 + 2.0]);
        // Four: three quarters at 80, three steps. Three take the links of four.
        let four = seconds(&fabric(), &Mesh::new([("data", 4)]), "data");
        let three_quarters = 600.0 / 80.0 + 3.0 * 2.0;
        assert_eq!(four[..2], [1.0 + 2.0 * three_quarters, 1.0 + three_quarters]);
        assert_eq!(four[3..], [1.0 + 600.0 / 40.0 + 2.0, 1.0 + 800.0 / 40.0 + 2.0]);
        let three = seconds(&fabric(), &Mesh::new([("data", 3)]), "data");
        assert!((three[1] - (1.0 + 800.0 * 2.0 / 3.0 / 80.0 + 4.0)).abs() < 1e-9, "{three:?}");
    }

    #[test]
    fn hosts_exchange_on_two_levels_of_which_the_slower_decides() {
        // Two hosts of four: 600 bytes at 80 inside. Between, 400 at four times 10.
        let eight = seconds(&fabric(), &Mesh::new([("data", 8)]), "data");
        let bytes = f64::max(600.0 / 80.0, 400.0 / 40.0);
        assert_eq!(eight[0], 1.0 + 2.0 * bytes + 2.0 * (3.0 * 2.0 + 8.0), "a chain and a tree");
        assert_eq!(eight[1], 1.0 + bytes + (6.0 * 2.0 + 8.0), "a ring of 6 steps and one between");
        assert_eq!(eight[3], 1.0 + 400.0 / 5.0 + 8.0);
        assert_eq!(eight[4], 1.0 + 800.0 / 5.0 + 8.0);
        // One host more: as many bytes a link at most, and two levels of the tree.
        let twelve = seconds(&fabric(), &Mesh::new([("data", 12)]), "data");
        let bytes = 800.0 * 2.0 / 3.0 / 40.0;
        assert!((twelve[0] - (1.0 + 2.0 * bytes + 2.0 * (6.0 + 16.0))).abs() < 1e-9);
    }

    #[test]
    fn a_group_lies_where_the_mesh_says() {
        let mesh = Mesh::new([("data", 2), ("tensor", 4)]);
        let apart = seconds(&fabric(), &mesh, "data");
        // One rank on each host: half of the bytes over its own link.
        assert_eq!(apart[0], 1.0 + 2.0 * 400.0 / 10.0 + 2.0 * 8.0);
        let together = seconds(&fabric(), &mesh, "tensor");
        assert_eq!(together, seconds(&fabric(), &Mesh::new([("tensor", 4)]), "tensor"));
        // Three ranks a group: the second group has one rank on the first host, and two on the
        // next.
        let split = Mesh::new([("data", 2), ("tensor", 3)]);
        let fabric = fabric();
        let cluster = Cluster::new(&fabric, &split).unwrap();
        let placements = cluster.placements(&split.along(&"tensor".into()));
        assert_eq!(placements, [vec![0, 0, 0], vec![0, 1, 1]].into());
        let worst = 1.0 + 2.0 * 800.0 / 2.0 / 10.0 + 2.0 * (2.0 + 8.0);
        assert_eq!(seconds(&fabric, &split, "tensor")[0], worst);
    }

    #[test]
    fn slower_links_take_longer_and_more_ranks_never_less() {
        let meshes = [2, 4, 8, 16, 64, 4096].map(|ranks| Mesh::new([("data", ranks)]));
        for mesh in &meshes {
            let base = seconds(&fabric(), mesh, "data");
            let mut slower = fabric();
            let links = slower.within.values_mut().chain(&mut slower.between);
            for link in links {
                link.latency_seconds *= 2.0;
                link.ring_bytes_per_second /= 2.0;
                link.send_bytes_per_second /= 2.0;
            }
            let slow = seconds(&slower, mesh, "data");
            assert!(base.iter().zip(&slow).all(|(base, slow)| slow > base), "{mesh}");
        }
        for pair in meshes.windows(2) {
            let [fewer, more] = [&pair[0], &pair[1]].map(|mesh| seconds(&fabric(), mesh, "data"));
            assert!(fewer.iter().zip(&more).all(|(fewer, more)| more >= fewer), "{}", pair[1]);
        }
    }

    #[test]
    fn ranks_send_the_bytes_of_rings() {
        let sent = all(&Mesh::new([("data", 4)])).map(|prim| sent_bytes(&prim, 800.0));
        assert_eq!(sent, [1200.0, 600.0, 600.0, 600.0, 800.0]);
        let channel = Channel { id: 0, group: Mesh::new([("data", 4)]) };
        assert_eq!(sent_bytes(&Prim::Permute { pairs: vec![], channel }, 800.0), 0.0);
    }
}
