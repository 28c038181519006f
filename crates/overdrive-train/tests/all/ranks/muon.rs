//! Muon on ranks: a direction is that of the whole matrix, whoever holds its moment.

use super::runs::{Beside, Task, alone, close, held, of_digits, on, same};
use overdrive_train::{Optimizer, Recipe, Shards};

/// A direction is made of small singular values too, whose last bits it enlarges.
const ROUNDING: f64 = 1e-4;

#[test]
fn ranks_learn_with_muon_what_one_learns() {
    let optimizer =
        Optimizer::Muon { momentum: 0.95, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1 };
    for accumulate in [1, 2] {
        let recipe = Recipe { optimizer, accumulate, ..of_digits().recipe };
        let task = Task { recipe, ..of_digits() };
        let (expected, watched) = alone(&task);
        for (mesh, shards) in [
            ("data=2", Shards::Nothing),
            ("data=2", Shards::Optimizer),
            ("data=2", Shards::Parameters),
            ("tensor=2,data=2", Shards::Parameters),
            ("pipeline=2", Shards::Nothing),
        ] {
            let all = on(&task, mesh, Beside { sharing: shards.into(), ..Beside::default() });
            // Rank 0 has whole parameters.
            same(&expected.parameters, &all[0].0.parameters, ROUNDING);
            close("loss", &watched.losses, &all[0].1.losses, 1e-5);
            let is_split = shards != Shards::Nothing || mesh != "data=2";
            let saves = held(&all[0].1) < held(&watched) * 9 / 10;
            assert_eq!(saves, is_split, "{mesh} {shards:?}: {}", held(&all[0].1));
        }
    }
}
