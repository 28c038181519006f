//! The variables of launchers, and their contradictions.

#![allow(clippy::unwrap_used)]

use overdrive_ranks::{Launch, LaunchError, Transport};

fn of(variables: &[(&str, &str)]) -> Result<Option<Launch>, LaunchError> {
    let find = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Launch::of(&find)
}

const TORCHRUN: [(&str, &str); 7] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node0"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "abc"),
];

/// The same with some variables replaced; an empty one is as good as none.
fn with(all: &[(&'static str, &'static str)], new: &[(&'static str, &'static str)]) -> String {
    let kept = all.iter().filter(|(name, _)| new.iter().all(|(other, _)| name != other));
    let variables: Vec<_> = kept.chain(new).copied().collect();
    of(&variables).unwrap_err().to_string()
}

#[test]
fn torchrun_says_all() {
    let launch = of(&TORCHRUN).unwrap().unwrap();
    let expected = Launch {
        rank: 5,
        size: 8,
        local_rank: Some(1),
        sharing: 4,
        transport: Transport::Tcp,
        host: "node0".to_owned(),
        port: 29500,
        port_is_held: false,
        run: "abc".to_owned(),
    };
    assert_eq!(launch, expected);
    // Its own store listens at the port.
    let mut variables = TORCHRUN.to_vec();
    variables.push(("TORCHELASTIC_USE_AGENT_STORE", "True"));
    let expected = Launch { port_is_held: true, ..expected };
    assert_eq!(of(&variables).unwrap().unwrap(), expected);
    let own = Launch::local(2, 3, 4000, "own");
    let variables = own.variables();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(of(&variables).unwrap().unwrap(), own, "what we say is what we read");
}

const SLURM: [(&str, &str); 6] = [
    ("SLURM_PROCID", "3"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_JOB_ID", "77"),
    ("SLURM_NODELIST", "gpu[03-04]"),
];

#[test]
fn slurm_says_where_its_first_node_is() {
    let launch = of(&SLURM).unwrap().unwrap();
    assert_eq!((launch.rank, launch.size, launch.local_rank), (3, 4, Some(1)));
    assert_eq!((launch.host.as_str(), launch.run.as_str()), ("gpu03", "77.0"));
    assert!(launch.port >= 20_000);
    // A step of fewer tasks, on the second node, with an address of the user's.
    let more = [("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1"), ("MASTER_ADDR", "10.0.0.9")];
    let all: Vec<_> = more.iter().chain(&SLURM).copied().collect();
    let launch = of(&all).unwrap().unwrap();
    assert_eq!((launch.size, launch.host.as_str()), (2, "10.0.0.9"));
    // Without a list of nodes the node that srun runs on is what there is.
    let address = [("SLURM_LAUNCH_NODE_IPADDR", "10.1.1.1")];
    let all: Vec<_> = SLURM[..5].iter().chain(&address).copied().collect();
    assert_eq!(of(&all).unwrap().unwrap().host, "10.1.1.1");
}

#[test]
fn the_script_of_a_batch_job_is_no_rank() {
    let batch: Vec<_> =
        SLURM.iter().filter(|(name, _)| *name != "SLURM_STEP_ID").copied().collect();
    assert_eq!(of(&batch), Ok(None));
    assert_eq!(of(&[]), Ok(None));
    let one = [("RANK", "0"), ("WORLD_SIZE", "1")];
    assert_eq!(of(&one), Ok(None), "one rank has nobody to meet");
}

const OPEN_MPI: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-node-77@1"),
];

#[test]
fn open_mpi_on_one_machine_needs_no_address() {
    let launch = of(&OPEN_MPI).unwrap().unwrap();
    assert_eq!((launch.rank, launch.size), (1, 2));
    let of_several: Vec<_> = OPEN_MPI
        .into_iter()
        .filter(|(name, _)| *name != "OMPI_COMM_WORLD_LOCAL_SIZE")
        .chain([("OMPI_COMM_WORLD_LOCAL_SIZE", "1")])
        .collect();
    match launch.transport {
        Transport::Tcp => {
            assert_eq!(launch.host, "127.0.0.1");
            let error = of(&of_several).unwrap_err().to_string();
            let expected = "Open MPI: expected the variable MASTER_ADDR, found none";
            assert!(error.contains(expected), "{error}");
        }
        // MPI knows where the ranks are; the other launchers use TCP.
        #[cfg(feature = "mpi")]
        Transport::Mpi => {
            assert_eq!(of(&of_several).unwrap().unwrap().transport, Transport::Mpi);
            assert_eq!(of(&SLURM).unwrap().unwrap().transport, Transport::Tcp);
        }
    }
    assert_eq!(launch.transport.to_string(), if cfg!(feature = "mpi") { "MPI" } else { "TCP" });
    // Inside of a job of Slurm, mpirun is what started the process.
    let both: Vec<_> = OPEN_MPI.iter().chain(&SLURM).copied().collect();
    assert_eq!(of(&both).unwrap().unwrap().size, 2);
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for (new, expected) in [
        (("WORLD_SIZE", ""), "expected the variable WORLD_SIZE, found none"),
        (("RANK", ""), "expected the variable RANK, found none"),
        (("RANK", "8"), "expected RANK below WORLD_SIZE, found RANK=8 and WORLD_SIZE=8"),
        (("WORLD_SIZE", "9999999999"), "expected WORLD_SIZE of at most 1048576"),
        (("WORLD_SIZE", "0"), "expected WORLD_SIZE of at least 1, found WORLD_SIZE=0"),
        (("RANK", "-1"), "expected RANK to be a whole number, found RANK=-1"),
        (("LOCAL_RANK", "9"), "expected LOCAL_RANK below WORLD_SIZE, found LOCAL_RANK=9"),
        (("MASTER_ADDR", ""), "expected the variable MASTER_ADDR, found none"),
        (("MASTER_PORT", "70000"), "expected MASTER_PORT from 1 to 65535, found MASTER_PORT=70000"),
        (("MASTER_PORT", "http"), "expected MASTER_PORT to be a whole number"),
    ] {
        let error = with(&TORCHRUN, &[new]);
        assert!(error.starts_with("started by torchrun: ") && error.contains(expected), "{error}");
    }
    let error = with(&SLURM, &[("SLURM_LOCALID", "")]);
    assert!(error.contains("Slurm: expected the variable SLURM_LOCALID"), "{error}");
}

/// One process in each pod, as Kubernetes' training operator starts it.
#[test]
fn a_pod_does_not_say_which_gpu() {
    let pod = [TORCHRUN[0], TORCHRUN[1], TORCHRUN[4], TORCHRUN[5]];
    assert_eq!(of(&pod).unwrap().unwrap().local_rank, None);
    for (ranks, is_meant) in [("1", true), ("auto", true), ("8", false)] {
        let mut pod = pod.to_vec();
        pod.push(("PET_NPROC_PER_NODE", ranks));
        match of(&pod) {
            Ok(launch) => assert!(is_meant && launch.is_some()),
            Err(error) => {
                let expected = "torchrun to start PET_NPROC_PER_NODE=8 ranks in each pod, found a \
                                process without LOCAL_RANK; start with torchrun";
                assert!(!is_meant && error.to_string().contains(expected), "{error}");
            }
        }
        // Those that torchrun started there have one.
        pod.push(TORCHRUN[2]);
        assert_eq!(of(&pod).unwrap().unwrap().local_rank, Some(1));
    }
}

#[test]
fn launchers_that_contradict_each_other_are_told() {
    let mut both: Vec<_> = TORCHRUN[..6].iter().chain(&OPEN_MPI).copied().collect();
    let error = of(&both).unwrap_err().to_string();
    let expected = "expected RANK=1 and WORLD_SIZE=2, as Open MPI says, found RANK=5";
    assert!(error.contains(expected), "{error}");
    // If mpirun started one torchrun on each machine, both are right.
    both.push(TORCHRUN[6]);
    assert_eq!(of(&both).unwrap().unwrap().size, 8);
}
