//! The command line: a module for each command, and modules that commands share.

mod author;
mod observe;
mod operate;
mod shared;

use std::path::Path;
use std::process::ExitCode;

use shared::args::{AuditCommand, Cli, Command, ConfigCommand, GuardsCommand, KeyCommand, Output};
use shared::failure::{Failure, USAGE};
use shared::output::print_json;

use ::config::Config;
use domain::prompts::skill::SCHEME;

/// Parses the command line and runs the command. Returns the exit code of the process.
pub fn main() -> ExitCode {
    shared::process::protect_memory();
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
        operate::documents::version(&output)?;
        return Ok(ExitCode::SUCCESS);
    }
    dispatch(cli.into_command())
}

/// Runs a command. Returns the exit code of the process.
fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve { file, stdio: false } => operate::serve::http(&file.config)?,
        Command::Serve { file, stdio: true } => operate::serve::stdio(&file.config)?,
        Command::Check { folder: Some(folder), output, .. } => {
            return author::check_folder::run(&folder, &output);
        }
        Command::Check { folder: None, file, dial, against_running, output } => {
            check(&file.config, dial, against_running, &output)?;
        }
        Command::Init { from } => operate::init::run(from.as_deref())?,
        Command::Import { file } => operate::import::run(&file)?,
        Command::Connect(connect) => operate::connect::run(&connect)?,
        Command::Config(ConfigCommand::Explain { key, output }) => {
            operate::config::explain(key.as_deref(), &output)?;
        }
        Command::Schema => print_json(&Config::schema())?,
        Command::Completions { shell } => operate::documents::completions(shell)?,
        Command::Man { command } => operate::documents::man(command.as_deref())?,
        Command::Explain(query) => observe::explain::run(&query)?,
        Command::Approvals(command) => author::approvals::run(&command)?,
        Command::Labels(command) => author::labels::run(command)?,
        Command::Audit(AuditCommand::Verify(log)) => observe::audit::verify(&log)?,
        Command::Audit(AuditCommand::Prove { call, dir, file }) => {
            observe::audit::prove(call, dir, &file.config)?
        }
        Command::Audit(AuditCommand::Hash { file }) => observe::audit::hash(&file.config)?,
        Command::Audit(AuditCommand::Find(query)) => observe::find::run(&query)?,
        Command::Login(options) => operate::login::run(&options)?,
        Command::Logins { file, output } => operate::login::list(&file.config, &output)?,
        Command::Logout(options) => operate::login::end(&options)?,
        Command::Accounts(command) => operate::accounts::run(&command)?,
        Command::Upstreams(command) => operate::upstreams::run(&command)?,
        Command::Rollouts(command) => author::rollouts::run(&command)?,
        Command::Guards(GuardsCommand::Test { name, file }) => observe::guards::test(&name, &file)?,
        Command::Guards(GuardsCommand::Report(query)) => observe::guards::report(&query)?,
        Command::Usage(query) => observe::usage::run(&query)?,
        Command::Key(KeyCommand::New { id, groups }) => operate::key::new(id.as_deref(), &groups)?,
        Command::Status(admin) => observe::status::run(&admin)?,
        Command::Reload { accept, admin } => operate::reload::run(accept, &admin)?,
        Command::Health(check) => operate::health::run(&check)?,
        Command::List { pattern, upstream, long, skills, gateway } => {
            let choice = author::client::Choice { pattern, upstream };
            match (skills, long) {
                (true, _) => author::skills::list(&gateway, &choice)?,
                (false, true) => author::client::list_origins(&gateway, &choice)?,
                (false, false) => author::client::list(&gateway, &choice)?,
            }
        }
        Command::Get { name, arguments, gateway } if name.starts_with(SCHEME) => {
            author::skills::get(&gateway, &name, &arguments)?;
        }
        Command::Get { name, arguments, gateway } => {
            author::client::get(&gateway, &name, &arguments)?
        }
        Command::Render { file, arguments, library, output } => {
            author::render::run(&file, library, &arguments, &output)?;
        }
        #[cfg(target_os = "linux")]
        Command::Supervise { parent, exec: false, command } => {
            return operate::supervise::run(parent, &command);
        }
        #[cfg(target_os = "linux")]
        Command::Supervise { parent, exec: true, command } => {
            return operate::supervise::exec(parent, &command);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks a configuration file.
fn check(path: &Path, dial: bool, against_running: bool, output: &Output) -> Result<(), Failure> {
    let check = if dial { operate::dial::run } else { operate::check::run };
    check(path, output)?;
    if against_running { operate::check::against_running(path) } else { Ok(()) }
}
