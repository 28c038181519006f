//! Slurm's notation for lists.

/// The first host of a list of hosts such as `gpu[003-006,9],login1`.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.chars();
    while let Some(next) = rest.next() {
        match next {
            ',' => break,
            '[' => {
                let numbers: String = rest.by_ref().take_while(|c| *c != ']').collect();
                host.extend(numbers.chars().take_while(|c| !matches!(c, ',' | '-')));
            }
            other => host.push(other),
        }
    }
    let host = host.trim();
    (!host.is_empty()).then(|| host.to_owned())
}

/// A port for the ranks of a job, the same on all of them: no two jobs of a machine should have the
/// same. Ports from 20000 to 29999 are for programs, and below those that systems hand out.
pub(crate) fn port_of(job: &str) -> u16 {
    // FNV-1a.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    20_000 + (hash % 10_000) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("gpu[003-006,9],login1", "gpu003"),
            ("gpu7", "gpu7"),
            ("a,b", "a"),
            ("rack[2,4]node[01-08]", "rack2node01"),
            ("10.0.0.3", "10.0.0.3"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        assert_eq!(first_host(""), None);
    }

    #[test]
    fn jobs_have_ports_of_their_own() {
        let ports: std::collections::BTreeSet<u16> =
            (0..50).map(|job| port_of(&format!("{job}.0"))).collect();
        assert!(ports.len() > 45 && ports.iter().all(|port| (20_000..30_000).contains(port)));
    }
}
