//! `promptgate explain CALLER NAME`: shows which access rule decides.

use std::fmt::Write as _;

use super::args::Explain;
use super::failure::Failure;
use super::load::load;
use super::output::{print, printable};
use access::{AccessVerdict, Decisions, RuleSet, action};
use config::{Config, UpstreamSettings};
use domain::approval::ApprovalState;
use domain::caller::Caller;
use domain::method::Method;
use domain::overlay;
use domain::rights::PromptRef;

/// Prints for each method whether the caller may use the prompt, and which overlays change it.
/// Reads the configuration and the lock file only; no upstream is called.
pub(super) fn run(query: &Explain) -> Result<(), Failure> {
    let config = load(&query.file.config)?;
    let prompt = target(&config, &query.name)?;
    let caller = caller(&config, &query.caller, &query.groups);
    let mut out = format!(
        "caller {} in groups {:?}, prompt {} of upstream {}",
        printable(caller.id()),
        caller.groups(),
        printable(&prompt.raw_name),
        prompt.upstream
    );
    explain_approval(&config, &prompt, &mut out);
    match &config.access {
        Some(access) => explain_access(&access.rules, &caller, prompt.as_ref(), &mut out),
        None => out += "\n  There are no access rules: every caller may use every prompt.",
    }
    explain_overlays(&config, &prompt, &mut out);
    print(&out)
}

/// Adds the state of the prompt as the lock file has it.
fn explain_approval(config: &Config, prompt: &ExplainedPrompt, out: &mut String) {
    if prompt.state != ApprovalState::Unchecked {
        let lock = config.approvals.store.path().display();
        let state = prompt.state.as_str();
        let _ = write!(out, "\n  {state} in {lock}, whatever its upstream offers at present");
    }
}

fn explain_access(rules: &RuleSet, caller: &Caller, prompt: PromptRef<'_>, out: &mut String) {
    let access = Decisions::new(rules);
    for method in Method::ALL {
        let AccessVerdict { is_allowed, reasons } = access.decide(caller, method, prompt);
        let verdict = if is_allowed { "allowed" } else { "denied" };
        let by = if reasons.is_empty() {
            "no rule allows it".to_owned()
        } else {
            format!("by {}", reasons.join(", "))
        };
        let _ = write!(out, "\n  {:8} {verdict}: {by}", action(method));
        for reason in &reasons {
            if let Some(policy) = rules.policy_text(reason) {
                let _ = write!(out, "\n           {}", printable(&policy));
            }
        }
    }
}

/// Adds the overlays that match the prompt, with the changes of each.
fn explain_overlays(config: &Config, prompt: &ExplainedPrompt, out: &mut String) {
    let matching = config.overlays.iter().filter(|overlay| {
        overlay.upstream.as_str() == prompt.upstream && overlay.prompt.matches(&prompt.raw_name)
    });
    for overlay in matching {
        let changes = overlay.action.changed_keys().join(", ");
        let _ = write!(out, "\n  {}: {}", overlay::key(overlay.number), printable(&changes));
    }
}

/// Returns the caller with its groups in the configuration and `more` groups.
fn caller(config: &Config, id: &str, more: &[String]) -> Caller {
    let identities = config.auth.named().chain([&config.auth.stdio]);
    let configured = identities.filter(|identity| identity.id == id);
    let mut groups: Vec<_> = configured.flat_map(|identity| identity.groups.clone()).collect();
    groups.extend_from_slice(more);
    Caller::in_groups(id, &groups)
}

/// A prompt at its upstream.
struct ExplainedPrompt {
    upstream: String,
    raw_name: String,
    /// As the lock file has it.
    state: ApprovalState,
}

impl ExplainedPrompt {
    fn as_ref(&self) -> PromptRef<'_> {
        PromptRef { upstream: &self.upstream, raw_name: &self.raw_name, state: self.state }
    }
}

/// Splits a public name, and undoes what overlays rename. A name without a known prefix belongs to
/// the upstream with an empty prefix, if there is exactly one.
fn target(config: &Config, name: &str) -> Result<ExplainedPrompt, Failure> {
    let upstreams = config.upstreams.iter();
    if let Some((prefix, listed_name)) = config.naming.claimed(name)
        && let Some(upstream) = upstreams.clone().find(|u| u.prefix.as_str() == prefix)
    {
        return Ok(at(config, upstream, listed_name));
    }
    let bare: Vec<_> = upstreams.filter(|upstream| upstream.prefix.is_bare()).collect();
    match bare.as_slice() {
        [upstream] => Ok(at(config, upstream, name)),
        _ => Err(Failure::usage(format!(
            "The prefix of {} belongs to no upstream of the configuration. Give the public name, as \
             `promptgate list` shows it.",
            printable(name)
        ))),
    }
}

fn at(config: &Config, upstream: &UpstreamSettings, listed_name: &str) -> ExplainedPrompt {
    let raw_name = overlay::raw_name(&config.overlays, &upstream.id, listed_name);
    let state = config.approvals.known_state(&upstream.id, &raw_name);
    ExplainedPrompt { upstream: upstream.id.to_string(), raw_name, state }
}
