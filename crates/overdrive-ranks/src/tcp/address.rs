//! The address of rank 0.

use crate::Launch;
use overdrive_ir::RankError;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of rank 0.
pub(super) fn addresses(launch: &Launch) -> Result<Vec<SocketAddr>, RankError> {
    let found = (launch.host.as_str(), launch.port).to_socket_addrs();
    let found = found.map(Iterator::collect::<Vec<_>>);
    match found {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        Ok(_) => Err(unreachable(launch, "it has no address".to_owned())),
        Err(error) => Err(unreachable(launch, error.to_string())),
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
