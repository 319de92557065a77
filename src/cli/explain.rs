//! `promptgate explain CALLER NAME`: which rule decides, and why.

use std::fmt::Write as _;
use std::path::Path;

use super::text::{print, printable};
use super::{Failure, load};
use crate::config::{Config, action};
use crate::domain::caller::Caller;
use crate::domain::method::Method;
use crate::policy::{Access, Verdict};

/// Tells what `caller` may do with the prompt of this public name, without asking anybody.
pub(super) fn run(path: &Path, caller: &str, name: &str, groups: &[String]) -> Result<(), Failure> {
    let config = load(path)?;
    let Some(rules) = &config.access else {
        return print("There are no access rules: everybody may use everything.");
    };
    let (upstream, raw_name) = target(&config, name)?;
    let caller = known(&config, caller, groups);
    let access = Access::new(rules);
    let mut out = format!(
        "{} in groups {:?}, prompt {} of upstream {upstream}",
        printable(caller.id()),
        caller.groups(),
        printable(&raw_name)
    );
    for method in Method::ALL {
        let Verdict { is_allowed, reasons } = access.decide(&caller, method, &upstream, &raw_name);
        let verdict = if is_allowed { "allowed" } else { "denied" };
        let by = match reasons.is_empty() {
            true => "no rule allows it".to_owned(),
            false => format!("by {}", reasons.join(", ")),
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

/// The caller with the groups that the file gives it, and these.
fn known(config: &Config, id: &str, groups: &[String]) -> Caller {
    let keys = config.auth.named();
    let named = keys.chain([&config.auth.stdio]).filter(|caller| caller.id == id);
    let mut all: Vec<_> = named.flat_map(|caller| caller.groups.clone()).collect();
    all.extend_from_slice(groups);
    Caller::in_groups(id, &all)
}

/// Upstream and raw name. A bare name belongs to the one upstream that lists bare names, if it is one.
fn target(config: &Config, name: &str) -> Result<(String, String), Failure> {
    let mut upstreams = config.upstreams.iter();
    if let Some((prefix, raw)) = config.naming.claimed(name)
        && let Some(upstream) = upstreams.clone().find(|u| u.prefix.as_str() == prefix)
    {
        return Ok((upstream.id.to_string(), raw.to_owned()));
    }
    let bare: Vec<_> = upstreams.by_ref().filter(|upstream| upstream.prefix.is_bare()).collect();
    match bare.as_slice() {
        [upstream] => Ok((upstream.id.to_string(), name.to_owned())),
        _ => Err(Failure::usage(format!(
            "{} belongs to no upstream of the file: write it as `promptgate list` shows it",
            printable(name)
        ))),
    }
}
