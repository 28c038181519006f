//! Attention whose queries and keys are split along the sequence, without a rank that ever holds
//! all keys of all heads (context parallel).
//!
//! Ranks in a row form groups. Those of a group exchange positions for heads (`ulysses`), and keys
//! go round the groups (`ring`). So one group of all ranks is Ulysses alone, and groups of one rank
//! are a ring alone. Positions and heads that score and mask functions see are those of the whole.

use super::attention_sizes::AttentionSizes;
use super::context_exchange::ContextExchange;
use super::error::ShardError;
use super::layout::{Laid, position};
use super::line::Line;
use super::ring::Ring;
use super::ulysses::{Groups, HEADS, TIME, folded, repeated};
use super::walk::Ranks;
use overdrive_ir::ops::attention::{Mask, find_mask, find_score, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad};
use overdrive_ir::plan::Note;
use overdrive_ir::{Axis, DType, Expr, Graph, Node, Operation, Sharding, TensorType};
use std::rc::Rc;

/// Operands of attention before the captures.
const FORWARD: usize = 3;

/// Operands of its gradient before the captures: q, k, v, lse, dout, delta.
const BACKWARD: usize = 6;

impl<'b> Ranks<'b, '_> {
    /// The results of attention or of its gradient, if queries and keys are split along the same
    /// axis of the mesh. `None` for another node, and if no exchange applies; then a note says why.
    pub(super) fn context(
        &mut self,
        node: &Node,
        operands: &[Rc<Laid<'b>>],
        results: &[TensorType],
    ) -> Option<Vec<Rc<Laid<'b>>>> {
        let Operation::Composite(op) = &node.op else { return None };
        let gradient = op.downcast::<AttentionGrad>();
        let attention = *op.downcast::<Attention>().or(gradient.map(|of| &of.attention))?;
        let [q, k, v] = [&operands[0], &operands[1], &operands[2]];
        let axis = q.sharding.split[TIME].clone()?;
        if [q, k, v].iter().any(|x| x.sharding.dim_of(&axis) != Some(TIME)) {
            return None;
        }
        let batch = q.sharding.split[0].clone();
        let heads = q.sharding.split[HEADS].clone();
        let heads = heads.filter(|a| k.sharding.dim_of(a) == Some(HEADS));
        let to = |rank: usize| {
            let mut to = Sharding::whole(rank);
            (to.split[0], to.split[HEADS]) = (batch.clone(), heads.clone());
            to.split[TIME] = Some(axis.clone());
            to
        };
        let line =
            Line { b: self.b, mesh: self.mesh, ranks: self.mesh.size(&axis), axis: axis.clone() };
        let local = [q, k, v].map(|x| to(4).local(&x.ty.sizes(), self.mesh));
        let sizes = AttentionSizes {
            batch: local[0][0],
            heads: local[0][HEADS],
            key_heads: local[1][HEADS],
            positions: [q, k].map(|x| x.ty.sizes()[TIME]),
            channels: [local[1][3], local[2][3]],
            element_bytes: q.ty.dtype.bits() / 8,
            is_causal: attention.mask == Mask::Causal,
            ranks: line.ranks,
        };
        let group = self.group(node, (&attention, &axis), &sizes)?;
        let times = sizes.repeats(group).expect("the group divides the heads");
        let fixed = if gradient.is_some() { BACKWARD } else { FORWARD };
        let at = |(i, x): (usize, &Rc<Laid<'b>>)| {
            let rank = x.ty.rank();
            x.at(self.b, self.mesh, &if i < fixed { to(rank) } else { Sharding::whole(rank) })
        };
        let all: Vec<Expr<'b>> = operands.iter().enumerate().map(at).collect();
        let (parts, captures) = all.split_at(fixed);
        let groups = Groups { line: &line, size: group };
        let of_axis = |dim: usize, axis: &Option<Axis>| match axis {
            Some(axis) => (position(self.b, axis) * parts[0].size(dim) as f64).convert(DType::I32),
            None => self.b.full(DType::I32, [0usize; 0], 0.0),
        };
        let own_heads = sizes.heads / group;
        let first_head = of_axis(HEADS, &heads) + line.number(|rank| rank % group * own_heads);
        let captured = [captures, &[of_axis(0, &batch), first_head]].concat();
        let parts: Vec<Expr<'b>> = (parts.iter().enumerate())
            .map(|(i, x)| self.of_heads(&groups, *x, if (1..3).contains(&i) { times } else { 1 }))
            .collect();
        let ring = Ring {
            line: &line,
            group,
            count: line.ranks / group,
            attention,
            functions: functions(&node.regions, captures),
            captures: captured,
        };
        let found = match gradient {
            None => ring.forward(&parts),
            Some(_) => ring.backward(&parts),
        };
        let along: Vec<Axis> =
            [Some(axis.clone()), batch.clone(), heads.clone()].into_iter().flatten().collect();
        let mut laid = vec![];
        for (i, (expr, ty)) in found.into_iter().zip(results).enumerate() {
            let narrow = expr.convert(ty.dtype);
            // Behind the gradients of q, k and v stand those of captures: sums over all pairs.
            if gradient.is_some() && i >= FORWARD {
                let mut partial = along.clone();
                partial.sort();
                let sharding = Sharding { partial, ..Sharding::whole(ty.rank()) };
                laid.push(Laid::new(ty.clone(), sharding, narrow));
                continue;
            }
            let times = if gradient.is_some() && i > 0 { times } else { 1 };
            let own = folded(groups.of_positions(narrow), times).convert(ty.dtype);
            if gradient.is_none() && group > 1 {
                self.of_heads.insert((own.value(), group, 1), narrow);
            }
            laid.push(Laid::new(ty.clone(), to(ty.rank()), own));
        }
        Some(laid)
    }

    /// A part of the sequence as a group computes it, each head so many times. It is exchanged
    /// once: the gradient reads what the forward exchanged.
    fn of_heads(&mut self, groups: &Groups<'_, 'b, '_>, x: Expr<'b>, times: usize) -> Expr<'b> {
        let form = (x.value(), groups.size, times);
        if let Some(known) = self.of_heads.get(&form) {
            return *known;
        }
        let exchanged = groups.of_heads(repeated(x, times));
        self.of_heads.insert(form, exchanged);
        exchanged
    }

    /// The ranks of a group: those that were asked for, else those that take the least time.
    fn group(
        &mut self,
        node: &Node,
        (attention, axis): (&Attention, &Axis),
        sizes: &AttentionSizes,
    ) -> Option<usize> {
        let scope = self.b.current_scope();
        if attention.dropout.is_some() {
            self.declined(
                node,
                "dropout draws weights at their places among all keys: they are gathered"
                    .to_owned(),
            );
            return None;
        }
        if attention.threshold.is_some() {
            let reason = "a threshold skips tiles by all later keys: they are gathered";
            self.declined(node, reason.to_owned());
            return None;
        }
        let ranks = sizes.ranks;
        let asked = self.exchange.map(|exchange| exchange.group(ranks));
        if let Some(group) = asked.filter(|group| sizes.dividing().all(|fits| fits != *group)) {
            let fitting = sizes.dividing().map(|group| ContextExchange::of_groups(group, ranks));
            let fitting: Vec<String> = fitting.map(|exchange| format!("`{exchange}`")).collect();
            self.refused.get_or_insert(ShardError::Heads {
                value: format!("{} at {scope}", node.op.name()),
                axis: axis.to_string(),
                ranks,
                group,
                heads: sizes.heads,
                key_heads: sizes.key_heads,
                fitting: fitting.join(", "),
            });
            return None;
        }
        let group = match asked {
            Some(group) => Some(group).filter(|group| sizes.balances(*group)),
            None => sizes.fastest(),
        };
        if group.is_none() {
            let [queries, keys] = sizes.positions;
            let (heads, key_heads) = (sizes.heads, sizes.key_heads);
            let by_heads = match asked {
                Some(_) => String::new(),
                None => format!(", nor divide {heads} heads of queries and {key_heads} of keys"),
            };
            let reason = format!(
                "{ranks} ranks along `{axis}` cannot halve their parts of {queries} causal queries \
                 and {keys} keys{by_heads}: keys are gathered"
            );
            self.declined(node, reason);
        }
        group
    }

    fn declined(&mut self, node: &Node, reason: String) {
        let (what, scope) =
            (format!("context parallel {}", node.op.name()), self.b.current_scope());
        self.notes.push(Note::Declined { what, scope, reason });
    }
}

/// The functions of scores and visibility as parts of the sequence call them. They take four more
/// captures: the first sample, head, query and key of the part.
fn functions(regions: &[Graph], captures: &[Expr<'_>]) -> Vec<Graph> {
    let index = std::iter::repeat_n(TensorType::scalar(DType::I32), 4);
    let types: Vec<TensorType> = captures.iter().map(|x| x.ty()).chain(index).collect();
    let score = find_score(regions).map(|region| {
        let dtype = region.ty(region.inputs()[0].value).dtype;
        score_region(dtype, &types, |score, at, all| moved(region, Some(score), at, all))
    });
    let mask = find_mask(regions)
        .map(|region| mask_region(&types, |at, all| moved(region, None, at, all)));
    let built = score.into_iter().chain(mask);
    built.map(|region| region.expect("a region at other indices is as well typed")).collect()
}

/// A function at a pair of a part, which begins where the last four captures say.
fn moved<'r>(
    region: &Graph,
    score: Option<Expr<'r>>,
    at: [Expr<'r>; 4],
    all: &[Expr<'r>],
) -> Expr<'r> {
    let (captures, first) = all.split_at(all.len() - 4);
    let at = at.iter().zip(first).map(|(index, first)| *index + *first);
    let arguments: Vec<Expr<'r>> =
        score.into_iter().chain(at).chain(captures.iter().copied()).collect();
    all[captures.len()].builder().inline(region, &arguments)[0]
}
