//! The arguments with which the gateway fetches texts for approval.

use std::collections::BTreeMap;
use std::sync::Arc;

use catalog::approval::{ApprovalRow, OfferedPrompt};
use config::lock::arguments_text;
use domain::approval::TemplateArguments;
use domain::approval::template::placeholder;
use domain::prompts::prompt::{Argument, Prompt};

/// Most templates that are learnt of one prompt, and most templates for the values that its
/// upstream completes.
pub(super) const MAX_TEMPLATES: usize = 16;

/// Most arguments of one prompt whose values the gateway requests from the upstream.
pub(super) const MAX_COMPLETED: usize = 8;

/// The sets of arguments for learning templates ([`name_sets`]), with each value of an argument
/// with choices or of an argument in `completed`. Empty for a library prompt, whose source is
/// approved instead.
pub(super) fn template_arguments(prompt: &Prompt, completed: &CompletedValues) -> Vec<Arc<str>> {
    let is_asked = prompt.source.is_none() && !prompt.arguments.is_empty();
    if !is_asked {
        return Vec::new();
    }
    let mut all: Vec<Arc<str>> = Vec::new();
    for set in name_sets(&prompt.arguments).into_iter().filter(|set| !set.is_empty()) {
        for arguments in with_choices(prompt, completed, &set) {
            if all.len() < MAX_TEMPLATES && !all.contains(&arguments) {
                all.push(arguments);
            }
        }
    }
    all
}

/// Returns the sets: required arguments, all arguments, and required arguments with each optional
/// one. Adds all other sets, smallest first, if at most [`MAX_TEMPLATES`] sets result.
fn name_sets(arguments: &[Argument]) -> Vec<Vec<&str>> {
    let names = |is_meant: &dyn Fn(&Argument) -> bool| -> Vec<&str> {
        let meant = arguments.iter().filter(|argument| is_meant(argument));
        meant.map(|argument| &*argument.name).collect()
    };
    let optional = names(&|argument| !argument.required);
    let with =
        |chosen: &[&str]| names(&|argument| argument.required || chosen.contains(&&*argument.name));
    let mut sets = vec![with(&[]), with(&optional)];
    sets.extend(optional.iter().map(|one| with(&[*one])));
    if optional.len() <= MAX_TEMPLATES.ilog2() as usize {
        let choose = |chosen: u32| {
            let has = |place: &usize| chosen & (1 << place) != 0;
            (0..optional.len()).filter(has).map(|place| optional[place]).collect::<Vec<_>>()
        };
        let mut others: Vec<_> = (0..1 << optional.len()).map(choose).collect();
        others.retain(|chosen| (2..optional.len()).contains(&chosen.len()));
        others.sort_by_key(Vec::len);
        sets.extend(others.iter().map(|chosen| with(chosen)));
    }
    sets
}

/// The values that an upstream completes, by argument.
pub(super) type CompletedValues = BTreeMap<String, Vec<String>>;

/// The arguments with these names: places, or each value of an argument with choices.
fn with_choices(prompt: &Prompt, completed: &CompletedValues, names: &[&str]) -> Vec<Arc<str>> {
    let mut sets = vec![BTreeMap::<String, String>::new()];
    for name in names {
        let choices = prompt.overlay.as_ref().and_then(|overlay| overlay.choices(name));
        let choices = choices.or(completed.get(*name).map(Vec::as_slice));
        let place = [placeholder(name)];
        let values = choices.filter(|choices| !choices.is_empty()).unwrap_or(&place);
        let with = |set: &BTreeMap<String, String>, value: &String| {
            let own = [((*name).to_owned(), value.clone())];
            set.clone().into_iter().chain(own).collect()
        };
        let more = sets.iter().flat_map(|set| values.iter().map(move |value| with(set, value)));
        sets = more.take(MAX_TEMPLATES).collect();
    }
    sets.iter().map(arguments_text).collect()
}

/// The template arguments that are approved for the offered definition. Includes templates that a
/// caller or the upstream prompted, so that another approval does not lose them.
pub(super) fn approved_templates<'a>(
    row: &'a ApprovalRow,
    offered: &'a OfferedPrompt,
) -> impl Iterator<Item = Arc<str>> + 'a {
    let approved = row.approval.iter().filter_map(|approval| approval.approved.as_ref());
    let version = approved.map(|decided| &decided.version);
    let version = version.filter(|version| version.definition == offered.version.definition);
    let arguments = version.flat_map(|version| version.texts.keys());
    arguments.filter(|arguments| TemplateArguments::read(arguments).is_some()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(names: &str) -> Vec<Argument> {
        // Names in capitals are required.
        let argument =
            |name: char| Argument { name: name.to_string(), required: name.is_uppercase() };
        names.chars().map(argument).collect()
    }

    fn sets(names: &str) -> Vec<String> {
        name_sets(&arguments(names)).iter().map(|set| set.concat()).collect()
    }

    #[test]
    fn every_set_of_few_optional_arguments_is_asked_for_the_smallest_first() {
        assert_eq!(sets("A"), ["A", "A"]);
        assert_eq!(sets("aB"), ["B", "aB", "aB"]);
        assert_eq!(sets("Rabc"), ["R", "Rabc", "Ra", "Rb", "Rc", "Rab", "Rac", "Rbc"]);
        assert_eq!(sets("Rabcd").len(), 16);
        assert_eq!(sets("Rabcde"), ["R", "Rabcde", "Ra", "Rb", "Rc", "Rd", "Re"]);
    }
}
