//! A git repository as the source of a library. The `git` program fetches one commit into a bare
//! repository; its files are then read object by object and written by the gateway itself. There is
//! no checkout, so a repository can name no hook, filter, link or submodule that has an effect.

mod calls;
mod kept;
pub mod listing;
pub mod program;
pub use calls::SET;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use tracing::info;

use audit::Audit;
use audit::record::AuditEvent;
use base::platform::blocking;
use base::platform::disk::{self, File, Readers};
use base::seal;
use config::{Git, Settings, durable_file};
use domain::fault::UpstreamFaultKind as Kind;
use kept::Kept;
use listing::{MAX_FILES, Tip, TreeFiles, candidates, contents, is_object};
use program::{GitCall, GitError};

/// The repository of one upstream.
pub struct GitSource {
    upstream: Arc<str>,
    git: Git,
    /// `max_message`: larger files are left out.
    max_file: usize,
    /// `max_walk`: bytes of all files.
    max_all: usize,
    /// Digest of the settings that determine the served files.
    source: String,
    audit: Audit,
    /// Whether a commit was requested since the start.
    is_started: AtomicBool,
    /// The commit that was last recorded as served.
    last_served: Mutex<Option<String>>,
    /// The object that was last recorded as refused.
    last_refused: Mutex<Option<String>>,
    /// The bytes of all packs during the last fetch.
    arrived: AtomicU64,
}

/// The files of a commit, in a folder that does not change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GitTree {
    pub commit: Arc<str>,
    pub folder: PathBuf,
    /// The folder in the repository, with a slash at its end; empty for all of it.
    pub path: String,
    /// The files that are left out, each with the reason.
    pub left_out: Vec<String>,
}

/// Time for which another process may hold the state folder, such as a command of `approvals`.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// The reference of the fetched object in the bare repository.
const FETCHED: &str = "refs/promptgate/fetched";

/// The limit of a repository's objects, in bytes: more than a library needs, and less than a disk.
const MAX_OBJECTS: u64 = 256 << 20;

/// The number of fetched packs after which the repository is recreated: old commits are useless.
const MAX_PACKS: usize = 60;

/// Time between two checks of the size of a running fetch.
const SIZE_POLL: Duration = Duration::from_millis(200);

/// Longest output of git about a remote or a signature, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Longest list of the files of a commit: four hundred bytes for each.
const MAX_LISTING: usize = MAX_FILES * 400;

impl GitSource {
    pub fn new(upstream: Arc<str>, git: &Git, settings: &Settings, audit: Audit) -> Self {
        let max_file = settings.max_message;
        let max_all = settings.max_walk;
        let Git { url, reference, path, trusted_keys, .. } = git;
        let source =
            format!("{url:?} {reference:?} {path:?} {trusted_keys:?} {max_file} {max_all}");
        Self {
            upstream,
            git: git.clone(),
            max_file,
            max_all,
            source: seal::sha256_text(source.as_bytes()),
            audit,
            is_started: AtomicBool::new(false),
            last_served: Mutex::default(),
            last_refused: Mutex::default(),
            arrived: AtomicU64::new(0),
        }
    }

    /// Returns the commit that was served before the start, on the first call only. `None` without
    /// such a commit, or if its files are incomplete.
    pub async fn served_before(&self) -> Option<GitTree> {
        if self.is_started.swap(true, Ordering::Relaxed) {
            return None;
        }
        let kept = self.kept().await?;
        let state = self.git.state.clone();
        let checking = move || {
            let is_whole = kept.is_whole(&state);
            if !is_whole {
                kept::forget(&state);
            }
            is_whole.then_some(kept)
        };
        blocking(checking).await.ok().flatten().map(|kept| self.served_now(kept))
    }

    /// Returns the commit that was served last, without asking the remote. `None` without such a
    /// commit.
    pub async fn served(&self) -> Option<GitTree> {
        self.kept().await.map(|kept| self.tree(kept))
    }

    /// Returns the newest commit, and fetches it if needed. Dropping the future before its end
    /// changes nothing.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when the remote cannot be reached, or git or the state folder not be
    /// used; [`Kind::NotServed`] when the commit is refused. The earlier commit stays served.
    pub async fn refresh(&self) -> Result<GitTree, Kind> {
        self.arrived.store(0, Ordering::Relaxed);
        let lock = Arc::new(self.lock().await?);
        let before = self.kept().await;
        let refreshed = self.newest(before.clone(), &lock).await;
        refreshed.map(|kept| self.served_now(kept)).map_err(|kind| match (kind, before) {
            (Kind::Unavailable(why), Some(kept)) => Kind::Unavailable(still_served(&why, &kept)),
            (Kind::NotServed(why), Some(kept)) => Kind::NotServed(still_served(&why, &kept)),
            (kind, _) => kind,
        })
    }

    /// Says that a fetch was not complete after `limit`; without a fetch, the remote is silent.
    pub fn given_up(&self, limit: Duration) -> Kind {
        match self.arrived.load(Ordering::Relaxed) >> 20 {
            0 => Kind::Timeout,
            arrived => Kind::Unavailable(format!(
                "the repository has {arrived} MiB so far, and was not complete within walk_timeout = \
                 {limit:?}: raise it, or make the repository smaller (at most {} MiB)",
                MAX_OBJECTS >> 20
            )),
        }
    }

    async fn newest(&self, before: Option<Kept>, lock: &Arc<File>) -> Result<Kept, Kind> {
        self.prepare().await?;
        let tip = self.tip().await?;
        if let Some(kept) = before.clone().filter(|kept| kept.object == tip.object) {
            return Ok(kept);
        }
        self.take(&tip, before, lock).await
    }

    /// Removes the bare repository, which may be damaged: the next attempt recreates it. A refused
    /// commit stays fetched.
    async fn discard(&self) {
        let repository = self.repository();
        let _ = blocking(move || disk::remove_dir_all(&repository)).await;
    }

    /// Records a commit that was not served before, even if another process has fetched it.
    fn served_now(&self, kept: Kept) -> GitTree {
        if is_news(&self.last_served, &kept.commit) {
            info!(upstream = %self.upstream, commit = kept.commit, "a new commit is served");
            let event = AuditEvent::new("commit_served").text("upstream", &self.upstream);
            self.audit.note(event.text("commit", &kept.commit));
        }
        self.tree(kept)
    }

    async fn kept(&self) -> Option<Kept> {
        let state = self.git.state.clone();
        let source = self.source.clone();
        blocking(move || Kept::read(&state, &source)).await.ok().flatten()
    }

    fn tree(&self, kept: Kept) -> GitTree {
        let folder = kept.folder(&self.git.state);
        let path = Some(&self.git.path).filter(|path| !path.is_empty());
        let path = path.map(|path| format!("{path}/")).unwrap_or_default();
        GitTree { commit: kept.commit.into(), folder, path, left_out: kept.left_out }
    }

    fn repository(&self) -> PathBuf {
        self.git.state.join("repository")
    }

    /// Locks the state folder against other processes, until the file is closed.
    async fn lock(&self) -> Result<File, Kind> {
        let state = self.git.state.clone();
        let locking = move || {
            disk::create_dir_all(&state, Readers::Owner)?;
            durable_file::hold(&state.join("lock"), Readers::Owner, LOCK_PATIENCE)
        };
        blocking(locking).await.map_err(internal)?.map_err(|error| self.unwritable(&error))
    }

    fn unwritable(&self, error: &std::io::Error) -> Kind {
        let state = self.git.state.display();
        Kind::Unavailable(format!("the directory {state} cannot be used: {error}; see `state`"))
    }

    /// Creates the bare repository if it is missing or has too many packs, and writes the files
    /// that git reads.
    async fn prepare(&self) -> Result<(), Kind> {
        let repository = self.repository();
        let git = self.git.clone();
        let preparing = move || {
            let folder = repository.join("objects/pack");
            let packs = disk::read_dir(&folder).unwrap_or_default();
            // A fetch that was given up leaves its pack, which no later fetch uses.
            let is_left = |name: &&OsString| name.to_string_lossy().starts_with("tmp_");
            for left in packs.iter().filter(is_left) {
                disk::remove_file(&folder.join(left))?;
            }
            if packs.len() > 2 * MAX_PACKS {
                disk::remove_dir_all(&repository)?;
            }
            let files = [("signers", &git.trusted_keys), ("ca.pem", &git.ca)];
            for (name, text) in files.iter().filter_map(|(name, text)| Some((name, text.as_ref()?)))
            {
                let path = git.state.join(name);
                // Unchanged files are not rewritten, so that a poll costs no sync.
                if disk::read_to_string(&path).is_ok_and(|before| *before == **text) {
                    continue;
                }
                durable_file::replace(&path, &**text, Readers::Owner)?;
            }
            Ok(disk::is_folder(&repository.join("refs")))
        };
        let is_there = blocking(preparing).await.map_err(internal)?;
        if is_there.map_err(|error| self.unwritable(&error))? {
            return Ok(());
        }
        let making = ["init", "--quiet", "--bare", "--template="];
        self.call(making, Vec::new(), MAX_TEXT).run().await.map(drop).map_err(unavailable)
    }

    /// Asks the remote for the reference.
    async fn tip(&self) -> Result<Tip, Kind> {
        let names = candidates(self.git.reference.as_deref());
        let asking = ["ls-remote", "--", &self.git.url];
        let asking = asking.into_iter().chain(names.iter().map(String::as_str));
        let output = self.remote_call(asking).await?.run().await.map_err(unavailable)?;
        Tip::find(&String::from_utf8_lossy(&output), &names).ok_or_else(|| {
            let wanted = names.join(" or ");
            Kind::Unavailable(format!("the repository has no {wanted}: push it, or correct `ref`"))
        })
    }

    /// Fetches the commit of the reference, and serves it if it is accepted.
    async fn take(&self, tip: &Tip, before: Option<Kept>, lock: &Arc<File>) -> Result<Kept, Kind> {
        self.fetch(tip).await?;
        let peeled = format!("{FETCHED}^{{commit}}");
        let parsing = self.call(["rev-parse", FETCHED, &peeled], Vec::new(), MAX_TEXT);
        let ids = self.read(parsing).await;
        let ids = String::from_utf8_lossy(&ids.map_err(unavailable)?).into_owned();
        let mut ids = ids.lines().filter(|id| is_object(id)).map(str::to_owned);
        let (Some(object), Some(commit)) = (ids.next(), ids.next()) else {
            return Err(Kind::NotServed("the reference names no commit".to_owned()));
        };
        self.verify(tip, &object, &commit).await?;
        let files = self.files(&commit).await?;
        let input = files.files.iter().map(|file| format!("{}\n", file.object)).collect::<String>();
        let most = self.max_all + 128 * files.files.len();
        let reading = self.call(["cat-file", "--batch"], input.into_bytes(), most);
        let output = self.read(reading).await;
        let output = output.map_err(unavailable)?;
        let TreeFiles { files, left_out } = files;
        let source = self.source.clone();
        let new = Kept { source, object, commit, digest: String::new(), left_out };
        // The lock is held until the files are written, even if the caller is gone by then.
        let state = self.git.state.clone();
        let lock = lock.clone();
        let serving = move || {
            let _lock = lock;
            let contents = contents(&output, &files)?;
            Some(new.serve(&state, &files, &contents, before.as_ref()))
        };
        let served = blocking(serving).await.map_err(internal)?;
        let served =
            served.ok_or_else(|| Kind::NotServed("git lost a file of the commit".into()))?;
        served.map_err(|error| self.unwritable(&error))
    }

    /// Fetches the last commit of the reference, unless it is too large.
    async fn fetch(&self, tip: &Tip) -> Result<(), Kind> {
        let wanted = format!("+{}:{FETCHED}", tip.name);
        let fetching = [
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--",
            &self.git.url,
            &wanted,
        ];
        let call = self.remote_call(fetching).await?;
        tokio::select! {
            fetched = self.read(call) => fetched.map(drop).map_err(unavailable),
            () = outgrown(self.repository().join("objects/pack"), &self.arrived) => {
                self.discard().await;
                let limit = MAX_OBJECTS >> 20;
                Err(Kind::NotServed(format!("the repository has more than {limit} MiB")))
            }
        }
    }

    /// Checks the signature of an annotated tag, or else of the commit, if keys are trusted. A tag
    /// object must contain its own full name: a remote could offer another tag, such as an older
    /// one, under that name, or as a branch.
    async fn verify(&self, tip: &Tip, object: &str, commit: &str) -> Result<(), Kind> {
        if self.git.trusted_keys.is_none() {
            return Ok(());
        }
        let is_tag = object != commit;
        let (verifying, what) = if is_tag {
            (vec!["verify-tag", "--format=%(tag)", object], "tag")
        } else {
            (vec!["verify-commit", object], "commit")
        };
        let why = match self.call(verifying, Vec::new(), MAX_TEXT).run().await {
            Ok(name) => {
                let name = String::from_utf8_lossy(&name).trim().to_owned();
                if !is_tag || tip.name.strip_prefix("refs/tags/") == Some(&name) {
                    return Ok(());
                }
                "has another name in its signature than the reference: sign a tag of that name, or \
                 name the one that is signed with `ref`"
            }
            Err(error @ (GitError::Missing | GitError::NotStarted(_))) => {
                return Err(unavailable(error));
            }
            Err(GitError::Failed(said)) if said.contains("cannot run") => {
                let missing =
                    "`ssh-keygen`, which checks signatures, is not installed: install OpenSSH";
                return Err(Kind::Unavailable(missing.to_owned()));
            }
            Err(_) => {
                "has no signature of one of the trusted_keys: sign it (`git commit --amend -S`, or \
                 `git tag -f -s`), or add the key to that file"
            }
        };
        let refused = format!("the {what} {object} {why}");
        if is_news(&self.last_refused, object) {
            let event = AuditEvent::new("commit_refused").text("upstream", &self.upstream);
            self.audit.note(event.text("commit", commit).text("reason", &refused));
        }
        Err(Kind::NotServed(refused))
    }

    /// Lists the files of a commit in the configured folder.
    async fn files(&self, commit: &str) -> Result<TreeFiles, Kind> {
        let path = &self.git.path;
        let tree = format!("{commit}:{path}");
        let finding = self.call(["rev-parse", "--verify", &tree], Vec::new(), MAX_TEXT);
        if finding.run().await.is_err() {
            return Err(Kind::NotServed(format!("the commit has no folder {path:?}")));
        }
        // Folders are listed, too, so that empty folders count.
        let listing = ["ls-tree", "-r", "-t", "-l", "-z", &tree];
        let listed = self.read(self.call(listing, Vec::new(), MAX_LISTING)).await;
        let listed = listed.map_err(|error| match error {
            GitError::TooMuch(_) => Kind::NotServed(
                "the folder has too many files or folders; name a smaller one with `path`"
                    .to_owned(),
            ),
            error => unavailable(error),
        })?;
        TreeFiles::read(&listed, self.max_file, self.max_all).map_err(Kind::NotServed)
    }

    /// Runs git on the repository, and discards the repository if git fails.
    async fn read(&self, call: GitCall<'_>) -> Result<Vec<u8>, GitError> {
        let read = call.run().await;
        if let Err(GitError::Failed(_)) = &read {
            self.discard().await;
        }
        read
    }
}

/// Returns why this machine cannot fetch any repository.
pub fn missing_program() -> Option<String> {
    program::find(Path::new(".")).err().map(|error| error.to_string())
}

/// Returns once the files of a folder take more than [`MAX_OBJECTS`]. Counts them in `arrived`.
async fn outgrown(folder: PathBuf, arrived: &AtomicU64) {
    loop {
        sleep(SIZE_POLL).await;
        let folder = folder.clone();
        let measuring = move || {
            let names = disk::read_dir(&folder).unwrap_or_default().into_iter();
            names
                .filter_map(|name| Some(disk::metadata(&folder.join(name)).ok()?.length))
                .sum::<u64>()
        };
        arrived.store(blocking(measuring).await.unwrap_or(0), Ordering::Relaxed);
        if arrived.load(Ordering::Relaxed) > MAX_OBJECTS {
            return;
        }
    }
}

/// Stores an id. Returns whether it differs from the id before.
fn is_news(last: &Mutex<Option<String>>, id: &str) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    last.replace(id.to_owned()).as_deref() != Some(id)
}

/// Adds to an error that the earlier commit is still served.
fn still_served(why: &str, kept: &Kept) -> String {
    format!("{why}; commit {} is still served", kept.commit.get(..12).unwrap_or_default())
}

fn unavailable(error: GitError) -> Kind {
    Kind::Unavailable(error.to_string())
}

fn internal(error: base::platform::BlockingError) -> Kind {
    Kind::Internal(error.to_string())
}
