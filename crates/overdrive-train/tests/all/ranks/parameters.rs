//! Formats of parameters on ranks: they learn what one learns, and go on from what others wrote.

use super::runs::{Beside, ROUNDING, Task, alone, close, held, of_digits, of_rank, on, same};
use overdrive_formats::Tensors;
use overdrive_train::{Checkpoint, Formats, Parameters, Recipe, Shards};

const MESHES: [(&str, Shards); 6] = [
    ("data=2", Shards::Nothing),
    ("data=2", Shards::Optimizer),
    ("data=4", Shards::Parameters),
    ("tensor=2,data=2", Shards::Parameters),
    ("pipeline=2", Shards::Nothing),
    ("pipeline=2,data=2", Shards::Parameters),
];

/// The share of parameters that differ by more than their last bits. Such a one has gone to the
/// other neighbour, since the last bits of its gradient are others.
fn share_apart(expected: &Tensors, found: &Tensors) -> f64 {
    let (mut all, mut apart) = (0, 0);
    for (name, tensor) in expected {
        for (a, b) in tensor.to_f64().iter().zip(found[name].to_f64()) {
            all += 1;
            apart += usize::from((a - b).abs() > ROUNDING * (1.0 + a.abs()));
            // Two units of the last place, and an update of the rate.
            assert!((a - b).abs() <= 2f64.powi(-6) * a.abs() + 2e-3, "{name}: {a} {b}");
        }
    }
    apart as f64 / all as f64
}

#[test]
fn ranks_learn_what_one_learns() {
    // In f32, so that sums differ by their last bits alone; masters need contractions in fewer.
    let stochastic =
        Recipe { parameters: Parameters::Stochastic, clip_norm: None, ..of_digits().recipe };
    let formats = Formats::named("bf16").unwrap().clone();
    let masters = Recipe { parameters: Parameters::Masters, ..of_digits().recipe };
    for recipe in [stochastic, masters.in_formats(formats)] {
        let parameters = recipe.parameters;
        for accumulate in [1, 2] {
            let task = Task { recipe: Recipe { accumulate, ..recipe.clone() }, ..of_digits() };
            let (expected, watched) = alone(&task);
            for (mesh, shards) in MESHES {
                let all = on(&task, mesh, Beside { sharing: shards.into(), ..Beside::default() });
                let found = &all[0].0.parameters;
                close("loss", &watched.losses, &all[0].1.losses, 1e-3);
                let plain = Recipe { parameters: Parameters::F32, ..task.recipe.clone() };
                let plain = Task { recipe: plain, ..task.clone() };
                let beside =
                    on(&plain, mesh, Beside { sharing: shards.into(), ..Beside::default() });
                if parameters == Parameters::Masters {
                    assert!(*found == beside[0].0.parameters, "{mesh}: the bits of f32");
                } else {
                    let share = share_apart(&expected.parameters, found);
                    assert!(share < 0.01, "{mesh} {accumulate}: {share}");
                    assert!(held(&all[0].1) < held(&beside[0].1), "{mesh}: in fewer bytes");
                }
            }
        }
    }
}

/// Copies follow masters, wherever the parts of both were written.
#[test]
fn a_checkpoint_of_ranks_goes_on_bit_for_bit_and_on_any_mesh() {
    let formats = Formats::named("bf16").unwrap().clone();
    for parameters in [Parameters::Masters, Parameters::Stochastic] {
        for (mesh, shards) in MESHES {
            let recipe = Recipe { parameters, accumulate: 2, ..of_digits().recipe };
            let task = Task { recipe: recipe.in_formats(formats.clone()), ..of_digits() };
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("checkpoint");
            let sharing = shards.into();
            let kept =
                Beside { checkpoint: Some(&path), last: Some(2), sharing, ..Beside::default() };
            let whole = on(&task, mesh, Beside { sharing, ..Beside::default() });
            on(&task, mesh, kept);
            let checkpoint = Checkpoint::read(&path).unwrap();
            let resumed = Beside { resume: Some(&checkpoint), ..Beside::default() };
            let again = on(&task, mesh, Beside { sharing, ..resumed });
            assert!(again[0].0 == whole[0].0, "{parameters} {mesh} {shards:?}");
            let one = of_rank(&task, None, resumed).unwrap().0.parameters;
            // Contractions in bf16 round other sums, and a part of them otherwise.
            same(&whole[0].0.parameters, &one, 2e-2);
        }
    }
}
