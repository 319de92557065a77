//! Arguments of the command line. The doc comments are the texts of `--help`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use admin::hosts::{ENTRY, Host};

/// One endpoint in front of every MCP prompt server a company has.
///
/// Without a command, promptgate runs `serve`. Environment variables override keys of the
/// configuration file. Two underscores separate the levels:
/// PROMPTGATE__SERVER__LISTEN=127.0.0.1:9000
#[derive(Debug, Parser)]
#[command(version, disable_version_flag = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    file: ConfigFile,
    /// Print the version; with --json also the commit and the date of a published binary
    #[arg(long, short = 'V')]
    version: bool,
    #[arg(long, requires = "version", hide = true)]
    json: bool,
}

impl Cli {
    /// Parses the arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let command = Self::command();
        let help = help_template(&command);
        Self::from_arg_matches(&command.help_template(help).try_get_matches()?)
    }

    /// How `--version` is to be printed; `None` without it.
    pub(crate) fn version(&self) -> Option<Output> {
        self.version.then_some(Output { json: self.json })
    }

    /// Returns the command; `serve` if none is given.
    pub(crate) fn into_command(self) -> Command {
        self.command.unwrap_or(Command::Serve { file: self.file, stdio: false })
    }
}

/// The commands by the people who use them, for `--help`.
const GROUPS: [(&str, &str); 4] = [
    (
        "Run the gateway",
        "serve init import check config key connect reload upstreams login logins logout accounts schema completions man",
    ),
    ("Write prompts", "render list get labels rollouts"),
    ("Approve prompts", "approvals"),
    ("Observe", "status health usage audit guards explain"),
];

/// Returns the layout of `promptgate --help`, with the commands in groups.
fn help_template(command: &clap::Command) -> String {
    let header = command.get_styles().get_header();
    let end = header.render_reset();
    let mut out = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        out += &format!("\n{header}{title}:{end}\n");
        for command in names.split(' ').filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().cloned().unwrap_or_default();
            out += &format!("  {:13}{about}\n", command.get_name());
        }
    }
    out + &format!("\n{header}Options:{end}\n{{options}}")
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the prompts of all upstreams (the default command)
    Serve {
        #[command(flatten)]
        file: ConfigFile,
        /// Serve one client over standard input and standard output instead of HTTP, for clients
        /// that start their servers themselves
        #[arg(long)]
        stdio: bool,
    },
    /// Validate the configuration and report every mistake with its line
    ///
    /// Also reads the prompts of libraries, and warns of overlays, views, rules, limits and probes
    /// that match nothing known, and of changes that the gateway which runs with this file would
    /// hold back. Exit code: 64 if there is a mistake; 1 if a prompt file is not valid, and with
    /// --dial also if an upstream does not answer, or the store of the cluster cannot be used.
    ///
    /// With a folder, checks the prompts and skills in it, and needs no configuration.
    Check {
        /// Folder of prompts to check instead of the configuration
        #[arg(value_name = "DIR", conflicts_with_all = ["dial", "against_running"])]
        folder: Option<PathBuf>,
        #[command(flatten)]
        file: ConfigFile,
        /// Also connect to each upstream and list its prompts: shows the era, the revision, the
        /// number of prompts, and which prompts are left out and why. Connects to the store of the
        /// cluster, too. A child process that writes nothing is given up after 20 seconds, before
        /// `startup`
        #[arg(long)]
        dial: bool,
        /// Exit with code 64 if the gateway that runs with this file would hold it back
        #[arg(long)]
        against_running: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Write a commented gateway.toml and a first prompt into the current directory
    ///
    /// Also writes gateway.schema.json, for editors, and a .gitignore for files of the gateway.
    Init {
        /// Import the servers in the file of a host, such as ~/.cursor/mcp.json, as upstreams
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Convert the MCP servers of a host to tables for gateway.toml
    ///
    /// Reads the configuration of Claude Code, Claude Desktop, Cursor, VS Code, Windsurf or Zed,
    /// and prints an [upstreams.NAME] table for each server. Secrets are not printed: the tables
    /// name environment variables instead.
    Import {
        /// mcp.json, claude_desktop_config.json, settings.json of Zed, …
        file: PathBuf,
    },
    /// Print the entry for this gateway in the configuration of a host, or write it
    Connect(ConnectArgs),
    /// Explain the keys of gateway.toml
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the JSON Schema of gateway.toml, for editors
    Schema,
    /// Print the completions of a shell
    Completions {
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the manual page of promptgate, or of one of its commands
    Man {
        /// Command, such as serve
        command: Option<String>,
    },
    /// Show what a caller may do with a prompt, and which rule decides
    Explain(Explain),
    /// Approve prompts: only approved prompts are served where approval = "enforce"
    ///
    /// Connects to the upstreams itself, and reads and writes the lock file promptgate.lock, which
    /// a running gateway follows. Prompts are given by their public names.
    #[command(subcommand)]
    Approvals(ApprovalsCommand),
    /// Show or move the labels of library prompts: which version is served
    ///
    /// Prompts are given by their public names. See docs/versions.md.
    #[command(subcommand)]
    Labels(LabelsCommand),
    /// Sign in to an upstream that requires a user account
    ///
    /// For upstreams with credential = { login = … }. Opens a page of the upstream's provider in
    /// your browser. The sign-in is used for all callers of the upstream, kept sealed in the
    /// folder of logins.path, or in cluster.store where that is set, and renewed by the gateway.
    /// Running gateways take it over by themselves.
    Login(LoginArgs),
    /// Show the sign-ins to upstreams, and which are missing
    Logins {
        #[command(flatten)]
        file: ConfigFile,
        #[command(flatten)]
        output: Output,
    },
    /// End the sign-in to an upstream, at its provider and here
    Logout(Logout),
    /// List or revoke the tokens and connections that callers hold at upstreams
    ///
    /// For upstreams with act_as = "caller" or per_caller = true.
    ///
    /// An account is the access token, the connections or the child process that one caller has at
    /// an upstream with act_as = "caller" or per_caller = true. Calls the admin API of a running
    /// gateway, with the token in the environment variable PROMPTGATE_ADMIN_TOKEN if one is
    /// required. Tokens themselves are never shown.
    #[command(subcommand)]
    Accounts(AccountsCommand),
    /// Apply a removal of many prompts that is held back
    ///
    /// Calls the admin API of a running gateway, with the token in the environment variable
    /// PROMPTGATE_ADMIN_TOKEN if one is required. `promptgate status` names the upstreams.
    #[command(subcommand)]
    Upstreams(UpstreamsCommand),
    /// List, start, change and end rollouts
    ///
    /// A rollout gives a share of the callers another version of a prompt. Those that are started
    /// here are in rollouts.toml beside labels.toml; those of `[[rollouts]]` in the file are only
    /// listed, rolled back and begun again. Calls the admin API of a running gateway, with the
    /// token in the environment variable PROMPTGATE_ADMIN_TOKEN if one is required.
    #[command(subcommand)]
    Rollouts(RolloutsCommand),
    /// Try a guard (`[[guards]]`) on a text, or report what guards have found (docs/guards.md)
    #[command(subcommand)]
    Guards(GuardsCommand),
    /// Show how often prompts were used, by whom, and with which outcomes
    ///
    /// Covers the last 7 days, or the time since --since. Reads the usage index (the SQLite
    /// database usage.db in the folder of admin.usage.path) and what the audit log (audit.path) has
    /// beyond it: no gateway need run, and no key is needed. Without an index, all is counted from
    /// the log. Refused calls are not uses. BEFORE are the uses in the period of the same length
    /// before.
    Usage(UsageQuery),
    /// Search or verify the audit log, or compute the digest of a value in it
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Generate API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show the state of a running gateway and of its upstreams
    ///
    /// Calls the admin API, with the token in the environment variable PROMPTGATE_ADMIN_TOKEN if
    /// one is required. Needs no other secret, and works even if the file has mistakes. Exit code:
    /// 1 if the gateway is not ready.
    Status(AdminApi),
    /// Make a running gateway read its configuration file again, as SIGHUP does (needs admin.write)
    ///
    /// Exit code: 1 if the file is rejected, with the reasons.
    Reload {
        /// Accept a file that is held back because it looks as if it had lost its end: see
        /// `promptgate status`
        #[arg(long)]
        accept: bool,
        #[command(flatten)]
        admin: AdminApi,
    },
    /// Check that a running gateway is ready: exit code 0 or 1
    ///
    /// For container checks: needs neither a shell nor a token. Without an admin API, it checks
    /// only that the endpoint accepts connections.
    Health(Health),
    /// List the prompts of a running gateway
    ///
    /// Sends the API key or token in the environment variable PROMPTGATE_API_KEY, if it is set.
    List {
        /// Show only prompts whose public names match: * stands for any text, and text without *
        /// for a part of the name
        pattern: Option<String>,
        /// Show only prompts of this upstream
        #[arg(long, value_name = "ID")]
        upstream: Option<String>,
        /// Show for each prompt where it comes from: its upstream, its name there, the state of its
        /// approval, and the overlays that change it. Asks the admin API, as `promptgate status`
        /// does
        #[arg(long, short)]
        long: bool,
        /// List the skills instead: a pattern is of their URIs, such as skill://crm/*
        #[arg(long, conflicts_with_all = ["long", "upstream"])]
        skills: bool,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Get a prompt, or a file of a skill, from a running gateway
    ///
    /// Sends the API key or token in the environment variable PROMPTGATE_API_KEY, if it is set.
    Get {
        /// Public name of the prompt, as `promptgate list` shows it; or the URI of a file of a
        /// skill, which begins with skill://
        name: String,
        /// Arguments of the prompt: KEY=@FILE takes the value from a file, KEY=- from standard
        /// input; @@ stands for an @ at the beginning
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        arguments: Vec<(String, String)>,
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Print what a prompt file gives with these arguments; needs no gateway
    Render {
        /// Prompt file
        file: PathBuf,
        /// Arguments of the prompt, as for `promptgate get`
        #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
        arguments: Vec<(String, String)>,
        /// Folder of the library, which has the embedded files [default: the folder of the prompt]
        #[arg(long, value_name = "DIR")]
        library: Option<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Supervise a child process (started by the gateway itself)
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Supervise {
        /// Process id of the parent, which must still be alive
        #[arg(long)]
        parent: i32,
        /// Replace this process by the command, instead of supervising it
        #[arg(long)]
        exec: bool,
        /// Program and arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show what a key sets, its allowed values, its default and an example
    ///
    /// Needs no configuration file. Exit code: 64 if there is no such key.
    Explain {
        /// Dotted key, such as server.limits.request or upstreams.NAME.timeout; a table, such as
        /// server.limits; or the beginning of keys [default: the tables of the file]
        key: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// Show the state of each prompt, and what its approval covers
    Status(ApprovalsQuery),
    /// Walk through the waiting prompts: read each text, then approve, reject or skip it
    ///
    /// Reads a line for each answer, so that it works with a screen reader and in scripts, too. A
    /// decision is on the text that was shown, whatever the upstream answers meanwhile.
    Review(ApprovalsQuery),
    /// Show the differences between offered and approved versions
    Diff {
        /// Public name of a prompt [default: all that are not approved]
        prompt: Option<String>,
        #[command(flatten)]
        query: ApprovalsQuery,
    },
    /// Check that upstreams offer only approved versions: exit code 0, or 1 with the diff
    ///
    /// For CI: starts a separate gateway. An upstream that cannot be reached is a failure, too.
    Check(ApprovalsView),
    /// Approve the versions that upstreams offer, after showing the diff
    Approve {
        /// Public names of prompts
        #[arg(value_name = "PROMPT", required_unless_present = "all_of")]
        prompts: Vec<String>,
        /// Approve all prompts of an upstream that can be approved, after a summary
        ///
        /// Names the others with the reasons; then the exit code is 1.
        #[arg(long, value_name = "UPSTREAM", conflicts_with = "prompts", alias = "upstream")]
        all_of: Option<String>,
        /// Approve without asking
        #[arg(long, short)]
        yes: bool,
        /// With --all-of: show the differences, too
        #[arg(long, requires = "all_of")]
        diff: bool,
        /// Approve prompts, too, of which only the definition can be compared
        #[arg(long)]
        unseen: bool,
        /// Approve a text that a caller got, in addition to the approved text of one prompt: its
        /// digest, or the first 8 or more digits; may be repeated
        #[arg(long, value_name = "DIGEST", conflicts_with_all = ["all_of", "unseen"])]
        variant: Vec<String>,
        #[command(flatten)]
        seen: SeenTags,
        #[command(flatten)]
        decision: ApprovalsDecision,
    },
    /// Reject the versions that wait; an earlier approved version stays approved
    Reject {
        /// Public names of prompts
        #[arg(value_name = "PROMPT", required = true)]
        prompts: Vec<String>,
        /// For scripts: a rejection never asks
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        seen: SeenTags,
        #[command(flatten)]
        decision: ApprovalsDecision,
    },
    /// Take back the approval of prompts, which are not served any more then
    ///
    /// Shows the callers of the last week, and asks.
    Withdraw {
        /// Public names of prompts
        #[arg(value_name = "PROMPT", required = true)]
        prompts: Vec<String>,
        /// Withdraw without asking
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        decision: ApprovalsDecision,
    },
    /// Write the lock file anew, after its entries were reviewed
    ///
    /// A lock file ends with the digest of its entries, so that a lost part is noticed. A merge or
    /// an edit by hand makes the digest wrong. Of a conflict that git has left, the entries of both
    /// sides are kept.
    Rewrite(ApprovalsView),
    /// Approve a version that was approved before
    ///
    /// The upstream does not return to the old text: gets of another text are refused, or answered
    /// with the approved text where approvals.snapshot is set.
    Rollback {
        /// Public name of a prompt
        prompt: String,
        /// A digest of the version, or the first 8 or more digits of it [default: the last version
        /// before]
        #[arg(long, value_name = "DIGEST")]
        to: Option<String>,
        #[command(flatten)]
        decision: ApprovalsDecision,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ApprovalsQuery {
    /// Start a separate gateway, even if one runs with the configuration file
    #[arg(long)]
    pub(crate) offline: bool,
    #[command(flatten)]
    pub(crate) view: ApprovalsView,
}

#[derive(Args, Debug)]
pub(crate) struct ApprovalsView {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Debug)]
pub(crate) struct SeenTags {
    /// Decide only if the upstream still offers what `diff` showed with this tag; once for each
    /// prompt
    #[arg(long = "seen", value_name = "TAG")]
    pub(crate) tags: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ApprovalsDecision {
    /// The reason, for the lock file and the audit log
    #[arg(long, value_name = "TEXT", alias = "reason")]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) query: ApprovalsQuery,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Verify that no record of a log was changed, removed or inserted
    ///
    /// A log whose end was cut off is detected with --checkpoints only. The key is taken from the
    /// configuration, or from the environment variable PROMPTGATE_AUDIT_KEY. Without the key, use
    /// --public-key: it verifies the order of the records and the signatures of the checkpoints.
    /// Exit code: 1 if the log is not intact.
    Verify(Verify),
    /// Print a record with the proof that a checkpoint has signed it
    ///
    /// Prints JSON: the line of the record, the lines after it up to the next checkpoint, and the
    /// digest of all lines before it. examples/audit/check_proof.py checks it with nothing but the
    /// public key. The other lines are of other callers: show the proof to an auditor only.
    Prove {
        /// Number of the record of the call, as `audit find` shows it (RECORD)
        call: u64,
        /// Directory of the log [default: audit.path of the configuration]
        dir: Option<PathBuf>,
        #[command(flatten)]
        file: ConfigFile,
    },
    /// Show calls and other events of a log
    ///
    /// Shows the calls of the last 24 hours, or since --since, with their outcomes, oldest first.
    /// Needs no key, and does not check that the log is intact; `promptgate audit verify` does.
    /// Values of arguments are never shown.
    Find(FindQuery),
    /// Read a value from standard input and print the digest that the log has for it
    ///
    /// One line feed at the end of the input is not part of the value.
    Hash {
        #[command(flatten)]
        file: ConfigFile,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Print a new API key, and its entry for the configuration file
    New {
        /// Id of the caller [default: a placeholder]
        id: Option<String>,
        /// Add a group of the caller
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Id of the caller
    pub(crate) caller: String,
    /// Public name of the prompt, as `promptgate list` shows it
    pub(crate) name: String,
    /// Add a group of the caller that is not in the configuration file, such as a group in a token
    #[arg(long = "group", value_name = "GROUP")]
    pub(crate) groups: Vec<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Args, Debug)]
pub(crate) struct LoginArgs {
    /// Id of the upstream
    pub(crate) upstream: String,
    /// Print the address of the page instead of opening a browser
    #[arg(long)]
    pub(crate) no_browser: bool,
    /// Sign in on another device, with a code (RFC 8628), where the provider offers that
    #[arg(long, conflicts_with_all = ["no_browser", "port"])]
    pub(crate) device: bool,
    /// Scopes to request, separated by spaces [default: the scopes of the configuration, or the
    /// scopes that the upstream requests]
    #[arg(long, value_name = "SCOPES")]
    pub(crate) scope: Option<String>,
    /// Port of 127.0.0.1 to which the browser returns, for clients that are registered with one
    /// [default: a free one]
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Args, Debug)]
pub(crate) struct Logout {
    /// Id of the upstream
    pub(crate) upstream: String,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabelsCommand {
    /// Show the versions and labels of prompts
    List(LabelsQuery),
    /// Move a label to a version (needs admin.write where a gateway runs)
    ///
    /// Changes labels.toml in the folder of the library; in a git repository, change it there.
    /// Replicas with folders that are not shared follow only where the command is run for each.
    Set {
        /// Public name of a prompt
        name: String,
        /// Label, such as production
        label: String,
        /// Number of the version
        version: u32,
        /// Make a label that the prompt does not have yet
        #[arg(long)]
        new: bool,
        /// Approve the version first
        #[arg(long)]
        approve: bool,
        /// Reason, for the audit log
        #[arg(long = "why", value_name = "TEXT", alias = "reason")]
        reason: Option<String>,
        #[command(flatten)]
        query: LabelsQuery,
    },
    /// Remove a label (needs admin.write where a gateway runs)
    ///
    /// The label by which the upstream serves its prompts cannot be removed.
    Remove {
        /// Public name of a prompt
        name: String,
        /// Label, such as candidate
        label: String,
        /// Reason, for the audit log
        #[arg(long = "why", value_name = "TEXT", alias = "reason")]
        reason: Option<String>,
        #[command(flatten)]
        query: LabelsQuery,
    },
    /// Show who moved labels, when and why, from the audit log [default: of a year]
    History(Box<FindQuery>),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct LabelsQuery {
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AccountsCommand {
    /// List the accounts of callers
    List(AdminApi),
    /// Revoke accounts at once, and end the calls that use them (needs admin.write)
    Revoke {
        /// Revoke the accounts of this caller
        #[arg(long, value_name = "ID")]
        caller: Option<String>,
        /// Revoke the accounts at this upstream
        #[arg(long, value_name = "ID")]
        upstream: Option<String>,
        /// Revoke the accounts of all callers at all upstreams
        #[arg(long, conflicts_with_all = ["caller", "upstream"])]
        all: bool,
        #[command(flatten)]
        admin: AdminApi,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum UpstreamsCommand {
    /// Apply the removal that hold_removals holds back, on all replicas (needs admin.write)
    ///
    /// If the source lists another number of prompts by then, that removal is held back.
    Accept {
        /// Id of the upstream
        id: String,
        /// Reason, for the audit log
        #[arg(long, value_name = "TEXT")]
        why: Option<String>,
        #[command(flatten)]
        admin: AdminApi,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutsCommand {
    /// List the rollouts, with the gets of their new versions and how many have failed
    List(AdminApi),
    /// Give a share of the callers another version of a library prompt (needs admin.write)
    Start {
        /// Label or number of the version
        #[arg(long, value_name = "VERSION")]
        to: String,
        /// Share of the callers, such as 5%
        #[arg(long, value_parser = share)]
        share: f64,
        /// Label or number of the version for the other callers [default: the version under the
        /// plain name]
        #[arg(long, value_name = "VERSION")]
        from: Option<String>,
        /// Only members of this group can be in the share; may be repeated
        #[arg(long, value_name = "NAME")]
        group: Vec<String>,
        /// Roll back when more than this share of the last 100 gets have failed, such as 10%
        #[arg(long, value_name = "SHARE", value_parser = share)]
        rollback: Option<f64>,
        #[command(flatten)]
        rollout: RolloutArgs,
    },
    /// Change the share of the callers (needs admin.write)
    Share {
        #[command(flatten)]
        rollout: RolloutArgs,
        /// Share of the callers, such as 25%
        #[arg(value_parser = share)]
        share: f64,
    },
    /// Serve the old version to all callers for the time being (needs admin.write)
    Pause(RolloutArgs),
    /// Serve the new version to its share again (needs admin.write)
    Resume(RolloutArgs),
    /// End a rollout: all callers get the version under the plain name (needs admin.write)
    End(RolloutArgs),
    /// Take the new version back, until `rearm` (needs admin.write)
    Rollback(RolloutArgs),
    /// Serve the new version again, after its rollback (needs admin.write)
    Rearm(RolloutArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RolloutArgs {
    /// Public name of the prompt
    pub(crate) name: String,
    /// Reason, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
    #[command(flatten)]
    pub(crate) admin: AdminApi,
}

/// Reads a share: `0.05` or `5%`.
fn share(text: &str) -> Result<f64, String> {
    let (number, of) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
    let share = number.trim().parse::<f64>().ok().map(|number| number / of);
    let rule = || "a share is a number from 0 to 1, or a percentage such as 5%".to_owned();
    share.filter(|share| (0.0..=1.0).contains(share)).ok_or_else(rule)
}

#[derive(Debug, Subcommand)]
pub(crate) enum GuardsCommand {
    /// Show what a guard finds in standard input, with the places, and what it would do
    Test {
        /// Name of the guard
        name: String,
        #[command(flatten)]
        file: ConfigFile,
    },
    /// Count what guards have found in 7 days, or since --since: `observed` would take effect with
    /// mode = "enforce"
    Report(Box<FindQuery>),
}

#[derive(Args, Debug)]
pub(crate) struct UsageQuery {
    /// The dimension that lines stand for
    #[arg(long, value_enum, default_value = "prompt")]
    pub(crate) by: UsageBy,
    #[command(flatten)]
    pub(crate) period: Period,
    /// Count only uses of this prompt, by its public name
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Count only uses of this caller
    #[arg(long, value_name = "ID")]
    pub(crate) caller: Option<String>,
    /// Count only prompts of this upstream
    #[arg(long, value_name = "ID")]
    pub(crate) upstream: Option<String>,
    /// Count only uses at this path, such as that of a view
    #[arg(long, value_name = "PATH")]
    pub(crate) view: Option<String>,
    /// Show the prompts that were used before and not in the period
    #[arg(long, conflicts_with_all = ["csv", "by", "prompt", "caller", "upstream", "view", "sort", "until"])]
    pub(crate) unused: bool,
    /// Which lines come first
    #[arg(long, value_enum, default_value = "uses")]
    pub(crate) sort: LineOrder,
    /// Maximum number of lines [default: 50 in a table, all with --csv and --json]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Print comma-separated values, for spreadsheets
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Print JSON, for scripts; includes the sums by time
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) choice: ReplicaChoice,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

/// The dimension that a line of `promptgate usage` stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum UsageBy {
    Prompt,
    Upstream,
    Caller,
    /// A caller counts in each of its groups
    Group,
    /// Path of an endpoint
    View,
}

/// The order of lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum LineOrder {
    Uses,
    Failures,
    Limited,
    /// Greatest increase over the period before
    Rising,
    /// Latest use
    Last,
}

/// The replicas of a cluster that answer.
#[derive(Args, Debug)]
pub(crate) struct ReplicaChoice {
    /// Ask this replica alone, by its name, its id (/api/v1/replicas) or the beginning of either
    /// [default: all that live, through the gateway that runs here, with the token in
    /// PROMPTGATE_ADMIN_TOKEN]
    #[arg(long, value_name = "NAME")]
    pub(crate) replica: Option<String>,
    /// Read the files of this replica alone
    #[arg(long, conflicts_with = "replica")]
    pub(crate) offline: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Period {
    /// Begin: a time ago, such as 10m or 7d, a UTC date, or a time as in RFC 3339
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// End [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct FindQuery {
    /// Directory of the log [default: audit.path of the configuration]
    pub(crate) dir: Option<PathBuf>,
    /// Show only entries of this caller
    #[arg(long, value_name = "ID")]
    pub(crate) caller: Option<String>,
    /// Show only entries for this prompt, by its public name or its name at its upstream
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,
    /// Show only entries for this upstream
    #[arg(long, value_name = "ID")]
    pub(crate) upstream: Option<String>,
    /// Show only calls with this outcome: ok, cancelled, or a reason such as `rate_limited`
    #[arg(long, value_name = "OUTCOME")]
    pub(crate) outcome: Option<String>,
    /// Show only denied calls and refused requests, with the rule, limit, approval or check that
    /// has denied each
    #[arg(long, conflicts_with = "outcome")]
    pub(crate) denied: bool,
    /// Show only events of this type: call, one of the log, such as config_reloaded, or one of the
    /// groups decisions, labels, rollouts, sign-ins and changes
    #[arg(long, value_name = "EVENT")]
    pub(crate) event: Option<String>,
    /// Show only what this guard has found
    #[arg(long, value_name = "NAME")]
    pub(crate) guard: Option<String>,
    /// Show only entries with this text in one of their members
    #[arg(long, value_name = "TEXT")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) period: Period,
    /// Maximum number of entries: the newest
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Go on with new entries until the command is stopped; a call is shown once it has ended.
    /// Reads the log of this replica
    #[arg(long, conflicts_with_all = ["until", "replica"])]
    pub(crate) follow: bool,
    /// Print one JSON object for each entry, for scripts
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) choice: ReplicaChoice,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    /// Directory of the log [default: audit.path of the configuration]
    pub(crate) dir: Option<PathBuf>,
    /// Verify exported logs: JSON lines, as the file exporter of a collector writes them, of
    /// several replicas, repeated and in any order; `-` reads standard input. The lines are held in
    /// memory
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dir", "checkpoints"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    /// Verify without the secret key, with the public key that the gateway logs when it starts
    #[arg(long, value_name = "BASE64")]
    pub(crate) public_key: Option<String>,
    /// Compare with checkpoints that were stored elsewhere, such as a copy of checkpoints.jsonl:
    /// the audit log must contain the signed records
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoints: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct AdminApi {
    /// URL of the admin API [default: that of the gateway that runs with the configuration file, or
    /// admin.listen]
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Debug)]
pub(crate) struct ConnectArgs {
    #[arg(value_enum)]
    pub(crate) host: Host,
    /// Connect to a view instead of the main endpoint
    #[arg(long, value_name = "NAME")]
    pub(crate) view: Option<String>,
    /// Name of the entry
    #[arg(long, default_value = ENTRY)]
    pub(crate) name: String,
    /// Write the entry into the host's configuration file. The file is backed up first, and nothing
    /// else in it changes
    #[arg(long)]
    pub(crate) write: bool,
    /// Configuration file of the host [default: the one that the host reads]
    #[arg(long, value_name = "FILE")]
    pub(crate) to: Option<PathBuf>,
    /// URL of the gateway's endpoint; without a path, server.path is added [default: that of the
    /// gateway that runs with the configuration file, or server.listen and server.path]
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Args, Debug)]
pub(crate) struct Health {
    /// Check only that the gateway is alive, not that it is ready
    #[arg(long)]
    pub(crate) live: bool,
    /// URL of the admin API [default: that of the gateway that runs with the configuration file, or
    /// admin.listen]
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
}

#[derive(Args, Debug)]
pub(crate) struct GatewayArgs {
    /// URL of the gateway's endpoint; without a path, server.path is added [default: that of the
    /// gateway that runs with the configuration file, or server.listen and server.path]
    #[arg(long)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) file: ConfigFile,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigFile {
    /// Configuration file
    #[arg(
        long,
        short,
        global = true,
        value_name = "FILE",
        env = "PROMPTGATE_CONFIG",
        hide_env_values = true,
        default_value = "gateway.toml"
    )]
    pub(crate) config: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Output {
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("must be KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut commands: Vec<_> = visible.map(clap::Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.split(' ')).collect();
        commands.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, commands);
        let help = help_template(&command);
        assert!(help.contains("  get          Get a prompt, or a file of a skill"), "{help}");
    }

    #[test]
    fn a_reason_is_given_by_either_name() {
        for reason in ["--why", "--reason"] {
            for command in [
                &["labels", "set", "p", "production", "2"][..],
                &["approvals", "reject", "p", "--yes"],
            ] {
                let arguments = [&["promptgate"], command, &[reason, "shorter"]].concat();
                assert!(Cli::try_parse_from(&arguments).is_ok(), "{arguments:?}");
            }
        }
    }
}
