//! `promptgate explain CALLER NAME`: shows which access rule decides.

use std::fmt::Write as _;

use super::args::Explain;
use super::failure::Failure;
use super::load::load;
use super::output::{print, printable};
use crate::config::{Config, action};
use crate::domain::caller::Caller;
use crate::domain::method::Method;
use crate::policy::{Access, Verdict};

/// Prints for each method whether the caller may use the prompt. Reads the configuration only; no
/// upstream is called.
pub(super) fn run(query: &Explain) -> Result<(), Failure> {
    let config = load(&query.file.config)?;
    let Some(rules) = &config.access else {
        return print("There are no access rules: every caller may use every prompt.");
    };
    let Target { upstream, raw_name } = target(&config, &query.name)?;
    let caller = caller(&config, &query.caller, &query.groups);
    let access = Access::new(rules);
    let mut out = format!(
        "caller {} in groups {:?}, prompt {} of upstream {upstream}",
        printable(caller.id()),
        caller.groups(),
        printable(raw_name)
    );
    for method in Method::ALL {
        let Verdict { is_allowed, reasons } = access.decide(&caller, method, upstream, raw_name);
        let verdict = if is_allowed { "allowed" } else { "denied" };
        let by = if reasons.is_empty() {
            "no rule allows it".to_owned()
        } else {
            format!("by {}", reasons.join(", "))
        };
        let _ = write!(out, "\n  {:8} {verdict}: {by}", action(method));
        for reason in &reasons {
            let policy =
                rules.policies.policies().find(|policy| policy.id().to_string() == *reason);
            for policy in policy.iter() {
                let _ = write!(out, "\n           {}", printable(&policy.to_string()));
            }
        }
    }
    print(&out)
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
struct Target<'a> {
    upstream: &'a str,
    raw_name: &'a str,
}

/// Splits a public name. A name without a known prefix belongs to the upstream with an empty prefix, if
/// there is exactly one.
fn target<'a>(config: &'a Config, name: &'a str) -> Result<Target<'a>, Failure> {
    let upstreams = config.upstreams.iter();
    if let Some((prefix, raw_name)) = config.naming.claimed(name)
        && let Some(upstream) = upstreams.clone().find(|u| u.prefix.as_str() == prefix)
    {
        return Ok(Target { upstream: upstream.id.as_str(), raw_name });
    }
    let bare: Vec<_> = upstreams.filter(|upstream| upstream.prefix.is_bare()).collect();
    match bare.as_slice() {
        [upstream] => Ok(Target { upstream: upstream.id.as_str(), raw_name: name }),
        _ => Err(Failure::usage(format!(
            "The prefix of {} belongs to no upstream of the configuration. Give the public name, as \
             `promptgate list` shows it.",
            printable(name)
        ))),
    }
}
