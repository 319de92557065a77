//! The commands that a person types.

mod audit;
mod check;
mod client;
mod dial;
mod explain;
mod init;
mod key;
mod serve;
mod status;
#[cfg(target_os = "linux")]
mod supervise;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError};

/// One endpoint in front of every MCP prompt server a company has.
///
/// Without a command, `promptgate serve` is meant. Keys of the file can be overridden by environment
/// variables, with two underscores between the levels: PROMPTGATE__SERVER__LISTEN=127.0.0.1:9000
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    file: File,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the prompts of all upstreams (the default)
    Serve {
        #[command(flatten)]
        file: File,
        /// Serve one client over standard input and output instead of HTTP: for clients that start
        /// their servers themselves
        #[arg(long)]
        stdio: bool,
    },
    /// Tell every mistake in the configuration, with its line; exit code 64 if there is one
    Check {
        #[command(flatten)]
        file: File,
        /// Ask each upstream too: era, revision, prompts, what is left out and why; exit code 1 if
        /// one does not answer
        #[arg(long)]
        dial: bool,
        /// Print JSON, for scripts
        #[arg(long, requires = "dial")]
        json: bool,
    },
    /// Write a commented gateway.toml and a first prompt into the current folder
    Init,
    /// Run a child process of the gateway, which starts this by itself
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Supervise {
        /// Process id of whoever started this
        #[arg(long)]
        parent: i32,
        /// Become the child itself
        #[arg(long)]
        last: bool,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Tell what a caller may do with a prompt, and which rule decides
    Explain {
        /// Id of the caller
        caller: String,
        /// Name of the prompt, as `promptgate list` shows it
        name: String,
        /// A group of the caller's that the file does not know of
        #[arg(long = "group")]
        groups: Vec<String>,
        #[command(flatten)]
        file: File,
    },
    /// Check the audit log, and find values in it
    Audit {
        #[command(subcommand)]
        command: AuditCommand,
    },
    /// Make an API key
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Show how a running gateway and its upstreams are
    ///
    /// Asks its admin side, with the token in PROMPTGATE_ADMIN_TOKEN where one is needed. Exit code
    /// 1 if it is not ready.
    Status {
        /// URL of the admin side [default: from the configuration file, else http://127.0.0.1:9090]
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        file: File,
        /// Print JSON, for scripts
        #[arg(long)]
        json: bool,
    },
    /// List the prompts that a running gateway serves
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Get a prompt from a running gateway
    Get {
        /// Name of the prompt, as `promptgate list` shows it
        name: String,
        /// Arguments of the prompt
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        arguments: Vec<(String, String)>,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Tell whether a log is whole and as it was written; exit code 1 if it is not
    ///
    /// The key comes from the configuration, or from PROMPTGATE_AUDIT_KEY. Whoever must not have it
    /// checks the order of the records and the signatures of checkpoints with --public-key.
    Verify {
        /// Folder of the log [default: audit.path of the configuration]
        dir: Option<PathBuf>,
        #[command(flatten)]
        file: File,
        /// Check without the secret: the public key that the gateway logs when it starts
        #[arg(long, value_name = "BASE64")]
        public_key: Option<String>,
        /// Checkpoints that were kept elsewhere, such as the gateway's own log as JSON lines: the
        /// audit log must hold what they have signed
        #[arg(long, value_name = "FILE")]
        checkpoints: Option<PathBuf>,
    },
    /// Tell the digest under which a value stands in the log; the value is read from standard input
    ///
    /// One line feed at its end is not part of it.
    Hash {
        #[command(flatten)]
        file: File,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Print a new key, and the hash of it to put into the file
    New,
}

#[derive(Args, Clone, Debug)]
struct File {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "gateway.toml")]
    config: PathBuf,
}

/// Which gateway to ask, and how to show what it answers. The API key or token, where one is needed, comes
/// from the environment variable PROMPTGATE_API_KEY.
#[derive(Args, Clone, Debug)]
struct Remote {
    /// URL of the gateway's endpoint [default: from the configuration file, else
    /// http://127.0.0.1:8080/mcp]
    #[arg(long)]
    url: Option<String>,
    #[command(flatten)]
    file: File,
    /// Print JSON, for scripts
    #[arg(long)]
    json: bool,
}

/// Bad usage or a bad configuration (sysexits.h, EX_USAGE).
const EX_USAGE: u8 = 64;

/// Reads the command line and does what it says.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors, and go to standard output.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EX_USAGE } else { 0 });
        }
    };
    let done = match cli.command.unwrap_or(Command::Serve { file: cli.file, stdio: false }) {
        Command::Serve { file, stdio: false } => serve::http(&file.config),
        Command::Serve { file, stdio: true } => serve::stdio(&file.config),
        Command::Check { file, dial: false, .. } => check::run(&file.config),
        Command::Check { file, dial: true, json } => dial::run(&file.config, json),
        #[cfg(target_os = "linux")]
        Command::Supervise { parent, last, command } => {
            match supervise::run(parent, last, &command) {
                Ok(code) => return code,
                Err(failure) => Err(failure),
            }
        }
        Command::Init => init::run(),
        Command::Explain { caller, name, groups, file } => {
            explain::run(&file.config, &caller, &name, &groups)
        }
        Command::Audit { command } => match command {
            AuditCommand::Verify { dir, file, public_key, checkpoints } => {
                let kept = checkpoints.as_deref();
                audit::verify(dir.as_deref(), &file.config, public_key.as_deref(), kept)
            }
            AuditCommand::Hash { file } => audit::hash(&file.config),
        },
        Command::Key { command: KeyCommand::New } => key::new(),
        Command::Status { url, file, json } => status::run(url.as_deref(), &file.config, json),
        Command::List { remote } => client::list(&remote),
        Command::Get { name, arguments, remote } => client::get(&remote, &name, &arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { message, code }) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

/// Why a command failed: what to tell, and the exit code.
#[derive(Debug)]
struct Failure {
    message: String,
    code: u8,
}

impl Failure {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1 }
    }

    fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: EX_USAGE }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let count = error.mistakes.len();
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        Self::usage(format!("{error}\n{count} {noun} in the configuration"))
    }
}

/// Loads the configuration, or says how to get one.
fn load(path: &std::path::Path) -> Result<Config, Failure> {
    if !path.exists() {
        return Err(Failure::usage(format!(
            "There is no {}. Run `promptgate init` to write a commented one here, or name another \
             with --config FILE.",
            path.display()
        )));
    }
    Ok(load_config(path)?)
}

/// The configuration of a gateway that is, or is to be, run by this program.
fn load_config(path: &std::path::Path) -> Result<Config, ConfigError> {
    let mut config = Config::load(path)?;
    // Asked once: a file that is replaced meanwhile has another name then, and would make all children other ones.
    static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    if cfg!(target_os = "linux")
        && let Some(program) = &*PROGRAM
    {
        config.supervise_children(program);
    }
    Ok(config)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
