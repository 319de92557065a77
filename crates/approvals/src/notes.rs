//! The consequences of decisions.

use super::action::Action;
use super::examined::Examined;
use super::probe::ProbedText;
use domain::approval::{ApprovalKind, NO_ARGUMENTS};

/// Returns the consequences of a decision, as notes for people.
pub fn notes(action: &Action, examined: &[Examined]) -> Vec<String> {
    let mut notes = Vec::new();
    for Examined { row, offered, .. } in examined {
        let name = &row.public_name;
        if let Action::Approve { .. } = action {
            for (arguments, text) in offered.iter().flat_map(|offered| &offered.texts) {
                let with = match &**arguments {
                    NO_ARGUMENTS => String::new(),
                    arguments => format!(" with {arguments}"),
                };
                match text {
                    ProbedText::Stable { .. } => {}
                    ProbedText::Unstable => {
                        notes.push(format!(
                            "{name}: its text{with} is unstable, so the approval does not cover it"
                        ));
                    }
                    ProbedText::Failed(why) => {
                        notes.push(format!(
                            "{name}: the approval does not cover its text{with}: {why}"
                        ));
                    }
                }
            }
        } else if matches!(action, Action::RollBack { .. }) && offered.is_some() {
            let other = match row.kind {
                ApprovalKind::Prompt => "gets of another text are refused, or answered with",
                ApprovalKind::Skill => "a skill with other files is withheld, or served as",
            };
            notes.push(format!(
                "{name}: its upstream may offer another version; {other} the approved one where approvals.snapshot \
                 is set"
            ));
        }
    }
    notes
}
