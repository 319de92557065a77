//! The prompts and skills of one upstream that approvals know, by their names.

use std::collections::BTreeMap;
use std::ops::Deref;

use super::approval::ApprovalRow;
use domain::approval::ApprovalKind;

/// The rows of one upstream, in byte order of their public names.
#[derive(Debug, Default)]
pub struct ApprovalRows {
    rows: Vec<ApprovalRow>,
    /// The positions of versions of prompts, by the other names that offer them.
    aliases: BTreeMap<String, usize>,
}

impl ApprovalRows {
    pub(crate) fn new(mut rows: Vec<ApprovalRow>) -> Self {
        rows.sort_by(|a, b| a.public_name.cmp(&b.public_name));
        let aliases = rows
            .iter()
            .enumerate()
            .flat_map(|(at, row)| row.aliases.iter().map(move |alias| (alias.clone(), at)));
        Self { aliases: aliases.collect(), rows }
    }

    /// Returns the row of a prompt or skill; of a label or a prompt with versions, the row of the
    /// version that this name offers.
    pub fn named(&self, kind: ApprovalKind, public_name: &str) -> Option<&ApprovalRow> {
        if kind == ApprovalKind::Prompt
            && let Some(at) = self.aliases.get(public_name)
        {
            return self.rows.get(*at);
        }
        let at = self.rows.partition_point(|row| row.public_name.as_str() < public_name);
        let mut same = self.rows[at..].iter().take_while(|row| row.public_name == public_name);
        same.find(|row| row.kind == kind)
    }
}

impl Deref for ApprovalRows {
    type Target = [ApprovalRow];

    fn deref(&self) -> &[ApprovalRow] {
        &self.rows
    }
}
