//! Reload of the configuration: at SIGHUP, and when its files have changed. An invalid
//! configuration is rejected as a whole, and changes nothing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use super::config_watcher::{ConfigWatcher, Polled, RejectionReason, Step, Wake};
use super::edition::Edition;
use super::{App, Listening, config_event, disable_sharing, export_destination, warn_about_config};
use audit::LogChange;
use audit::record::AuditEvent;
use base::platform::disk::{self, Metadata};
use base::platform::heap::boxed;
use base::platform::service_manager::{self, ServiceState};
use base::platform::{blocking, wall_clock};
use config::{Config, ConfigError, SourceFile};
use front::downstream::{Serve, TlsServer};
use telemetry::{self, log::Control};

/// The source of the configuration.
#[derive(Clone)]
pub struct ConfigSource {
    pub path: PathBuf,
    /// The control of the process's log, which a reload reconfigures.
    pub logs: Control,
    /// Reads the configuration; may block.
    pub load: fn(&std::path::Path) -> Result<Config, ConfigError>,
    /// Called with each configuration that has come into use by a reload.
    pub in_use: Arc<dyn Fn(&Config) + Send + Sync>,
}

/// The poll interval of the configuration's files. They are small, and a directory watch does not
/// report swapped symbolic links on every file system.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The time for opening another audit log; a network file system may not respond.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);

/// Tells the service manager that the reload which it has asked for is over.
fn tell_outcome(rejection: Option<&RejectionReason>) {
    let status = match rejection.and_then(|rejection| rejection.why.lines().next()) {
        None => "serving".to_owned(),
        Some(why) => format!("configuration rejected, the previous one stays in use: {why}"),
    };
    service_manager::notify(ServiceState::Ready(&status));
}

impl App {
    /// Reloads the configuration when `reload` is notified or the files have changed; never
    /// returns.
    ///
    /// # Cancel safety
    /// Not cancel safe: a reload may be half applied. Drop the future only when the gateway ends.
    pub async fn watch_config(&self, source: &ConfigSource, reload: &Notify) {
        super::observe::log(&self.telemetry, source.logs.clone());
        let watching = self.follow_files(source, reload);
        Box::pin(self.shutdown.supervisor.watch("reload", watching)).await;
        // Reached only after the watch has failed.
        std::future::pending().await
    }

    async fn follow_files(&self, source: &ConfigSource, reload: &Notify) {
        let mut watcher = ConfigWatcher::default();
        let mut digests = FileDigests::default();
        loop {
            let (wake, is_signalled) = tokio::select! {
                () = reload.notified() => (Wake::Requested, true),
                () = self.reloads.requested() => (Wake::Requested, false),
                () = sleep(POLL_INTERVAL) => (Wake::Interval, false),
            };
            let requested = self.reloads.take_requested();
            let polled = self.poll(source, watcher.more_files(), &mut digests).await;
            if is_signalled {
                service_manager::notify(ServiceState::Reloading);
            }
            match watcher.observe(wake, &polled, Instant::now()) {
                Step::Wait => {}
                Step::Restored => {
                    info!("the configuration file is again the one in use");
                    self.reloads.restored();
                }
                Step::Load => {
                    let outcome = self.reload_from(source, requested.accepted.as_deref()).await;
                    if is_signalled {
                        tell_outcome(outcome.as_ref().err());
                    }
                    if let Some(reason) = watcher.loaded(outcome, wake, polled, Instant::now()) {
                        self.reject(reason);
                    }
                }
            }
        }
    }

    /// Reads the configuration and applies it. A file that looks as if it had lost its end is held
    /// back, unless it has the digest `accepted`.
    async fn reload_from(
        &self,
        source: &ConfigSource,
        accepted: Option<&str>,
    ) -> Result<(), RejectionReason> {
        let ConfigSource { path, load, logs, in_use } = source.clone();
        let before = self.edition.load_full();
        let control = logs.clone();
        let accepted = accepted.map(str::to_owned);
        let loading = blocking(move || {
            let config = load(&path)?;
            if accepted.as_ref() != Some(&config.digest)
                && let Some(why) = config.lost_end(&before.config)
            {
                let held = Some(config.digest);
                return Err(RejectionReason { why, held, files: config.files });
            }
            let written = control.prepare(&config.telemetry, &before.config.telemetry)?;
            Ok::<_, RejectionReason>((config, written))
        });
        let loaded =
            loading.await.map_err(|error| format!("the configuration cannot be read: {error}"))?;
        let (config, written) = loaded?;
        match self.apply(config).await {
            Ok(_) => {
                in_use(&self.edition.load().config);
                logs.apply(written).await;
            }
            Err(why) => {
                // Dropping the unused exporter blocks for a moment.
                let _ = blocking(move || drop(written)).await;
                return Err(why.into());
            }
        }
        Ok(())
    }

    /// Applies a configuration. Returns the keys that need a restart; their values stay as they
    /// were.
    ///
    /// # Errors
    /// Why the configuration is rejected, for example because it lacks the table `[end]` that the
    /// previous file has. Nothing has changed then, unless the refresh has ended meanwhile: then
    /// the audit log and telemetry are the new ones, and the process ends.
    pub async fn reload(&self, config: Config) -> Result<Vec<&'static str>, String> {
        let before = self.edition.load_full();
        match config.lost_end(&before.config).filter(|_| before.config.has_end) {
            Some(why) => Err(why),
            None => boxed(self.apply(config)).await,
        }
    }

    async fn apply(&self, mut config: Config) -> Result<Vec<&'static str>, String> {
        let _one = self.reloading.lock().await;
        let before = self.edition.load_full();
        let removals = config.unspoken_removals(&before.config.protections());
        if !removals.is_empty() {
            return Err(removals.join("\n"));
        }
        if self.endpoint.is_none() {
            disable_sharing(&mut config);
        }
        let needs_restart = keep_for_life(&mut config, &before.config);
        // The new access settings may not be safe at the old addresses.
        let admin = config.admin.as_ref().and_then(|admin| admin.exposure());
        let exposed = config.server.exposure(&config.auth).map(|why| ("server.listen", why));
        if let Some((key, why)) = exposed.chain(admin.map(|why| ("admin.token", why))).next() {
            return Err(format!("{key}: {why}; the address cannot change without a restart"));
        }
        if let Some(endpoint) = &self.endpoint {
            config.server.name_resource(endpoint.addr);
        }
        let tls = match &self.endpoint {
            Some(endpoint) => self.tls_server(&config, endpoint.service.load().tls()),
            None => Ok(None),
        };
        let tls = tls.map_err(|error| format!("server.tls: {error}"))?;
        let (telemetry, log) = self.prepare(&config, before.clone()).await?;
        let event = config_event(&config, "config_reloaded").text("before", &before.config.digest);
        // Nothing is applied before this, the last check that can fail.
        before.router.check_refresh().map_err(|error| error.to_string())?;
        warn_about_config(&config);
        let stop = self.shutdown.stop.clone();
        let supervisor = &self.shutdown.supervisor;
        supervisor.supervise_job("telemetry_renewal", self.telemetry.apply(telemetry, stop));
        let mut change = Vec::new();
        if matches!(log, LogChange::Replaced(_)) {
            // Counts are recorded in the log that was in use when the counted events happened.
            change = before.gate.tallies().rest();
            change.push(event.clone());
        }
        // The new edition records in the log that is current when it is built.
        self.audit.apply(log, config.audit.as_ref(), &change);
        self.audit.export().configure(export_destination(&config));
        let (edition, serves) = before.renew(config).await.map_err(|error| error.to_string())?;
        let edition = Arc::new(edition);
        let config = &edition.config;
        self.audit.note(event);
        if self.endpoint.is_some() {
            self.usage.configure(config.admin.as_ref().map(|admin| &admin.usage));
        }
        self.publish(&edition, tls);
        let removed = config.removals(&before.config.protections());
        log_reload(config, &before.config, &needs_restart, &removed);
        self.reloads.applied(&needs_restart, removed);
        self.telemetry.metrics().reload_applied();
        self.edition.store(edition);
        // At a shutdown the receiver may be gone.
        let _ = serves.send(());
        Ok(needs_restart)
    }

    /// Publishes an edition: new requests use it from now on.
    fn publish(&self, edition: &Edition, tls: Option<Arc<TlsServer>>) {
        let config = &edition.config;
        self.sessions.store(edition.sessions.clone());
        if let Some(Listening { service, .. }) = &self.endpoint {
            let sessions = edition.sessions.clone();
            let renewed = service.load().renew(config, sessions, tls, edition.people());
            service.store(Arc::new(renewed));
        }
        if let (Some(Listening { service, .. }), Some(admin)) = (&self.admin, &config.admin) {
            let state = self.admin_state(edition, admin);
            let sealer = edition.sealer.clone();
            let renewed = service.load().renew(admin, config, state, sealer);
            service.store(Arc::new(renewed));
        }
        edition.gate.publish();
        // A decision is answered only when its outcome is visible.
        edition.approvals.publish_lock();
    }

    /// Builds the fallible and slow parts, where the new configuration changes them: telemetry and
    /// the audit log.
    async fn prepare(
        &self,
        config: &Config,
        before: Arc<Edition>,
    ) -> Result<(telemetry::RenewedTelemetry, LogChange), String> {
        let unresponsive = "audit.path: the file system does not respond";
        // A file system that hangs must block one thread only, however often the reload is tried.
        let guard = self.preparing.clone().try_lock_owned().map_err(|_| unresponsive)?;
        let telemetry = self.telemetry.clone();
        let audit = self.audit.clone();
        let telemetry_config = config.telemetry.clone();
        let audit_config = config.audit.clone();
        let preparing = blocking(move || {
            let _guard = guard;
            let before = &before.config;
            let telemetry = telemetry.prepare(&telemetry_config, &before.telemetry)?;
            let log = audit.prepare(audit_config.as_ref(), before.audit.as_ref());
            Ok((telemetry, log.map_err(|error| error.to_string())?))
        });
        match timeout(PREPARE_TIMEOUT, preparing).await {
            Ok(prepared) => prepared.map_err(|error| error.to_string())?,
            Err(_) => Err(unresponsive.to_owned()),
        }
    }

    /// Logs, records and counts a rejected configuration.
    fn reject(&self, RejectionReason { why, held, .. }: &RejectionReason) {
        error!(%why, "configuration rejected; the previous one stays in use");
        let mistakes = why.lines().count() as u64;
        let event = AuditEvent::new("config_rejected").number("mistakes", mistakes);
        self.audit.note(event.optional_text("held", held.as_deref()));
        self.reloads.rejected(why.clone(), held.clone());
        self.telemetry.metrics().reload_rejected();
    }

    /// Reads the digests of the configuration's files, and of `more` files.
    async fn poll(
        &self,
        source: &ConfigSource,
        more: &[SourceFile],
        known: &mut FileDigests,
    ) -> Polled {
        let edition = self.edition.load_full();
        let mut used = vec![edition.config.digest.clone()];
        let mut paths = vec![source.path.clone()];
        for SourceFile { path, digest } in &edition.config.files {
            used.push(digest.clone());
            paths.push(path.clone());
        }
        paths.extend(more.iter().map(|file| file.path.clone()));
        let mut known_before = std::mem::take(known);
        let reading = blocking(move || {
            let digests: Vec<_> = paths.iter().map(|path| known_before.digest(path)).collect();
            known_before.forget_others(&paths);
            (digests, known_before)
        });
        // Files that could not be polled count as unchanged.
        let digests = match reading.await {
            Ok((digests, now_known)) => {
                *known = now_known;
                digests
            }
            Err(_) => used.clone(),
        };
        Polled { is_used: digests.starts_with(&used), digests }
    }
}

/// The digests of polled files, with their metadata: a file whose metadata is unchanged is not read
/// again. A lock file of ten thousand prompts is megabytes long.
#[derive(Default)]
struct FileDigests(HashMap<PathBuf, (FileStamp, String)>);

/// The metadata by which a change of a file is noticed. Symbolic links are followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct FileStamp {
    modified: SystemTime,
    length: u64,
    /// The device and the number of the file, which change when the file is replaced.
    inode: Option<(u64, u64)>,
}

/// A file with such a recent modification time may change again without a new time: file systems
/// have times as coarse as two seconds.
const RECENTLY: Duration = Duration::from_secs(3);

impl FileDigests {
    /// Returns the digest of a file, as [`SourceFile::digest`] does. Blocks.
    fn digest(&mut self, path: &Path) -> String {
        let stamp = FileStamp::of(path);
        if let Some(stamp) = stamp
            && let Some((known, digest)) = self.0.get(path)
            && *known == stamp
        {
            return digest.clone();
        }
        let digest = SourceFile::digest(disk::read(path).as_deref());
        match stamp.filter(|stamp| stamp.is_settled()) {
            Some(stamp) => {
                self.0.insert(path.to_owned(), (stamp, digest.clone()));
            }
            None => {
                self.0.remove(path);
            }
        }
        digest
    }

    fn forget_others(&mut self, paths: &[PathBuf]) {
        self.0.retain(|path, _| paths.contains(path));
    }
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let Metadata { modified, length, inode, .. } = disk::metadata(path).ok()?;
        Some(Self { modified: modified?, length, inode })
    }

    /// Whether a change after this stamp would show in the modification time.
    fn is_settled(&self) -> bool {
        wall_clock().duration_since(self.modified).is_ok_and(|age| age > RECENTLY)
    }
}

/// Keeps the addresses and the cluster, which cannot change while the gateway runs. Returns the
/// keys whose values in the file are different.
fn keep_for_life(config: &mut Config, before: &Config) -> Vec<&'static str> {
    let mut needs_restart = Vec::new();
    if config.server.listen != before.server.listen {
        config.server.listen = before.server.listen;
        needs_restart.push("server.listen");
    }
    if config.cluster != before.cluster {
        config.cluster.clone_from(&before.cluster);
        needs_restart.push("cluster");
        if config.cluster.is_some() && config.server.seal_keys.is_none() {
            // With another seal key this replica could not read the others.
            config.server.seal_keys.clone_from(&before.server.seal_keys);
            needs_restart.push("server.seal_key");
        }
    }
    match (&mut config.admin, &before.admin) {
        (Some(admin), Some(before)) if admin.listen == before.listen => {}
        (None, None) => {}
        (Some(admin), Some(before)) => {
            admin.listen = before.listen;
            needs_restart.push("admin.listen");
        }
        (admin, before) => {
            admin.clone_from(before);
            needs_restart.push("admin.listen");
        }
    }
    needs_restart
}

/// Logs an applied configuration, with its removed protections and the keys that need a restart.
fn log_reload(config: &Config, before: &Config, needs_restart: &[&str], removed: &[&str]) {
    info!(
        digest = config.digest,
        before = before.digest,
        lock = config.approvals.lock.digest,
        lock_before = before.approvals.lock.digest,
        "configuration reloaded"
    );
    for key in needs_restart {
        warn!(key, "setting changed in the file; restart the gateway to apply it");
    }
    for key in removed {
        warn!(key, "the configuration file has removed a protection explicitly");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_again_once_the_file_system_says_something_else_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut digests = FileDigests::default();
        let of = |text: &str| SourceFile::digest(Ok(text.as_bytes()));
        let write = |text: &str, age: u64| {
            fs::write(&path, text).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        // The time of a file that was just written proves nothing.
        write("a", 0);
        assert_eq!((digests.digest(&path), digests.0.len()), (of("a"), 0));
        write("b", 0);
        assert_eq!(digests.digest(&path), of("b"));
        write("c", 10);
        assert_eq!((digests.digest(&path), digests.0.len()), (of("c"), 1));
        assert_eq!(digests.digest(&path), of("c"));
        write("dd", 10);
        assert_eq!(digests.digest(&path), of("dd"), "another length");
        write("ee", 20);
        assert_eq!(digests.digest(&path), of("ee"), "another time");
        let other = folder.path().join("other");
        fs::write(&other, "ff").unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        #[cfg(unix)]
        assert_eq!(digests.digest(&path), of("ff"), "another file");
        fs::remove_file(&path).unwrap();
        assert_eq!(digests.digest(&path), io_error(&path));
        digests.forget_others(&[]);
        assert!(digests.0.is_empty());
    }

    fn io_error(path: &Path) -> String {
        SourceFile::digest(fs::read(path).as_deref())
    }
}
