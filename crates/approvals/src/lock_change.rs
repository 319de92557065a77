//! Decisions: changes of the lock file.

use std::collections::BTreeMap;

use super::action::{Action, ApprovalError, refused};
use super::examined::Examined;
use audit::record::AuditEvent;
use catalog::approval::{ApprovalRow, FoundVariant};
use config::ApprovalRules;
use config::lock::{Lock, LockError, Object, Objects, patch};
use domain::approval::{Approval, ApprovalKind, Attribution, MIN_PREFIX, Version};
use domain::fault::excerpt;
use library::FileChange;

/// Most approved variants of one prompt: a get may be compared with each variant.
const MAX_VARIANTS: usize = 16;

/// A changed lock file, and the records of the decisions.
pub(super) struct ChangedLock {
    pub lock: Lock,
    pub versions: Vec<Version>,
    pub events: Vec<AuditEvent>,
    pub half: Vec<String>,
    /// The public names of prompts that a partial approval has left out, with the reasons.
    pub refused: BTreeMap<String, String>,
}

/// Changes the lock file.
pub(super) fn change_lock(
    rules: &ApprovalRules,
    action: &Action,
    prompts: &[Examined],
    before: Option<&str>,
    attribution: &Attribution,
) -> Result<ChangedLock, ApprovalError> {
    let store = &rules.store;
    let old = store.read()?;
    if before.is_some_and(|before| before != old.digest) {
        return Err(LockError::Conflict(store.path().to_owned()).into());
    }
    let mut lock = old.clone();
    let mut objects = Objects::new();
    let mut versions = Vec::new();
    let mut events = Vec::new();
    let mut half = Vec::new();
    let mut refused = BTreeMap::new();
    for examined in prompts {
        let row = &examined.row;
        let upstream = row.upstream.as_str();
        let raw_name = &*row.raw_name;
        // The entry of a version may have another name in a lock file of before.
        let known = lock.approval(row.kind, upstream, raw_name).or(row.approval.as_ref());
        let mut approval = known.cloned().unwrap_or_default();
        let approved = approval.approved.as_ref().map(|decided| decided.version.clone());
        let (kind, version) = match apply(action, examined, &mut approval, attribution, rules) {
            Err(ApprovalError::Refused { prompt, why })
                if matches!(action, Action::Approve { partial: true, .. }) =>
            {
                refused.insert(prompt, why);
                continue;
            }
            applied => applied?,
        };
        *lock.approval_mut(row.kind, upstream, raw_name) = approval;
        if kind == HALF_APPROVED {
            half.push(row.public_name.clone());
        }
        match (action, &examined.offered) {
            (Action::Approve { .. } | Action::Reject, Some(offered)) => {
                objects.extend(offered.objects.clone());
            }
            (Action::ApproveVariants { .. }, _) => {
                let found = row.variants.iter();
                let text = |found: &FoundVariant| Object::Text(found.text.to_string());
                objects.extend(found.map(|found| (found.digest.clone(), text(found))));
            }
            _ => {}
        }
        events.push(event(kind, row, &version, approved));
        versions.push(version);
    }
    if versions.is_empty() && !refused.is_empty() {
        return Ok(ChangedLock { lock: old, versions, events, half, refused });
    }
    match store.replace(&old.digest, &lock, &objects) {
        Ok(lock) => Ok(ChangedLock { lock, versions, events, half, refused }),
        Err(error @ LockError::ReadOnly { .. }) => match patch(store, &old, &lock, &objects) {
            Some(patch) => Err(ApprovalError::ReadOnly { error, patch }),
            None => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Returns the record of a decision. `before` is the version that was approved before it.
fn event(
    kind: &'static str,
    row: &ApprovalRow,
    version: &Version,
    before: Option<Version>,
) -> AuditEvent {
    let event = AuditEvent::new(kind).text("upstream", row.upstream.as_str());
    let kind = (row.kind == ApprovalKind::Skill).then(|| row.kind.as_str());
    let event = event.text("prompt", &row.raw_name).optional_text("kind", kind);
    let event = event.text("definition", &version.definition);
    let event = event.optional_text("source", version.source.as_deref());
    let variants = version.variants.iter().map(|(_, digest)| digest);
    let texts = version.texts.values().chain(variants);
    let texts: Vec<&str> = texts.map(|digest| &**digest).collect();
    let texts = (!texts.is_empty()).then(|| texts.join(", "));
    let event = event.optional_text("texts", texts.as_deref());
    let before = before.map(|version| version.definition);
    event.optional_text("before", before.as_deref())
}

/// The event of an approval by the first of two people.
const HALF_APPROVED: &str = "prompt_approved_by_one";

/// Checks that an approval covers only what an approver could read, or accepts `unseen`. Returns
/// the reason for a refusal.
fn check_seen(examined: &Examined, unseen: bool, rules: &ApprovalRules) -> Result<(), String> {
    if let Some((arguments, why)) = examined.unverified() {
        return Err(format!(
            "the approval covers its text with {arguments}, which cannot be had now ({why}); approve it when it can"
        ));
    }
    let mut unread = examined.offered.iter().flat_map(|offered| &offered.unread);
    if let Some((path, why)) = unread.next() {
        return Err(format!("its file {path} cannot be had ({why}); approve it when it can"));
    }
    match examined.unseen_text() {
        Some(_) if !rules.allows_unseen => Err(UNSEEN_REFUSED.to_owned()),
        Some(why) if !unseen => Err(why),
        _ => Ok(()),
    }
}

/// Applies the action to one approval. Returns the kind of the decision's record, and the version
/// it concerns.
fn apply(
    action: &Action,
    examined: &Examined,
    approval: &mut Approval,
    attribution: &Attribution,
    rules: &ApprovalRules,
) -> Result<(&'static str, Version), ApprovalError> {
    let row = &examined.row;
    let offered = || {
        let why = "its upstream does not offer it at present".to_owned();
        let offered = examined.offered.as_ref().map(|offered| offered.version.clone());
        offered.ok_or_else(|| refused(row, why))
    };
    match action {
        Action::Approve { unseen, partial } => {
            let version = offered()?;
            if let Some(finding) = examined.enforced_finding().filter(|_| *partial) {
                let why = format!("{finding} Approve it by its name if that is meant");
                return Err(refused(row, why));
            }
            check_seen(examined, *unseen, rules).map_err(|why| refused(row, why))?;
            approve(approval, version, attribution, examined, rules)
        }
        Action::ApproveVariants { digests } => {
            let version = with_variants(examined, approval, digests);
            let version = version.map_err(|why| refused(row, why))?;
            approve(approval, version, attribution, examined, rules)
        }
        Action::Reject => {
            let approved = approval.approved.as_ref().map(|approved| &approved.version);
            let version = match (&examined.offered, approved) {
                (None, Some(_)) => return Err(refused(row, NOT_WAITING.to_owned())),
                _ => offered()?,
            };
            if approved.is_some_and(|approved| approved.is_compatible_with(&version)) {
                return Err(refused(row, NOT_WAITING.to_owned()));
            }
            Ok(("prompt_rejected", approval.reject(version, attribution.clone())))
        }
        Action::Withdraw => {
            let version = approval.withdraw(attribution.clone());
            let version = version.ok_or_else(|| {
                refused(row, "no version of it is approved; `reject` is for what waits".to_owned())
            })?;
            Ok(("prompt_withdrawn", version))
        }
        Action::RollBack { to } => {
            let version = approval.earlier(to.as_deref());
            let version = version.map_err(|why| refused(row, why.to_owned()))?.clone();
            for digest in version.digests() {
                let object = rules.store.object(digest);
                object.map_err(|error| refused(row, error.to_string()))?;
            }
            let (kind, version) = approve(approval, version, attribution, examined, rules)?;
            Ok((if kind == HALF_APPROVED { kind } else { "prompt_rolled_back" }, version))
        }
    }
}

/// Returns the approved version with added variants, which `digests` name by whole digests or
/// prefixes.
fn with_variants(
    examined: &Examined,
    approval: &Approval,
    digests: &[String],
) -> Result<Version, String> {
    let approved = approval.approved.as_ref();
    let none = "no version of it is approved; approve what is offered first";
    let mut version = approved.ok_or(none)?.version.clone();
    for digest in digests {
        let begin = digest.strip_prefix("sha256:").unwrap_or(digest);
        let is_named = |found: &&FoundVariant| {
            begin.len() >= MIN_PREFIX && found.digest["sha256:".len()..].starts_with(begin)
        };
        let named: Vec<_> = examined.row.variants.iter().filter(is_named).collect();
        let [found] = named.as_slice() else {
            return Err(format!("{} of its variants have the digest {digest}", named.len()));
        };
        if version.texts.get(&found.arguments) != Some(&found.approved) {
            return Err(format!("the variant {digest} is one of a version that is not approved"));
        }
        version.variants.insert((found.arguments.clone(), found.digest.clone()));
    }
    if version.variants.len() > MAX_VARIANTS {
        return Err(format!("it would have more than {MAX_VARIANTS} approved variants"));
    }
    Ok(version)
}

/// Why the author's approval does not count as the second of two approvals.
pub(super) fn own(change: &FileChange) -> String {
    let author = excerpt(&change.author);
    let commit = &change.commit;
    format!(
        "{author} changed its file in commit {commit}; another person must approve it after the first (approvals.approvers = 2)"
    )
}

/// Why an approved version cannot be rejected: rejection would withdraw it from all callers.
const NOT_WAITING: &str = "it is approved, and `reject` is for what waits; `promptgate approvals withdraw` takes an approval back";

/// Why a version with an unknown text cannot be approved.
const UNSEEN_REFUSED: &str = "a text of it cannot be known, and approvals.unseen = \"refuse\" forbids to approve what is not seen";

/// Approves a version, or notes the first approval of two.
fn approve(
    approval: &mut Approval,
    version: Version,
    attribution: &Attribution,
    examined: &Examined,
    rules: &ApprovalRules,
) -> Result<(&'static str, Version), ApprovalError> {
    let row = &examined.row;
    let is_approved = if rules.needs_two {
        let second = approval.approve_by_two(version.clone(), attribution.clone());
        second.map_err(|why| refused(row, why))?
    } else {
        approval.approve(version.clone(), attribution.clone());
        true
    };
    match &examined.not_second {
        Some(why) if is_approved => Err(refused(row, why.clone())),
        _ => Ok((if is_approved { "prompt_approved" } else { HALF_APPROVED }, version)),
    }
}
