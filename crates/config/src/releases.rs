//! `[releases]`: pins. Which versions of prompts were approved stands in the lock file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Config;
use super::lock::{Lock, LockStore, StoreError, arguments_text};
use super::reader::{MILLISECOND, Section};
use super::settings::{BOTH_PINS, MODES, OnChangedDefinition};
use super::upstream::Upstream;
use domain::name::UpstreamId;
use domain::pin::{Mode, State};

/// Pins of all upstreams.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Releases {
    pub store: LockStore,
    /// The lock file as it was read with the configuration; [`Lock::none`] while pins are off.
    pub lock: Arc<Lock>,
    /// The mode of upstreams without their own.
    pub mode: Mode,
    /// Upstreams with their own mode.
    pub modes: BTreeMap<UpstreamId, Mode>,
    /// Whether `mode` stands in the file.
    pub has_mode: bool,
    /// Whether approved texts are served in the place of an upstream that is gone or offers others.
    pub snapshot: bool,
    /// Time between two probes of a text.
    pub probe_every: Duration,
    pub probes: Vec<Probe>,
    /// Whether texts are probed in the background.
    pub is_probing: bool,
}

/// A get that fetches a text to compare, with its arguments.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Probe {
    /// Public name.
    pub prompt: String,
    /// In canonical form (RFC 8785).
    pub arguments: Arc<str>,
}

impl Releases {
    /// Returns the mode of an upstream.
    pub fn mode_of(&self, upstream: &UpstreamId) -> Mode {
        self.modes.get(upstream).copied().unwrap_or(self.mode)
    }

    /// Returns the state of a prompt as the lock file has it, whatever its upstream offers.
    pub fn known_state(&self, upstream: &UpstreamId, raw_name: &str) -> State {
        let pins = self.lock.of_upstream(upstream.as_str());
        match (self.mode_of(upstream), pins.and_then(|pins| pins.get(raw_name))) {
            (Mode::Off, _) => State::Unpinned,
            (_, Some(pin)) if pin.approved.is_some() => State::Approved,
            (_, Some(_)) => State::Rejected,
            (_, None) => State::Pending,
        }
    }

    /// Whether the file says which mode an upstream has.
    pub(crate) fn is_mode_given(&self, upstream: &UpstreamId) -> bool {
        self.has_mode || self.modes.contains_key(upstream)
    }
}

impl Config {
    /// Prepares a configuration for commands that show or change the lock file: pins enforce
    /// nothing more than they do, and are compared for all upstreams where they are off for all.
    /// Probes are left to the command. The wait for a list is long enough for the timeouts of all
    /// upstreams. Reads the file. Returns whether pins are off for all upstreams.
    ///
    /// # Errors
    /// The lock file cannot be read.
    pub fn observe_pins(&mut self) -> Result<bool, StoreError> {
        let releases = &mut self.releases;
        releases.lock = Arc::new(releases.store.read()?);
        releases.is_probing = false;
        let are_off =
            self.upstreams.iter().all(|upstream| releases.mode_of(&upstream.id) == Mode::Off);
        if are_off {
            releases.mode = Mode::Warn;
            releases.modes.clear();
        }
        let patience = self.upstreams.iter().map(|upstream| {
            let settings = &upstream.settings;
            settings.startup.max(settings.connect + settings.probe) + settings.walk_timeout
        });
        self.listing.deadline = patience.max().unwrap_or_default().max(self.listing.deadline);
        Ok(are_off)
    }
}

pub(super) fn read(
    mut section: Section<'_>,
    upstreams: &[Upstream],
    modes: BTreeMap<UpstreamId, Mode>,
) -> Releases {
    let lock = section.text("lock", "promptgate.lock");
    let store = LockStore::at(section.beside(&lock));
    if lock.is_empty() {
        section.mistake("lock", "must be the path of a file");
    }
    let mode = section.choice("mode", Mode::Off, &MODES);
    let mut releases = Releases {
        lock: Arc::new(Lock::none()),
        mode,
        has_mode: section.was_read("mode"),
        snapshot: section.flag("snapshot", false),
        probe_every: section.duration("probe_every", Duration::from_secs(3600), MILLISECOND),
        probes: section.tables("probes").into_iter().filter_map(probe).collect(),
        is_probing: true,
        store,
        modes,
    };
    let is_pinned = |upstream: &&Upstream| releases.mode_of(&upstream.id) != Mode::Off;
    for upstream in upstreams.iter().filter(is_pinned) {
        let is_held = upstream.settings.on_changed_definition != OnChangedDefinition::Allow;
        if is_held && !releases.modes.contains_key(&upstream.id) {
            let id = &upstream.id;
            section.mistake(
                "mode",
                format!("{BOTH_PINS} (upstream {id}), or set its release = \"off\""),
            );
        }
    }
    for Upstream { id, .. } in upstreams.iter().filter(is_pinned).filter(|u| u.lists_per_caller()) {
        section.mistake(
            "mode",
            format!(
                "cannot approve what upstream {id} lists for each caller (list_as = \"caller\"): set its release = \"off\""
            ),
        );
    }
    if upstreams.iter().any(|upstream| is_pinned(&upstream)) {
        releases.lock = Arc::new(read_lock(&section, &releases.store));
    }
    section.finish();
    releases
}

/// Reads the lock file, so that a change of it is a change of the configuration.
fn read_lock(section: &Section<'_>, store: &LockStore) -> Lock {
    let read = section.read_file(store.path().to_owned());
    store.parse(read).unwrap_or_else(|error| {
        section.mistake("lock", error.to_string());
        Lock::none()
    })
}

fn probe(mut section: Section<'_>) -> Option<Probe> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let prompt = section.required("prompt", "the public name of a prompt", some);
    let arguments = section.section("arguments").strings();
    section.finish();
    Some(Probe { prompt: prompt?, arguments: arguments_text(&arguments) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::schema_check;

    const UPSTREAMS: &str = "[upstreams.a]\ntransport = \"library\"\npath = \".\"\n\
         [upstreams.b]\ntransport = \"library\"\npath = \".\"\nrelease = \"off\"\n";

    #[test]
    fn the_mode_is_that_of_the_upstream_or_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let parse = |text: &str| {
            let text = format!("{text}{UPSTREAMS}");
            schema_check::parse("g", &text, folder.path(), &[]).map_err(|error| error.to_string())
        };
        let modes = |config: &Config| {
            let of = |upstream: &Upstream| config.releases.mode_of(&upstream.id);
            config.upstreams.iter().map(of).collect::<Vec<_>>()
        };
        let lock = folder.path().join("promptgate.lock");
        fs::write(&lock, "broken").unwrap();
        let off = parse("").unwrap();
        assert_eq!(modes(&off), [Mode::Off, Mode::Off]);
        assert_eq!(
            (off.releases.probe_every, off.releases.snapshot),
            (Duration::from_secs(3600), false)
        );
        let enforced = "[releases]\nmode = \"enforce\"\n\
            [[releases.probes]]\nprompt = \"a__p\"\narguments = { b = \"2\", a = \"1\" }\n";
        let error = parse(enforced).unwrap_err();
        assert!(error.contains("releases.lock: ") && error.contains("line 1: "), "{error}");
        fs::write(&lock, "version = 1\n").unwrap();
        let config = parse(enforced).unwrap();
        assert_eq!(modes(&config), [Mode::Enforce, Mode::Off]);
        assert_eq!(&*config.releases.probes[0].arguments, r#"{"a":"1","b":"2"}"#);
        assert_eq!(config.files.last().unwrap().path, lock);
        fs::remove_file(&lock).unwrap();
        assert_eq!(*parse(enforced).unwrap().releases.lock, Lock::none());
        for (text, expected) in [
            ("[releases]\nmode = \"strict\"\n", "releases.mode: must be one of"),
            (
                "[releases]\nmode = \"warn\"\n[defaults]\non_changed_definition = \"hold\"\n",
                "releases.mode: pins definitions in a lock file",
            ),
            (
                "[[releases.probes]]\nprompt = \"\"\n",
                "releases.probes.1.prompt: must be the public name",
            ),
            (
                "[[releases.probes]]\nprompt = \"p\"\narguments = { a = 1 }\n",
                "releases.probes.1.arguments.a: must be a string",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
