//! The command line: a module for each command, and modules that commands share.

mod args;
mod failure;
mod load;
mod login;
mod output;
mod period;
mod process;
mod reach;
mod reload;
mod running;
mod runtime;

mod archive;
mod audit;
mod check;
mod client;
mod config;
mod connect;
mod dial;
mod documents;
mod endpoint_bounds;
mod evidence;
mod explain;
mod find;
mod git;
mod accounts;
mod health;
mod import;
mod init;
mod key;
mod labels;
mod approvals;
mod rollouts;
mod serve;
mod skills;
mod status;
mod unmatched;
#[cfg(target_os = "linux")]
mod supervise;
mod usage;

use std::process::ExitCode;

use args::{AuditCommand, Cli, Command, ConfigCommand, KeyCommand};
use failure::{Failure, USAGE};
use output::print_json;

use ::config::Config;
use domain::prompt::skill::SCHEME;

/// Parses the command line and runs the command. Returns the exit code of the process.
pub fn main() -> ExitCode {
    process::protect_memory();
    match Cli::read() {
        Ok(cli) => run(cli).unwrap_or_else(Failure::report),
        Err(error) => {
            // `--help` is an error to clap, but goes to standard output.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { USAGE } else { 0 })
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    if let Some(output) = cli.version() {
        documents::version(&output)?;
        return Ok(ExitCode::SUCCESS);
    }
    match cli.into_command() {
        Command::Serve { file, stdio: false } => serve::http(&file.config)?,
        Command::Serve { file, stdio: true } => serve::stdio(&file.config)?,
        Command::Check { file, dial: false, output } => check::run(&file.config, &output)?,
        Command::Check { file, dial: true, output } => dial::run(&file.config, &output)?,
        Command::Init { from } => init::run(from.as_deref())?,
        Command::Import { file } => import::run(&file)?,
        Command::Connect(connect) => connect::run(&connect)?,
        Command::Config(ConfigCommand::Explain { key, output }) => {
            config::explain(key.as_deref(), &output)?;
        }
        Command::Schema => print_json(&Config::schema())?,
        Command::Completions { shell } => documents::completions(shell)?,
        Command::Man { command } => documents::man(command.as_deref())?,
        Command::Explain(query) => explain::run(&query)?,
        Command::Approvals(command) => approvals::run(&command)?,
        Command::Labels(command) => labels::run(command)?,
        Command::Audit(AuditCommand::Verify(log)) => audit::verify(&log)?,
        Command::Audit(AuditCommand::Archive { dir, admin }) => archive::run(&dir, &admin)?,
        Command::Audit(AuditCommand::Hash { file }) => audit::hash(&file.config)?,
        Command::Audit(AuditCommand::Find(query)) => find::run(&query)?,
        Command::Login(options) => login::run(&options)?,
        Command::Logins { file, output } => login::list(&file.config, &output)?,
        Command::Logout(options) => login::end(&options)?,
        Command::Accounts(command) => accounts::run(&command)?,
        Command::Rollouts(command) => rollouts::run(&command)?,
        Command::Usage(query) => usage::run(&query)?,
        Command::Key(KeyCommand::New { id, groups }) => key::new(id.as_deref(), &groups)?,
        Command::Status(admin) => status::run(&admin)?,
        Command::Reload { accept, admin } => reload::run(accept, &admin)?,
        Command::Health(check) => health::run(&check)?,
        Command::List { pattern, upstream, long, skills, gateway } => {
            let choice = client::Choice { pattern, upstream };
            if skills {
                skills::list(&gateway, &choice)?;
            } else if long {
                client::list_origins(&gateway, &choice)?;
            } else {
                client::list(&gateway, &choice)?;
            }
        }
        Command::Get { name, arguments, gateway } if name.starts_with(SCHEME) => {
            skills::get(&gateway, &name, &arguments)?;
        }
        Command::Get { name, arguments, gateway } => client::get(&gateway, &name, &arguments)?,
        #[cfg(target_os = "linux")]
        Command::Supervise { parent, exec: false, command } => {
            return supervise::run(parent, &command);
        }
        #[cfg(target_os = "linux")]
        Command::Supervise { parent, exec: true, command } => {
            return supervise::exec(parent, &command);
        }
    }
    Ok(ExitCode::SUCCESS)
}
