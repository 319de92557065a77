//! The file of the index. SQLite opens it by itself, so this file is the one exception to "only
//! `platform` reaches the machine"; the simulation keeps no index.
//!
//! The journal is a write-ahead log, so that readers such as Grafana and the writer never wait for
//! each other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Error, ErrorCode, OpenFlags, TransactionBehavior, ffi};
use tracing::warn;

use base::platform::disk::{self, File, OpenOptions, Readers};

/// The name of the database in the folder of the index.
const FILE: &str = "usage.db";

/// The file that the one writing process locks.
const LOCK_FILE: &str = "lock";

/// The suffixes of the files of a database.
const COMPANIONS: [&str; 3] = ["", "-wal", "-shm"];

/// The version of tables and views, in `PRAGMA user_version`. Each change of the schema increments
/// it.
const VERSION: i64 = 4;

const TABLES: &str = include_str!("schema.sql");

const VIEWS: &str = include_str!("views.sql");

/// The time to wait for another writer, such as a person with `sqlite3`.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The size to which the write-ahead log is cut once it is copied, in bytes.
const LOG_SIZE: i64 = 8 << 20;

/// A connection to an index.
#[derive(Clone, Debug)]
pub(super) struct Database(Arc<Mutex<Connection>>);

/// Whether an opened database can be used.
enum Usability {
    Usable,
    /// The tables have this version.
    OtherVersion(i64),
}

/// Returns the path of the database in the folder of an index.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// Creates the folder of an index if there is none, and locks it for the one process that writes.
pub(super) fn lock(folder: &Path) -> io::Result<File> {
    disk::create_dir_all(folder, Readers::Owner)?;
    let options = OpenOptions { create: true, write: true, ..OpenOptions::private() };
    let lock = options.open(&folder.join(LOCK_FILE))?;
    lock.try_lock().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::WouldBlock, "another gateway writes this index")
        }
        _ => error,
    })?;
    Ok(lock)
}

impl Database {
    /// Opens the database of a folder to write it; creates it if there is none. A file of another
    /// version, or a damaged one, is set aside first.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        create(folder)?;
        let database = Self::connect(&path(folder), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let why = match database.with(prepare) {
            Ok(Usability::Usable) => return Ok(database),
            Ok(Usability::OtherVersion(version)) => format!("v{version}"),
            Err(error) if is_damage(&error) => "damaged".to_owned(),
            Err(error) => return Err(error),
        };
        drop(database);
        set_aside(folder, &why)?;
        create(folder)?;
        let database = Self::connect(&path(folder), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        database.with(prepare)?;
        Ok(database)
    }

    /// Opens the database of a folder to read it, as it is now; `None` if there is none.
    pub(super) fn reader(folder: &Path) -> io::Result<Option<Self>> {
        let path = path(folder);
        if disk::metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let database = Self::connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let version = database.with(|db| {
            // One transaction for all reads: later commits of the writer stay invisible.
            db.execute_batch("BEGIN")?;
            version(db)
        })?;
        match version {
            VERSION => Ok(Some(database)),
            version => Err(damage(format!(
                "{}: its tables have version {version}, and this promptgate reads {VERSION}",
                path.display()
            ))),
        }
    }

    /// Creates a database that ends with its last connection. Beyond a few megabytes it is in a
    /// temporary file.
    pub(super) fn temporary() -> io::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let database = Self::connect(Path::new(""), flags)?;
        database.with(|db| db.execute_batch(TABLES).and_then(|()| db.execute_batch(VIEWS)))?;
        Ok(database)
    }

    fn connect(path: &Path, flags: OpenFlags) -> io::Result<Self> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .and_then(|db| db.busy_timeout(BUSY_TIMEOUT).map(|()| db))
            .map_err(|error| failure(path, &error))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` on the connection, alone. Blocks on the file system.
    pub(super) fn with<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>,
    ) -> io::Result<T> {
        let mut connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut connection).map_err(|error| {
            let path = connection.path().unwrap_or_default();
            failure(Path::new(path), &error)
        })
    }

    /// Ends the write-ahead log, unless another process reads: readers that find a write-ahead log
    /// leave files in the folder.
    pub(super) fn rest(&self) {
        let _ = self.with(|db| {
            db.busy_timeout(Duration::ZERO)?;
            db.pragma_update(None, "journal_mode", "DELETE")
        });
    }

    /// Runs `work` in a transaction, alone.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> io::Result<T> {
        self.with(|db| {
            let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
    }
}

/// Whether an error says that the database is damaged, or none at all.
pub(in crate::usage) fn is_damage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn damage(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn failure(path: &Path, error: &Error) -> io::Error {
    let text = format!("{}: {error}", path.display());
    match (error, error.sqlite_error_code()) {
        (_, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        | (
            Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..),
            _,
        ) => damage(text),
        _ => io::Error::other(text),
    }
}

/// Renames an unusable database together with its companion files. `why` is part of the new name.
pub(super) fn set_aside(folder: &Path, why: &str) -> io::Result<()> {
    let now = humantime::format_rfc3339_seconds(base::platform::wall_clock());
    let now = now.to_string().replace([':', '-'], "");
    for companion in COMPANIONS {
        let from = folder.join(format!("{FILE}{companion}"));
        let to = folder.join(format!("{FILE}.{why}-{now}{companion}"));
        match disk::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ if !companion.is_empty() => {}
            _ => warn!(
                path = %from.display(),
                kept_as = %to.display(),
                "the usage index was set aside; it is built anew from the audit log"
            ),
        }
    }
    Ok(())
}

/// Creates an empty database that only its owner may read, unless it exists: SQLite would let
/// others read it.
fn create(folder: &Path) -> io::Result<()> {
    let options = OpenOptions { create_new: true, write: true, ..OpenOptions::private() };
    match options.open(&path(folder)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Checks a database, and creates the tables of an empty one.
fn prepare(db: &mut Connection) -> rusqlite::Result<Usability> {
    let is_empty = db.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| row.get(0))?;
    if is_empty {
        // Set before the first page exists, so that the file shrinks when days are removed.
        db.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    } else {
        match version(db)? {
            VERSION => check(db)?,
            other => return Ok(Usability::OtherVersion(other)),
        }
    }
    db.pragma_update(None, "journal_mode", "WAL")?;
    // After a power failure some last transactions may be gone; they are counted again.
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "journal_size_limit", LOG_SIZE)?;
    if is_empty {
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(TABLES)?;
        transaction.execute_batch(VIEWS)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()?;
    }
    Ok(Usability::Usable)
}

fn version(db: &Connection) -> rusqlite::Result<i64> {
    db.pragma_query_value(None, "user_version", |row| row.get(0))
}

fn check(db: &Connection) -> rusqlite::Result<()> {
    let found: String = db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    match found.as_str() {
        "ok" => Ok(()),
        _ => Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(found))),
    }
}
