//! `promptgate explain CALLER NAME`: shows which access rule decides.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::cli::shared::admin_api::fetch_once;
use crate::cli::shared::args::Explain;
use crate::cli::shared::failure::Failure;
use crate::cli::shared::load::load;
use crate::cli::shared::output::{elements, print, printable};
use crate::cli::shared::running::Running;
use crate::cli::shared::runtime::runtime;
use access::{AccessVerdict, Decisions, action};
use config::{Access, Config, Origin, Transport, UpstreamSettings};
use domain::approval::{ApprovalKind, ApprovalState};
use domain::calls::caller::{Caller, is_reserved};
use domain::calls::rights::PromptRef;
use domain::fault::excerpt;
use domain::prompts::overlay;
use domain::prompts::skill;
use domain::protocol::method::Method;
use domain::text::similar::suggestion;
use library::prompt_list::PromptList;
use library::{LibraryLabels, LibrarySnapshot};

/// Prints for each method whether the caller may use the prompt, and which overlays change it.
/// Reads the configuration, the lock file and libraries; no upstream is called. If a gateway that
/// runs with the file leaves the prompt out of its list, the output begins with that.
pub(crate) fn run(query: &Explain) -> Result<(), Failure> {
    let config = load(&query.file.config)?;
    let target = target(&config, &query.name);
    let admin = Running::find(&query.file.config).and_then(|running| running.admin);
    let document = |path| admin.as_deref().map(|admin| document(admin, path)).unwrap_or_default();
    let catalog = document("/api/v1/catalog");
    let mut out = left_out_of(&catalog, &config, &query.name, target.as_ref().ok());
    let is_left_out = !out.is_empty();
    let prompt = match target {
        Ok(prompt) => prompt,
        Err(_) if !out.is_empty() => return print(out.trim_end()),
        Err(unknown) => return Err(unknown),
    };
    let caller = caller(&config, &query.caller, &query.groups);
    let _ = write!(
        out,
        "caller {} in groups {:?}, {} {} of upstream {}{}",
        printable(caller.id()),
        caller.groups(),
        prompt.kind.as_str(),
        printable(&prompt.raw_name),
        prompt.upstream,
        unknown_caller(&config, &query.caller).unwrap_or_default()
    );
    explain_file(&prompt, &mut out);
    if !is_left_out {
        explain_absence(&catalog, &query.name, &prompt, &mut out);
    }
    explain_approval(&config, &prompt, &mut out);
    match &config.access {
        Some(access) => explain_access(query, &config, access, &caller, prompt.as_ref(), &mut out),
        None => out += "\n  There are no access rules: every caller may use every prompt.",
    }
    explain_overlays(&config, &prompt, &mut out);
    let signs_in = |own: &&UpstreamSettings| own.id.as_str() == prompt.upstream;
    if config.upstreams.iter().find(signs_in).is_some_and(|own| own.caller_sign_in().is_some()) {
        explain_sign_in(&document("/api/v1/accounts"), &prompt.upstream, caller.id(), &mut out);
    }
    print(&out)
}

/// Returns a document of the running gateway; null if it does not answer: the file is explained
/// all the same.
fn document(admin: &str, path: &str) -> Value {
    let document = runtime().and_then(|runtime| runtime.block_on(fetch_once(admin, path)));
    document.unwrap_or_default()
}

/// Returns a line for each prompt of this name that the running gateway leaves out. Without a known
/// upstream, the name may be that of several upstreams without a prefix.
fn left_out_of(
    catalog: &Value,
    config: &Config,
    name: &str,
    prompt: Option<&ExplainedPrompt>,
) -> String {
    let is_bare = |id: &str| {
        config
            .upstreams
            .iter()
            .any(|upstream| upstream.id.as_str() == id && upstream.prefix.is_bare())
    };
    let raw_name = prompt.map_or(name, |prompt| &prompt.raw_name);
    // A definition that cannot be read is named only in the reason.
    let quoted = format!("prompt {:?}", excerpt(raw_name));
    let mut out = String::new();
    for entry in elements(&catalog["leftOut"]) {
        let text = |member: &str| entry[member].as_str().unwrap_or_default();
        let (upstream, reason) = (text("upstream"), text("reason"));
        let is_of = prompt.map_or_else(|| is_bare(upstream), |prompt| prompt.upstream == upstream);
        let is_named = match text("name") {
            "" => reason.contains(&quoted),
            listed => listed == raw_name,
        };
        if is_of && is_named {
            let what = match text("by") {
                "stale" => format!("has a mistake at upstream {upstream}"),
                _ => format!("is left out of the list, although upstream {upstream} offers it"),
            };
            let _ = writeln!(out, "{} {what}: {}\n", printable(name), printable(reason));
        }
    }
    out
}

/// Says that no file of a library has the prompt as it should be, and why: the running gateway may
/// not have read the file yet.
fn explain_file(prompt: &ExplainedPrompt, out: &mut String) {
    let Some(files) = prompt.files.as_ref().filter(|_| !prompt.is_listed()) else { return };
    let kind = prompt.kind.as_str();
    let _ = write!(out, "\n  No valid file of the library has this {kind}.");
    let named = format!("{:?}", prompt.raw_name);
    for prompt in files.malformed.iter().filter(|prompt| prompt.reason.contains(&named)) {
        let _ = write!(out, "\n  It is left out: {}", printable(&prompt.reason));
    }
}

/// Says that the running gateway serves no prompt of this name.
fn explain_absence(catalog: &Value, name: &str, prompt: &ExplainedPrompt, out: &mut String) {
    let kind = prompt.kind.as_str();
    let Some(served) = catalog[format!("{kind}s")].as_array() else { return };
    let is_it = |entry: &&Value| {
        entry["upstream"] == *prompt.upstream && entry["rawName"] == *prompt.raw_name
    };
    if !served.iter().any(|entry| is_it(&entry)) {
        let near = suggestion(name, served.iter().filter_map(|entry| entry["name"].as_str()));
        *out += &printable(&format!("\n  The running gateway serves no {kind} of this name{near}"));
    }
}

/// Says whether the caller has signed in at the upstream itself, by the accounts of the running
/// gateway.
fn explain_sign_in(accounts: &Value, upstream: &str, caller: &str, out: &mut String) {
    let find = |rows: &str| {
        let is_its = |row: &&Value| row["upstream"] == *upstream && row["caller"] == *caller;
        let mut its = elements(&accounts[rows]).iter().filter(is_its);
        its.find_map(|row| Some((row["signedInAt"].as_str()?, row["why"].as_str())))
    };
    *out += &printable(&match (find("accounts"), find("ended")) {
        (Some((since, _)), _) => format!("\n  {caller} has signed in at {upstream}, on {since}."),
        _ if accounts.is_null() => {
            format!("\n  Each caller signs in at {upstream}. No running gateway says who has.")
        }
        (None, Some((since, why))) => format!(
            "\n  {caller} is asked to sign in at {upstream}: its sign-in of {since} has ended ({}).",
            why.unwrap_or_default()
        ),
        (None, None) => {
            format!("\n  {caller} is asked to sign in at {upstream}: it has no sign-in there.")
        }
    });
}

/// Says that no credential of the file has the id of the caller.
fn unknown_caller(config: &Config, id: &str) -> Option<String> {
    let known = || config.auth.named().chain([&config.auth.stdio]).map(|known| known.id.as_str());
    if is_reserved(id) || known().any(|known| known == id) {
        return None;
    }
    let token = if config.auth.jwt.is_some() { ", only tokens can" } else { "" };
    let near = suggestion(id, known());
    Some(printable(&format!("\n  No credential in the file has this id{token}{near}")))
}

/// Adds the state of the prompt as the lock file has it.
fn explain_approval(config: &Config, prompt: &ExplainedPrompt, out: &mut String) {
    if prompt.state != ApprovalState::Unchecked {
        let lock = config.approvals.store.path().display();
        let state = match prompt.state {
            ApprovalState::Pending => "Pending: not",
            ApprovalState::Rejected => "Rejected",
            _ => "Approved",
        };
        let upstream = &prompt.upstream;
        let _ =
            write!(out, "\n  {state} in {lock}. Not checked: the text that {upstream} sends now.");
        let approvals = config.approvals.lock.of_upstream(prompt.kind, &prompt.upstream);
        let approved = approvals.and_then(|approvals| approvals.get(&prompt.decided_name));
        if let Some(approved) = approved.and_then(|approval| approval.approved.as_ref()) {
            let class = approved.version.class();
            let _ = write!(out, "\n  {}: {}", class.as_str(), class.compared());
        }
    }
}

/// Adds the decision on each method, then each policy that has decided.
fn explain_access(
    query: &Explain,
    config: &Config,
    access: &Access,
    caller: &Caller,
    prompt: PromptRef<'_>,
    out: &mut String,
) {
    let decisions = Decisions::new(&access.rules);
    let mut decisive: Vec<String> = Vec::new();
    for method in Method::OF_PROMPTS {
        let AccessVerdict { is_allowed, reasons } = decisions.decide(caller, method, prompt);
        let verdict = if is_allowed { "allowed" } else { "denied" };
        let by = if reasons.is_empty() {
            "no rule allows it".to_owned()
        } else {
            format!("by {}", reasons.join(", "))
        };
        let _ = write!(out, "\n  {:8} {verdict}: {by}", action(method));
        decisive.extend(reasons);
    }
    let mut seen = HashSet::new();
    for rule in decisive.iter().filter(|rule| seen.insert(*rule)) {
        if let Some(policy) = access.rules.policy_text(rule) {
            let place = place(query, config, access, rule);
            let _ = write!(
                out,
                "\n  {}\n           {}",
                printable(&format!("{rule} ({place}):")),
                printable(&policy)
            );
        }
    }
}

/// Returns the file of a rule or policy; of a rule with its line.
fn place(query: &Explain, config: &Config, access: &Access, rule: &str) -> String {
    let settings = config.settings.iter();
    let Some(number) = access.rules.number(rule) else {
        let file = settings.clone().find(|setting| setting.key == "access.cedar");
        return file.map(|file| file.value.clone()).unwrap_or_default();
    };
    let key = format!("access.rules.{number}.");
    let keys = settings.filter(|setting| setting.key.starts_with(&key));
    match keys.filter_map(|setting| setting.origin.as_ref()).min() {
        Some(Origin::Line(line)) => format!("{}:{line}", query.file.config.display()),
        _ => key,
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

/// A prompt or skill at its upstream.
struct ExplainedPrompt {
    kind: ApprovalKind,
    upstream: String,
    /// The path of the skill, for a skill and for the prompt that stands for it.
    raw_name: String,
    /// The name in the lock file: of a prompt with versions, the name of the offered version.
    decided_name: String,
    /// The state in the lock file.
    state: ApprovalState,
    /// The files of a library that can be read.
    files: Option<PromptList>,
}

impl ExplainedPrompt {
    fn as_ref(&self) -> PromptRef<'_> {
        PromptRef { upstream: &self.upstream, raw_name: &self.raw_name, state: self.state }
    }

    /// Whether a file of the library has the prompt.
    fn is_listed(&self) -> bool {
        self.files.as_ref().is_some_and(|files| match self.kind {
            ApprovalKind::Prompt => files.prompts.iter().any(|one| one.name == self.raw_name),
            ApprovalKind::Skill => files.skills.iter().any(|one| *one.path == *self.raw_name),
        })
    }
}

/// Splits a public name or the URI of a skill, and undoes what overlays rename. A name without a
/// known prefix belongs to the upstream with an empty prefix, if there is exactly one.
fn target(config: &Config, name: &str) -> Result<ExplainedPrompt, Failure> {
    let (kind, claimed, name) = match name.strip_prefix(skill::SCHEME) {
        Some(path) => {
            let path = skill_path(path)?;
            (ApprovalKind::Skill, path.split_once('/'), path)
        }
        None => (ApprovalKind::Prompt, config.naming.claimed(name), name),
    };
    let upstreams = config.upstreams.iter();
    if let Some((prefix, listed_name)) = claimed
        && let Some(upstream) = upstreams.clone().find(|u| u.prefix.as_str() == prefix)
    {
        return Ok(at(config, kind, upstream, listed_name));
    }
    let bare: Vec<_> = upstreams.filter(|upstream| upstream.prefix.is_bare()).collect();
    match bare.as_slice() {
        [upstream] => Ok(at(config, kind, upstream, name)),
        _ => Err(Failure::usage(format!(
            "The prefix of {} belongs to no upstream of the configuration. Give the public name, as \
             `promptgate list` shows it.",
            printable(name)
        ))),
    }
}

/// The path of a skill in the URI of its `SKILL.md`, of which the scheme was removed.
fn skill_path(path: &str) -> Result<&str, Failure> {
    let path = path.strip_suffix(skill::SKILL_FILE).and_then(|path| path.strip_suffix('/'));
    path.ok_or_else(|| {
        let message = "Give the URI of the SKILL.md of a skill, as `promptgate list --skills` \
                       shows it: all files of a skill have its rights.";
        Failure::usage(message)
    })
}

fn at(
    config: &Config,
    kind: ApprovalKind,
    upstream: &UpstreamSettings,
    listed_name: &str,
) -> ExplainedPrompt {
    let explained = |kind, raw_name: String, files: Option<PromptList>| {
        let version = files.as_ref().and_then(|files| version_name(files, &raw_name));
        let decided_name = version.unwrap_or_else(|| raw_name.clone());
        let state = config.approvals.known_state(kind, &upstream.id, &decided_name);
        let upstream = upstream.id.to_string();
        ExplainedPrompt { kind, upstream, raw_name, decided_name, state, files }
    };
    let files = library_files(upstream);
    let skills = files.iter().filter(|_| upstream.skills_as_prompts).flat_map(|all| &all.skills);
    let stands_for = skills.into_iter().find(|skill| skill.name() == listed_name);
    let stands_for = stands_for.map(|skill| skill.path.to_string());
    let raw_name = overlay::raw_name(&config.overlays, &upstream.id, listed_name);
    let named = explained(kind, raw_name, files);
    match stands_for {
        // The prompt that stands for a skill has the rights and the approval of the skill.
        Some(path) if !named.is_listed() => explained(ApprovalKind::Skill, path, named.files),
        _ => named,
    }
}

/// Returns the name of the version that a prompt with versions offers, or a label of it.
fn version_name(files: &PromptList, raw_name: &str) -> Option<String> {
    let prompt = files.prompts.iter().find(|prompt| prompt.name == raw_name)?;
    let version = prompt.version.as_ref()?.content_name();
    files.prompts.iter().any(|prompt| prompt.name == version).then_some(version)
}

/// Reads the files of a library; `None` for other upstreams.
fn library_files(upstream: &UpstreamSettings) -> Option<PromptList> {
    let Transport::Library(library) = &upstream.transport else { return None };
    let labels = LibraryLabels::new(&library.label);
    let (id, settings) = (upstream.id.as_str(), &upstream.settings);
    let snapshot = LibrarySnapshot::load(&library.folder, id, settings, &labels);
    snapshot.ok().map(|snapshot| snapshot.listed)
}
