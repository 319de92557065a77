//! Texts of gets that are not approved: the prompts to probe because of these texts, and the forms
//! to offer to approvers. A form has places for the caller's values. A form that shows a value in
//! another case or backwards is not offered; other changes of a value, such as an encoding, are not
//! recognized (docs/approvals.md).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::watch;

use super::routed_prompt::RoutedPrompt;
use super::verified_texts::OtherText;
use base::platform::wall_clock;
use base::seal;
use catalog::approval::{ApprovalRow, ExpectedText, FoundVariant, holds_secret};
use catalog::listed_item::ListedItem;
use config::lock::arguments_text;
use domain::approval::template::{MAX_FORM, differing_form, placeholder};
use domain::approval::{ApprovalKind, ApprovalState, DigestText, Form};
use domain::json::Json;
use domain::name::UpstreamId;

/// Prompts whose gets returned texts other than the approved ones.
pub struct UnapprovedTexts {
    /// The prompts to probe, by upstream.
    prompts: Mutex<HashMap<UpstreamId, HashSet<Arc<str>>>>,
    added: watch::Sender<()>,
    /// The last unapproved text of each prompt. Old ones are evicted.
    last: Cache<PromptKey, LastText, LastSize>,
    /// Variants and sets of arguments by prompt. Evicted entries return with the next get.
    found: Cache<PromptKey, Arc<Found>, FoundSize>,
}

/// The upstream and raw name of a prompt.
type PromptKey = (UpstreamId, Arc<str>);

/// The last unapproved text that a caller received of a prompt.
#[derive(Clone)]
pub struct LastText {
    pub digest: DigestText,
    pub at: SystemTime,
    /// `None` for the source of a library prompt, and for a text beyond [`MAX_FORM`].
    pub received: Option<ReceivedText>,
}

/// A canonical text, and the arguments of its caller: no person is shown them.
#[derive(Clone)]
pub struct ReceivedText {
    pub arguments: Arc<str>,
    pub text: Arc<str>,
}

/// Unapproved variants and sets of arguments of one prompt.
#[derive(Clone, Default)]
struct Found {
    variants: Vec<FoundVariant>,
    /// Sets of arguments for which nothing is approved.
    arguments: Vec<Arc<str>>,
}

/// Most waiting variants of one prompt: a person decides on each variant.
const MAX_FOUND: usize = 4;

/// Most sets of arguments of one prompt that are probed because callers gave them.
const MAX_SETS: usize = 16;

/// Memory for [`Found`] entries, and for the last texts, in bytes.
const MEMORY: u64 = 16 << 20;

/// Estimated number of prompts. More prompts only cost a resize.
const EXPECTED: usize = 64;

#[derive(Clone)]
struct FoundSize;

impl Weighter<PromptKey, Arc<Found>> for FoundSize {
    fn weight(&self, key: &PromptKey, found: &Arc<Found>) -> u64 {
        let variants = found.variants.iter().map(|found| found.text.len() + found.arguments.len());
        let arguments = found.arguments.iter().map(|arguments| arguments.len());
        (key.1.len() + variants.chain(arguments).map(|bytes| bytes + 256).sum::<usize>()) as u64
    }
}

#[derive(Clone)]
struct LastSize;

impl Weighter<PromptKey, LastText> for LastSize {
    fn weight(&self, key: &PromptKey, last: &LastText) -> u64 {
        let received = last.received.as_ref().map(|own| own.text.len() + own.arguments.len());
        (key.1.len() + received.unwrap_or_default() + 256) as u64
    }
}

impl Default for UnapprovedTexts {
    fn default() -> Self {
        Self {
            prompts: Mutex::default(),
            added: watch::Sender::default(),
            last: Cache::with_weighter(EXPECTED, MEMORY, LastSize),
            found: Cache::with_weighter(EXPECTED, MEMORY, FoundSize),
        }
    }
}

impl UnapprovedTexts {
    /// Adds an unexpected text of a get. Has the prompt probed if the text is news, so that no
    /// caller can cause endless probes.
    pub(super) fn found(
        &self,
        routed: &RoutedPrompt<'_>,
        expected: &ExpectedText<'_>,
        other: &OtherText,
    ) {
        let OtherText { digest, text } = other;
        let arguments = expected.arguments();
        let received = (arguments.len() + text.len() <= MAX_FORM)
            .then(|| ReceivedText { arguments: arguments.into(), text: text.as_str().into() });
        let last = LastText { digest: digest.clone(), at: wall_clock(), received };
        self.last.insert(key_of_item(routed.item), last);
        let is_news = match expected {
            ExpectedText::Nothing { arguments, .. } => self.add_arguments(routed.item, arguments),
            ExpectedText::Text { .. } => {
                self.add_variant(routed, expected, other);
                true
            }
            ExpectedText::Template { .. } => self.add_variant(routed, expected, other),
        };
        if is_news && routed.item.approval.state == ApprovalState::Approved {
            self.add(routed.item);
        }
    }

    /// Adds a set of arguments. Values other than choices become places. Returns whether the set is
    /// new.
    fn add_arguments(&self, item: &ListedItem, given: &str) -> bool {
        let overlay = item.overlay.as_ref();
        let member = |(name, value): (Json<'_>, Json<'_>)| {
            let name = name.as_str()?.into_owned();
            let value = value.as_str()?.into_owned();
            let choices = overlay.and_then(|overlay| overlay.choices(&name)).unwrap_or_default();
            let is_choice = choices.contains(&value);
            let value = if is_choice { value } else { placeholder(&name) };
            Some((name, value))
        };
        let members = Json::accepted(given).members().filter_map(member);
        let set = arguments_text(&members.collect::<BTreeMap<_, _>>());
        self.change(item, |found| {
            let is_new = found.arguments.len() < MAX_SETS && !found.arguments.contains(&set);
            if is_new {
                found.arguments.push(set);
            }
            is_new
        })
    }

    /// Adds the form of a text. Returns whether the form is new, or whether there is no form.
    fn add_variant(
        &self,
        routed: &RoutedPrompt<'_>,
        expected: &ExpectedText<'_>,
        other: &OtherText,
    ) -> bool {
        let (key, form) = match expected {
            ExpectedText::Text { key, .. } => {
                (*key, (other.text.len() <= MAX_FORM).then(|| other.text.clone()))
            }
            ExpectedText::Template { key, forms, arguments, .. } => {
                let arguments = Json::accepted(arguments);
                let form = |own: &Form| {
                    if other.text.len() > MAX_FORM {
                        return None;
                    }
                    let form = differing_form(own.text(), arguments, &other.text)?;
                    (!shows_value(&form, own.text(), arguments)).then_some(form)
                };
                (*key, forms.first().and_then(form))
            }
            ExpectedText::Nothing { .. } => return false,
        };
        let Some(text) = form.filter(|text| !is_private(routed, text)) else { return true };
        let digest: DigestText = seal::prompt_text_digest(&text).into();
        let arguments = key.clone();
        let approved = expected.digest().clone();
        self.change(routed.item, |found| {
            // Forget variants of the same arguments that belong to an earlier approved text.
            found
                .variants
                .retain(|known| known.arguments != arguments || known.approved == approved);
            let is_known = found.variants.iter().any(|known| known.digest == digest);
            let is_new = !is_known && found.variants.len() < MAX_FOUND;
            if is_new {
                let text = text.into();
                let at = wall_clock();
                found.variants.push(FoundVariant { arguments, digest, text, approved, at });
            }
            is_new
        })
    }

    /// Changes the [`Found`] entry of a prompt. Of two concurrent changes one may be lost; the next
    /// get repeats the lost change.
    fn change(&self, item: &ListedItem, change: impl FnOnce(&mut Found) -> bool) -> bool {
        let key = key_of_item(item);
        let mut found = self.found.get(&key).map(|found| (*found).clone()).unwrap_or_default();
        let is_changed = change(&mut found);
        if is_changed {
            self.found.insert(key, Arc::new(found));
        }
        is_changed
    }

    /// The variants of a prompt that wait for a decision.
    pub fn variants(&self, row: &ApprovalRow) -> Vec<FoundVariant> {
        if row.kind != ApprovalKind::Prompt {
            return Vec::new();
        }
        let Some(found) = self.found.get(&key_of_row(row)) else {
            return Vec::new();
        };
        let approved = row.approved();
        let waits = |found: &&FoundVariant| {
            approved.is_some_and(|approved| {
                let FoundVariant { arguments, digest, .. } = found;
                approved.version.texts.get(arguments) == Some(&found.approved)
                    && !approved.version.is_variant(arguments, digest)
            })
        };
        found.variants.iter().filter(waits).cloned().collect()
    }

    /// The sets of arguments from callers for which no text is approved.
    pub fn arguments(&self, row: &ApprovalRow) -> Vec<Arc<str>> {
        let found = self.found.get(&key_of_row(row));
        found.map(|found| found.arguments.clone()).unwrap_or_default()
    }

    /// Remembers an unapproved text or source by its digest, so that approvers see that it was
    /// returned.
    pub(super) fn remember(&self, item: &ListedItem, offered: &DigestText) {
        let key = key_of_item(item);
        let known = self.last.get(&key).filter(|last| last.digest == *offered);
        let received = known.and_then(|last| last.received);
        self.last.insert(key, LastText { digest: offered.clone(), at: wall_clock(), received });
    }

    /// The last unapproved text that a caller received of a prompt.
    pub fn last(&self, row: &ApprovalRow) -> Option<LastText> {
        self.last.get(&key_of_row(row))
    }

    /// Adds a prompt to the prompts to probe.
    pub(super) fn add(&self, item: &ListedItem) {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.entry(item.upstream.clone()).or_default().insert(decided_name(item));
        self.added.send_replace(());
    }

    /// Marked changed whenever a prompt to probe is added.
    pub fn added(&self) -> watch::Receiver<()> {
        self.added.subscribe()
    }

    /// Removes and returns the raw names of an upstream's prompts to probe.
    pub fn take(&self, upstream: &UpstreamId) -> HashSet<Arc<str>> {
        let mut prompts = self.prompts.lock().unwrap_or_else(PoisonError::into_inner);
        prompts.remove(upstream).unwrap_or_default()
    }
}

/// Shortest argument value to search for, in characters: shorter values occur in many words.
const MIN_VALUE: usize = 4;

/// Whether a form shows a caller's value in another case or backwards, and more often than the
/// approved text shows the same word.
fn shows_value(form: &str, approved: &str, arguments: Json<'_>) -> bool {
    let [form, approved] = [form, approved].map(str::to_lowercase);
    let values = arguments.members().filter_map(|(_, value)| value.as_str());
    values.filter(|value| value.chars().count() >= MIN_VALUE).any(|value| {
        let value = value.to_lowercase();
        let backwards: String = value.chars().rev().collect();
        let is_shown = |word: &str| form.matches(word).count() > approved.matches(word).count();
        is_shown(&value) || is_shown(&backwards)
    })
}

fn key_of_item(item: &ListedItem) -> PromptKey {
    (item.upstream.clone(), decided_name(item))
}

/// Returns the raw name under which people decide on the item.
fn decided_name(item: &ListedItem) -> Arc<str> {
    match &item.version {
        // The version of a plain file is a remark.
        Some(version) if item.is_version() || version.label.is_some() => {
            version.content_name().into()
        }
        _ => item.raw_name.clone(),
    }
}

fn key_of_row(row: &ApprovalRow) -> PromptKey {
    (row.upstream.clone(), row.raw_name.clone())
}

/// Whether approvers must not see a text: the upstream made it for this caller alone, or the text
/// holds a secret.
fn is_private(routed: &RoutedPrompt<'_>, text: &str) -> bool {
    let overlay = routed.item.overlay.as_deref();
    routed.admitted.upstream.config().acts_as_caller()
        || holds_secret(Some(routed.admitted.upstream), overlay, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_shows_a_value_in_another_case_or_backwards_but_not_the_words_of_the_approved_text() {
        let shows = |form: &str, value: &str| {
            let arguments = format!("{{\"topic\":\"{value}\"}}");
            shows_value(form, "Refund of {{ topic }}", Json::accepted(&arguments))
        };
        assert!(shows("REFUND of SECRET", "secret") && shows("Refund of terces", "Secret"));
        assert!(
            !shows("Refund of {{ topic }}!", "refund")
                && !shows("A Refund of {{ topic }}", "dnufer")
        );
        assert!(!shows("Refund of it", "it"), "a short value");
    }
}
