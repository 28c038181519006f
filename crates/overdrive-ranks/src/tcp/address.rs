//! The addresses of rank 0.

use crate::Launch;
use overdrive_ir::RankError;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of rank 0, for each port at which it may listen, in the order in which all ranks
/// try them.
pub(super) fn addresses(launch: &Launch) -> Result<Vec<Vec<SocketAddr>>, RankError> {
    let found = (launch.host.as_str(), launch.port).to_socket_addrs();
    let found = found.map(Iterator::collect::<Vec<_>>);
    match found {
        Ok(hosts) if !hosts.is_empty() => {
            let at = |port| hosts.iter().map(|host| SocketAddr::new(host.ip(), port)).collect();
            Ok(launch.ports().into_iter().map(at).collect())
        }
        Ok(_) => Err(unreachable(launch, "it has no address".to_owned())),
        Err(error) => Err(unreachable(launch, error.to_string())),
    }
}

/// The ports of rank 0 for an error: `29500`, or `one of the ports 29501 to 29516`.
pub(super) fn ports_in_words(launch: &Launch) -> String {
    match launch.ports()[..] {
        [first, .., last] => format!("one of the ports {first} to {last}"),
        _ => format!("port {}", launch.port),
    }
}

fn unreachable(launch: &Launch, message: String) -> RankError {
    let host = &launch.host;
    let message = format!(
        "expected a host whose address is known, found `{host}` ({message}); set MASTER_ADDR to \
         the address of rank 0's machine"
    );
    RankError::Unreachable { rank: 0, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_port_leaves_those_beside_it() {
        let of = |port| Launch { port_is_held: true, ..Launch::local(0, 2, port, "test") };
        let ports = |launch: &Launch| -> Vec<u16> {
            let addresses = addresses(launch).expect("127.0.0.1 is known");
            addresses.iter().map(|hosts| hosts[0].port()).collect()
        };
        assert_eq!(ports(&of(29500)), (29501..=29516).collect::<Vec<_>>());
        assert_eq!(ports(&of(u16::MAX)), (65519..u16::MAX).collect::<Vec<_>>());
        assert_eq!(ports_in_words(&of(29500)), "one of the ports 29501 to 29516");
        let alone = Launch::local(0, 2, 29500, "test");
        assert_eq!((ports(&alone), ports_in_words(&alone)), (vec![29500], "port 29500".into()));
    }
}
