//! `[approvals]`: approvals. Which versions of prompts were approved stands in the lock file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::lock::{Lock, LockFile, arguments_text};
use super::reader::{MILLISECOND, Section, secs, table};
use super::telemetry::TelemetrySettings;
use super::upstream::UpstreamSettings;
use super::upstream::settings::MODES;
use super::upstream::webhook::{self, Webhook};
use domain::approval::{ApprovalKind, ApprovalState, Mode};
use domain::name::UpstreamId;

table! {
    /// Approvals of all upstreams.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct ApprovalRules(
        section,
        key,
        modes: BTreeMap<UpstreamId, Mode>,
        telemetry: &TelemetrySettings,
    ) {
        /// The lock file, which holds the approvals. The approved versions are in the directory of
        /// the same name with `.d`. While all modes are `off` it is not read; one that does not
        /// exist approves nothing.
        let lock: LockFile = store(section);
        field pub store: LockFile = lock;
        /// The lock file as it was read with the configuration; [`Lock::none`] while approvals are
        /// off.
        field pub lock: Arc<Lock> = Arc::new(Lock::none());
        /// Mode of all upstreams without one of their own. `off`: nothing is compared. `warn`:
        /// everything is served, and changes without approval are reported. `enforce`: only
        /// approved versions are served.
        pub mode: Mode = section.choice(key, Mode::Off, &MODES);
        /// Upstreams with their own mode.
        field pub modes: BTreeMap<UpstreamId, Mode> = modes;
        /// `true`, with `enforce`: serves snapshots. See docs/approvals.md#snapshots.
        pub snapshot: bool = section.flag(key, false);
        /// `true`: each decision needs a reason.
        let require_reason: bool = section.flag(key, false);
        /// Whether each decision needs a reason.
        field pub requires_reason: bool = require_reason;
        /// `2`: two different people must approve a version. The first approval is kept in the lock
        /// file until the second one, and is void if the upstream offers another version by then.
        let approvers: usize = section.count(key, 1, 1..=2);
        /// Whether two different people must approve.
        field pub needs_two: bool = approvers == 2;
        /// Prompts whose texts are not known, of which only the definition is compared. `ask`: they
        /// are approved where a person says so (`--unseen`). `refuse`: never.
        let unseen: bool = section.choice(key, true, &[("ask", true), ("refuse", false)]);
        /// Whether prompts whose texts are not known may be approved.
        field pub allows_unseen: bool = unseen;
        /// Time between two probes of a text that has not changed. See docs/approvals.md#probes.
        pub probe_every: Duration = section.duration(key, secs(3600), MILLISECOND);
        /// A webhook that says which prompts wait. See docs/approvals.md#notifications.
        pub notify: Option<Webhook> = webhook::read(section, telemetry);
        /// More texts that an approval covers. Prompts that require no argument need no entry.
        pub probes: Vec<Probe> = section.tables(key).into_iter().filter_map(probe).collect();
        /// Whether texts are probed in the background.
        field pub is_probing: bool = true;
        /// The keys that stand in the file, of `mode` and of those that say who may decide on what.
        field pub(crate) given: Vec<&'static str> = {
            let keys = ["mode", "require_reason", "approvers", "unseen"];
            keys.into_iter().filter(|key| section.was_read(key)).collect()
        };
    }
}

/// Arguments of a text that is requested for approval.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Probe {
    /// Public name.
    pub prompt: String,
    /// In canonical form (RFC 8785).
    pub arguments: Arc<str>,
}

impl ApprovalRules {
    /// Returns the mode of an upstream.
    pub fn mode_of(&self, upstream: &UpstreamId) -> Mode {
        self.modes.get(upstream).copied().unwrap_or(self.mode)
    }

    /// Returns the state of a prompt or skill in the lock file, whatever its upstream offers.
    pub fn known_state(
        &self,
        kind: ApprovalKind,
        upstream: &UpstreamId,
        raw_name: &str,
    ) -> ApprovalState {
        let approvals = self.lock.of_upstream(kind, upstream.as_str());
        match (self.mode_of(upstream), approvals.and_then(|approvals| approvals.get(raw_name))) {
            (Mode::Off, _) => ApprovalState::Unchecked,
            (_, Some(approval)) if approval.approved.is_some() => ApprovalState::Approved,
            (_, Some(_)) => ApprovalState::Rejected,
            (_, None) => ApprovalState::Pending,
        }
    }

    /// Whether the file says which mode an upstream has.
    pub(crate) fn is_mode_given(&self, upstream: &UpstreamId) -> bool {
        self.is_given("mode") || self.modes.contains_key(upstream)
    }

    /// Whether one of [`ApprovalRules::given`] stands in the file.
    pub(crate) fn is_given(&self, key: &str) -> bool {
        self.given.contains(&key)
    }
}

pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &[UpstreamSettings],
    modes: BTreeMap<UpstreamId, Mode>,
    telemetry: &TelemetrySettings,
) -> ApprovalRules {
    let mut approvals = ApprovalRules::read_keys(&mut section, modes, telemetry);
    let is_compared = |upstream: &&UpstreamSettings| approvals.mode_of(&upstream.id) != Mode::Off;
    for UpstreamSettings { id, .. } in
        upstreams.iter().filter(is_compared).filter(|u| u.lists_per_caller())
    {
        section.mistake(
            "mode",
            format!(
                "cannot approve what upstream {id} lists for each caller (list_as = \"caller\"): set its approval = \"off\""
            ),
        );
    }
    if upstreams.iter().any(|upstream| is_compared(&upstream)) {
        approvals.lock = Arc::new(read_lock(&section, &approvals.store));
    }
    section.finish();
    approvals
}

/// The place of the lock file.
pub(super) fn store(section: &mut Section<'_>) -> LockFile {
    let lock = section.text("lock", "promptgate.lock");
    if lock.is_empty() {
        section.mistake("lock", "must be the path of a file");
    }
    LockFile::at(section.beside(&lock))
}

/// Reads the lock file as part of the configuration, so that a changed lock file causes a reload.
fn read_lock(section: &Section<'_>, store: &LockFile) -> Lock {
    let read = section.read_file(store.path().to_owned());
    store.parse(read).unwrap_or_else(|error| {
        section.mistake("lock", error.to_string());
        Lock::none()
    })
}

/// The keys of `[[releases.probes]]`.
const PROBE_KEYS: &str = r#"
prompt, such as "remote__summary": Public name of a prompt. An entry for one that does not exist has
    no effect.
arguments, such as { text = "Hello." }: Its arguments, texts by their names.
"#;

fn probe(mut section: Section<'_>) -> Option<Probe> {
    section.explain(PROBE_KEYS);
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let prompt = section.required("prompt", "the public name of a prompt", some);
    let arguments = section.section("arguments").strings();
    section.finish();
    Some(Probe { prompt: prompt?, arguments: arguments_text(&arguments) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::Config;
    use super::*;
    use crate::schema_check;

    const UPSTREAMS: &str = "[upstreams.a]\ntransport = \"library\"\npath = \".\"\n\
         [upstreams.b]\ntransport = \"library\"\npath = \".\"\napproval = \"off\"\n";

    #[test]
    fn the_mode_is_that_of_the_upstream_or_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let parse = |text: &str| {
            let text = format!("{text}{UPSTREAMS}");
            schema_check::parse("g", &text, folder.path(), &[]).map_err(|error| error.to_string())
        };
        let modes = |config: &Config| {
            let of = |upstream: &UpstreamSettings| config.approvals.mode_of(&upstream.id);
            config.upstreams.iter().map(of).collect::<Vec<_>>()
        };
        let lock = folder.path().join("promptgate.lock");
        fs::write(&lock, "broken").unwrap();
        let off = parse("").unwrap();
        assert_eq!(modes(&off), [Mode::Off, Mode::Off]);
        assert_eq!(
            (off.approvals.probe_every, off.approvals.snapshot),
            (Duration::from_secs(3600), false)
        );
        let enforced = "[approvals]\nmode = \"enforce\"\n\
            [[approvals.probes]]\nprompt = \"a__p\"\narguments = { b = \"2\", a = \"1\" }\n";
        let error = parse(enforced).unwrap_err();
        assert!(error.contains("approvals.lock: ") && error.contains("line 1: "), "{error}");
        fs::write(&lock, Lock::none().to_text()).unwrap();
        let config = parse(enforced).unwrap();
        assert_eq!(modes(&config), [Mode::Enforce, Mode::Off]);
        assert_eq!(&*config.approvals.probes[0].arguments, r#"{"a":"1","b":"2"}"#);
        assert_eq!(config.files.last().unwrap().path, lock);
        fs::remove_file(&lock).unwrap();
        assert_eq!(*parse(enforced).unwrap().approvals.lock, Lock::none());
        for (text, expected) in [
            ("[approvals]\nmode = \"strict\"\n", "approvals.mode: must be one of"),
            (
                "[[approvals.probes]]\nprompt = \"\"\n",
                "approvals.probes.1.prompt: must be the public name",
            ),
            (
                "[[approvals.probes]]\nprompt = \"p\"\narguments = { a = 1 }\n",
                "approvals.probes.1.arguments.a: must be a string",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
