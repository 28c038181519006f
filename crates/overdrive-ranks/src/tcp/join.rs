//! `join`: this process becomes a rank.

use super::address::{addresses, ports_in_words};
use super::first::{First, gather};
use super::other::Other;
use crate::Launch;
use crate::frame::Greeting;
use overdrive_ir::{Communicator, Mesh, RankError};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

/// Meets the other ranks of a run at the address of rank 0.
pub(crate) fn join(
    launch: &Launch,
    mesh: &Mesh,
    patience: Duration,
) -> Result<Arc<dyn Communicator>, RankError> {
    let greeting = Greeting {
        // Launchers may call all jobs the same, but two have their stores at two ports.
        run: match launch.port_is_held {
            true => format!("{} beside port {}", launch.run, launch.port),
            false => launch.run.clone(),
        },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mesh: mesh.to_string(),
        rank: launch.rank,
    };
    join_as(launch, (mesh, greeting), patience)
}

/// The same for who says this of itself.
pub(super) fn join_as(
    launch: &Launch,
    (mesh, greeting): (&Mesh, Greeting),
    patience: Duration,
) -> Result<Arc<dyn Communicator>, RankError> {
    if launch.rank > 0 {
        return Ok(Arc::new(Other::join(launch, (mesh, greeting), patience)?));
    }
    let listener = listen(launch)?;
    let streams = gather(&listener, &greeting, (mesh.ranks(), patience))?;
    Ok(Arc::new(First::new(mesh, streams, patience)))
}

/// Listens at the first of the launch's ports that is free.
fn listen(launch: &Launch) -> Result<TcpListener, RankError> {
    let mut failed = None;
    for addresses in addresses(launch)? {
        match listen_at(&addresses) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                let is_taken = error.kind() == io::ErrorKind::AddrInUse;
                failed = Some(error);
                if !is_taken {
                    break;
                }
            }
        }
    }
    let error = failed.expect("a launch has a port");
    let (host, ports) = (&launch.host, ports_in_words(launch));
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "expected {ports} of {host} to be free, found that a program listens there; end it, or \
             choose another port with MASTER_PORT"
        ),
        _ => {
            format!("cannot listen at {ports} of {host}: {error}; set MASTER_ADDR and MASTER_PORT")
        }
    };
    Err(RankError::Unreachable { rank: 0, message })
}

/// Listens at one of these addresses; where they are another machine's name for this one, at all.
fn listen_at(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    match TcpListener::bind(addresses) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let port = addresses[0].port();
            TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind(("0.0.0.0", port)))
        }
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Runs ranks that say these things of themselves.
    fn greeted(greetings: &[Greeting]) -> Vec<RankError> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mesh = Mesh::new([("data", greetings.len())]);
        let join = |greeting: &Greeting| {
            let launch = Launch::local(greeting.rank, greetings.len(), port, "test");
            let patience = Duration::from_secs(60);
            join_as(&launch, (&mesh, greeting.clone()), patience).expect_err("they differ")
        };
        thread::scope(|scope| {
            let started: Vec<_> =
                greetings.iter().map(|greeting| scope.spawn(move || join(greeting))).collect();
            started.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn of(rank: usize) -> Greeting {
        let text = |text: &str| text.to_owned();
        Greeting { run: text("test"), version: text("1.2.3"), mesh: text("data=3"), rank }
    }

    #[test]
    fn another_version_or_mesh_is_told_to_all() {
        let other_version = Greeting { version: "1.3.0".to_owned(), ..of(2) };
        let other_mesh = Greeting { mesh: "data=4".to_owned(), ..of(1) };
        for (greetings, expected, found) in [
            ([of(0), of(1), other_version], "expected version 1.2.3", "found version 1.3.0"),
            ([of(0), other_mesh, of(2)], "expected the mesh data=3", "found the mesh data=4"),
        ] {
            let errors = greeted(&greetings);
            let text = errors[0].to_string();
            assert!(text.contains(expected) && text.contains(found), "{text}");
            assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
        }
    }

    #[test]
    fn two_processes_of_one_rank_are_told_so() {
        for error in greeted(&[of(0), of(1), of(1)]) {
            let text = error.to_string();
            assert!(text.contains("found two processes that say they are rank 1"), "{text}");
        }
    }
}
