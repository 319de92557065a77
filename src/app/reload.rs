//! Another configuration takes over from the one that is used: on a signal, and when its file has
//! changed. What is wrong with it changes nothing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use super::edition::Edition;
use super::{App, loaded, warn_of_config};
use crate::admin::Admin;
use crate::audit::Next;
use crate::audit::record::Event;
use crate::config::{Config, ConfigError, SourceFile};
use crate::downstream::{Serve, TlsServer};
use crate::telemetry::{self, log::Control};

/// Where the configuration comes from.
#[derive(Clone)]
pub struct Source {
    pub path: PathBuf,
    /// How logs are written.
    pub logs: Control,
    /// Reads it; may block.
    pub load: fn(&std::path::Path) -> Result<Config, ConfigError>,
}

/// How often the files are looked at: they are small, and links to them are swapped in ways that no
/// watch of a folder sees on every file system. What has changed is read once it has stayed the
/// same from one look to the next, so that no half of a file is taken for a whole one.
const LOOK: Duration = Duration::from_millis(500);

/// What cannot be used is tried again after this long: what is wrong may lie in a file that it alone names.
const RETRY: Duration = Duration::from_secs(5);

/// How long another audit log may take to be opened.
const PREPARE: Duration = Duration::from_secs(10);

/// A configuration that could not be used.
struct Rejected {
    /// What was in the files.
    files: Vec<String>,
    at: Instant,
    why: String,
}

impl App {
    /// Reads the configuration again whenever `hang_up` is notified, which also starts another
    /// segment of the audit log, or its files have changed; never ends.
    pub async fn follow(&self, source: &Source, hang_up: &Notify) {
        let (mut seen, mut rejected) = (Vec::new(), None::<Rejected>);
        loop {
            let is_expected = tokio::select! {
                () = hang_up.notified() => true,
                () = sleep(LOOK) => false,
            };
            let (used, now) = self.look_at(source).await;
            if is_expected {
                self.audit.rotate();
            } else {
                let is_settled = std::mem::replace(&mut seen, now.clone()) == now;
                let is_known = rejected
                    .as_ref()
                    .is_some_and(|rejected| rejected.files == now && rejected.at.elapsed() < RETRY);
                if now == used || !is_settled || is_known {
                    continue;
                }
            }
            let why = self.read_again(source).await.err();
            rejected = why.map(|why| {
                let is_told = rejected
                    .as_ref()
                    .is_some_and(|before| before.files == now && before.why == why && !is_expected);
                if !is_told {
                    self.reject(why.clone());
                }
                Rejected { files: now, at: Instant::now(), why }
            });
        }
    }

    /// Reads the file and takes it over, or says why not.
    async fn read_again(&self, source: &Source) -> Result<(), String> {
        let Source { path, load, logs } = source.clone();
        let (before, control) = (self.edition.load_full(), logs.clone());
        let loading = spawn_blocking(move || {
            let config = load(&path).map_err(|error| error.to_string())?;
            let written = control.prepare(&config.telemetry, &before.config.telemetry)?;
            Ok::<_, String>((config, written))
        });
        let loaded = loading.await.map_err(|error| format!("it cannot be read: {error}"))?;
        let (config, written) = loaded?;
        match self.reload(config).await {
            Ok(_) => logs.go_on(written).await,
            Err(why) => {
                // What was made for nothing takes a moment to end.
                let _ = spawn_blocking(move || drop(written)).await;
                return Err(why);
            }
        }
        Ok(())
    }

    /// Takes over a configuration; returns what of it counts only after a restart.
    ///
    /// # Errors
    /// Why it cannot be used; then nothing has changed.
    pub async fn reload(&self, mut config: Config) -> Result<Vec<&'static str>, String> {
        let _one = self.reloading.lock().await;
        let before = self.edition.load_full();
        let kept = keep_fixed(&mut config, &before.config);
        // Where it still listens, what was safe elsewhere may not be.
        let admin = config.admin.as_ref().and_then(|admin| admin.exposure());
        let exposed = config.server.exposure(&config.auth).map(|why| ("server.listen", why));
        if let Some((key, why)) = exposed.chain(admin.map(|why| ("admin.token", why))).next() {
            return Err(format!("{key}, which stays as it is until a restart: {why}"));
        }
        if let Some(served) = &self.served {
            config.server.name_resource(served.addr);
        }
        let secure = match &self.served {
            Some(served) => self.secure(&config, served.endpoint.load().secure()),
            None => Ok(None),
        };
        let secure = secure.map_err(|error| format!("server.tls: {error}"))?;
        let (measured, recorded) = self.prepare(&config, before.clone()).await?;
        warn_of_config(&config);
        let (stop, tasks) = (self.shutdown.stop.clone(), &self.shutdown.background);
        tasks.spawn(self.telemetry.go_on(measured, stop));
        let event = loaded(&config, "config_reloaded").text("before", &before.config.digest);
        let mut change = Vec::new();
        if matches!(recorded, Next::Other(_)) {
            // What was counted belongs where it happened.
            change = before.gate.refusals().rest();
            change.push(event.clone());
        }
        self.audit.go_on(recorded, config.audit.as_ref(), &change);
        let (edition, serves) = before.renew(config, &self.shutdown).await;
        let edition = Arc::new(edition);
        let config = &edition.config;
        self.audit.note(event);
        self.serve_by(&edition, secure);
        info!(
            digest = config.digest,
            before = before.config.digest,
            "the configuration was read again"
        );
        for key in &kept {
            warn!(key, "has changed in the file, and counts only after a restart");
        }
        self.reloads.took(&kept);
        self.telemetry.metrics().reloaded(true);
        self.edition.store(edition);
        // Nobody waits for it when the gateway ends.
        let _ = serves.send(());
        Ok(kept)
    }

    /// Lets an edition answer from now on.
    fn serve_by(&self, edition: &Edition, secure: Option<Arc<TlsServer>>) {
        let config = &edition.config;
        self.sessions.store(edition.sessions.clone());
        if let Some(served) = &self.served {
            let endpoint = &served.endpoint;
            let renewed = endpoint.load().renew(config, edition.sessions.clone(), secure);
            endpoint.store(Arc::new(renewed));
        }
        if let (Some(shown), Some(admin)) = (&self.shown, &config.admin) {
            shown.endpoint.store(Arc::new(Admin::new(admin, config, self.state(edition))));
        }
        edition.gate.take_over();
    }

    /// Makes what is fallible and slow, and what is another one than before; may be refused at any step.
    async fn prepare(
        &self,
        config: &Config,
        before: Arc<Edition>,
    ) -> Result<(telemetry::Renewed, Next), String> {
        let unanswered = "audit.path: its file system does not answer";
        // One that hangs must not take one thread more with each try.
        let only = self.preparing.clone().try_lock_owned().map_err(|_| unanswered)?;
        let (measures, audit) = (self.telemetry.clone(), self.audit.clone());
        let (telemetry, recorded) = (config.telemetry.clone(), config.audit.clone());
        let preparing = spawn_blocking(move || {
            let _only = only;
            let measured = measures.prepare(&telemetry, &before.config.telemetry)?;
            let recorded = audit.prepare(recorded.as_ref(), before.config.audit.as_ref());
            Ok((measured, recorded.map_err(|error| error.to_string())?))
        });
        match timeout(PREPARE, preparing).await {
            Ok(prepared) => prepared.map_err(|error| error.to_string())?,
            Err(_) => Err(unanswered.to_owned()),
        }
    }

    /// Takes note of a configuration that cannot be used.
    fn reject(&self, why: String) {
        error!(%why, "the configuration cannot be used; the one before stays");
        let mistakes = why.lines().count() as u64;
        self.audit.note(Event::new("config_rejected").number("mistakes", mistakes));
        self.reloads.rejected(why);
        self.telemetry.metrics().reloaded(false);
    }

    /// What was in the files when they were read, and what is in them now.
    async fn look_at(&self, source: &Source) -> (Vec<String>, Vec<String>) {
        let edition = self.edition.load_full();
        let mut used = vec![edition.config.digest.clone()];
        let mut paths = vec![source.path.clone()];
        for SourceFile { path, digest } in &edition.config.files {
            used.push(digest.clone());
            paths.push(path.clone());
        }
        let look = move |path: &PathBuf| SourceFile::digest(fs::read(path).as_deref());
        let now = spawn_blocking(move || paths.iter().map(look).collect()).await;
        // Nothing can be told of what could not be looked at.
        (used.clone(), now.unwrap_or(used))
    }
}

/// Leaves as it was what cannot change while the gateway runs; returns what would have.
fn keep_fixed(config: &mut Config, before: &Config) -> Vec<&'static str> {
    let mut kept = Vec::new();
    if config.server.listen != before.server.listen {
        config.server.listen = before.server.listen;
        kept.push("server.listen");
    }
    match (&mut config.admin, &before.admin) {
        (Some(admin), Some(before)) if admin.listen == before.listen => {}
        (None, None) => {}
        (Some(admin), Some(before)) => {
            admin.listen = before.listen;
            kept.push("admin.listen");
        }
        (admin, before) => {
            admin.clone_from(before);
            kept.push("admin.listen");
        }
    }
    kept
}
