//! Which configuration takes least room: its file, or the memory of a call where no file was
//! written.

use super::super::findings::FILE_BYTES;
use super::super::judged::Compared;
use super::super::quality::metrics;
use super::super::witness::{Witness, witness};
use super::{Card, Question};
use crate::digits;

const TITLE: &str = "Smallest";

/// How room is counted.
pub(super) struct Size {
    /// `bytes on disk`, or what is added by a call.
    pub(super) name: &'static str,
    witness: Option<Witness>,
}

impl Size {
    pub(super) fn of(&self, row: &Compared<'_>) -> Option<u64> {
        let measurement = row.measurement()?;
        match self.witness {
            Some(witness) => (witness.bytes)(measurement.memory.as_ref()?),
            None => measurement.quantities.get(FILE_BYTES).map(|bytes| *bytes as u64),
        }
    }

    /// The first row that takes least.
    pub(super) fn least<'j, 'r>(&self, question: &Question<'j, 'r>) -> Option<&'j Compared<'r>> {
        let sized = right(question).into_iter().filter_map(|row| Some((self.of(row)?, row)));
        sized.min_by_key(|(bytes, _)| *bytes).map(|(_, row)| row)
    }
}

/// The rows whose outputs agree, or whose quality stands beside their size.
fn right<'j, 'r>(question: &Question<'j, 'r>) -> Vec<&'j Compared<'r>> {
    let is_right = |row: &&&Compared<'r>| {
        row.measurement().is_some_and(|measurement| {
            let agrees = measurement.agreement.as_ref().is_some_and(|agreement| agreement.holds());
            agrees || metrics().any(|metric| metric.read(measurement).is_some())
        })
    };
    question.rows.iter().filter(is_right).copied().collect()
}

/// Bytes on disk where any row has them, else the memory that all of them have.
pub(super) fn size(question: &Question<'_, '_>) -> Option<Size> {
    let rows = right(question);
    let on_disk = Size { name: "bytes on disk", witness: None };
    if rows.iter().any(|row| on_disk.of(row).is_some()) {
        return Some(on_disk);
    }
    let witness = witness(&rows)?;
    Some(Size { name: witness.name, witness: Some(witness) })
}

pub(super) fn card(question: &Question<'_, '_>) -> Card {
    let rows = right(question);
    let found = size(question).and_then(|size| size.least(question).map(|least| (size, least)));
    let Some((size, least)) = found else {
        return Card::open(
            TITLE,
            "no claim",
            "neither a file nor the memory of a call was counted",
        );
    };
    let bytes = |row: &Compared<'_>| size.of(row);
    let sized: Vec<&Compared<'_>> = rows.into_iter().filter(|row| bytes(row).is_some()).collect();
    let most = sized.iter().copied().max_by_key(|row| bytes(row)).unwrap_or(least);
    let figure = |row: &Compared<'_>| digits::bytes(bytes(row).unwrap_or(0));
    let alike = sized.iter().filter(|row| bytes(row) == bytes(least)).count();
    let card = if alike > 1 {
        let all = if alike == sized.len() { "all".to_owned() } else { format!("{alike} of") };
        let detail = format!("{}: {all} {} take the same", size.name, sized.len());
        Card::open(TITLE, figure(least), detail)
    } else {
        let most = match most.id == least.id {
            true => "the only one that was counted".to_owned(),
            false => format!("`{}` takes {}, most of {}", name(most), figure(most), sized.len()),
        };
        Card {
            detail: format!("{}, exact; {most}", size.name),
            gives_up: [question.slower(least), question.worse(least)]
                .into_iter()
                .flatten()
                .collect(),
            ..Card::won(TITLE, least, figure(least))
        }
    };
    card.resting_on(&sized)
}

fn name(row: &Compared<'_>) -> String {
    row.record.case.configuration.label()
}
