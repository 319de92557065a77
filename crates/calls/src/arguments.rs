//! Checks the arguments of a client, and completes them for the upstream.

use std::collections::{HashMap, HashSet};

use super::routed_prompt::RoutedPrompt;
use catalog::listed_item::ListedItem;
use catalog::segment::name_of_tool;
use domain::fault::{Fault, RequestFault, UpstreamFault};
use domain::json::document::Document;
use domain::json::object::write_object;
use domain::prompts::call_overlay::Validation;
use domain::redaction::without_secrets;

/// Maps the arguments of a tool to the names of the prompt's arguments. `None`: the names are the
/// same.
pub(super) fn renamed_arguments(
    item: &ListedItem,
    arguments: &Document,
) -> Result<Option<Document>, RequestFault> {
    let derived: HashMap<String, &str> = item
        .arguments
        .iter()
        .map(|argument| (name_of_tool(&argument.name), argument.name.as_str()))
        .filter(|(property, name)| property != name)
        .collect();
    if derived.is_empty() {
        return Ok(None);
    }
    let mut text = String::new();
    write_object(&mut text, |renamed| {
        for (key, value) in arguments.json().members() {
            let key = key.as_str().unwrap_or_default();
            renamed.json(derived.get(&*key).copied().unwrap_or(&key), value.text());
        }
    });
    let renamed = Document::parse(text.into_bytes(), ARGUMENTS_DEPTH).map_err(|_| {
        let what = "an argument is given twice, under its name and as a property".to_owned();
        RequestFault::InvalidParams { what }
    })?;
    Ok(Some(renamed))
}

/// The depth of an object of strings.
const ARGUMENTS_DEPTH: usize = 2;

/// Returns the arguments for the upstream. `None`: the client's arguments are sent unchanged.
pub(super) fn effective_arguments(
    routed: &RoutedPrompt<'_>,
    arguments: Option<&Document>,
) -> Result<Option<Document>, Fault> {
    let mut validation = Validation::PresetsOnly;
    if routed.admitted.upstream.config().settings.validate_arguments {
        validation = Validation::Full;
        check_arguments(routed.item, arguments)?;
    }
    match &routed.item.overlay {
        Some(overlay) => Ok(overlay.arguments(arguments.map(Document::json), validation)?),
        None => Ok(None),
    }
}

/// Removes the values of preset arguments, which an upstream may repeat, from a fault.
pub(super) fn without_presets(item: &ListedItem, fault: Fault) -> Fault {
    match (fault, &item.overlay) {
        (Fault::Upstream(fault), Some(overlay)) => {
            let kind = without_secrets(fault.kind, overlay.preset_values());
            UpstreamFault { kind, ..fault }.into()
        }
        (fault, _) => fault,
    }
}

/// Checks that all required arguments are given.
fn check_arguments(item: &ListedItem, arguments: Option<&Document>) -> Result<(), Fault> {
    let required = || item.arguments.iter().filter(|argument| argument.required);
    let mut missing: HashSet<&str> = required().map(|argument| argument.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // One pass over the text, which may have megabytes, for all required arguments.
    for (name, _) in arguments.into_iter().flat_map(|arguments| arguments.json().members()) {
        if let Some(name) = name.as_str() {
            missing.remove(&*name);
        }
    }
    match required().find(|argument| missing.contains(argument.name.as_str())) {
        Some(argument) => {
            Err(RequestFault::MissingArgument { argument: argument.name.clone() }.into())
        }
        None => Ok(()),
    }
}
