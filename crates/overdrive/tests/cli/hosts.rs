//! Several hosts: network namespaces of this machine, joined by a link, with two ranks in each.
//! They share nothing but files, as hosts of a cluster do.

use crate::invocation::Folder;
use crate::signals::Underway;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, process};
use testkit::{Needs, skip};

const TRAIN: &str = "train digits-mlp --data digits --device cpu --batch 24 --threads 1";

/// Address of the first host; the second one's ends in 2.
const FIRST: &str = "10.77.0.1";

/// Ranks of a host.
const LOCAL: usize = 2;

/// Two hosts, until the test ends.
struct Hosts([String; 2]);

impl Hosts {
    /// None where the machine may not make them: the test is skipped.
    fn new() -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("overdrive-{}-{number}-{host}", process::id());
        let hosts = Self([name(0), name(1)]);
        match hosts.begin() {
            Ok(()) => Some(hosts),
            Err(why) => {
                skip(Needs::Namespaces, format!("two hosts need root, iproute2 and veth: {why}"));
                None
            }
        }
    }

    fn begin(&self) -> Result<(), String> {
        let [first, second] = &self.0;
        ip(&format!("netns add {first}"))?;
        ip(&format!("netns add {second}"))?;
        ip(&format!("-n {first} link add link0 type veth peer name link0 netns {second}"))?;
        for (host, end) in [(first, 1), (second, 2)] {
            ip(&format!("-n {host} addr add 10.77.0.{end}/24 dev link0"))?;
            ip(&format!("-n {host} link set link0 up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(())
    }

    /// Starts all ranks of a command line, those of the first host first.
    fn start(&self, folder: &Folder, line: &str) -> Vec<Underway> {
        let ranks = self.0.len() * LOCAL;
        let start = |rank: usize| {
            let host = &self.0[rank / LOCAL];
            let [rank, ranks, local, all_local] =
                [rank, ranks, rank % LOCAL, LOCAL].map(|number| number.to_string());
            let variables = [
                ("RANK", &*rank),
                ("WORLD_SIZE", &*ranks),
                ("LOCAL_RANK", &*local),
                ("LOCAL_WORLD_SIZE", &*all_local),
                ("MASTER_ADDR", FIRST),
                ("MASTER_PORT", "29500"),
            ];
            let own = ["netns", "exec", host, env!("CARGO_BIN_EXE_overdrive")];
            let words: Vec<&str> = own.into_iter().chain(line.split_whitespace()).collect();
            Underway::with(folder, "ip", &words, &variables)
        };
        (0..ranks).map(start).collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // A test that failed says why; a host that was never made is no error.
        self.0.iter().for_each(|host| drop(ip(&format!("netns del {host}"))));
    }
}

/// Runs a line of `ip`.
fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|e| format!("cannot run ip: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or(format!("ip {line}: {said}"))
}

/// The same bits as ranks of one host, over a slow link too.
#[test]
fn ranks_of_two_hosts_give_the_weights_of_one_host() {
    let Some(hosts) = Hosts::new() else { return };
    let folder = Folder::new();
    folder.line(&format!("{TRAIN} --steps 8 --nproc 4 -o near")).ends(0, &[]);
    for (model, rate) in [("far", None), ("slow", Some("20mbit"))] {
        if let Some(rate) = rate {
            let limit = format!("tbf rate {rate} burst 32kbit latency 400ms");
            let line = format!("netns exec {} tc qdisc add dev link0 root {limit}", hosts.0[1]);
            ip(&line).unwrap();
        }
        let line = format!("{TRAIN} --steps 8 -o {model}");
        let mut ranks = hosts.start(&folder, &line);
        for (rank, one) in ranks.iter_mut().enumerate() {
            let ended = one.end();
            ended.ends(0, &[]);
            assert_eq!(ended.stdout.contains("model: "), rank == 0, "{ended:?}");
        }
        let weights = |model: &str| fs::read(folder.path(model).join("model.safetensors")).unwrap();
        assert!(weights("near") == weights(model), "{model}: other weights");
    }
}

/// Nobody hangs, and each rank names one that it lost.
#[test]
fn a_link_that_breaks_ends_the_ranks_of_both_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    let folder = Folder::new();
    let mut ranks = hosts.start(&folder, &format!("{TRAIN} --steps 1000000000 -o model"));
    ranks[0].says("validation loss");
    ip(&format!("-n {} link set link0 down", hosts.0[0])).unwrap();
    for (rank, one) in ranks.iter_mut().enumerate() {
        let ended = one.end();
        let lost = if rank < LOCAL { 2..4 } else { 0..2 };
        assert_ne!(ended.code, 0, "{ended:?}");
        let names = |lost: usize| ended.stderr.contains(&format!("rank {lost}"));
        assert!(lost.clone().any(names), "rank {rank} names none of {lost:?}: {ended:?}");
    }
    // Steps that were done are kept.
    assert!(folder.files().contains(&"model.checkpoint".to_owned()), "{:?}", folder.files());
}
