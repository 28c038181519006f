//! `PASSES`: everything that happens between a bound graph and its plan, in order, as one list.
//!
//! A person reads the list, `plan` runs it, and `explain` says what each entry changed. Passes
//! rewrite the graph up to `steps`, which turns nodes into steps; those after it rewrite the plan.
//! Invariant: after the last pass no step changes or moves, and no buffer gets another place. A
//! back end that compiles a plan may add notes.

use crate::attend::attend;
use crate::bucket::{BUCKET_BYTES, bucket};
use crate::by_rows::{LOSS, by_rows};
use crate::casts::casts;
use crate::draft::Pass;
use crate::fuse::{groups_among, node_by_node};
use crate::in_blocks::in_blocks;
use crate::in_chunks::{CHUNK_BYTES, in_chunks};
use crate::legalize::{legalize, share};
use crate::meeting_order::Ordered;
use crate::multiply_codes::multiply_codes;
use crate::offload::offload;
use crate::plan::overwrite::overwrite;
use crate::plan::{chains, join, narrowed, place, settle, steps, unread, updates};
use crate::regather::regather;
use crate::rematerialize::{Rematerialize, rematerialize};
use crate::unmask::unmask;
use crate::widen::widen;
use overdrive_ir::Mode;

/// Every mode.
const ALL: &[Mode] = &[Mode::Eager, Mode::Jit, Mode::Compile, Mode::Graph];
/// Modes that keep each op of the model one step.
const SINGLE: &[Mode] = &[Mode::Eager, Mode::Jit];
/// Modes whose memory is an arena.
const PLANNED: &[Mode] = &[Mode::Jit, Mode::Compile, Mode::Graph];
/// Modes that fuse.
const FUSED: &[Mode] = &[Mode::Compile, Mode::Graph];

/// The passes of every plan, in the order in which they run.
pub static PASSES: &[Pass] = &[
    Pass {
        name: "attend",
        does: "products around a softmax become attention, where the device has a kernel for it",
        modes: FUSED,
        run: |draft| draft.rewrite(|graph, target, _| attend(graph, target)),
    },
    Pass {
        name: "rematerialize",
        does: "under a memory limit, values are computed again for the backward and not kept",
        modes: ALL,
        run: |draft| match draft.policy {
            Rematerialize::None => Ok(()),
            policy => draft.rewrite(|graph, target, notes| {
                rematerialize(graph, LOSS, (policy, target.description()), notes)
            }),
        },
    },
    Pass {
        name: "by_rows",
        does: "under a memory limit, logits and their gradient are made some rows at a time",
        modes: ALL,
        run: |draft| match draft.policy {
            Rematerialize::None => Ok(()),
            _ => draft.rewrite(|graph, _, notes| by_rows(graph, notes)),
        },
    },
    Pass {
        name: "regather",
        does: "states that ranks share out are gathered again for readers far apart",
        modes: ALL,
        run: |draft| match draft.ordered {
            // A rank has readers that others have not.
            Ordered::All => Ok(()),
            Ordered::Turns => draft.rewrite(|graph, _, _| regather(graph, BUCKET_BYTES)),
        },
    },
    Pass {
        name: "unmask",
        does: "masks of attention that hide nothing are dropped",
        modes: ALL,
        run: |draft| draft.rewrite(|graph, _, _| unmask(graph)),
    },
    Pass {
        name: "multiply_codes",
        does: "products of dequantized tensors become products of their codes",
        modes: ALL,
        run: |draft| draft.rewrite(multiply_codes),
    },
    Pass {
        name: "widen",
        does: "contractions on types that the device does not multiply run in a wider type",
        modes: ALL,
        run: |draft| draft.rewrite(widen),
    },
    Pass {
        name: "in_chunks",
        does: "products that ranks sum are cut, and the sum of a chunk runs under the next product",
        modes: FUSED,
        run: |draft| match draft.ordered {
            // A rank may have folded one of the products.
            Ordered::All => Ok(()),
            Ordered::Turns => {
                draft.rewrite(|graph, target, _| in_chunks(graph, target, CHUNK_BYTES))
            }
        },
    },
    Pass {
        name: "in_blocks",
        does: "collectives cut and join along the first axis, in whole blocks",
        modes: ALL,
        run: |draft| draft.rewrite(|graph, _, _| in_blocks(graph)),
    },
    Pass {
        name: "node_by_node",
        does: "each op stays one step where a loop nest or a contraction computes it",
        modes: SINGLE,
        run: |draft| draft.rewrite(node_by_node),
    },
    Pass {
        name: "legalize",
        does: "ops that the device has no kernel for are expanded into primitives",
        modes: FUSED,
        run: |draft| draft.rewrite(legalize),
    },
    Pass {
        name: "share",
        does: "expanded ops compute what several of them need only once",
        modes: FUSED,
        run: |draft| draft.rewrite(|graph, _, _| share(graph)),
    },
    Pass {
        name: "casts",
        does: "codes of a training step are made from what their operand is computed from",
        modes: FUSED,
        run: |draft| draft.rewrite(|graph, target, _| casts(graph, target)),
    },
    Pass {
        name: "groups",
        does: "nodes are fused along their edges, as far as one step can compute them",
        modes: FUSED,
        run: |draft| {
            let ordered = draft.ordered;
            draft.rewrite(|graph, target, notes| groups_among(graph, target, ordered, notes))
        },
    },
    Pass {
        name: "steps",
        does: "every node becomes steps over buffers; what never changes is computed once, ahead",
        modes: ALL,
        run: |draft| {
            steps(draft);
            Ok(())
        },
    },
    Pass {
        name: "chains",
        does: "convolutions that read each other run band by band as one step",
        modes: FUSED,
        run: |draft| {
            chains::join(&mut draft.plan, draft.target);
            Ok(())
        },
    },
    Pass {
        name: "narrowed",
        does: "states that are rounded to a narrower format are rounded first, in a row",
        modes: FUSED,
        run: |draft| {
            narrowed::first(&mut draft.plan);
            Ok(())
        },
    },
    Pass {
        name: "in_place",
        does: "new values of states take the place of the old ones",
        modes: ALL,
        run: |draft| {
            updates::in_place(&mut draft.plan);
            updates::copied_cache(draft.asked, &draft.plan).map_or(Ok(()), Err)
        },
    },
    Pass {
        name: "settle",
        does: "steps get the scratch that they ask for; what no kernel takes runs on the host",
        modes: ALL,
        run: |draft| {
            settle::settle(&mut draft.plan, draft.target);
            Ok(())
        },
    },
    Pass {
        name: "unread",
        does: "steps that only make tensors that a weighed sum may not read get a condition",
        modes: ALL,
        run: |draft| {
            unread::unread(&mut draft.plan);
            Ok(())
        },
    },
    Pass {
        name: "bucket",
        does: "collectives start early and end late, as memory allows, and small ones become few",
        modes: FUSED,
        run: |draft| {
            let limits = (draft.ordered, BUCKET_BYTES);
            bucket(&mut draft.plan, draft.target.description(), limits);
            Ok(())
        },
    },
    Pass {
        name: "offload",
        does: "under a memory limit, states and values wait in other memory, if the device has any",
        modes: PLANNED,
        run: |draft| {
            offload(&mut draft.plan, draft.target.description(), draft.tuning);
            Ok(())
        },
    },
    Pass {
        name: "join",
        does: "steps that the device does in one launch become one step",
        modes: FUSED,
        run: |draft| {
            join::join(&mut draft.plan, draft.target, draft.tuning);
            Ok(())
        },
    },
    Pass {
        name: "overwrite",
        does: "loops write over what they read for the last time",
        modes: ALL,
        run: |draft| {
            overwrite(&mut draft.plan, draft.target);
            Ok(())
        },
    },
    Pass {
        name: "place",
        does: "streams are ordered by events, and every buffer gets its place in an arena",
        modes: ALL,
        run: |draft| {
            place(&mut draft.plan);
            Ok(())
        },
    },
];
