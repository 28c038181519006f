//! `schedule`: the work of each stage on each batch, in the order that leaves stages idle least.
//!
//! The backward of a stage is two tasks. One is the gradient that the stage before waits for. The
//! other has the gradients of the stage's own weights, for which nobody waits. It fills the times
//! at which a stage would idle. Source: Qi et al., "Zero bubble pipeline parallelism",
//! arXiv:2401.10241 (its schedule H1). Sends take time too. So stages work on a few batches more
//! than there are stages, and nobody waits for a value that is on its way.

/// Work of a stage on a batch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// The forward.
    Forward(usize),
    /// The gradient of what the stage got.
    Backward(usize),
    /// The gradients of the weights of the stage.
    Weights(usize),
}

/// The length of a task. All count as equally long.
pub(super) const LENGTH: usize = 4;

/// The time that a send takes, between the layers of a small model; of a larger one it is less.
const SENDING: usize = 1;

/// The tasks of one stage, in order, each with the time at which it begins.
pub(super) type Tasks = Vec<(Task, usize)>;

/// The batches whose activations a stage holds at most.
pub(super) fn most_held(stages: usize) -> usize {
    stages + stages.div_ceil(2)
}

/// A stage under way.
#[derive(Clone, Default)]
struct Stage {
    tasks: Tasks,
    /// When what it sent on and back is at the other stage, by batch.
    forward: Vec<usize>,
    backward: Vec<usize>,
    weights: usize,
    /// When its task ends.
    ends: usize,
}

/// The tasks of all stages.
pub(super) fn schedule(stages: usize, batches: usize) -> Vec<Tasks> {
    let mut all = vec![Stage::default(); stages];
    let has_come = |sent: &[usize], batch: usize, time: usize| {
        sent.get(batch).is_some_and(|arrives| *arrives <= time)
    };
    for time in 0.. {
        if all.iter().all(|stage| stage.weights == batches) {
            break;
        }
        for at in (0..stages).filter(|&at| all[at].ends <= time).collect::<Vec<_>>() {
            let own = &all[at];
            let (forward, backward) = (own.forward.len(), own.backward.len());
            let returned = match all.get(at + 1) {
                Some(next) => has_come(&next.backward, backward, time),
                None => backward < forward,
            };
            let arrived =
                forward < batches && (at == 0 || has_come(&all[at - 1].forward, forward, time));
            let most = most_held(stages);
            let is_open = forward - backward < most - at && forward - own.weights < most;
            let task = if returned && backward < forward {
                Task::Backward(backward)
            } else if arrived && is_open {
                Task::Forward(forward)
            } else if own.weights < backward {
                Task::Weights(own.weights)
            } else {
                continue;
            };
            let own = &mut all[at];
            own.ends = time + LENGTH;
            own.tasks.push((task, time));
            match task {
                Task::Forward(_) => own.forward.push(own.ends + SENDING),
                Task::Backward(_) => own.backward.push(own.ends + SENDING),
                Task::Weights(_) => own.weights += 1,
            }
        }
    }
    all.into_iter().map(|stage| stage.tasks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_follows_what_it_needs_and_stages_hardly_idle() {
        for stages in 1..=8 {
            for batches in [1, 2, 3, 8, 32] {
                let all = schedule(stages, batches);
                let at = |stage: usize, task: Task| {
                    let found = all[stage].iter().find(|(other, _)| *other == task);
                    found.unwrap_or_else(|| panic!("{task:?} of stage {stage}")).1
                };
                for (stage, tasks) in all.iter().enumerate() {
                    assert_eq!(tasks.len(), 3 * batches);
                    assert!(tasks.windows(2).all(|pair| pair[0].1 + LENGTH <= pair[1].1));
                    let sent = LENGTH + SENDING;
                    for batch in 0..batches {
                        let [f, b, w] = [Task::Forward, Task::Backward, Task::Weights]
                            .map(|task| at(stage, task(batch)));
                        assert!(f < b && b < w);
                        assert!(stage == 0 || at(stage - 1, Task::Forward(batch)) + sent <= f);
                        let next = stage + 1;
                        assert!(next == stages || at(next, Task::Backward(batch)) + sent <= b);
                    }
                    let mut held = 0_usize;
                    for (task, _) in tasks {
                        match task {
                            Task::Forward(_) => held += 1,
                            Task::Weights(_) => held -= 1,
                            Task::Backward(_) => {}
                        }
                        assert!(held <= most_held(stages), "stage {stage} holds {held}");
                    }
                }
                let end = all.iter().flatten().map(|(_, time)| time + LENGTH).max().unwrap();
                let (work, hops) = (3 * LENGTH * batches, stages - 1);
                let one_forward_one_backward = work + hops * (3 * LENGTH + 2 * SENDING);
                assert!(end <= one_forward_one_backward, "{stages}, {batches}: {end}");
                if batches == 32 {
                    let idle = 1.0 - work as f64 / end as f64;
                    println!("{stages}: {idle:.3}");
                    assert!(idle < 0.015 * stages as f64, "{stages}: {idle}");
                }
            }
        }
    }
}
