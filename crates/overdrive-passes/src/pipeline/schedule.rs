//! `schedule`: the work of each stage on each batch, in the order that leaves stages idle least.
//!
//! The backward of a stage is two tasks: the gradient that the stage before waits for, and those of
//! its own weights, for which nobody waits. The second fills the times at which a stage would idle.
//! A stage holds activations of no more batches than there are stages. Source: Qi et al., "Zero
//! bubble pipeline parallelism", arXiv:2401.10241 (its schedule H1). Tasks count as equally long.

/// What a stage does with a batch.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// The forward.
    Forward(usize),
    /// The gradient of what the stage got.
    Backward(usize),
    /// The gradients of the weights of the stage.
    Weights(usize),
}

/// The tasks of one stage, in order, each with the time at which it begins. It ends one later.
pub(super) type Tasks = Vec<(Task, usize)>;

/// How many of its tasks of each kind a stage has begun.
#[derive(Copy, Clone, Default)]
struct Begun {
    forward: usize,
    backward: usize,
    weights: usize,
}

/// The tasks of all stages.
pub(super) fn schedule(stages: usize, batches: usize) -> Vec<Tasks> {
    let mut tasks: Vec<Tasks> = vec![vec![]; stages];
    // What had begun, and so ended, before the present time.
    let mut begun = vec![Begun::default(); stages];
    for time in 0.. {
        if begun.iter().all(|stage| stage.weights == batches) {
            break;
        }
        let before = begun.clone();
        for (stage, own) in begun.iter_mut().enumerate() {
            let arrived = if stage == 0 { batches } else { before[stage - 1].forward };
            let returned = match before.get(stage + 1) {
                Some(next) => next.backward,
                None => own.forward,
            };
            let is_open =
                own.forward - own.backward < stages - stage && own.forward - own.weights < stages;
            let task = if own.backward < returned {
                own.backward += 1;
                Task::Backward(own.backward - 1)
            } else if own.forward < arrived && is_open {
                own.forward += 1;
                Task::Forward(own.forward - 1)
            } else if own.weights < own.backward {
                own.weights += 1;
                Task::Weights(own.weights - 1)
            } else {
                continue;
            };
            tasks[stage].push((task, time));
        }
    }
    tasks
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
                    for batch in 0..batches {
                        let [f, b, w] = [Task::Forward, Task::Backward, Task::Weights]
                            .map(|task| at(stage, task(batch)));
                        assert!(f < b && b < w);
                        assert!(stage == 0 || at(stage - 1, Task::Forward(batch)) < f);
                        assert!(stage + 1 == stages || at(stage + 1, Task::Backward(batch)) < b);
                    }
                    let mut held = 0_usize;
                    for (task, _) in tasks {
                        match task {
                            Task::Forward(_) => held += 1,
                            Task::Weights(_) => held -= 1,
                            Task::Backward(_) => {}
                        }
                        assert!(held <= stages, "stage {stage} holds {held} of {stages}");
                    }
                }
                let end = all.iter().flatten().map(|(_, time)| time + 1).max().unwrap();
                let one_forward_one_backward = 3 * (batches + stages - 1);
                assert!(end <= one_forward_one_backward, "{stages}, {batches}: {end}");
                if batches >= 2 * stages {
                    // Nothing ends before 3 * batches + stages - 1.
                    assert!(end <= 3 * batches + stages + 2, "{stages}, {batches}: {end}");
                }
            }
        }
    }
}
