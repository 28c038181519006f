//! Ranks of one process: what they show each other, and what they hear of one that fails.

#![allow(clippy::unwrap_used)]

use overdrive_ir::{Communicator, Exchange, Mesh, RankError, agree};
use overdrive_ranks::run;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test waits, where nothing is to be late.
const PATIENCE: Duration = Duration::from_secs(300);

type Rank = Arc<dyn Communicator>;

fn mesh() -> Mesh {
    Mesh::new([("data", 2), ("tensor", 3)])
}

/// Shows bytes to a group, and returns the bytes of all members.
fn shown(rank: &Rank, axis: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
    let along = rank.mesh().along(&axis.into());
    let group = rank.mesh().group_of(rank.rank(), &along);
    let mut all = vec![];
    let exchange = Exchange { group: &group, what: axis, bytes };
    rank.share(&exchange, &mut |position, bytes| {
        assert_eq!(position, all.len());
        all.push(bytes.to_vec());
    })?;
    Ok(all)
}

#[test]
fn each_group_sees_what_its_members_show_however_fast_they_are() {
    let results = run(&mesh(), PATIENCE, |rank| {
        for turn in 0..200u8 {
            let me = rank.rank() as u8;
            // Some ranks are slow, others are at the next exchange already.
            if (turn + me).is_multiple_of(7) {
                std::thread::yield_now();
            }
            let first = me / 3 * 3;
            let tensor: Vec<Vec<u8>> = (first..first + 3).map(|r| vec![r, turn]).collect();
            assert_eq!(shown(&rank, "tensor", &[me, turn])?, tensor);
            let data: Vec<Vec<u8>> = [me % 3, me % 3 + 3].map(|r| vec![turn; r.into()]).into();
            assert_eq!(shown(&rank, "data", &vec![turn; me.into()])?, data);
        }
        Ok::<_, RankError>(())
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn a_rank_that_ends_early_is_named_to_all() {
    let results = run(&mesh(), PATIENCE, |rank| {
        for turn in 0..5 {
            if (rank.rank(), turn) == (4, 3) {
                return Err(None);
            }
            // Ranks that never meet rank 4 hear of it by those that do.
            shown(&rank, "tensor", &[]).and_then(|_| shown(&rank, "data", &[])).map_err(Some)?;
        }
        Ok(())
    });
    for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 4) {
        let Err(Some(RankError::Gone { rank: 4, .. })) = result else {
            panic!("rank {rank}: {result:?}")
        };
    }
}

#[test]
fn a_rank_that_panics_is_named_too() {
    let outcome = std::panic::catch_unwind(|| {
        run(&Mesh::new([("data", 2)]), PATIENCE, |rank| {
            assert!(rank.rank() == 0, "rank 1 has a bug");
            let error = shown(&rank, "data", &[]).unwrap_err();
            assert!(matches!(error, RankError::Gone { rank: 1, .. }), "{error}");
            let error = rank.check().unwrap_err();
            assert!(error.to_string().starts_with("rank 1 ended"), "{error}");
            Ok::<_, ()>(())
        })
    });
    let panic = outcome.unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"rank 1 has a bug"));
}

#[test]
fn whoever_hangs_is_named_and_not_who_waits_for_it() {
    let results = run(&mesh(), Duration::from_millis(50), |rank| {
        if rank.rank() == 5 {
            // Until the others have given up.
            while rank.check().is_ok() {
                std::thread::yield_now();
            }
        }
        // Rank 2 waits for rank 5 along `data`, ranks 0 and 1 for rank 2 along `tensor`.
        shown(&rank, "data", &[]).and_then(|_| shown(&rank, "tensor", &[]))
    });
    for result in results {
        assert!(matches!(result, Err(RankError::Late { rank: 5, .. })), "{result:?}");
    }
}

#[test]
fn ranks_that_differ_are_told_what_both_have() {
    let results = run(&Mesh::new([("data", 3)]), PATIENCE, |rank| {
        let text = if rank.rank() == 2 { "mlp\nbatch 8" } else { "mlp\nbatch 4" };
        agree(rank.as_ref(), "the model", text)
    });
    for result in results {
        let text = result.unwrap_err().to_string();
        let both = "rank 2: expected the model `batch 4`, as rank 0 has, found the model `batch 8`";
        assert!(text.starts_with(both), "{text}");
    }
    let results = run(&Mesh::new([("data", 2)]), PATIENCE, |rank| {
        let what = ["the loss", "the weights"][rank.rank()];
        let exchange = Exchange { group: &[0, 1], what, bytes: &[] };
        rank.share(&exchange, &mut |_, _| ())
    });
    let text = results[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("found that it is at the weights"), "{text}");
    assert_eq!(results[0], results[1]);
}
