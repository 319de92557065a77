//! `promptgate completions`, `promptgate man` and `promptgate --version`: documents that are made
//! of the command line's own definition, and of the variables of the build.

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use crate::cli::shared::args::{Cli, Output};
use crate::cli::shared::failure::Failure;
use crate::cli::shared::output::print;

const NAME: &str = "promptgate";

/// The commit and its date (RFC 3339), which `packaging/binary` sets. Other builds have no commit:
/// a build script that asked git would compile this crate again after each commit.
const COMMIT: Option<&str> = option_env!("PROMPTGATE_COMMIT");
const DATE: Option<&str> = option_env!("PROMPTGATE_DATE");

pub(crate) fn version(output: &Output) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let json = json!({"version": version, "commit": COMMIT, "date": DATE});
    output.print(&json, &format!("{NAME} {version}"))
}

pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}

pub(crate) fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut root = Cli::command();
    root.build();
    let described = match command {
        None => root,
        Some(name) => {
            let found = root.find_subcommand(name).cloned();
            let unknown =
                || Failure::usage(format!("there is no command {name:?}; see promptgate --help"));
            // The page is found as `man promptgate-serve`.
            found.ok_or_else(unknown)?.name(format!("{NAME}-{name}"))
        }
    };
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(described).render(&mut page);
    rendered.map_err(|error| Failure::new(format!("the page cannot be written: {error}")))?;
    print(String::from_utf8_lossy(&page).trim_end())
}
